/* Values are parsed one by one, so memory holds one at a time. jansson checks the UTF-8 of every string. */
#include "engine/text/jsonl.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/base/utf8.h"

enum {
	PARSE_FLAGS = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK,
	CUT_BYTES = 4 /* more than those of a character that is cut off */
};

status jsonl_refuse(error *err, long line, const char *format, ...)
{
	char reason[300];
	va_list args;
	va_start(args, format);
	vsnprintf(reason, sizeof reason, format, args);
	va_end(args);
	return error_set(err, STATUS_INVALID, NULL, "line %ld: %s", line, reason);
}

status jsonl_refuse_keys(error *err, long line, const json_t *object, const char *needs)
{
	enum { SHOWN = 6, KEY_BYTES = 24 };
	char keys[SHOWN * (KEY_BYTES + 8)] = "";
	size_t used = 0, n = 0;
	for (void *at = json_object_iter((json_t *)(uintptr_t)object); at && n < SHOWN; n++) {
		const char *key = json_object_iter_key(at);
		const size_t bytes = strnlen(key, KEY_BYTES);
		used += (size_t)snprintf(keys + used, sizeof keys - used, "%s\"%.*s\"", n ? ", " : "",
		                         (int)utf8_valid_prefix(key, bytes), key);
		at = json_object_iter_next((json_t *)(uintptr_t)object, at);
	}
	const size_t more = json_object_size(object) - n;
	return n == 0 ? jsonl_refuse(err, line, "needs %s; the object is empty", needs)
	              : jsonl_refuse(err, line, "needs %s; its keys are %s%s", needs, keys, more ? ", …" : "");
}

status jsonl_refuse_member(error *err, long line, const json_t *object, const char *key)
{
	char needs[48];
	snprintf(needs, sizeof needs, "a string \"%.32s\"", key);
	return jsonl_member(object, key) ? jsonl_refuse(err, line, "\"%s\" must be a string", key)
	                                 : jsonl_refuse_keys(err, line, object, needs);
}

const json_t *jsonl_member(const json_t *object, const char *key)
{
	const json_t *found = json_object_get(object, key);
	return json_is_null(found) ? NULL : found;
}

/* --- integers of any size ------------------------------------------------------------------- */

/* The integer that a real number is, or itself. Takes the reference. */
static json_t *restore_integer(json_t *number)
{
	const double value = json_real_value(number);
	if (!json_is_real(number) || value != floor(value) || fabs(value) > 0x1p53)
		return number;
	json_decref(number);
	return json_integer((json_int_t)value);
}

/* Turn the whole numbers of a value into integers. False: out of memory. */
static bool restore_integers(json_t *value)
{
	const char *key;
	json_t *member;
	size_t i;
	bool whole = true;
	json_object_foreach(value, key, member)
	{
		whole &= restore_integers(member);
		if (json_is_real(member))
			whole &= json_object_set_new(value, key, restore_integer(json_incref(member))) == 0;
	}
	json_array_foreach(value, i, member)
	{
		whole &= restore_integers(member);
		if (json_is_real(member))
			whole &= json_array_set_new(value, i, restore_integer(json_incref(member))) == 0;
	}
	return whole;
}

/* Parse the value that `text` begins with. where->position: its bytes, or the place of the fault. */
static status parse(json_t **out, const char *text, size_t bytes, json_error_t *where)
{
	if (bytes > INT_MAX)
		bytes = INT_MAX; /* positions are int */
	status s = json_read(out, text, bytes, PARSE_FLAGS, where);
	if (s != STATUS_INVALID || json_error_code(where) != json_error_numeric_overflow)
		return s;
	TRY(json_read(out, text, bytes, PARSE_FLAGS | JSON_DECODE_INT_AS_REAL, where));
	if (restore_integers(*out))
		return STATUS_OK;
	json_decref(*out);
	return STATUS_NOMEM;
}

/* --- walking ---------------------------------------------------------------------------------- */

typedef struct walk {
	json_place place; /* the next byte */
	bool first;       /* no value was handed over of a file that may be running text */
	bool broken;      /* the text ends within a value that is too long */
	jsonl_object each;
	void *context;
} walk;

static status walk_values(walk *w, const char *text, size_t bytes, error *err)
{
	size_t at = 0;
	for (;;) {
		size_t begin = at;
		while (at < bytes && text[at] && strchr(" \t\r\n", text[at]))
			at++;
		json_place_pass(&w->place, text + begin, at - begin);
		if (at == bytes)
			return STATUS_OK;
		json_error_t where;
		json_t *value;
		status s = parse(&value, text + at, bytes - at, &where);
		if (s == STATUS_NOMEM)
			return error_settle(err, s);
		if (s != STATUS_OK) {
			const size_t position = where.position > 0 ? (size_t)where.position : 0;
			if (w->broken && bytes - at - position < CUT_BYTES)
				return jsonl_refuse(err, w->place.line,
				                    "the value has more than %zu bytes; at most %d MiB are read of one",
				                    bytes - at, CORPUS_VALUE_BYTES >> 20);
			json_place_pass(&w->place, text + at, position > 0 ? position - 1 : 0);
			return error_set(
			    err, STATUS_INVALID, NULL, "line %ld, column %ld: not JSON: %s%s", w->place.line,
			    w->place.column, where.text,
			    w->first ? ". Running text that begins like JSON must be uploaded with the format \"text\""
			             : "");
		}
		s = w->each(w->context, value, w->place.line, err);
		json_decref(value);
		TRY(s);
		w->first = false;
		json_place_pass(&w->place, text + at, (size_t)where.position);
		at += (size_t)where.position;
	}
}

status jsonl_walk(const corpus_piece *piece, jsonl_object each, void *context, error *err)
{
	const json_place begin = JSON_PLACE_BEGIN;
	walk w = {.place = piece->place, .each = each, .context = context};
	w.first = !piece->records && w.place.line == begin.line && w.place.column == begin.column;
	w.broken = piece->broken && !piece->by_line;
	if (!piece->by_line)
		return walk_values(&w, piece->text, piece->bytes, err);
	for (size_t at = 0; at < piece->bytes;) {
		const char *line = piece->text + at, *newline = memchr(line, '\n', piece->bytes - at);
		size_t bytes = newline ? (size_t)(newline - line) : piece->bytes - at;
		w.broken = piece->broken && !newline;
		TRY(walk_values(&w, line, bytes, err));
		json_place_pass(&w.place, "\n", newline != NULL);
		at += bytes + 1;
	}
	return STATUS_OK;
}
