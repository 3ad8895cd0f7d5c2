/* conversation.h - messages as the prompt of a request.
 *
 * A session contains a conversation up to the model's answer and what ended it: a token that ends texts, or the
 * template's own mark. If the answer was cut by its length, there is neither. New messages follow the end of the
 * answer. A session therefore has two possible prompts, with and without the mark, and the executor, which knows the
 * session's tokens, takes the right one. */
#ifndef ENGINE_DAEMON_GENERATION_CONVERSATION_H
#define ENGINE_DAEMON_GENERATION_CONVERSATION_H

#include "engine/daemon/generation/choices.h"

/* Fill the plan's prompt and what ends an answer, from messages and the model's chat template. continues: the session
 * has read something. STATUS_UNSUPPORTED: the template cannot be rendered. */
status conversation_read(choices_plan *plan, const json_t *messages, bool continues, error *err);

#endif
