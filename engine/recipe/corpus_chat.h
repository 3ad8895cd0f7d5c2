/* corpus_chat.h - the chat template that training data are read with: the model's, or why it cannot be used, which
 * matters only where there are conversations. */
#ifndef ENGINE_RECIPE_CORPUS_CHAT_H
#define ENGINE_RECIPE_CORPUS_CHAT_H

#include "engine/text/conversation.h"

typedef struct corpus_chat {
	chat_template *own;
	error problem;
	conversation_template use; /* points to both: the struct must not move */
	uint64_t digest;           /* digest of the template, without the tokenizer's files */
} corpus_chat;

/* config: the model's; NULL: none. STATUS_NOMEM. */
status corpus_chat_open(corpus_chat *out, const tokenizer *t, const json_t *config, error *err);
void corpus_chat_close(corpus_chat *c);

#endif
