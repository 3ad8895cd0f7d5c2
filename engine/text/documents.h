/* documents.h - documents from values of JSON, in the layouts that people publish:
 *
 *   {"text": "…"}
 *   {"prompt": "…", "completion": "…"}
 *   {"messages": [{"role": "…", "content": "…"}, …], "tools": […]}            OpenAI's format of fine-tuning
 *   {"conversations": [{"from": "human", "value": "…"}, …]}                   ShareGPT
 *   {"instruction": "…", "input": "…", "output": "…"}                         Alpaca
 *
 * Other members are ignored, null counts as absent. Members that would change what is learned and are not read, such as
 * "function_call", are refused by name. */
#ifndef ENGINE_TEXT_DOCUMENTS_H
#define ENGINE_TEXT_DOCUMENTS_H

#include "engine/text/jsonl.h"
#include "engine/text/tokenizer.h"

/* Properties of a piece of a document. */
enum {
	DOCUMENT_LAST = 1,  /* the document ends with it */
	DOCUMENT_PROMPT = 2 /* it is given to the model, not learned as its answer */
};
/* Receive a piece of a document, in order. how: options for tokenizer_encode; NULL: plain text. */
typedef status (*document_piece)(void *context, const char *text, size_t bytes, const encode_options *how, int kind,
                                 error *err);
/* Pass on a conversation's pieces; messages: in OpenAI's format, checked. tools: its functions, or NULL. `line` is for
 * error messages. */
typedef status (*document_chat)(const void *context, const json_t *messages, const json_t *tools, long line,
                                document_piece each, void *to, error *err);

/* Pass on every document of a piece of data. Errors as of jsonl_walk. */
status documents_read(const corpus_piece *piece, document_chat chat, const void *chat_context, document_piece each,
                      void *context, error *err);

#endif
