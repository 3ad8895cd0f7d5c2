/* session_blob.h - a session as bytes, to store it or to move it to another engine.
 *
 * Little-endian, without padding:
 *
 *   magic "addstate" | version u32 | flags u32 | model hash u64 | tokens u64 | state floats u64 | vocabulary u64 |
 *   log floats per token u64 (0: no log) |
 *   state f32 […] | logits f32 [vocabulary] | token ids i32 [tokens] | log f32 [tokens][…] |
 *   XXH3 of everything before, u64
 *
 * A session with a source is version 2: source tokens u64 follows the log floats, and the source's token ids, i32
 * [source tokens], follow the log. All others are version 1. If the state has running sums (engine/model/states.h), the
 * version is 2 higher. In versions 1 and 2 such a state has logarithms in their place: it is converted when it is read,
 * never written.
 *
 * flags: bits 0-1 the position policy, bit 2 explain, bit 3 durable. The model hash is served_model.hash. It is derived
 * from the model's files only, not from any text that a program prints.
 *
 * A state that is kept as codes is counted in floats too (engine/tensor/ops/softmax_stream.h). If a later version of
 * the engine keeps another state, its number of floats changes, and a blob with another number is refused.
 *
 * A bare blob (prefixes.h) has vocabulary 0, no logits, and of the state only what tokens have written
 * (state_list_pieces). Other blobs have zeros for the rest. It is never accepted in place of another, nor another in its
 * place.
 *
 * The checksum detects damage, not malice: a blob is untrusted input. Every count is checked against the model and the
 * length, and every token id against the vocabulary. The source count in the state never exceeds its capacity. State,
 * logits and log are plain numbers, never used as an address or a count; forged ones give wrong results only. */
#ifndef ENGINE_SERVE_SESSION_BLOB_H
#define ENGINE_SERVE_SESSION_BLOB_H

#include "engine/serve/session.h"

/* Export at most SESSION_STEP bytes more; the first call allocates t->blob. x must be ready and must not change before
 * t->done. */
status session_blob_write(session *x, session_transfer *t, error *err);
/* Start an import of a blob that scheduler_transfer_check has accepted, or that session_blob_leave has made: create a
 * session for session_blob_read to fill.
 * STATUS_CORRUPT: the blob contradicts itself. STATUS_INVALID: it belongs to another model. STATUS_UNSUPPORTED: its
 * state has another size. */
status session_blob_open(session **out, served_model *m, const char *id, session_transfer *t, error *err);
/* Import the next step. After an error the session can only be freed. */
status session_blob_read(session *x, session_transfer *t, error *err);

/* Return the bytes of a bare blob of x, without a source. */
int64_t session_blob_bare_bytes(const session *x);
/* Make *t the bare blob of a held session (session_hold_new), which is given away. Only its header is written.
 * STATUS_NOMEM: *t is empty. */
status session_blob_give(session *held, session_transfer *t);
/* Make *t the blob of x in the same way. t->held is a copy of x that session_fork_step fills in. STATUS_NOMEM. */
status session_blob_leave(session *x, session_transfer *t, error *err);
/* Read the state of t->held, which has its tokens only, from this blob instead; then t->done. Any thread.
 * STATUS_CORRUPT: it is damaged, or of other tokens or another model. */
status session_blob_take(session_transfer *t, const void *blob, size_t bytes);

#endif
