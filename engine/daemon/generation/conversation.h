/* conversation.h - messages as the prompt of a request.
 *
 * A session holds a conversation up to the model's answer, which it has read with what ended it: a token that ends
 * texts, or the template's own mark; or without, where the answer was cut by its length. New messages follow the end of
 * the answer. So for a session there are two prompts, with and without the mark, and the executor, which knows the
 * session's tokens, takes the one that fits. */
#ifndef ENGINE_DAEMON_GENERATION_CONVERSATION_H
#define ENGINE_DAEMON_GENERATION_CONVERSATION_H

#include "engine/daemon/generation/choices.h"

/* Fill the plan's prompt, and what ends an answer, from messages by the chat template of its model. continues: of a
 * session that has read something. STATUS_UNSUPPORTED: the template cannot be rendered. */
status conversation_read(choices_plan *plan, const json_t *messages, bool continues, error *err);

#endif
