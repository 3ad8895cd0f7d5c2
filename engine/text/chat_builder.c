/* Whatever is appended is either the template's or a message's; ranges that touch are one. */
#include "engine/text/chat_builder.h"

#include <string.h>

#include "engine/base/memory.h"

enum { MOST_ADDED = 1 << 20, MOST_ADDED_EACH = 16 /* bytes for each of the messages' */ };

bool chat_builder_reserve(chat_builder *b, size_t bytes)
{
	b->failed = b->failed || !MEMORY_ROOM(b->out.text, b->room, b->out.bytes + bytes + 1);
	return !b->failed;
}

static void put(chat_builder *b, const char *text, size_t bytes)
{
	if (!chat_builder_reserve(b, bytes))
		return;
	memcpy(b->out.text + b->out.bytes, text, bytes);
	b->out.bytes += bytes;
	b->out.text[b->out.bytes] = 0;
}

static void trust(chat_builder *b, size_t first, size_t bytes)
{
	byte_range *last = b->out.n_trusted ? &b->out.trusted[b->out.n_trusted - 1] : NULL;
	if (b->failed || bytes == 0)
		return;
	if (last && last->first + last->bytes == first) {
		last->bytes += bytes;
		return;
	}
	b->failed = !MEMORY_ROOM(b->out.trusted, b->ranges_room, b->out.n_trusted + 1);
	if (!b->failed)
		b->out.trusted[b->out.n_trusted++] = (byte_range){first, bytes};
}

/* The name of a token in place of a character of a form's text; NULL: the character is itself. */
static const char *token_name_of(const chat_builder *b, char c)
{
	return c == *CHAT_BEGIN ? b->begin : c == *CHAT_END ? b->end : NULL;
}

void chat_builder_markup(chat_builder *b, const char *text)
{
	size_t first = b->out.bytes;
	for (; text && *text; text++) {
		const char *name = token_name_of(b, *text);
		/* Append what the template adds, within a bound. */
		const size_t bytes = name ? strlen(name) : 1;
		b->added += bytes;
		b->grown |= b->added > MOST_ADDED + MOST_ADDED_EACH * b->given;
		b->failed |= b->grown;
		put(b, name ? name : text, bytes);
	}
	trust(b, first, b->out.bytes - first);
}

size_t chat_builder_common(const chat_builder *b, size_t first, const char *text)
{
	size_t at = first;
	for (; text && *text; text++) {
		const char *name = token_name_of(b, *text);
		const size_t bytes = name ? strlen(name) : 1;
		if (b->failed || b->out.bytes - at < bytes || memcmp(b->out.text + at, name ? name : text, bytes) != 0)
			break;
		at += bytes;
	}
	return at - first;
}

/* Bytes of the character of white space that a text begins with, or (last) ends with, as Python's str.strip sees it;
 * 0: none. */
static size_t space(const char *text, size_t bytes, bool last)
{
	static const char *const wide[] = {"\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
	                                   "\u2004",   "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
	                                   "\u2028",   "\u2029", "\u202f", "\u205f", "\u3000"};
	if (bytes == 0)
		return 0;
	unsigned char c = (unsigned char)text[last ? bytes - 1 : 0];
	if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f))
		return 1;
	for (size_t i = 0; c >= 0x80 && i < sizeof wide / sizeof *wide; i++) {
		size_t n = strlen(wide[i]);
		if (n <= bytes && memcmp(last ? text + bytes - n : text, wide[i], n) == 0)
			return n;
	}
	return 0;
}

void chat_builder_trim_end(chat_builder *b, size_t first)
{
	size_t n;
	if (!b->out.text)
		return;
	while (!b->failed && (n = space(b->out.text + first, b->out.bytes - first, true)) > 0)
		b->out.bytes -= n;
	if (!b->failed)
		b->out.text[b->out.bytes] = 0;
	while (b->out.n_trusted > 0) {
		byte_range *last = &b->out.trusted[b->out.n_trusted - 1];
		if (last->first + last->bytes <= b->out.bytes)
			return;
		last->bytes = last->first < b->out.bytes ? b->out.bytes - last->first : 0;
		b->out.n_trusted -= last->bytes == 0;
	}
}

void chat_builder_append(chat_builder *b, const char *text, size_t bytes, bool trims)
{
	size_t n;
	while (trims && (n = space(text, bytes, false)) > 0) {
		text += n;
		bytes -= n;
	}
	b->given += bytes;
	put(b, text, bytes);
}
