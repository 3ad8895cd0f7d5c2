/* conversation.h - chat messages as pieces of a document, with the template that the model is used with
 * (chat_template.h).
 *
 * The assistant's messages, up to the end of their turns, are the text that a model learns to write. Everything else is
 * prompt, including messages with the weight 0. Pieces are divided where a request's prompt would end, so a model reads
 * the same in training and in use. */
#ifndef ENGINE_TEXT_CONVERSATION_H
#define ENGINE_TEXT_CONVERSATION_H

#include "engine/text/chat_template.h"
#include "engine/text/documents.h"

/* The template of conversations, or the error that prevents one. */
typedef struct conversation_template {
	const chat_template *chat; /* NULL: see `problem` */
	const error *problem;
} conversation_template;

/* A document_chat; context: a conversation_template. Errors name the line whose messages the template refuses. */
status conversation_pieces(const void *context, const json_t *messages, const json_t *tools, long line,
                           document_piece each, void *to, error *err);

#endif
