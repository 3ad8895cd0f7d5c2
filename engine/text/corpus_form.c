#include "engine/text/corpus_form.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/base/manifest.h"

/* --- hints -------------------------------------------------------------------------------- */

static bool ends_with(const char *name, size_t length, const char *ending)
{
	size_t n = strlen(ending);
	return length > n && strncasecmp(name + length - n, ending, n) == 0;
}

static bool ends_with_any(const char *name, size_t length, const char *const *endings)
{
	while (*endings && !ends_with(name, length, *endings))
		endings++;
	return *endings;
}

corpus_hint corpus_hint_of(const char *format, const char *filename)
{
	static const char *const data[] = {".json", ".jsonl", ".ndjson", NULL};
	static const char *const tables[] = {".csv", ".tsv", ".parquet", ".arrow", ".feather", ".xls", ".xlsx", NULL};
	static const char *const packed[] = {".gz", ".zst", NULL};
	if (format && strcmp(format, "text") == 0)
		return CORPUS_HINT_TEXT;
	if (format && strcmp(format, "json") == 0)
		return CORPUS_HINT_DATA;
	size_t length = filename ? strlen(filename) : 0;
	if (ends_with_any(filename, length, packed))
		length = (size_t)(strrchr(filename, '.') - filename);
	return ends_with_any(filename, length, data)     ? CORPUS_HINT_DATA
	       : ends_with_any(filename, length, tables) ? CORPUS_HINT_TABLE
	                                                 : CORPUS_HINT_NONE;
}

corpus_hint corpus_hint_of_file(const char *path)
{
	char beside[PATH_MAX + sizeof MANIFEST_SUFFIX];
	manifest *m = NULL;
	snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, path);
	if (manifest_open(&m, beside, NULL) != STATUS_OK)
		return corpus_hint_of(NULL, path);
	const json_t *about = manifest_about(m);
	corpus_hint hint = corpus_hint_of(json_string_value(json_object_get(about, "format")),
	                                  json_string_value(json_object_get(about, "filename")));
	manifest_free(m);
	return hint;
}

/* --- what is neither text nor JSON ---------------------------------------------------------- */

static const struct {
	const char *bytes;
	size_t n;
	const char *name;
	size_t at;
} foreign[] = {
    {"\xFF\xFE", 2, "UTF-16 or UTF-32", 0},
    {"\xFE\xFF", 2, "UTF-16", 0},
    {"\0\0\xFE\xFF", 4, "UTF-32", 0},
    {"PK\x03\x04", 4, "a zip archive (also .docx and .xlsx)", 0},
    {"PAR1", 4, "Parquet", 0},
    {"ARROW1", 6, "Arrow", 0},
    {"%PDF-", 5, "PDF", 0},
    {"\xFD"
     "7zXZ",
     5, "compressed by xz", 0},
    {"BZh", 3, "compressed by bzip2", 0},
    {"7z\xBC\xAF", 4, "a 7z archive", 0},
    {"SQLite format 3", 16, "an SQLite database", 0},
    {"ustar", 5, "a tar archive", 257},
};

/* True if every other one of the first bytes is NUL, as in UTF-16 without a byte order mark. */
static bool is_wide(const char *text, size_t bytes)
{
	return bytes >= 4 &&
	       ((!text[0] && text[1] && !text[2] && text[3]) || (text[0] && !text[1] && text[2] && !text[3]));
}

/* True if the bytes are the first ones of a signature. */
static bool may_be_foreign(const char *text, size_t bytes)
{
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (!foreign[i].at && bytes < foreign[i].n && memcmp(text, foreign[i].bytes, bytes) == 0)
			return true;
	return false;
}

static status refuse_foreign(const char *text, size_t bytes, error *err)
{
	const char *name = is_wide(text, bytes) ? "UTF-16" : NULL;
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign && !name; i++)
		if (bytes >= foreign[i].at + foreign[i].n &&
		    memcmp(text + foreign[i].at, foreign[i].bytes, foreign[i].n) == 0)
			name = foreign[i].name;
	return name ? error_set(err, STATUS_INVALID, NULL,
	                        "the file is %s; it must be UTF-8 text or JSON, as it is or compressed by gzip or zstd",
	                        name)
	            : STATUS_OK;
}

/* --- content -------------------------------------------------------------------------------- */

enum { BEGINNING_BYTES = 1 << 20 /* white space and comments that are passed over */, WORD_BYTES = 64 };

typedef enum answer { NO, YES, UNKNOWN } answer;

static size_t skip_blanks(const char *text, size_t at, size_t bytes)
{
	while (at < bytes && text[at] && strchr(" \t\r\n", text[at]))
		at++;
	return at;
}

