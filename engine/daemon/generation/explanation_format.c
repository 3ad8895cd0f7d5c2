#include "engine/daemon/generation/explanation_format.h"

#include <stdlib.h>
#include <string.h>

/* --- CSV: RFC 4180, with lines that end as those of Unix do ---------------------------------- */

static void csv_text(format_buffer *out, const char *text, size_t n)
{
	bool plain = true;
	for (size_t i = 0; i < n; i++)
		plain &= !memchr("\",\r\n", text[i], 4);
	if (plain) {
		format_buffer_append(out, text, n);
		return;
	}
	format_buffer_string(out, "\"");
	for (size_t i = 0; i < n; i++)
		format_buffer_append(out, text[i] == '"' ? "\"\"" : &text[i], 1 + (text[i] == '"'));
	format_buffer_string(out, "\"");
}

/* Append an index and a comma; no index for TABLE_NONE. */
static void csv_index(format_buffer *out, int32_t index)
{
	if (index == TABLE_NONE)
		format_buffer_string(out, ",");
	else
		format_buffer_print(out, "%d,", (int)index);
}

static void csv_row(const explanation_table *t, const table_row *row, format_buffer *out)
{
	const table_series *s = row->series;
	const char *text;
	size_t n;
	int32_t id = explanation_table_token(t, s->side, row->token, &text, &n);
	format_buffer_print(out, "%s,", s->path);
	csv_index(out, row->position);
	csv_index(out, s->layer);
	csv_index(out, s->head);
	format_buffer_print(out, "%s,%s,", s->round, explanation_table_side(row));
	csv_index(out, row->token);
	csv_index(out, row->token == TABLE_NONE ? TABLE_NONE : id);
	csv_text(out, text, n);
	format_buffer_print(out, ",%.9g\n", (double)row->value);
}

static status csv_piece(explanation_writer *w, format_buffer *out, error *err)
{
	table_row row;
	(void)err;
	if (!w->started)
		format_buffer_string(out, "path,position,layer,head,round,side,token,token_id,text,value\n");
	while (!out->failed && out->used < EXPLANATION_PIECE && explanation_table_next(&w->table, &w->at, &row))
		csv_row(&w->table, &row, out);
	return STATUS_OK;
}

static const explanation_format explanation_csv = {"csv", "text/csv; charset=utf-8", "explanation.csv", csv_piece};

/* --- all formats -------------------------------------------------------------------------------- */

static const explanation_format *const formats[] = {&explanation_csv, &explanation_safetensors};

const explanation_format *explanation_format_find(const char *name)
{
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (strcmp(formats[i]->name, name) == 0)
			return formats[i];
	return NULL;
}

status explanation_writer_init(explanation_writer *w, const json_t *explanation)
{
	*w = (explanation_writer){.explanation = explanation, .bytes = -1};
	return explanation_table_init(&w->table, explanation);
}

void explanation_writer_fini(explanation_writer *w)
{
	explanation_table_fini(&w->table);
	free(w->own);
	*w = (explanation_writer){0};
}

status explanation_format_next(const explanation_format *f, explanation_writer *w, char **data, size_t *n, error *err)
{
	format_buffer out = {0};
	status s = f->piece(w, &out, err);
	w->started = true;
	w->explanation = NULL;
	if (s == STATUS_OK && out.failed)
		s = STATUS_NOMEM;
	if (s != STATUS_OK)
		format_buffer_fini(&out);
	*data = out.data;
	*n = out.used;
	return s;
}
