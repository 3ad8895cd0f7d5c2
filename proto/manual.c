/* manual.c - see manual.h. Of man(7) only what groff and mandoc both have, and no request that takes text as arguments
 * but for headings, since arguments would need quotes. */
#include "proto/manual.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* --- text ------------------------------------------------------------------------------------ */

/* The code point of a character of valid UTF-8 above ASCII, and its length. */
static uint32_t code_point(const unsigned char *c, size_t *length)
{
	uint32_t x = *c & (*c >= 0xf0 ? 0x07 : *c >= 0xe0 ? 0x0f : 0x1f);

	for (*length = 1; (c[*length] & 0xc0) == 0x80; ++*length)
		x = x << 6 | (c[*length] & 0x3f);
	return x;
}

/* Every escape has a form on terminals that show ASCII alone, so characters above it without one are spelled here. */
static void put_character(FILE *file, const char **at)
{
	static const struct {
		uint32_t c;
		const char *roff;
	} escapes[] = {{'\\', "\\e"},  {'-', "\\-"},   {'\'', "\\(aq"}, {'`', "\\(ga"},    {'^', "\\(ha"},
	               {'~', "\\(ti"}, {'"', "\\(dq"}, {0xb7, "*"},     {0x2026, "\\&..."}};
	size_t length = 1;
	const bool ascii = (unsigned char)**at < 0x80;
	const uint32_t c = ascii ? (uint32_t) * *at : code_point((const unsigned char *)*at, &length);

	*at += length;
	for (size_t i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++)
		if (c == escapes[i].c) {
			fputs(escapes[i].roff, file);
			return;
		}
	if (ascii)
		fputc((int)c, file);
	else
		fprintf(file, "\\[u%04X]", (unsigned)c);
}

/* Up to n bytes; a full stop at the beginning of a line would be a request. */
static void put_line(FILE *file, const char *text, size_t n)
{
	const char *end = text + n;

	fputs(*text == '.' ? "\\&" : "", file);
	while (text < end)
		put_character(file, &text);
}

void manual_text(FILE *file, const char *text)
{
	bool literal = false, ended = false;

	for (size_t n; *text; text += n + (text[n] == '\n')) {
		n = strcspn(text, "\n");
		bool next_literal = n > 2 && text[0] == ' ' && text[1] == ' ';

		if (literal && !next_literal)
			fputs(".fi\n", file);
		literal = literal && next_literal;
		if (n == 0) {
			ended = true;
			continue;
		}
		if (ended)
			fputs(".PP\n", file);
		if (next_literal && !literal)
			fputs(".nf\n", file);
		ended = false;
		literal = next_literal;
		put_line(file, text, n);
		fputc('\n', file);
	}
	if (literal)
		fputs(".fi\n", file);
}

/* --- parts ------------------------------------------------------------------------------------- */

static void put_title(FILE *file, const char *macro, const char *title, bool capitals)
{
	fprintf(file, ".%s \"", macro);
	while (*title) {
		char upper[2] = {(char)toupper((unsigned char)*title)};
		const char *one = upper;

		if (capitals && isalpha((unsigned char)*title)) {
			put_character(file, &one);
			title++;
		} else {
			put_character(file, &title);
		}
	}
	fputs("\"\n", file);
}

void manual_heading(FILE *file, const char *title)
{
	put_title(file, "SH", title, true);
}

void manual_subheading(FILE *file, const char *title)
{
	put_title(file, "SS", title, false);
}

void manual_begin(FILE *file, const char *name, int section, const char *summary)
{
	fputs(".TH ", file);
	for (const char *c = name; *c; c++)
		fputc(toupper((unsigned char)*c), file);
	fprintf(file, " %d \"\" \"Additive " ADDITIVE_VERSION "\" \"Additive\"\n", section);
	manual_heading(file, "Name");
	put_line(file, name, strlen(name));
	fputs(" \\- ", file);
	put_line(file, summary, strlen(summary));
	fputc('\n', file);
}

/* A word of capitals is the name of a value. */
static size_t capitals(const char *at)
{
	size_t n = 0;

	while (isupper((unsigned char)at[n]) || (n > 0 && (at[n] == '_' || at[n] == '/')))
		n++;
	return islower((unsigned char)at[n]) ? 0 : n;
}

static void put_usage(FILE *file, const char *line, const char *line_end)
{
	for (const char *at = line; at < line_end;) {
		size_t n = strncmp(at, "--", 2) == 0 ? strcspn(at, " ]=\n") : 0, m = capitals(at);

		if (n > 2 || m > 0) {
			fputs(n > 2 ? "\\fB" : "\\fI", file);
			for (const char *end = at + (n > 2 ? n : m); at < end;)
				put_character(file, &at);
			fputs("\\fR", file);
		} else {
			put_character(file, &at);
		}
	}
	fputc('\n', file);
}

void manual_usage(FILE *file, const char *lines)
{
	for (size_t n; *lines; lines += n + (lines[n] == '\n')) {
		n = strcspn(lines, "\n");
		put_usage(file, lines, lines + n);
		if (lines[n] == '\n')
			fputs(".br\n", file);
	}
}

void manual_entry(FILE *file, const char *title, const char *text)
{
	fputs(".TP\n\\fB", file);
	put_line(file, title, strlen(title));
	fputs("\\fR\n", file);
	put_line(file, text, strlen(text));
	fputc('\n', file);
}

void manual_options(FILE *file, const option_row *rows)
{
	for (const option_row *r = rows; r->name; r++) {
		char *help = options_describe(r);
		const char *shown = help ? help : r->help;

		if (*r->name) {
			fputs(".TP\n\\fB\\-\\-", file);
			put_line(file, r->name, strlen(r->name));
			fputs("\\fR", file);
			if (r->value) {
				fputs(" \\fI", file);
				put_line(file, r->value, (size_t)options_value_bytes(r));
				fputs("\\fR", file);
			}
			fputc('\n', file);
			put_line(file, shown, strlen(shown));
			fputc('\n', file);
		} else {
			manual_subheading(file, r->help);
		}
		free(help);
	}
}

/* --- a program ----------------------------------------------------------------------------------- */

void manual_write(FILE *file, const manual_page *page)
{
	manual_begin(file, page->name, page->section, page->summary);
	manual_heading(file, "Synopsis");
	manual_usage(file, page->usage);
	if (page->text) {
		manual_heading(file, "Description");
		manual_text(file, page->text);
	}
	manual_heading(file, "Options");
	manual_options(file, page->rows);
	manual_heading(file, "See also");
	put_line(file, page->see, strlen(page->see));
	fputc('\n', file);
}

void manual_help(FILE *file, const manual_page *page)
{
	const char *line = page->usage;
	char title[256];

	snprintf(title, sizeof(title), "%s " ADDITIVE_VERSION ": %s", page->name, page->summary);
	options_wrap(file, title, 0);
	fputc('\n', file);
	for (size_t n; *line; line += n + (line[n] == '\n')) {
		n = strcspn(line, "\n");
		fprintf(file, "%s %.*s\n", line == page->usage ? "usage:" : "      ", (int)n, line);
	}
	if (page->text) {
		fputc('\n', file);
		options_wrap(file, page->text, 0);
	}
	fputc('\n', file);
	options_help(file, page->rows);
}
