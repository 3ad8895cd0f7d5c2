/* chat_thinking.h - the reasoning in the answers of a conversation (internal).
 *
 * For forms with the rule CHAT_THINKS. An answer is "<think>", its reasoning, "</think>" and its text. The reasoning is
 * part of the conversation only after its last question; it is dropped from earlier answers. */
#ifndef ENGINE_TEXT_CHAT_THINKING_H
#define ENGINE_TEXT_CHAT_THINKING_H

#include "engine/text/chat_builder.h"

/* Index of the first message after the last question. A result that is written as a user's message is no question.
 * continues: the conversation has earlier messages. */
size_t chat_thinking_begin(const json_t *messages, bool continues);
/* Replace an answer, the text from `first` on, by the form that the template has for it. reasons: it is after the last
 * question; last: no message follows. *text: it has text besides the reasoning. STATUS_NOMEM. */
status chat_thinking_rewrite(chat_builder *b, size_t first, bool reasons, bool last, bool *text);

#endif
