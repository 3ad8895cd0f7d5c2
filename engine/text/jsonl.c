/* Lines are cut first and parsed one by one, so that an error has a line number and memory
 * holds one document at a time. jansson checks the UTF-8 of every string. */
#include "engine/text/jsonl.h"

#include <jansson.h>
#include <stdint.h>
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

#define NEEDS "needs a string \"text\", or strings \"prompt\" and \"completion\""

static status bad_line(error *err, long number, const char *why)
{
	return error_set(err, STATUS_INVALID, NULL, "line %ld: %s", number, why);
}

/* An object without any of the keys. */
static status other_keys(const json_t *object, long number, error *err)
{
	if (json_object_get(object, "messages"))
		return bad_line(err, number,
		                "chat \"messages\" are not read; " NEEDS " that hold the whole conversation");
	const char *key = json_object_iter_key(json_object_iter((json_t *)(uintptr_t)object));
	return error_set(err, STATUS_INVALID, NULL, "line %ld: %s%.40s%s; " NEEDS, number, key ? "has \"" : "is empty",
	                 key ? key : "", key ? "\"" : "");
}

static status read_object(const json_t *object, long number, jsonl_piece each, void *context, error *err)
{
	const json_t *text = json_object_get(object, "text");
	const json_t *prompt = json_object_get(object, "prompt");
	const json_t *completion = json_object_get(object, "completion");
	if (!json_is_object(object))
		return bad_line(err, number, "not a JSON object; every line " NEEDS);
	if (text && (prompt || completion))
		return bad_line(err, number, "\"text\" and \"prompt\" or \"completion\" in one object");
	if (text) {
		if (!json_is_string(text))
			return bad_line(err, number, "\"text\" is not a string");
		return each(context, json_string_value(text), json_string_length(text), true, err);
	}
	if (!prompt && !completion)
		return other_keys(object, number, err);
	if (!json_is_string(prompt) || !json_is_string(completion))
		return bad_line(err, number, NEEDS);
	TRY(each(context, json_string_value(prompt), json_string_length(prompt), false, err));
	return each(context, json_string_value(completion), json_string_length(completion), true, err);
}

status jsonl_read(const char *text, size_t bytes, jsonl_piece each, void *context, error *err)
{
	line rest = {text, bytes}, l;
	for (long number = 1; next_line(&rest, &l); number++) {
		if (is_blank(l))
			continue;
		json_error_t where;
		json_t *object = json_loadb(l.text, l.bytes, PARSE_FLAGS, &where);
		if (!object)
			return bad_line(err, number, where.text);
		status s = read_object(object, number, each, context, err);
		json_decref(object);
		TRY(s);
	}
	return STATUS_OK;
}
