/* terminal.c - see terminal.h. This program's output is UTF-8 whatever the environment says, so the locale of
 * characters is always C.UTF-8, which wcwidth needs. The environment decides about drawings alone. */
#include "clients/cli/terminal.h"

#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

void terminal_begin(void)
{
	setlocale(LC_CTYPE, "C.UTF-8");
}

/* By the name alone: a locale that is not installed says the same about the terminal. */
static bool is_utf8_locale(void)
{
	static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
	const char *name = NULL;

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]) && !(name && *name); i++)
		name = getenv(variables[i]);
	return name && (strcasestr(name, "utf-8") || strcasestr(name, "utf8"));
}

terminal terminal_of(FILE *file)
{
	terminal t = {.tty = isatty(fileno(file)) != 0};
	const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM"), *forced = getenv("CLICOLOR_FORCE");
	bool can = t.tty && !(term && strcmp(term, "dumb") == 0);
	struct winsize size = {0};

	t.colour = (can || (forced && *forced && strcmp(forced, "0") != 0)) && !(no_colour && *no_colour);
	t.utf8 = is_utf8_locale() && !(term && strcmp(term, "linux") == 0);
	if (t.tty && ioctl(fileno(file), TIOCGWINSZ, &size) != 0)
		size = (struct winsize){0};
	if (t.tty)
		t.width = size.ws_col > 0 ? size.ws_col : 80;
	if (can)
		t.height = size.ws_row > 0 ? size.ws_row : 24;
	return t;
}

/* The character at bytes, its length in *length; 0xffffffff when it is broken (length 1). */
static uint32_t decode(const unsigned char *bytes, size_t n, size_t *length)
{
	unsigned char c = bytes[0];
	size_t want = c < 0x80                ? 1
	              : c >= 0xc2 && c < 0xe0 ? 2
	              : c >= 0xe0 && c < 0xf0 ? 3
	              : c >= 0xf0 && c < 0xf5 ? 4
	                                      : 0;
	uint32_t x = want < 2 ? c : c & (0xffu >> (want + 1));

	*length = 1;
	if (want == 0 || want > n)
		return UINT32_MAX;
	for (size_t i = 1; i < want; i++) {
		if ((bytes[i] & 0xc0) != 0x80)
			return UINT32_MAX;
		x = x << 6 | (bytes[i] & 0x3f);
	}
	if ((want == 3 && (x < 0x800 || (x >= 0xd800 && x < 0xe000))) || (want == 4 && (x < 0x10000 || x > 0x10ffff)))
		return UINT32_MAX;
	*length = want;
	return x;
}

static bool steers(uint32_t c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f || c == 0x2028 ||
	       c == 0x2029 || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

bool terminal_escape(text *out, const char *string, size_t n, bool lines)
{
	const unsigned char *bytes = (const unsigned char *)string;
	bool ok = true;

	for (size_t i = 0, length; i < n && ok; i += length) {
		uint32_t c = decode(bytes + i, n - i, &length);

		if (c == UINT32_MAX || (c < 0x80 && steers(c) && !(c == '\n' || (lines && c == '\t'))))
			ok = text_format(out, "\\x%02x", bytes[i]);
		else if (c == '\n' && !lines)
			ok = text_string(out, "⏎");
		else if (c >= 0x80 && steers(c))
			ok = text_format(out, "\\u%04x", (unsigned)c);
		else
			ok = text_append(out, string + i, length);
	}
	return ok;
}

static int columns_of(uint32_t c)
{
	int columns = wcwidth((wchar_t)c);

	return columns < 0 ? 1 : columns;
}

int terminal_columns(const char *string, size_t n)
{
	int columns = 0;

	for (size_t i = 0, length; i < n; i += length)
		columns += columns_of(decode((const unsigned char *)string + i, n - i, &length));
	return columns;
}

void terminal_cut(text *out, const char *string, size_t n, int columns)
{
	size_t fits = 0;

	if (terminal_columns(string, n) <= columns) {
		text_append(out, string, n);
		return;
	}
	if (columns < 1)
		return;
	for (size_t length; fits < n; fits += length) {
		uint32_t c = decode((const unsigned char *)string + fits, n - fits, &length);

		if (terminal_columns(string, fits) + columns_of(c) > columns - 1)
			break;
	}
	text_append(out, string, fits);
	text_string(out, "…");
}
