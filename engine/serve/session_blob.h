/* session_blob.h - a session as bytes, to be kept or carried to another engine.
 *
 * Little-endian, without padding:
 *
 *   magic "addstate" | version u32 | flags u32 | model hash u64 | tokens u64 |
 *   state floats u64 | vocabulary u64 | log floats per token u64 (0: no log) |
 *   state f32 […] | logits f32 [vocabulary] | token ids i32 [tokens] |
 *   log f32 [tokens][…] | FNV-1a of everything before, u64
 *
 * flags: bits 0-1 the position policy, bit 2 explain, bit 3 durable.
 *
 * The checksum finds damage, not malice: a blob is input from outside, so every count is checked against the
 * model and the length, and every token id against the vocabulary. State, logits and log are plain
 * numbers that nothing uses as an address or a count; at worst they are nonsense. */
#ifndef ENGINE_SERVE_SESSION_BLOB_H
#define ENGINE_SERVE_SESSION_BLOB_H

#include "engine/serve/session.h"

/* *out is malloc'ed; NULL on error. */
status session_blob_write(session *x, void **out, size_t *bytes, error *err);
/* STATUS_CORRUPT for damage, STATUS_UNSUPPORTED for another version, STATUS_INVALID for
 * another model's state. */
status session_blob_read(session **out, served_model *m, const char *id, const void *blob, size_t bytes, error *err);

#endif
