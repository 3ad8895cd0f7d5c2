/* session_blob.h - a session as bytes, to store it or to move it to another engine.
 *
 * Little-endian, without padding:
 *
 *   magic "addstate" | version u32 | flags u32 | model hash u64 | tokens u64 |
 *   state floats u64 | vocabulary u64 | log floats per token u64 (0: no log) |
 *   state f32 […] | logits f32 [vocabulary] | token ids i32 [tokens] |
 *   log f32 [tokens][…] | XXH3 of everything before, u64
 *
 * Version 2 is that of a session with a source: source tokens u64 follows the log floats, and the source's token ids,
 * i32 [source tokens], follow the log. All other sessions are written as version 1.
 *
 * flags: bits 0-1 the position policy, bit 2 explain, bit 3 durable. The model hash is served_model.hash, which is derived from
 * the files of the model and never from a text that a program prints today.
 *
 * A state that is kept as codes counts in floats too (engine/tensor/ops/softmax_stream.h). What a model's sessions keep
 * may change from one version of the engine to the next, and then so does the number of its floats: a blob with another
 * number is refused.
 *
 * The checksum detects damage, not malice: a blob is untrusted input, so every count is checked against the model and
 * the length, and every token id against the vocabulary; a source's count in the state never exceeds its room. State,
 * logits and log are plain numbers, never used as an address or a count; forged ones give wrong results only. */
#ifndef ENGINE_SERVE_SESSION_BLOB_H
#define ENGINE_SERVE_SESSION_BLOB_H

#include "engine/serve/session.h"

/* Run the next step of an export, of at most SESSION_STEP bytes; the first allocates t->blob. x is ready and does not
 * change before t->done. */
status session_blob_write(session *x, session_transfer *t, error *err);
/* Begin an import of a blob that scheduler_transfer_check has found good: a new session, to be filled by
 * session_blob_read. STATUS_CORRUPT for a blob that
 * contradicts itself, STATUS_INVALID for another model's state, STATUS_UNSUPPORTED for one of another size. */
status session_blob_open(session **out, served_model *m, const char *id, session_transfer *t, error *err);
/* Run the next step of that import. After an error the session can only be freed. */
status session_blob_read(session *x, session_transfer *t, error *err);

#endif
