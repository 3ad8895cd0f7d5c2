/* messages.h - conversations of training data as messages in OpenAI's format, which chat_template.h renders. */
#ifndef ENGINE_TEXT_MESSAGES_H
#define ENGINE_TEXT_MESSAGES_H

#include "engine/text/jsonl.h"

/* The messages of an object in the layout of OpenAI, ShareGPT or Alpaca (documents.h), a new reference. NULL with
 * STATUS_OK: another layout. *tools: the functions beside them, borrowed; NULL: none. STATUS_INVALID names the line and
 * the member. */
status messages_read(json_t **out, const json_t **tools, const json_t *object, long line, error *err);
/* True if an assistant's message is learned: without "weight", or with 1. */
bool messages_is_answer(const json_t *message);

#endif
