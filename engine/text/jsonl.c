/* Lines are cut first and parsed one by one, so that an error has a line number and memory
 * holds one document at a time. jansson checks the UTF-8 of every string. */
#include "engine/text/jsonl.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PARSE_FLAGS = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL };

typedef struct line {
	const char *text;
	size_t bytes;
} line;

/* The next line of what *rest holds, without its newline; false at the end. */
static bool next_line(line *rest, line *out)
{
	if (rest->bytes == 0)
		return false;
	const char *newline = memchr(rest->text, '\n', rest->bytes);
	size_t used = newline ? (size_t)(newline - rest->text) + 1 : rest->bytes;
	*out = (line){rest->text, newline ? used - 1 : used};
	rest->text += used;
	rest->bytes -= used;
	return true;
}

static bool is_blank(line l)
{
	for (size_t i = 0; i < l.bytes; i++)
		if (!strchr(" \t\r", l.text[i]) || !l.text[i])
			return false;
	return true;
}

bool jsonl_detect(const char *text, size_t bytes)
{
	line rest = {text, bytes}, first;
	do {
		if (!next_line(&rest, &first))
			return false;
	} while (is_blank(first));
	json_t *json = json_loadb(first.text, first.bytes, PARSE_FLAGS, NULL);
	bool found = json_is_object(json) || json_is_object(json_array_get(json, 0));
	json_decref(json);
	return found;
}

#define NEEDS "needs a string \"text\", strings \"prompt\" and \"completion\", or chat \"messages\""

status jsonl_refuse(error *err, long number, const char *format, ...)
{
	char why[300];
	va_list args;
	va_start(args, format);
	vsnprintf(why, sizeof why, format, args);
	va_end(args);
	return error_set(err, STATUS_INVALID, NULL, "line %ld: %s", number, why);
}

/* An object without any of the keys. */
static status other_keys(const json_t *object, long number, error *err)
{
	const char *key = json_object_iter_key(json_object_iter((json_t *)(uintptr_t)object));
	return jsonl_refuse(err, number, "%s%.40s%s; " NEEDS, key ? "has \"" : "is empty", key ? key : "",
	                    key ? "\"" : "");
}

typedef struct documents {
	jsonl_piece each;
	void *context;
	jsonl_chat chat;
	const void *chat_context;
} documents;

static status read_pair(const documents *d, const json_t *prompt, const json_t *completion, long number, error *err)
{
	if (!json_is_string(prompt) || !json_is_string(completion))
		return jsonl_refuse(err, number, NEEDS);
	TRY(d->each(d->context, json_string_value(prompt), json_string_length(prompt), NULL, JSONL_PROMPT, err));
	return d->each(d->context, json_string_value(completion), json_string_length(completion), NULL, JSONL_LAST,
	               err);
}

static status read_object(void *context, const json_t *object, long number, error *err)
{
	const documents *d = context;
	const json_t *text = json_object_get(object, "text"), *messages = json_object_get(object, "messages");
	const json_t *prompt = json_object_get(object, "prompt");
	const json_t *completion = json_object_get(object, "completion");
	if (!json_is_object(object))
		return jsonl_refuse(err, number, "not a JSON object; every line " NEEDS);
	if ((text != NULL) + (messages != NULL) + (prompt || completion) > 1)
		return jsonl_refuse(err, number, "%s in one object",
		                    !messages ? "\"text\" and \"prompt\" or \"completion\""
		                              : "\"messages\" and \"text\", \"prompt\" or \"completion\"");
	if (messages)
		return d->chat(d->chat_context, messages, number, d->each, d->context, err);
	if (prompt || completion)
		return read_pair(d, prompt, completion, number, err);
	if (!text)
		return other_keys(object, number, err);
	if (!json_is_string(text))
		return jsonl_refuse(err, number, "\"text\" is not a string");
	return d->each(d->context, json_string_value(text), json_string_length(text), NULL, JSONL_LAST, err);
}

status jsonl_walk(const char *text, size_t bytes, long first, jsonl_object each, void *context, error *err)
{
	line rest = {text, bytes}, l;
	for (long number = first; next_line(&rest, &l); number++) {
		if (is_blank(l))
			continue;
		json_error_t where;
		json_t *value = json_loadb(l.text, l.bytes, PARSE_FLAGS, &where);
		if (!value)
			return jsonl_refuse(err, number, "%s", where.text);
		status s = each(context, value, number, err);
		json_decref(value);
		TRY(s);
	}
	return STATUS_OK;
}

status jsonl_read(const char *text, size_t bytes, long first, jsonl_chat chat, const void *chat_context,
                  jsonl_piece each, void *context, error *err)
{
	documents d = {each, context, chat, chat_context};
	return jsonl_walk(text, bytes, first, read_object, &d, err);
}
