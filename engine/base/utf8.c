/* Only the second byte has ranges of its own. A lead byte fixes the length and the range of the byte after it, which
 * excludes overlong forms, surrogates and code points above U+10FFFF. All later bytes are 80…BF. A table-driven
 * automaton would be faster, but reading a corpus is limited by the tokenizer and by memory. */
#include "engine/base/utf8.h"

#include <string.h>

utf8_kind utf8_next(const unsigned char *p, size_t n, size_t *bytes)
{
	unsigned lead = p[0], low = 0x80, high = 0xBF;
	size_t need;
	*bytes = 1;
	if (lead < 0x80)
		return UTF8_WHOLE;
	if (lead < 0xC2 || lead > 0xF4)
		return UTF8_INVALID;
	if (lead < 0xE0) {
		need = 2;
	} else if (lead < 0xF0) {
		need = 3;
		low = lead == 0xE0 ? 0xA0 : low;
		high = lead == 0xED ? 0x9F : high;
	} else {
		need = 4;
		low = lead == 0xF0 ? 0x90 : low;
		high = lead == 0xF4 ? 0x8F : high;
	}
	for (size_t i = 1; i < need; i++, low = 0x80, high = 0xBF) {
		*bytes = i;
		if (i == n)
			return UTF8_PARTIAL;
		if (p[i] < low || p[i] > high)
			return UTF8_INVALID;
	}
	*bytes = need;
	return UTF8_WHOLE;
}

size_t utf8_valid_prefix(const char *text, size_t bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t at = 0, length;
	while (at < bytes && utf8_next(p + at, bytes - at, &length) == UTF8_WHOLE)
		at += length;
	return at;
}

void utf8_repair(char *text)
{
	char *out = text;
	size_t left = strlen(text), length;
	for (const char *at = text; left > 0; at += length, left -= length) {
		if (utf8_next((const unsigned char *)at, left, &length) == UTF8_WHOLE) {
			memmove(out, at, length);
			out += length;
		} else {
			*out++ = '?';
		}
	}
	*out = '\0';
}
