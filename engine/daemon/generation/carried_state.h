/* carried_state.h - a state in place of a session: "state" in a request, "return_state" for one in the answer.
 *
 * The text is a blob (session_blob.h), sealed with the engine's key if it has one (sealed_text.h). A completion or chat
 * with either field gets a session of its own, which no other request finds and which ends with it. So the state that
 * is returned is that after the last token of the answer. */
#ifndef ENGINE_DAEMON_GENERATION_CARRIED_STATE_H
#define ENGINE_DAEMON_GENERATION_CARRIED_STATE_H

#include "engine/daemon/generation/choices.h"

/* Maximum bytes of a state in a request or an answer. */
enum { CARRIED_STATE_BYTES = 8 << 20 };

/* Read both fields of a request. The plan's model is set, its prompts are not yet read. STATUS_TOO_LARGE
 * "return_state": the model's state exceeds the limit. */
status carried_state_read(choices_plan *p, const json_t *params, error *err);
/* True if the model's state can be part of an answer, as far as is known before it is made. */
bool carried_state_fits(const model_entry *m);
/* Give a plan that is complete and has no session the one that its state needs, if any. STATUS_INVALID names a field
 * that cannot be used with a state. */
status carried_state_begin(stream *s, choices_plan *p, error *err);
/* Add the state to a result. False: out of memory. */
bool carried_state_add(const choices_plan *p, json_t *result);

#endif
