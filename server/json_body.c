/* The parser refuses an integer of more than 63 bits before its field is known. Such a number is replaced by a real of
 * nearly the same value, by writing "e2" over its last two digits, and the text is parsed again. The field's own check
 * then refuses it, with the field's name and range. */
#include "server/json_body.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"

enum { JSON_BODY_FLAGS = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, JSON_BODY_DIGITS = 19 };

__attribute__((format(printf, 3, 4))) static problem json_body_problem(int status, const char *code, const char *format,
                                                                       ...)
{
	va_list arguments;
	va_start(arguments, format);
	problem p = problem_make(status, code, NULL, format, arguments);
	va_end(arguments);
	return p;
}

/* Make the integer that ends at `end` a real. False when there is none as large. */
static bool json_body_widen(char *text, size_t end)
{
	size_t digits = 0;
	while (digits < end && isdigit((unsigned char)text[end - 1 - digits]))
		digits++;
	if (digits < JSON_BODY_DIGITS)
		return false;
	memcpy(text + end - 2, "e2", 2);
	return true;
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

/* A real without a fraction, such as 1.0 or 1e3, is an integer, as in JSON Schema, where a double holds it exactly. */
static json_t *json_body_integer(const json_t *real)
{
	double x = json_real_value(real);
	return fabs(x) <= 0x1p53 && x == trunc(x) ? json_integer((json_int_t)x) : NULL;
}

static void json_body_make_integers(json_t *json)
{
	const char *key;
	json_t *member, *integer;
	size_t i;
	json_object_foreach(json, key, member)
	{
		json_body_make_integers(member);
		if (json_is_real(member) && (integer = json_body_integer(member)) != NULL)
			json_object_set_new(json, key, integer);
	}
	json_array_foreach(json, i, member)
	{
		json_body_make_integers(member);
		if (json_is_real(member) && (integer = json_body_integer(member)) != NULL)
			json_array_set_new(json, i, integer);
	}
}

/* Parse an object; its integers become integers in every notation (1, 1.0, 1e0). NULL, with *out set, if the text is
 * not an object or memory ran out. The text may be changed. */
static json_t *json_body_parse(char *text, size_t bytes, problem *out)
{
	json_error_t where;
	json_t *json = json_memory_parse(text, bytes, JSON_BODY_FLAGS, &where);
	if (!json && !json_memory_failed() && json_error_code(&where) == json_error_numeric_overflow &&
	    json_body_widen(text, (size_t)where.position))
		json = json_memory_parse(text, bytes, JSON_BODY_FLAGS, &where);
	if (!json)
		*out = json_body_wrong(&where);
	else if (!json_is_object(json))
		*out = json_body_problem(400, "invalid_type", "the body must be a JSON object");
	if (json_is_object(json)) {
		json_body_make_integers(json);
		return json;
	}
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
