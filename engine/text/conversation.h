/* conversation.h - chat messages as pieces of a document, by the template with which the model will be asked
 * (chat_template.h). What an assistant says, up to the end of its turn, is what a model should write; all else is
 * prompt, also a message with the weight 0. Pieces are divided where a request's prompt would end, so a model reads in training what it reads in use. */
#ifndef ENGINE_TEXT_CONVERSATION_H
#define ENGINE_TEXT_CONVERSATION_H

#include "engine/text/chat_template.h"
#include "engine/text/documents.h"

/* The template of conversations, or why there is none. */
typedef struct conversation_template {
	const chat_template *chat; /* NULL: `problem` says why */
	const error *problem;
} conversation_template;

/* A document_chat; context: a conversation_template. Errors name the line: what the template refuses. */
status conversation_pieces(const void *context, const json_t *messages, long line, document_piece each, void *to,
                           error *err);

#endif
