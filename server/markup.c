#include "server/markup.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"
#include "proto/schema.h"

enum { MARKUP_WIDE = 0x2e80 }; /* most characters from here on are two columns wide */

static const char *markup_entity(char c)
{
	switch (c) {
	case '&':
		return "&amp;";
	case '<':
		return "&lt;";
	case '>':
		return "&gt;";
	case '"':
		return "&quot;";
	case '\'':
		return "&#39;";
	default:
		return NULL;
	}
}

void markup_escape(buffer *out, const char *text, size_t bytes)
{
	size_t plain = 0; /* from here on nothing has been appended */
	for (size_t i = 0; i < bytes; i++) {
		const char *entity = markup_entity(text[i]);
		if (!entity)
			continue;
		buffer_append(out, text + plain, i - plain);
		buffer_string(out, entity);
		plain = i + 1;
	}
	buffer_append(out, text + plain, bytes - plain);
}

/* The character at `text`, valid UTF-8, and its bytes. */
static unsigned markup_character(const char *text, size_t *bytes)
{
	unsigned char lead = (unsigned char)*text;
	*bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
	unsigned c = *bytes == 1 ? lead : lead & (0x7fU >> *bytes);
	for (size_t i = 1; i < *bytes; i++)
		c = c << 6 | ((unsigned char)text[i] & 0x3f);
	return c;
}

size_t markup_visible(buffer *out, const json_t *text, bool breaks)
{
	const char *at = json_is_string(text) ? json_string_value(text) : "";
	const char *end = at + json_string_length(text);
	size_t bytes, columns = at == end;
	if (at == end)
		buffer_string(out, "·");
	for (; at < end; at += bytes) {
		unsigned c = markup_character(at, &bytes);
		columns += c >= MARKUP_WIDE ? 2 : 1;
		if (c == '\n')
			buffer_string(out, breaks ? "↵\n" : "↵");
		else if (c == '\t' && breaks)
			buffer_string(out, "\t");
		else if (c < 0x20)
			buffer_append(out, (char[]){(char)0xe2, (char)0x90, (char)(0x80 + c)}, 3); /* U+2400 + c */
		else if (c == 0x7f)
			buffer_string(out, "␡");
		else if (c == 0xfffe || c == 0xffff)
			buffer_string(out, "\xef\xbf\xbd");
		else
			markup_escape(out, at, bytes);
	}
	return columns;
}

void markup_data(buffer *out, const json_t *json)
{
	char *text = json_memory_print(json, PROTO_JSON);
	if (!text) {
		out->failed = true;
		return;
	}
	for (const char *at = text; *at;) {
		size_t bytes = strcspn(at, "<");
		buffer_append(out, at, bytes);
		at += bytes;
		if (*at == '<') {
			buffer_string(out, "\\u003c");
			at++;
		}
	}
	free(text);
}
