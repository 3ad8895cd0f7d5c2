#include "clients/cli/field_names.h"

#include <ctype.h>
#include <string.h>

/* Fields that a command fills by itself. */
static const char *const filled[][2] = {
    {"training_file", "FILE"}, {"additive.training_files", "FILE"}, {"validation_file", "--validation"}};

static bool is_part(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Bytes of the path that a message begins with: names with dots between them. 0: none. */
static size_t path_bytes(const char *message)
{
	size_t n = 0;

	while (is_part(message[n]) || (message[n] == '.' && n > 0 && is_part(message[n + 1])))
		n++;
	return n;
}

/* Bytes of "[2]", if it begins so. */
static size_t index_bytes(const char *message)
{
	size_t n = *message == '[' ? 1 + strspn(message + 1, "0123456789") : 0;

	return n > 1 && message[n] == ']' ? n + 1 : 0;
}

static bool equals(const char *name, const char *path, size_t n)
{
	return strlen(name) == n && memcmp(name, path, n) == 0;
}

/* True if the last name of a row's path is this word. */
static bool ends_with(const option_row *row, const char *word, size_t n)
{
	const char *dot = strrchr(row->field, '.');

	return equals(dot ? dot + 1 : row->field, word, n);
}

/* The row whose field this is; NULL: none, or several whose last name it is. */
static const option_row *find_row(const cli *c, const char *path, size_t n)
{
	const option_row *found = NULL;
	size_t several = 0;

	for (const option_row *r = c->command ? c->command->options : NULL; r && r->name; r++) {
		if (!r->field || r->type >= OPTION_COUNT)
			continue;
		if (equals(r->field, path, n))
			return r;
		if (memchr(path, '_', n) && !memchr(path, '.', n) && ends_with(r, path, n)) {
			found = r;
			several++;
		}
	}
	return several == 1 ? found : NULL;
}

static bool write_option(const cli *c, const char *path, size_t n, text *out)
{
	const option_row *row = find_row(c, path, n);

	if (row)
		return text_format(out, "--%s", row->name);
	for (const option_row *r = c->command ? c->command->options : NULL; r && r->name; r++) {
		const size_t skip = r->type == OPTION_MEMBERS ? strlen(r->field) + 1 : n;

		if (skip < n && memcmp(path, r->field, skip - 1) == 0 && path[skip - 1] == '.')
			return text_format(out, "--%s %.*s", r->name, (int)(n - skip), path + skip);
	}
	for (size_t i = 0; i < sizeof(filled) / sizeof(filled[0]); i++)
		if (equals(filled[i][0], path, n)) {
			const bool one = filled[i][1][0] != '-' && c->options.n_arguments == 1;
			const char *name = one ? cli_argument(c, 0) : filled[i][1];

			terminal_escape(out, name, strlen(name), false);
			return true;
		}
	return false;
}

bool field_names_option(const cli *c, const char *field, text *out)
{
	return write_option(c, field, path_bytes(field), out);
}

/* True if a path cannot be a word of English: only such is replaced without quotes. */
static bool is_no_word(const char *path, size_t n)
{
	return memchr(path, '_', n) || memchr(path, '.', n);
}

void field_names_translate(const cli *c, const char *message, text *out)
{
	for (const char *at = message; *at;) {
		const bool quoted = *at == '\'';
		const size_t n = at > message && is_part(at[-1]) ? 0 : path_bytes(at + quoted);
		text option = {0};

		if (n > 0 && (quoted || is_no_word(at, n)) && write_option(c, at + quoted, n, &option)) {
			text_string(out, text_get(&option));
			at += quoted + n;
			at += index_bytes(at);
			at += quoted && *at == '\'';
		} else {
			const size_t plain = n > 0 ? n + quoted : 1;

			text_append(out, at, plain);
			at += plain;
		}
		text_free(&option);
	}
}
