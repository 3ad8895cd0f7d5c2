#include "engine/daemon/generation/explanation_format.h"

#include <stdlib.h>
#include <string.h>

/* --- CSV: RFC 4180, with lines that end as those of Unix do ---------------------------------- */

static void csv_text(FILE *out, const char *text, size_t bytes)
{
	bool plain = true;
	for (size_t i = 0; i < bytes; i++)
		plain &= !strchr("\",\r\n", text[i]);
	if (plain) {
		fwrite(text, 1, bytes, out);
		return;
	}
	putc('"', out);
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] == '"')
			putc('"', out);
		putc(text[i], out);
	}
	putc('"', out);
}

/* And a comma; nothing for TABLE_NONE. */
static void csv_index(FILE *out, int32_t index)
{
	if (index != TABLE_NONE)
		fprintf(out, "%d", (int)index);
	putc(',', out);
}

static void csv_row(const explanation_table *t, const table_row *row, FILE *out)
{
	const table_series *s = row->series;
	const char *text;
	size_t bytes;
	int32_t id = explanation_table_token(t, row->token, &text, &bytes);
	fprintf(out, "%s,", s->path);
	csv_index(out, row->position);
	csv_index(out, s->layer);
	csv_index(out, s->head);
	fprintf(out, "%s,", s->round ? s->round : "");
	csv_index(out, row->token);
	csv_index(out, row->token == TABLE_NONE ? TABLE_NONE : id);
	csv_text(out, text, bytes);
	fprintf(out, ",%.9g\n", (double)row->value);
}

static status csv_piece(explanation_writer *w, FILE *out, error *err)
{
	table_row row;
	(void)err;
	if (!w->begun)
		fputs("path,position,layer,head,round,token,token_id,text,value\n", out);
	while (ftell(out) < EXPLANATION_PIECE && explanation_table_next(&w->table, &w->at, &row))
		csv_row(&w->table, &row, out);
	return STATUS_OK;
}

const explanation_format explanation_csv = {"csv", "text/csv; charset=utf-8", "explanation.csv", csv_piece};

/* --- all formats -------------------------------------------------------------------------------- */

static const explanation_format *const formats[] = {&explanation_csv, &explanation_arrow, &explanation_safetensors};

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

status explanation_format_next(const explanation_format *f, explanation_writer *w, char **data, size_t *bytes,
                               error *err)
{
	FILE *out = open_memstream(data, bytes);
	if (!out)
		return STATUS_NOMEM;
	status s = f->piece(w, out, err);
	bool failed = ferror(out);
	w->begun = true;
	if ((fclose(out) != 0 || failed) && s == STATUS_OK)
		s = STATUS_NOMEM;
	if (s != STATUS_OK || *bytes == 0) {
		free(*data);
		*data = NULL;
		*bytes = 0;
	}
	return s;
}