/* The first byte that is neither white space nor in a line of comments. */
static size_t skip_comments(const char *text, size_t bytes)
{
	for (size_t at = 0;;) {
		at = skip_blanks(text, at, bytes);
		bool comment = at < bytes && (text[at] == '#' || (at + 1 < bytes && !memcmp(text + at, "//", 2)));
		if (!comment)
			return at;
		while (at < bytes && text[at] != '\n' && text[at] != '\r')
			at++;
	}
}

/* True if a word and a colon follow, as in JavaScript's objects. */
static bool is_member(const char *text, size_t at, size_t bytes)
{
	size_t first = at;
	while (at < bytes && at - first < WORD_BYTES && (isalnum((unsigned char)text[at]) || text[at] == '_'))
		at++;
	size_t colon = skip_blanks(text, at, bytes);
	return at > first && colon < bytes && text[colon] == ':';
}

static answer begins_data(const char *text, size_t at, size_t bytes)
{
	const size_t first = at;
	while (at < bytes && text[at] == '[')
		at = skip_blanks(text, at + 1, bytes);
	if (at == bytes)
		return UNKNOWN;
	if (at > first && (text[at] == '"' || text[at] == ']'))
		return YES;
	if (text[at] != '{')
		return NO;
	at = skip_blanks(text, at + 1, bytes);
	if (at < bytes && (text[at] == '"' || text[at] == '\'' || text[at] == '}'))
		return YES;
	return is_member(text, at, bytes) ? YES : bytes - at <= WORD_BYTES ? UNKNOWN : NO;
}

/* The end of the object that begins at `at`. *whole: false if its line or the text ends before. */
static size_t skip_object(const char *text, size_t at, size_t bytes, bool *whole)
{
	int64_t depth = 0;
	*whole = false;
	for (bool quoted = false; at < bytes && text[at] != '\n' && text[at] != '\r'; at++) {
		char c = text[at];
		if (quoted && c == '\\')
			at++;
		else if (c == '"')
			quoted = !quoted;
		else if (!quoted)
			depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
		*whole = depth == 0;
		if (*whole)
			return at + 1;
	}
	return at < bytes ? at : bytes;
}

/* Lines, if the first value and nothing else is on its line. */
static corpus_form find_layout(const char *text, size_t bytes, bool ended)
{
	bool whole;
	size_t at = skip_blanks(text, 0, bytes);
	if (at < bytes && text[at] == '[')
		return CORPUS_FORM_VALUES;
	if (at < bytes && text[at] != '{')
		return CORPUS_FORM_LINES;
	at = skip_object(text, at, bytes, &whole);
	while (whole && at < bytes && (text[at] == ' ' || text[at] == '\t'))
		at++;
	if (at >= bytes)
		return ended ? CORPUS_FORM_LINES : CORPUS_FORM_UNKNOWN;
	if (at + 1 == bytes && text[at] == '\r' && !ended)
		return CORPUS_FORM_UNKNOWN;
	bool ends = text[at] == '\n' || (text[at] == '\r' && at + 1 < bytes && text[at + 1] == '\n');
	return whole && ends ? CORPUS_FORM_LINES : CORPUS_FORM_VALUES;
}

static answer is_data(corpus_hint hint, const char *text, size_t bytes, bool ended)
{
	if (hint == CORPUS_HINT_TEXT || hint == CORPUS_HINT_DATA)
		return hint == CORPUS_HINT_DATA ? YES : NO;
	answer found = begins_data(text, skip_comments(text, bytes), bytes);
	return found == UNKNOWN && (ended || bytes >= BEGINNING_BYTES) ? NO : found;
}

status corpus_form_find(corpus_form *out, corpus_hint hint, const char *text, size_t bytes, bool ended, error *err)
{
	if (hint != CORPUS_HINT_TEXT)
		TRY(refuse_foreign(text, bytes, err));
	if (hint == CORPUS_HINT_TABLE)
		return error_set(err, STATUS_INVALID, NULL,
		                 "the file's name is that of a table; make JSON lines of it, or upload it with the "
		                 "format \"text\" to read it as running text");
	answer data = !ended && may_be_foreign(text, bytes) ? UNKNOWN : is_data(hint, text, bytes, ended);
	*out = data == UNKNOWN ? CORPUS_FORM_UNKNOWN : data == NO ? CORPUS_FORM_TEXT : find_layout(text, bytes, ended);
	if (*out == CORPUS_FORM_UNKNOWN && bytes >= CORPUS_FORM_BYTES)
		*out = CORPUS_FORM_VALUES;
	return STATUS_OK;
}
