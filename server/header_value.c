#include "server/header_value.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "server/uri.h"

static const char header_space[] = " \t";

/* A parameter's name or unquoted value ends at one of these. Other characters that RFC 9110 allows in quoted strings
 * only are accepted: common clients send "[" and "/" without quotes. */
static const char header_separators[] = " \t;=\",";

static const char *header_skip(const char *at)
{
	return at + strspn(at, header_space);
}

/* Copy up to the closing quotation mark; return the character after it, or NULL. out: NULL, or room for `size` bytes.
 */
static const char *header_quoted(const char *at, char *out, size_t size)
{
	size_t used = 0;
	for (; *at != '"'; at++) {
		if (*at == '\0')
			return NULL;
		if (*at == '\\' && (at[1] == '"' || at[1] == '\\'))
			at++;
		if (out && used + 1 >= size)
			return NULL;
		if (out)
			out[used++] = *at;
	}
	if (out)
		out[used] = '\0';
	return at + 1;
}

static const char *header_token(const char *at, char *out, size_t size)
{
	/* "=" may be part of a value: a boundary may hold it. */
	size_t bytes = strcspn(at, " \t;\"");
	if (bytes == 0 || (out && bytes >= size))
		return NULL;
	if (out) {
		memcpy(out, at, bytes);
		out[bytes] = '\0';
	}
	return at + bytes;
}

header_found header_parameter(const char *value, const char *name, char *out, size_t size)
{
	header_found found = HEADER_ABSENT;
	const char *at = value + strcspn(value, ";");
	while (*(at = header_skip(at)) == ';') {
		at = header_skip(at + 1);
		size_t bytes = strcspn(at, header_separators);
		if (bytes == 0 && (*at == ';' || *at == '\0'))
			continue;
		bool matches = !found && bytes == strlen(name) && strncasecmp(at, name, bytes) == 0;
		at = header_skip(at + bytes);
		if (bytes == 0 || *at != '=')
			return HEADER_MALFORMED;
		at = header_skip(at + 1);
		at = *at == '"' ? header_quoted(at + 1, matches ? out : NULL, size)
		                : header_token(at, matches ? out : NULL, size);
		if (!at)
			return HEADER_MALFORMED;
		found = matches ? HEADER_PRESENT : found;
	}
	return *at ? HEADER_MALFORMED : found;
}

static int header_hex(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *digit = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
	return digit ? (int)(digit - digits) : -1;
}

/* Append a byte of the charset as UTF-8. */
static bool header_put(unsigned char byte, bool latin, char *out, size_t size, size_t *used)
{
	bool two = latin && byte >= 0x80;
	if (*used + two + 1 >= size)
		return false;
	if (two)
		out[(*used)++] = (char)(0xc0 | byte >> 6);
	out[(*used)++] = (char)(two ? 0x80 | (byte & 0x3f) : byte);
	return true;
}

bool header_decode_extended(const char *value, char *out, size_t size)
{
	static const char utf8[] = "UTF-8'", latin1[] = "ISO-8859-1'";
	bool latin = strncasecmp(value, latin1, sizeof latin1 - 1) == 0;
	if (!latin && strncasecmp(value, utf8, sizeof utf8 - 1) != 0)
		return false;
	const char *at = strchr(strchr(value, '\'') + 1, '\''); /* after the language */
	size_t used = 0;
	for (at = at ? at + 1 : ""; *at; at++) {
		unsigned char byte = (unsigned char)*at;
		if (*at == '%') {
			int high = header_hex(at[1]), low = high < 0 ? -1 : header_hex(at[2]);
			if (low < 0 || high + low == 0)
				return false;
			byte = (unsigned char)(high << 4 | low);
			at += 2;
		}
		if (!header_put(byte, latin, out, size, &used))
			return false;
	}
	out[used] = '\0';
	return used > 0 && uri_utf8_valid(out);
}
