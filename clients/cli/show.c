/* show.c - see show.h. A table is measured first and printed then, so cells are made twice; tables are small. */
#include "clients/cli/show.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clients/cli/terminal.h"
#include "clients/cli/text.h"

enum { MAX_COLUMNS = 12 };

const json_t *show_get(const json_t *json, const char *path)
{
	char name[64];

	for (size_t n; json && *path; path += n + (path[n] == '.')) {
		n = strcspn(path, ".");
		snprintf(name, sizeof(name), "%.*s", (int)n, path);
		json = json_object_get(json, name);
	}
	return json;
}

static void write_time(const json_t *value, text *out)
{
	time_t seconds = (time_t)json_integer_value(value);
	struct tm local;
	char line[32] = "";

	if (localtime_r(&seconds, &local))
		strftime(line, sizeof(line), "%Y-%m-%d %H:%M:%S", &local);
	text_string(out, line);
}

static void write_bytes(const json_t *value, text *out)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
	double x = json_number_value(value);
	int unit = 0;

	for (; x >= 1000 && unit < 4; unit++)
		x /= 1000;
	text_format(out, unit == 0 ? "%.0f %s" : "%.1f %s", x, units[unit]);
}

static void write_value(const json_t *value, show_kind kind, text *out)
{
	char *dump;

	if (!value || json_is_null(value)) {
		text_string(out, "-");
	} else if (kind == SHOW_TIME && json_is_integer(value)) {
		write_time(value, out);
	} else if (kind == SHOW_BYTES && json_is_integer(value)) {
		write_bytes(value, out);
	} else if (json_is_string(value)) {
		terminal_escape(out, json_string_value(value), json_string_length(value), false);
	} else if (json_is_real(value)) {
		text_format(out, "%.5g", json_real_value(value));
	} else if ((dump = json_dumps(value, JSON_ENCODE_ANY))) {
		terminal_escape(out, dump, strlen(dump), false);
		free(dump);
	}
}

/* --- objects --------------------------------------------------------------------------- */

static show_kind kind_of(const char *name)
{
	static const char *const times[] = {"created",    "created_at",       "finished_at",
	                                    "expires_at", "estimated_finish", NULL};

	for (int i = 0; times[i]; i++)
		if (strcmp(times[i], name) == 0)
			return SHOW_TIME;
	return strcmp(name, "bytes") == 0 || strcmp(name, "state_bytes") == 0 ? SHOW_BYTES : SHOW_PLAIN;
}

static void show_members(FILE *file, const json_t *object, int indent)
{
	const char *name;
	json_t *value;
	int widest = 0;

	json_object_foreach((json_t *)object, name, value) if (!json_is_null(value) && (int)strlen(name) > widest)
	    widest = (int)strlen(name);
	json_object_foreach((json_t *)object, name, value)
	{
		text shown = {0};

		if (json_is_null(value))
			continue;
		terminal_escape(&shown, name, strlen(name), false);
		if (json_is_object(value) && json_object_size(value) > 0) {
			fprintf(file, "%*s%s\n", indent, "", text_get(&shown));
			show_members(file, value, indent + 2);
		} else {
			fprintf(file, "%*s%-*s  ", indent, "", widest, text_get(&shown));
			text_clear(&shown);
			write_value(value, kind_of(name), &shown);
			fprintf(file, "%s\n", text_get(&shown));
		}
		text_free(&shown);
	}
}

void show_object(FILE *file, const json_t *object)
{
	show_members(file, object, 0);
}

/* --- tables ------------------------------------------------------------------------------ */

static void print_cell(FILE *file, const char *cell, int width, bool last)
{
	int used = terminal_columns(cell, strlen(cell));

	fputs(cell, file);
	if (last)
		fputc('\n', file);
	else
		fprintf(file, "%*s", width - used + 2, "");
}

void show_table(FILE *file, const json_t *array, const show_column *columns)
{
	int width[MAX_COLUMNS] = {0}, n = 0;
	text cell = {0};

	for (; n < MAX_COLUMNS && columns[n].title; n++)
		width[n] = (int)strlen(columns[n].title);
	/* The first round only measures. */
	for (int round = 0; round < 2; round++) {
		for (int k = 0; round == 1 && k < n; k++)
			print_cell(file, columns[k].title, width[k], k == n - 1);
		for (size_t i = 0; i < json_array_size(array); i++) {
			for (int k = 0; k < n; k++) {
				text_clear(&cell);
				write_value(show_get(json_array_get(array, i), columns[k].path), columns[k].kind,
				            &cell);
				int used = terminal_columns(text_get(&cell), cell.used);
				if (round == 1)
					print_cell(file, text_get(&cell), width[k], k == n - 1);
				else if (used > width[k])
					width[k] = used;
			}
		}
	}
	text_free(&cell);
}
