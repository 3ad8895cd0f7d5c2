#include "engine/text/documents.h"

#include <stdint.h>

#include "engine/text/messages.h"

#define NEEDS                                                                                                          \
	"\"text\", \"prompt\" and \"completion\", \"messages\", \"conversations\", or \"instruction\" and \"output\""

typedef struct documents {
	document_piece each;
	void *context;
	document_chat chat;
	const void *chat_context;
} documents;

static status read_pair(const documents *d, const json_t *prompt, const json_t *completion, long line, error *err)
{
	if (!json_is_string(prompt) || !json_is_string(completion))
		return jsonl_refuse(err, line, "needs strings \"prompt\" and \"completion\"");
	TRY(d->each(d->context, json_string_value(prompt), json_string_length(prompt), NULL, DOCUMENT_PROMPT, err));
	return d->each(d->context, json_string_value(completion), json_string_length(completion), NULL, DOCUMENT_LAST,
	               err);
}

static status read_text(const documents *d, const json_t *text, long line, error *err)
{
	if (!json_is_string(text))
		return jsonl_refuse(err, line, "\"text\" is not a string");
	return d->each(d->context, json_string_value(text), json_string_length(text), NULL, DOCUMENT_LAST, err);
}

static status read_object(void *context, const json_t *object, long line, error *err)
{
	const documents *d = context;
	const json_t *text = jsonl_member(object, "text"), *prompt = jsonl_member(object, "prompt"),
	             *completion = jsonl_member(object, "completion");
	const json_t *tools;
	json_t *messages;
	if (!json_is_object(object))
		return jsonl_refuse(err, line, "not a JSON object; every value needs " NEEDS);
	TRY(messages_read(&messages, &tools, object, line, err));
	/* Alpaca's own files repeat instruction, input and output as one "text". */
	if (jsonl_member(object, "instruction"))
		text = NULL;
	status s = (text != NULL) + (messages != NULL) + (prompt || completion) > 1
	               ? jsonl_refuse(err, line, "%s in one object",
	                              !messages ? "\"text\" and \"prompt\" or \"completion\""
	                                        : "a conversation and \"text\", \"prompt\" or \"completion\"")
	           : messages             ? d->chat(d->chat_context, messages, tools, line, d->each, d->context, err)
	           : prompt || completion ? read_pair(d, prompt, completion, line, err)
	           : text                 ? read_text(d, text, line, err)
	                                  : jsonl_refuse_keys(err, line, object, NEEDS);
	json_decref(messages);
	return s;
}

status documents_read(const corpus_piece *piece, document_chat chat, const void *chat_context, document_piece each,
                      void *context, error *err)
{
	documents d = {each, context, chat, chat_context};
	return jsonl_walk(piece, read_object, &d, err);
}
