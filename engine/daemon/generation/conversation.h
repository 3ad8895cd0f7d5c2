/* conversation.h - messages as the prompt of a request.
 *
 * A session's tokens end with the model's answer and its end mark, a token that ends texts or the template's own mark.
 * An answer that was cut by its length has no mark. New messages begin after the mark, so each request has two possible
 * prompts, with and without it. The executor, which owns the session's tokens, chooses one (choices_prompts.choose). */
#ifndef ENGINE_DAEMON_GENERATION_CONVERSATION_H
#define ENGINE_DAEMON_GENERATION_CONVERSATION_H

#include "engine/daemon/generation/choices.h"

/* Fill the plan's prompt and what ends an answer, from messages and the model's chat template. continues: the session
 * has read something. STATUS_UNSUPPORTED: the template cannot be rendered. */
status conversation_read(choices_plan *plan, const json_t *messages, bool continues, error *err);
/* Fill in an empty prompt with which a session continues its answer, one that may call the plan's functions. Errors as
 * above. */
status conversation_resume(choices_plan *plan, error *err);

#endif
