/* The parser refuses an integer of more than 63 bits before its field is known. Such a number is replaced by a real of
 * nearly the same value, by writing "e2" over its last two digits, and the text is parsed again. The field's own check
 * then refuses it, with the field's name and range. */
#include "proto/body_json.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "proto/json_memory.h"

enum { FLAGS = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, DIGITS = 19 };

/* Make the integer that ends at `end` a real. False when there is none as large. */
static bool widen(char *text, size_t end)
{
	size_t digits = 0;
	while (digits < end && isdigit((unsigned char)text[end - 1 - digits]))
		digits++;
	if (digits < DIGITS)
		return false;
	memcpy(text + end - 2, "e2", 2);
	return true;
}

/* A real without a fraction, such as 1.0 or 1e3, is an integer, as in JSON Schema, where a double holds it exactly. */
static json_t *integer_of(const json_t *real)
{
	double x = json_real_value(real);
	return fabs(x) <= 0x1p53 && x == trunc(x) ? json_integer((json_int_t)x) : NULL;
}

/* Not in `except`, a member of some object. */
static void make_integers(json_t *json, const json_t *except)
{
	const char *key;
	json_t *member, *integer;
	size_t i;
	json_object_foreach(json, key, member)
	{
		if (member == except)
			continue;
		make_integers(member, except);
		if (json_is_real(member) && (integer = integer_of(member)) != NULL)
			json_object_set_new(json, key, integer);
	}
	json_array_foreach(json, i, member)
	{
		make_integers(member, except);
		if (json_is_real(member) && (integer = integer_of(member)) != NULL)
			json_array_set_new(json, i, integer);
	}
}

json_t *body_json_parse(char *text, size_t bytes, const char *holder, json_error_t *where)
{
	json_t *json = json_memory_parse(text, bytes, FLAGS, where);
	if (!json && !json_memory_failed() && json_error_code(where) == json_error_numeric_overflow &&
	    widen(text, (size_t)where->position))
		json = json_memory_parse(text, bytes, FLAGS, where);
	make_integers(json, json_object_get(holder ? json_object_get(json, holder) : json, "tools"));
	return json;
}
