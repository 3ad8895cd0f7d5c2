/* schema.c - one recursive descent over a table and a JSON value side by side.
 *
 * The current position is a chain of places on the stack, which becomes text only on an error. The message is always
 * "'PLACE' must be EXPECTED, not GIVEN", built from the table's own row, so it cannot disagree with the check. A
 * general JSON Schema validator was rejected: it would be the larger part of this folder, and its messages name rules
 * instead of fields.
 *
 * In a union, the walker picks the first alternative that has the value's type; for arrays it also looks at the first
 * element. Only that alternative's errors are reported, so [1, "a"] is an array of integers with a bad element. */
#include "proto/schema.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "proto/nearest.h"

typedef struct place {
	const struct place *up;
	const char *name; /* NULL: an element */
	size_t index;
} place;

enum { EXPECTED_BYTES = 160, GIVEN_BYTES = 64, SHOWN_STRING = 40, SHOWN_PLACE = 80 };

static bool check(const field *f, json_t *json, const place *at, schema_error *err);

/* --- texts ------------------------------------------------------------------------ */

/* Append; what does not fit is cut off, between characters. */
__attribute__((format(printf, 3, 4))) static void append(char *out, size_t size, const char *format, ...)
{
	size_t used = strlen(out);
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(out + used, size - used, format, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length < size - used)
		return;

	/* out[lead] begins the last character: is the whole of it there? */
	size_t end = size - 1, lead = end;

	while (lead > used && ((unsigned char)out[--lead] & 0xc0) == 0x80)
		;
	unsigned char c = (unsigned char)out[lead];
	if (end > used && lead + (c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4) > end)
		out[lead] = '\0';
}

static void write_place(const place *at, char *out, size_t size)
{
	if (!at)
		return;
	write_place(at->up, out, size);
	if (!at->name)
		append(out, size, "[%zu]", at->index);
	else
		append(out, size, "%s%s", *out ? "." : "", at->name);
}

/* " from A to B" of a value; " of A to B UNIT" of a length. */
static void write_bounds(const field *f, const char *unit, char *out, size_t size)
{
	if (f->min == 0 && f->max == 0 && f->type == FIELD_INTEGER)
		append(out, size, " from %lld to %lld", LLONG_MIN, LLONG_MAX);
	else if (f->min == 0 && f->max == 0)
		append(out, size, "%s%s", f->type == FIELD_ARRAY ? " of" : "", f->type == FIELD_ARRAY ? unit : "");
	else if (f->exclusive)
		append(out, size, " above %.10g and at most %.10g", f->min, f->max);
	else if (!*unit)
		append(out, size, " from %.10g to %.10g", f->min, f->max);
	else if (f->min <= 0)
		append(out, size, " of at most %.10g%s", f->max, unit);
	else if (f->min == f->max)
		append(out, size, " of %.10g%s", f->min, unit);
	else
		append(out, size, " of %.10g to %.10g%s", f->min, f->max, unit);
}

static void write_choices(const field *f, char *out, size_t size)
{
	const char *quote = f->type == FIELD_STRING ? "\"" : "";

	for (int i = 0; f->choices[i]; i++)
		append(out, size, "%s%s%s%s",
		       i == 0              ? ""
		       : f->choices[i + 1] ? ", "
		                           : " or ",
		       quote, f->choices[i], quote);
}

static void write_expected(const field *f, char *out, size_t size)
{
	static const char *const names[] = {
	    [FIELD_STRING] = "a string",       [FIELD_INTEGER] = "an integer", [FIELD_NUMBER] = "a number",
	    [FIELD_BOOLEAN] = "true or false", [FIELD_OBJECT] = "an object",   [FIELD_ARRAY] = "an array",
	    [FIELD_ANY] = "anything",          [FIELD_IGNORED] = "anything",   [FIELD_UNION] = ""};
	static const char *const plurals[] = {
	    [FIELD_STRING] = " strings",   [FIELD_INTEGER] = " integers", [FIELD_NUMBER] = " numbers",
	    [FIELD_BOOLEAN] = " booleans", [FIELD_OBJECT] = " objects",   [FIELD_ARRAY] = " arrays",
	    [FIELD_ANY] = " elements",     [FIELD_IGNORED] = " elements", [FIELD_UNION] = " elements"};
	const char *unit = "";

	if (f->choices) {
		write_choices(f, out, size);
		return;
	}
	if (f->type == FIELD_STRING)
		unit = " bytes";
	else if (f->type == FIELD_OBJECT)
		unit = " members";
	else if (f->type == FIELD_ARRAY)
		unit = plurals[f->items ? f->items->type : f->nested ? FIELD_OBJECT : FIELD_ANY];
	if (f->type == FIELD_ARRAY && f->min < 0 && f->max == 0) {
		append(out, size, "an empty array");
		return;
	}
	append(out, size, "%s", names[f->type]);
	write_bounds(f, unit, out, size);
	for (const field *a = f->items; f->type == FIELD_UNION && a->name; a++) {
		append(out, size, "%s", a == f->items ? "" : a[1].name ? ", " : " or ");
		write_expected(a, out, size);
	}
}

