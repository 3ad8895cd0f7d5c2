#include "engine/text/preferences.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/dataset_private.h"
#include "engine/text/document_tokens.h"

/* --- a line as two documents -------------------------------------------------------------------- */

#define NEEDS "\"prompt\", \"chosen\" and \"rejected\", or \"input\", \"preferred_output\" and \"non_preferred_output\""

/* The members of a line. */
typedef struct preference_line {
	const json_t *prompt, *tools;
	const json_t *completion[PREFERENCE_SEQUENCES];
	const char *key[PREFERENCE_SEQUENCES];
} preference_line;

static status find_members(preference_line *out, const json_t *object, long line, error *err)
{
	if (!json_is_object(object))
		return jsonl_refuse(err, line, "not a JSON object; every line needs " NEEDS);
	const json_t *input = jsonl_member(object, "input");
	if (input)
		*out = (preference_line){jsonl_member(input, "messages"), jsonl_member(input, "tools"),
		                         .key = {"preferred_output", "non_preferred_output"}};
	else
		*out = (preference_line){jsonl_member(object, "prompt"), jsonl_member(object, "tools"),
		                         .key = {"chosen", "rejected"}};
	bool complete = out->prompt;
	for (int i = 0; i < PREFERENCE_SEQUENCES; i++) {
		out->completion[i] = jsonl_member(object, out->key[i]);
		complete = complete && out->completion[i];
	}
	if (!complete)
		return jsonl_refuse_keys(err, line, object, NEEDS);
	const bool messages = input || json_is_array(out->prompt);
	if (messages ? !json_is_array(out->prompt) : !json_is_string(out->prompt))
		return jsonl_refuse(err, line,
		                    input ? "\"input.messages\" must be an array of messages"
		                          : "\"prompt\" must be a string or an array of messages");
	for (int i = 0; i < PREFERENCE_SEQUENCES; i++) {
		const json_t *message = json_array_get(out->completion[i], 0);
		const char *role = json_string_value(json_object_get(message, "role"));
		if (messages ? json_array_size(out->completion[i]) != 1 || !role || strcmp(role, "assistant") != 0
		             : !json_is_string(out->completion[i]))
			return jsonl_refuse(err, line,
			                    messages ? "\"%s\" must be one message of the assistant"
			                             : "\"%s\" must be a string, like the prompt",
			                    out->key[i]);
	}
	return STATUS_OK;
}

/* The messages of the prompt, none of which is learned, and the completion. NULL: out of memory. */
static json_t *make_conversation(const json_t *prompt, const json_t *completion)
{
	json_t *messages = json_deep_copy(prompt), *message, *answer = json_deep_copy(json_array_get(completion, 0));
	size_t i;
	bool ok = messages && answer;
	json_object_del(answer, "weight");
	json_array_foreach(messages, i, message) ok =
	    ok && (!json_is_object(message) || json_object_set_new(message, "weight", json_integer(0)) == 0);
	if (ok && json_array_append(messages, answer) == 0) {
		json_decref(answer);
		return messages;
	}
	json_decref(messages);
	json_decref(answer);
	return NULL;
}

static status pass_conversation(const conversation_template *chat, const preference_line *l, int i, long line,
                                document_piece each, void *context, error *err)
{
	json_t *messages = make_conversation(l->prompt, l->completion[i]);
	const status s = messages ? conversation_pieces(chat, messages, l->tools, line, each, context, err)
	                          : error_no_memory(err, "a conversation");
	json_decref(messages);
	return s;
}

static status pass_texts(const json_t *prompt, const json_t *completion, document_piece each, void *context, error *err)
{
	TRY(each(context, json_string_value(prompt), json_string_length(prompt), NULL, DOCUMENT_PROMPT, err));
	return each(context, json_string_value(completion), json_string_length(completion), NULL, DOCUMENT_LAST, err);
}

status preferences_pieces(const conversation_template *chat, const json_t *object, long line, document_piece each,
                          void *context, error *err)
{
	preference_line l = {0};
	TRY(find_members(&l, object, line, err));
	for (int i = 0; i < PREFERENCE_SEQUENCES; i++)
		TRY(json_is_array(l.prompt) ? pass_conversation(chat, &l, i, line, each, context, err)
		                            : pass_texts(l.prompt, l.completion[i], each, context, err));
	return STATUS_OK;
}

/* --- documents as records ------------------------------------------------------------------------ */

typedef struct collection {
	const conversation_template *chat;
	record_writer writer;
	document_tokens encoder;
	int32_t *ids; /* ids of a sequence: [length] */
	int64_t length, count, prompt;
	bool answered; /* the sequence has a piece of its completion */
} collection;

static status add_document_piece(void *context, const char *text, size_t bytes, const encode_options *how, int kind, error *err)
{
	collection *c = context;
	token_list tokens = {0};
	TRY(document_tokens_encode(&c->encoder, text, bytes, how, kind, &tokens, err));
	const int64_t left = c->length - c->count, n = (int64_t)tokens.count < left ? (int64_t)tokens.count : left;
	if (n > 0)
		memcpy(c->ids + c->count, tokens.ids, (size_t)n * sizeof *c->ids);
	token_list_fini(&tokens);
	c->count += n;
	c->answered |= !(kind & DOCUMENT_PROMPT);
	if (!c->answered)
		c->prompt = c->count;
	if (!(kind & DOCUMENT_LAST))
		return STATUS_OK;
	const status s = record_writer_add(&c->writer, c->ids, c->count, (int32_t)c->prompt, err);
	c->count = c->prompt = 0;
	c->answered = false;
	return s;
}

static status add_line(void *context, const json_t *object, long line, error *err)
{
	collection *c = context;
	return preferences_pieces(c->chat, object, line, add_document_piece, c, err);
}

status preferences_build(record_text *out, byte_source *source, const tokenizer *t, int64_t length,
                         const corpus_tokens_options *o, error *err)
{
	collection c = {.chat = o->chat, .encoder.t = t, .length = length};
	const record_maker maker = {.line = add_line, .writer = &c.writer, .context = &c};
	status s = STATUS_NOMEM;
	*out = (record_text){0};
	c.ids = memory_new((size_t)length, sizeof *c.ids);
	if (c.ids) {
		s = record_text_build(out, source, t, &maker, o, err);
	} else {
		byte_source_free(source);
		error_no_memory(err, "the records of the text");
	}
	free(c.ids);
	return s;
}

status preferences_make(dataset **train, dataset **valid, const tokenizer *t, const record_text *x, int64_t length,
                        double fraction, error *err)
{
	const record_source source = {.kind = RECORD_PREFERENCE, .text = x, .length = length};
	return records_make(train, valid, t, &source, fraction, err);
}
