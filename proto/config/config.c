#include "proto/config/config.h"

#include <stdlib.h>
#include <string.h>

#include "proto/config/toml_file.h"
#include "proto/nearest.h"

enum { LABEL_BYTES = 300 };

typedef struct reading {
	options *o;
	const char *path;
	const config_section *sections;
	int n_command_line; /* options of the command line, which come first */
} reading;

/* --- reading ----------------------------------------------------------------------------- */

static bool refuse(const reading *r, const toml_entry *e, const char *problem)
{
	options *o = r->o;

	if (!e->key)
		snprintf(o->problem, sizeof(o->problem), "%.200s:%d: [%.60s]: %s", r->path, e->line, e->table, problem);
	else
		snprintf(o->problem, sizeof(o->problem), "%.200s:%d: %.60s%s%.60s: %s", r->path, e->line, e->table,
		         *e->table ? "." : "", e->key, problem);
	return false;
}

static bool is_last(const option_row *row)
{
	return !row->name || !*row->name;
}

static const option_row *row_of(const config_section *section, const char *key)
{
	for (const option_row *row = section->rows; !is_last(row); row++)
		if (strcmp(row->name, key) == 0)
			return row;
	return NULL;
}

static bool refuse_key(const reading *r, const toml_entry *e, const config_section *section)
{
	char problem[NEAREST_BYTES + 60];
	nearest near = nearest_of(e->key);

	for (const config_section *s = r->sections; s->name; s++)
		if (s->rows && row_of(s, e->key)) {
			snprintf(problem, sizeof(problem), "this key belongs to [%s]", s->name);
			return refuse(r, e, problem);
		}
	for (const option_row *row = section->rows; !is_last(row); row++)
		nearest_offer(&near, row->name);
	const char *best = nearest_found(&near);
	snprintf(problem, sizeof(problem), best ? "unknown key (did you mean %s?)" : "unknown key", best);
	return refuse(r, e, problem);
}

/* The type of value that a row expects, if the entry has another one; else NULL. */
static const char *type_fault(const option_row *row, const toml_entry *e)
{
	switch (row->type) {
	case OPTION_FLAG:
		return e->type == TOML_BOOLEAN ? NULL : "expected true or false";
	case OPTION_COUNT:
		return e->type == TOML_INTEGER ? NULL : "expected an integer";
	case OPTION_SECONDS:
		return e->type == TOML_INTEGER || e->type == TOML_NUMBER ? NULL : "expected a number";
	case OPTION_TEXTS:
		return e->type == TOML_STRING || e->type == TOML_STRINGS ? NULL
		                                                         : "expected a string or an array of strings";
	default:
		return e->type == TOML_STRING ? NULL : "expected a string";
	}
}

static bool is_given(const reading *r, const option_row *row)
{
	for (int i = 0; i < r->n_command_line; i++)
		if (strcmp(r->o->given[i].row->name, row->name) == 0)
			return true;
	return false;
}

static bool append(options *o, const option_row *row, const char *value)
{
	option_given *more = realloc(o->given, ((size_t)o->n_given + 1) * sizeof(*more));
	char *copy = strdup(value);

	if (more)
		o->given = more;
	if (!more || !copy) {
		free(copy);
		snprintf(o->problem, sizeof(o->problem), "out of memory");
		o->out_of_memory = true;
		return false;
	}
	o->given[o->n_given++] = (option_given){.row = row, .value = copy, .owned = true};
	return true;
}

static bool take_value(const reading *r, const toml_entry *e, const option_row *row)
{
	char label[LABEL_BYTES];

	snprintf(label, sizeof(label), "%.200s:%d: %s.%s", r->path, e->line, e->table, row->name);
	if (row->type == OPTION_FLAG)
		return is_given(r, row) || strcmp(e->texts[0], "true") != 0 || append(r->o, row, "");
	for (size_t i = 0; i < e->n_texts; i++)
		if (!options_check(row, label, e->texts[i], r->o->problem, sizeof(r->o->problem)) ||
		    (!is_given(r, row) && !append(r->o, row, e->texts[i])))
			return false;
	return true;
}

static bool take(void *context, const toml_entry *e)
{
	const reading *r = context;
	const config_section *section = r->sections;

	while (section->name && strcmp(section->name, e->table) != 0)
		section++;
	if (!section->name)
		return refuse(r, e, *e->table ? "unknown table" : "this key is in no table");
	if (!section->rows || !e->key)
		return true;
	const option_row *row = row_of(section, e->key);
	const char *fault = row ? type_fault(row, e) : NULL;
	if (!row)
		return refuse_key(r, e, section);
	return fault ? refuse(r, e, fault) : take_value(r, e, row);
}

bool config_read(options *o, const char *path, const config_section *sections)
{
	reading r = {.o = o, .path = path, .sections = sections, .n_command_line = o->n_given};

	return toml_file_read(path, take, &r, o->problem, sizeof(o->problem), &o->out_of_memory);
}

bool config_read_again(options *out, const options *o, const char *path, const config_section *sections)
{
	*out = (options){.given = calloc((size_t)o->n_given + 1, sizeof(*out->given))};
	if (!out->given) {
		snprintf(out->problem, sizeof(out->problem), "out of memory");
		out->out_of_memory = true;
		return false;
	}
	for (int i = 0; i < o->n_given; i++)
		if (!o->given[i].owned)
			out->given[out->n_given++] = o->given[i];
	return config_read(out, path, sections);
}

/* --- writing ----------------------------------------------------------------------------- */

static void write_string(FILE *file, const char *text)
{
	fputc('"', file);
	for (; *text; text++) {
		const unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(file, "\\%c", c);
		else if (c < ' ' || c == 0x7f)
			fprintf(file, "\\u%04x", c);
		else
			fputc(c, file);
	}
	fputc('"', file);
}

static void write_values(FILE *file, const options *o, const option_row *row)
{
	const char *separator = "[";

	for (int i = 0; i < o->n_given; i++)
		if (strcmp(o->given[i].row->name, row->name) == 0) {
			fputs(separator, file);
			write_string(file, o->given[i].value);
			separator = ", ";
		}
	fputc(']', file);
}

static void write_comment(FILE *file, const option_row *row)
{
	char *help = options_describe(row);

	fprintf(file, "# %s: %s\n", row->name, help ? help : row->help);
	free(help);
}

static void write_row(FILE *file, const options *o, const option_row *row)
{
	const char *value = options_text(o, row->name);

	if (!value) {
		write_comment(file, row);
		return;
	}
	fprintf(file, "%s = ", row->name);
	if (row->type == OPTION_FLAG)
		fputs("true", file);
	else if (row->type == OPTION_TEXTS)
		write_values(file, o, row);
	else if (row->type == OPTION_COUNT)
		fprintf(file, "%lld", strtoll(value, NULL, 10));
	else if (row->type == OPTION_SECONDS)
		fprintf(file, "%.15g", strtod(value, NULL));
	else
		write_string(file, value);
	fputc('\n', file);
}

void config_write(FILE *file, const options *o, const config_section *sections)
{
	for (const config_section *s = sections; s->name; s++) {
		fprintf(file, "%s[%s]\n", s == sections ? "" : "\n", s->name);
		for (const option_row *row = s->rows; row && !is_last(row); row++)
			write_row(file, o, row);
	}
}
