#include "server/json_body.h"

#include <stdlib.h>
#include <string.h>

#include "proto/body_json.h"
#include "proto/json_memory.h"

__attribute__((format(printf, 3, 4))) static problem json_body_problem(int status, const char *code, const char *format,
                                                                       ...)
{
	va_list arguments;
	va_start(arguments, format);
	problem p = problem_make(status, code, NULL, format, arguments);
	va_end(arguments);
	return p;
}

static problem json_body_wrong(const json_error_t *where)
{
	if (json_memory_failed())
		return json_body_problem(503, "out_of_memory", "out of memory");
	switch (json_error_code(where)) {
	case json_error_null_byte_in_key:
		return json_body_problem(400, "invalid_value", "the name of a member holds U+0000 (line %d, column %d)",
		                         where->line, where->column);
	case json_error_numeric_overflow:
		return json_body_problem(400, "out_of_range",
		                         "a number is out of range (line %d, column %d): integers have at most 63 bits "
		                         "and a sign",
		                         where->line, where->column);
	default:
		return json_body_problem(400, "invalid_json", "the body is not valid JSON: %s (line %d, column %d)",
		                         where->text, where->line, where->column);
	}
}

/* Parse an object. NULL, with *out set, if the text is not an object or memory ran out. The text may be changed. */
static json_t *json_body_parse(char *text, size_t bytes, problem *out)
{
	json_error_t where;
	json_t *json = body_json_parse(text, bytes, NULL, &where);
	if (json_is_object(json))
		return json;
	*out =
	    json ? json_body_problem(400, "invalid_type", "the body must be a JSON object") : json_body_wrong(&where);
	json_decref(json);
	return NULL;
}

/* Move the member to the text: printed as an object, whose braces are left out. */
static bool json_body_move(json_body *b, const char *key, json_t *value)
{
	json_t *alone = json_pack("{s:O}", key, value);
	char *text = json_memory_print(alone, JSON_COMPACT);
	size_t bytes = text ? strlen(text) : 0;
	if (bytes > JSON_BODY_MEMBER) {
		buffer_append(&b->members, ",", 1);
		buffer_append(&b->members, text + 1, bytes - 2);
		json_object_del(b->json, key);
	}
	free(text);
	json_decref(alone);
	return text && !b->members.failed;
}

static bool json_body_move_large(json_body *b)
{
	const char *key;
	json_t *value;
	void *next;
	bool ok = true;
	json_object_foreach_safe(b->json, next, key, value)
	{
		ok = ok && json_body_move(b, key, value);
	}
	return ok;
}

void json_body_read(json_body *out, char *text, size_t bytes, const schema *expected)
{
	schema_error error;
	*out = (json_body){0};
	out->json = json_body_parse(text, bytes, &out->problem);
	if (!out->json)
		return;
	if (expected && !schema_check(expected, out->json, &error))
		out->problem = problem_from_schema(&error);
	else if (bytes >= JSON_BODY_LARGE && !json_body_move_large(out))
		out->problem = json_body_problem(503, "out_of_memory", "out of memory");
	else
		return;
	json_body_fini(out);
}

void json_body_fini(json_body *b)
{
	json_decref(b->json);
	b->json = NULL;
	buffer_fini(&b->members);
}

char *json_body_join(char *text, const buffer *members)
{
	static const char end[] = "}}";
	size_t head = strlen(text) - strlen(end);
	size_t comma = text[head - 1] == '{'; /* the first member has none before it */
	char *whole = realloc(text, head + members->used - comma + sizeof end);
	if (!whole) {
		free(text);
		return NULL;
	}
	memcpy(whole + head, members->data + comma, members->used - comma);
	memcpy(whole + head + members->used - comma, end, sizeof end);
	return whole;
}
