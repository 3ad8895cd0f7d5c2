/* Python's format has a space after a comma and a colon, lower-case escapes, and the shortest digits of a number. */
#include "engine/text/chat_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void text(chat_builder *b, const char *words)
{
	chat_builder_append(b, words, strlen(words), false);
}

static void escape(chat_builder *b, unsigned char c)
{
	static const char codes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
	char out[8];
	for (const char *p = codes; *p; p += 2)
		if ((unsigned char)*p == c) {
			chat_builder_append(b, (char[]){'\\', p[1]}, 2, false);
			return;
		}
	snprintf(out, sizeof out, "\\u%04x", c);
	text(b, out);
}

static void string(chat_builder *b, const char *words, size_t bytes)
{
	size_t plain = 0;
	text(b, "\"");
	for (size_t i = 0; i < bytes; i++) {
		const unsigned char c = (unsigned char)words[i];
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		chat_builder_append(b, words + plain, i - plain, false);
		escape(b, c);
		plain = i + 1;
	}
	chat_builder_append(b, words + plain, bytes - plain, false);
	text(b, "\"");
}

/* The shortest digits that read as the same number; an exponent below -4 and from 16 on. */
static void real(chat_builder *b, double x)
{
	char shortest[40], out[64];
	int digits = 0, exponent;
	do
		snprintf(shortest, sizeof shortest, "%.*e", digits, x);
	while (++digits < 17 && strtod(shortest, NULL) != x);
	exponent = atoi(strchr(shortest, 'e') + 1);
	if (exponent < -4 || exponent >= 16) {
		text(b, shortest);
		return;
	}
	snprintf(out, sizeof out, "%.*f", digits - 1 - exponent > 1 ? digits - 1 - exponent : 1, x);
	text(b, out);
}

/* The template adds the white space: nested values may need more of it than a conversation may have. */
static void line(chat_builder *b, int indent, int depth)
{
	if (indent == 0)
		return;
	chat_builder_markup(b, "\n");
	for (int i = 0; i < indent * depth && !b->failed; i++)
		chat_builder_markup(b, " ");
}

static void append(chat_builder *b, const json_t *value, int indent, int depth);

/* A member of an object or, without a key, an array. */
static void append_member(chat_builder *b, const char *key, size_t key_bytes, const json_t *value, bool first,
                          int indent, int depth)
{
	if (!first)
		text(b, indent > 0 ? "," : ", ");
	line(b, indent, depth);
	if (key) {
		string(b, key, key_bytes);
		text(b, ": ");
	}
	append(b, value, indent, depth);
}

static void append_members(chat_builder *b, const json_t *value, int indent, int depth)
{
	const char *key;
	size_t bytes, i;
	json_t *member;
	bool first = true;
	json_object_keylen_foreach((json_t *)(uintptr_t)value, key, bytes, member)
	{
		append_member(b, key, bytes, member, first, indent, depth);
		first = false;
	}
	json_array_foreach(value, i, member) append_member(b, NULL, 0, member, i == 0, indent, depth);
}

static void append(chat_builder *b, const json_t *value, int indent, int depth)
{
	char number[32];
	if (b->failed)
		return;
	if (json_is_string(value)) {
		string(b, json_string_value(value), json_string_length(value));
	} else if (json_is_integer(value)) {
		snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		text(b, number);
	} else if (json_is_real(value)) {
		real(b, json_real_value(value));
	} else if (json_is_object(value) || json_is_array(value)) {
		const bool object = json_is_object(value);
		text(b, object ? "{" : "[");
		if (json_object_size(value) + json_array_size(value) > 0) {
			append_members(b, value, indent, depth + 1);
			line(b, indent, depth);
		}
		text(b, object ? "}" : "]");
	} else {
		text(b, json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
	}
}

void chat_json_append(chat_builder *b, const json_t *value, int indent)
{
	append(b, value, indent, 0);
}
