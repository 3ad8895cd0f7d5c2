/* show.c - see show.h. A table is measured first and printed then, so cells are made twice; tables are small. */
#include "clients/cli/show.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clients/cli/terminal.h"
#include "clients/cli/text.h"

enum { MAX_COLUMNS = 12, GAP = 2, LEAST_TEXT = 8 };

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

static show_kind show_kind_of(const char *name)
{
	static const char *const times[] = {"created",          "created_at",     "finished_at", "expires_at",
	                                    "estimated_finish", "expected_start", NULL};

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
			write_value(value, show_kind_of(name), &shown);
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

typedef struct column {
	show_column is;
	int width;  /* in columns of the terminal */
	bool text;  /* a cell is a string, which may be cut */
	bool empty; /* no cell has a value */
} column;

static void write_cell(const column *k, const json_t *row, text *cell)
{
	text_clear(cell);
	write_value(show_get(row, k->is.path), k->is.kind, cell);
}

static int measure(column *all, const json_t *array, const show_column *columns)
{
	text cell = {0};
	int n = 0;

	for (; n < MAX_COLUMNS && columns[n].title; n++) {
		column *k = &all[n];
		size_t i;
		json_t *row;

		*k = (column){.is = columns[n], .width = (int)strlen(columns[n].title), .empty = true};
		json_array_foreach(array, i, row)
		{
			const json_t *value = show_get(row, k->is.path);

			write_cell(k, row, &cell);
			int used = terminal_columns(text_get(&cell), cell.used);
			k->width = used > k->width ? used : k->width;
			k->text = k->text || json_is_string(value);
			k->empty = k->empty && (!value || json_is_null(value));
		}
	}
	text_free(&cell);
	return n;
}

static int table_width(const column *all, int n)
{
	int sum = 0;

	for (int i = 0; i < n; i++)
		sum += all[i].width + (i > 0 ? GAP : 0);
	return sum;
}

static int leave_out(column *all, int n, int i)
{
	memmove(&all[i], &all[i + 1], (size_t)(n - i - 1) * sizeof(*all));
	return n - 1;
}

/* The widest column of texts after the first that is wider than `least`; -1: none. */
static int widest_text(const column *all, int n, int least)
{
	int widest = -1;

	for (int i = 1; i < n; i++)
		if (all[i].text && all[i].width > least && (widest < 0 || all[i].width > all[widest].width))
			widest = i;
	return widest;
}

/* Make the table fit the width, 0: any. Columns without values are dropped first, then texts are cut, then columns are
 * dropped from the right; the first column (the id) is cut last. Returns the number of columns left. */
static int fit(column *all, int n, int width)
{
	for (int i = n - 1; i > 0; i--)
		if (all[i].is.kind == SHOW_OPTIONAL && all[i].empty)
			n = leave_out(all, n, i);
	if (width <= 0)
		return n;
	for (int i = n - 1; i > 0; i--)
		if (table_width(all, n) > width && all[i].empty)
			n = leave_out(all, n, i);
	for (int i; table_width(all, n) > width && (i = widest_text(all, n, LEAST_TEXT)) >= 0;)
		all[i].width--;
	while (table_width(all, n) > width && n > 1)
		n--;
	if (table_width(all, n) > width && n > 0)
		all[0].width = width;
	return n;
}

static void print_cell(FILE *file, const char *cell, int width, bool last)
{
	text shown = {0};

	terminal_cut(&shown, cell, strlen(cell), width);
	fputs(text_get(&shown), file);
	if (last)
		fputc('\n', file);
	else
		fprintf(file, "%*s", width - terminal_columns(text_get(&shown), shown.used) + GAP, "");
	text_free(&shown);
}

void show_table(FILE *file, int width, const json_t *array, const show_column *columns)
{
	column all[MAX_COLUMNS];
	int n = fit(all, measure(all, array, columns), width);
	text cell = {0};
	size_t i;
	json_t *row;

	for (int k = 0; k < n; k++)
		print_cell(file, all[k].is.title, all[k].width, k == n - 1);
	json_array_foreach(array, i, row)
	{
		for (int k = 0; k < n; k++) {
			write_cell(&all[k], row, &cell);
			print_cell(file, text_get(&cell), all[k].width, k == n - 1);
		}
	}
	text_free(&cell);
}