/* A string, or any string inside. The parser refuses names of members that hold one. */
static bool holds_nul(const json_t *json)
{
	const char *key;
	json_t *value;
	bool held = false;

	if (json_is_string(json))
		return strlen(json_string_value(json)) != json_string_length(json);
	for (size_t i = 0; !held && i < json_array_size(json); i++)
		held = holds_nul(json_array_get(json, i));
	json_object_foreach((json_t *)(uintptr_t)json, key, value)
	{
		held = held || holds_nul(value);
	}
	return held;
}

static void write_given(const json_t *json, char *out, size_t size)
{
	switch (json_typeof(json)) {
	case JSON_STRING:
		if (holds_nul(json))
			append(out, size, "one with U+0000");
		else if (json_string_length(json) <= SHOWN_STRING)
			append(out, size, "\"%s\"", json_string_value(json));
		else
			append(out, size, "a string of %zu bytes", json_string_length(json));
		break;
	case JSON_INTEGER:
		append(out, size, "%lld", (long long)json_integer_value(json));
		break;
	case JSON_REAL: {
		char text[32];

		snprintf(text, sizeof(text), "%.10g", json_real_value(json));
		append(out, size, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
	} break;
	case JSON_ARRAY:
		append(out, size, "an array of length %zu", json_array_size(json));
		break;
	case JSON_OBJECT:
		append(out, size, "an object of size %zu", json_object_size(json));
		break;
	default:
		append(out, size, "%s", json_is_true(json) ? "true" : json_is_false(json) ? "false" : "null");
	}
}

/* --- errors; all return false --------------------------------------------------------- */

static bool wrong(const place *at, const char *code, schema_error *err, const char *text)
{
	*err = (schema_error){0};
	write_place(at, err->param, sizeof(err->param));
	append(err->code, sizeof(err->code), "%s", code);
	if (at)
		append(err->message, SHOWN_PLACE, "'%s", err->param);
	append(err->message, sizeof(err->message), "%s %s", at ? "'" : "the request", text);
	return false;
}

static void offer_choices(const field *f, nearest *near)
{
	for (int i = 0; f->choices && f->choices[i]; i++)
		nearest_offer(near, f->choices[i]);
	for (const field *a = f->items; f->type == FIELD_UNION && a->name; a++)
		offer_choices(a, near);
}

static void append_nearest(const nearest *near, char *out, size_t size)
{
	if (nearest_found(near))
		append(out, size, " (did you mean \"%s\"?)", nearest_found(near));
}

static bool mismatch(const field *f, const json_t *json, const place *at, const char *code, schema_error *err)
{
	char expected[EXPECTED_BYTES] = "", given[GIVEN_BYTES] = "",
	     text[EXPECTED_BYTES + GIVEN_BYTES + NEAREST_BYTES + 40] = "";
	nearest near = nearest_of(json_is_string(json) ? json_string_value(json) : "");

	write_expected(f, expected, sizeof(expected));
	write_given(json, given, sizeof(given));
	append(text, sizeof(text), "must be %s, not %s", expected, given);
	offer_choices(f, &near);
	append_nearest(&near, text, sizeof(text));
	return wrong(at, code, err, text);
}

/* --- checks ---------------------------------------------------------------------------- */

static bool type_fits(const field *f, const json_t *json)
{
	switch (f->type) {
	case FIELD_STRING:
		return json_is_string(json);
	case FIELD_INTEGER:
		return json_is_integer(json);
	case FIELD_NUMBER:
		return json_is_number(json);
	case FIELD_BOOLEAN:
		return json_is_boolean(json);
	case FIELD_OBJECT:
		return json_is_object(json);
	case FIELD_ARRAY:
		return json_is_array(json);
	case FIELD_UNION:
		for (const field *a = f->items; a->name; a++)
			if (type_fits(a, json))
				return true;
		return false;
	default:
		return true;
	}
}

static bool first_element_fits(const field *f, const json_t *json)
{
	const json_t *first = json_array_get(json, 0);

	return f->type != FIELD_ARRAY || !f->items || !first ||
	       (type_fits(f->items, first) && first_element_fits(f->items, first));
}

static const field *choose(const field *f, const json_t *json)
{
	const field *possible = NULL;

	for (const field *a = f->items; a->name; a++) {
		if (!type_fits(a, json))
			continue;
		if (first_element_fits(a, json))
			return a;
		possible = possible ? possible : a;
	}
	return possible;
}

static bool is_choice(const field *f, const json_t *json)
{
	const char *text = json_is_string(json) ? json_string_value(json) : json_is_true(json) ? "true" : "false";

	for (int i = 0; f->choices[i]; i++)
		if (strcmp(f->choices[i], text) == 0)
			return true;
	return false;
}

/* The quantity that min and max limit. */
static double measure(const field *f, const json_t *json)
{
	switch (f->type) {
	case FIELD_STRING:
		return (double)json_string_length(json);
	case FIELD_OBJECT:
		return (double)json_object_size(json);
	case FIELD_ARRAY:
		return (double)json_array_size(json);
	default:
		return json_number_value(json);
	}
}

static bool in_range(const field *f, const json_t *json)
{
	double x = measure(f, json);

	if (f->min == 0 && f->max == 0)
		return isfinite(x) && (f->type != FIELD_STRING || x <= SCHEMA_MAX_STRING);
	return x >= f->min && x <= f->max && !(f->exclusive && x == f->min);
}

static const field *schema_find(const schema *s, const char *name)
{
	for (const field *f = s->fields; f->name; f++)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

static bool refuse_unknown(const schema *s, const place *at, schema_error *err)
{
	char text[NEAREST_BYTES + 64] = "is not a parameter of this request";
	nearest near = nearest_of(at->name);

	for (const field *f = s->fields; f->name; f++)
		if (f->type != FIELD_IGNORED)
			nearest_offer(&near, f->name);
	append_nearest(&near, text, sizeof(text));
	return wrong(at, "unknown_parameter", err, text);
}

static bool check_members(const schema *s, json_t *object, const place *at, schema_error *err)
{
	const char *key;
	json_t *value, *type = json_object_get(object, "type");
	const field *kind = schema_find(s, "type");

	/* An object of another type has other members. */
	if (type && kind && kind->choices && !check(kind, type, &(place){at, "type", 0}, err))
		return false;
	json_object_foreach(object, key, value)
	{
		place here = {at, key, 0};

		if (!schema_find(s, key))
			return refuse_unknown(s, &here, err);
	}
	for (const field *f = s->fields; f->name; f++) {
		place here = {at, f->name, 0};
		json_t *member = json_object_get(object, f->name);

		if (member && !check(f, member, &here, err))
			return false;
		if (!member && f->required)
			return wrong(&here, "missing_parameter", err, "is required");
	}
	return true;
}

static bool check_elements(const field *f, json_t *array, const place *at, schema_error *err)
{
	const field object = {.name = "", .type = FIELD_OBJECT, .nested = f->nested};
	const field *item = f->items ? f->items : f->nested ? &object : NULL;
	size_t n = item ? json_array_size(array) : 0;

	for (size_t i = 0; i < n; i++) {
		place here = {at, NULL, i};

		if (!check(item, json_array_get(array, i), &here, err))
			return false;
	}
	return true;
}

static bool check_values(const field *f, json_t *object, const place *at, schema_error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach(object, key, value)
	{
		place here = {at, key, 0};

		if (!check(f->items, value, &here, err))
			return false;
	}
	return true;
}

static bool check_union(const field *f, json_t *json, const place *at, schema_error *err)
{
	const field *one = choose(f, json);

	if (!one)
		return mismatch(f, json, at, "invalid_type", err);
	if (check(one, json, at, err))
		return true;
	if (one->type == FIELD_ARRAY || one->type == FIELD_OBJECT)
		return false;
	/* The message for a scalar lists all allowed values. */
	return mismatch(f, json, at, strcmp(err->code, "out_of_range") == 0 ? "out_of_range" : "invalid_value", err);
}

/* Nothing is said of what is inside. */
static bool is_open(const field *f)
{
	return (f->type == FIELD_OBJECT || f->type == FIELD_ARRAY) && !f->nested && !f->items;
}

static void drop_nulls(const schema *s, json_t *object)
{
	const char *key;
	json_t *value;
	void *next;

	json_object_foreach_safe(object, next, key, value)
	{
		const field *f = json_is_null(value) && s ? schema_find(s, key) : NULL;

		if (json_is_null(value) && !(f && f->null))
			json_object_del(object, key);
	}
}

static bool check(const field *f, json_t *json, const place *at, schema_error *err)
{
	if (f->type == FIELD_ANY || f->type == FIELD_IGNORED || (f->null && json_is_null(json)))
		return true;
	if (f->type == FIELD_UNION)
		return check_union(f, json, at, err);
	if (!type_fits(f, json))
		return mismatch(
		    f, json, at,
		    (f->type == FIELD_INTEGER && json_is_real(json) && fabs(json_real_value(json)) >= 0x1p63)
		        ? "out_of_range"
		        : "invalid_type",
		    err);
	if (f->type == FIELD_OBJECT && !is_open(f))
		drop_nulls(f->nested, json);
	if (!f->nul && (json_is_string(json) || is_open(f)) && holds_nul(json))
		return wrong(at, "invalid_value", err, "must not contain U+0000");
	if (f->choices && !is_choice(f, json))
		return mismatch(f, json, at, "invalid_value", err);
	if (f->type != FIELD_BOOLEAN && !in_range(f, json))
		return mismatch(f, json, at, "out_of_range", err);
	if (f->type == FIELD_ARRAY)
		return check_elements(f, json, at, err);
	if (f->type == FIELD_OBJECT && f->nested)
		return check_members(f->nested, json, at, err);
	return f->type != FIELD_OBJECT || !f->items || check_values(f, json, at, err);
}

void schema_expected(const field *f, char *out, size_t size)
{
	*out = '\0';
	write_expected(f, out, size);
}

bool schema_check(const schema *s, json_t *json, schema_error *err)
{
	const field whole = {.name = "", .type = FIELD_OBJECT, .nested = s};

	*err = (schema_error){0};
	return check(&whole, json, NULL, err);
}
