/* explanation_safetensors.c - a tensor for each path of the table.
 *
 * Numbers of tokens have a column for each token of their side, 0 if the answer has none. Paths within a list of
 * objects have a row for each object; tensors such as "weights.layer" or "span.rows.position" hold the objects' own
 * indices. Tensors are written row by row in the order of the header. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/daemon/generation/explanation_format.h"

enum { MAX_TENSORS = 256 };
/* Maximum size of a sparse answer in dense form. */
#define MAX_BYTES ((int64_t)1 << 30)

typedef enum tensor_kind {
	NUMBERS,     /* F32: numbers of the path */
	PAIR_TOKENS, /* the following are I32; of TABLE_PAIRS */
	TOKEN_IDS,
	TOKEN_OFFSETS, /* per side */
	POSITIONS,
	LAYERS,
	HEADS,
	ROUNDS /* indices of the objects of a list */
} tensor_kind;

typedef struct tensor {
	char name[TABLE_PATH_BYTES + 16];
	tensor_kind kind;
	table_side side;        /* for TOKEN_IDS and TOKEN_OFFSETS */
	const table_series *of; /* for the others: the first series of the path */
	int64_t rows, columns;  /* -1: the dimension is absent */
} tensor;

typedef struct plan {
	tensor tensors[MAX_TENSORS];
	size_t n, at;               /* number of tensors; the tensor being written */
	int64_t row;                /* row being written */
	const table_series *series; /* series of that row */
	const char *rounds[16];
	int n_rounds;
	int32_t *line; /* buffer for one row */
} plan;

/* --- the plan ------------------------------------------------------------------------------------ */

static const table_series *explanation_safetensors_next_of(const explanation_table *t, const table_series *s)
{
	const char *path = s->path;
	for (s++; s < t->series + t->n; s++)
		if (strcmp(s->path, path) == 0)
			return s;
	return NULL;
}

static int32_t index_of(plan *p, const table_series *s, tensor_kind kind)
{
	int r = 0;
	if (kind != ROUNDS)
		return kind == POSITIONS ? s->position : kind == LAYERS ? s->layer : s->head;
	if (!s->round[0])
		return TABLE_NONE;
	while (r < p->n_rounds && strcmp(p->rounds[r], s->round) != 0)
		r++;
	assert(r < (int)(sizeof p->rounds / sizeof *p->rounds));
	p->rounds[r] = s->round;
	p->n_rounds += r == p->n_rounds;
	return r;
}

static tensor *explanation_safetensors_find(plan *p, const char *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (strcmp(p->tensors[i].name, name) == 0)
			return &p->tensors[i];
	return NULL;
}

static tensor *explanation_safetensors_add(plan *p, tensor_kind kind, const table_series *of, const char *stem,
                                           size_t n, const char *end)
{
	tensor *t = &p->tensors[p->n];
	assert(p->n < MAX_TENSORS);
	*t = (tensor){.kind = kind, .of = of, .rows = -1, .columns = -1};
	snprintf(t->name, sizeof t->name, "%.*s%s", (int)n, stem, end);
	if (explanation_safetensors_find(p, t->name))
		return NULL; /* the list has them already */
	p->n++;
	return t;
}

/* Add the indices of the list that contains a path. */
static void add_indices(plan *p, const explanation_table *table, const table_series *first, int64_t rows)
{
	static const char *const ends[] = {".position", ".layer", ".head", ".round"};
	const size_t stem = (size_t)(strrchr(first->path, '.') - first->path);
	for (tensor_kind kind = POSITIONS; kind <= ROUNDS; kind++) {
		bool any = false;
		for (const table_series *s = first; s; s = explanation_safetensors_next_of(table, s))
			any |= index_of(p, s, kind) != TABLE_NONE;
		tensor *t =
		    any ? explanation_safetensors_add(p, kind, first, first->path, stem, ends[kind - POSITIONS]) : NULL;
		if (t)
			t->rows = rows;
	}
}

static void add_path(plan *p, const explanation_table *table, const table_series *first)
{
	int64_t rows = 0, columns = 0;
	const bool pairs = first->shape == TABLE_PAIRS, one = first->shape == TABLE_NUMBER;
	for (const table_series *s = first; s; s = explanation_safetensors_next_of(table, s)) {
		int64_t end = (pairs ? 0 : s->first) + (int64_t)s->count;
		columns = end > columns ? end : columns;
		rows++;
	}
	for (int k = 0; k < 1 + pairs; k++) {
		tensor *t = explanation_safetensors_add(p, k ? PAIR_TOKENS : NUMBERS, first, first->path,
		                                        strlen(first->path), k ? ".token" : "");
		if (!t)
			return;
		t->rows = first->listed ? rows : -1;
		t->columns = one ? -1 : columns;
	}
	if (first->listed && !one)
		add_indices(p, table, first, rows);
}

static void add_tokens(plan *p, const explanation_table *table)
{
	static const char *const names[TABLE_SIDES][2] = {{"tokens.id", "tokens.offset"},
	                                                  {"source.tokens.id", "source.tokens.offset"}};
	for (table_side side = TABLE_TEXT; side < TABLE_SIDES; side++)
		for (int k = 0; k < 2 && table->tokens[side]; k++) {
			const char *name = names[side][k];
			tensor *t =
			    explanation_safetensors_add(p, k ? TOKEN_OFFSETS : TOKEN_IDS, NULL, name, strlen(name), "");
			t->side = side;
			t->columns = (int64_t)json_array_size(table->tokens[side]);
		}
}

static int64_t tensor_numbers(const tensor *t)
{
	return (t->rows < 0 ? 1 : t->rows) * (t->columns < 0 ? 1 : t->columns);
}

static status plan_new(explanation_writer *w, error *err)
{
	const explanation_table *table = &w->table;
	plan *p = w->own = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	add_tokens(p, table);
	for (size_t i = 0; i < table->n; i++)
		if (!explanation_safetensors_find(p, table->series[i].path))
			add_path(p, table, &table->series[i]);
	int64_t all = 0, widest = 1;
	for (size_t i = 0; i < p->n; i++) {
		const tensor *t = &p->tensors[i];
		all += 4 * tensor_numbers(t);
		widest = t->columns > widest ? t->columns : widest;
		widest = t->columns < 0 && t->rows > widest ? t->rows : widest;
	}
	if (all > MAX_BYTES)
		return error_set(err, STATUS_TOO_LARGE, NULL,
		                 "the tensors would have %lld bytes; choose fewer layers or heads, or another format",
		                 (long long)all);
	/* The row buffer follows the plan in the same block, so one free() releases both. */
	plan *whole = realloc(p, sizeof *p + (size_t)widest * sizeof *p->line);
	if (!whole)
		return STATUS_NOMEM;
	w->own = whole;
	whole->line = (int32_t *)(whole + 1);
	return STATUS_OK;
}

/* --- the header ------------------------------------------------------------------------------------ */

/* NULL: the side is absent, or out of memory. */
static json_t *explanation_safetensors_text_of(const explanation_table *t, table_side side)
{
	format_buffer whole = {0};
	if (!t->tokens[side])
		return NULL;
	for (size_t i = 0; i < json_array_size(t->tokens[side]); i++) {
		const char *text;
		size_t n;
		explanation_table_token(t, side, (int32_t)i, &text, &n);
		format_buffer_append(&whole, text, n);
	}
	json_t *string = whole.failed ? NULL : json_stringn(whole.used ? whole.data : "", whole.used);
	format_buffer_fini(&whole);
	return string;
}

static json_t *metadata_of(const plan *p, const explanation_writer *w)
{
	char rounds[256] = "", position[24] = "all";
	const json_t *at = json_object_get(w->explanation, "position");
	for (int i = 0, used = 0; i < p->n_rounds && used < (int)sizeof rounds; i++)
		used += snprintf(rounds + used, sizeof rounds - (size_t)used, "%s%s", i ? "," : "", p->rounds[i]);
	if (json_is_integer(at))
		snprintf(position, sizeof position, "%lld", (long long)json_integer_value(at));
	const json_t *more = json_object_get(json_object_get(w->explanation, "span"), "has_more");
	return json_pack("{s:s, s:O, s:s, s:s, s:s*, s:o, s:o*}", "object", "explanation", "model",
	                 json_object_get(w->explanation, "model"), "position", position, "rounds", rounds, "has_more",
	                 !more                ? NULL
	                 : json_is_true(more) ? "true"
	                                      : "false",
	                 "text", explanation_safetensors_text_of(&w->table, TABLE_TEXT), "source",
	                 explanation_safetensors_text_of(&w->table, TABLE_SOURCE));
}

static json_t *shape_of(const tensor *t)
{
	json_t *shape = json_array();
	if (t->rows >= 0)
		json_array_append_new(shape, json_integer(t->rows));
	if (t->columns >= 0)
		json_array_append_new(shape, json_integer(t->columns));
	return shape;
}

static status write_header(explanation_writer *w, format_buffer *out)
{
	const plan *p = w->own;
	int64_t at = 0;
	json_t *header = json_pack("{s:o}", "__metadata__", metadata_of(p, w));
	for (size_t i = 0; i < p->n; i++) {
		const tensor *t = &p->tensors[i];
		int64_t end = at + 4 * tensor_numbers(t);
		json_object_set_new(header, t->name,
		                    json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->kind == NUMBERS ? "F32" : "I32",
		                              "shape", shape_of(t), "data_offsets", (json_int_t)at, (json_int_t)end));
		at = end;
	}
	char *text = json_text(header, JSON_COMPACT);
	json_decref(header);
	if (!text)
		return STATUS_NOMEM;
	const size_t used = strlen(text), padded = (used + 7) & ~(size_t)7;
	for (int i = 0; i < 8; i++)
		format_buffer_append(out, &(unsigned char){(unsigned char)((uint64_t)padded >> 8 * i)}, 1);
	format_buffer_append(out, text, used);
	format_buffer_append(out, "       ", padded - used);
	free(text);
	w->bytes = 8 + (int64_t)padded + at;
	return STATUS_OK;
}

/* --- the rows ---------------------------------------------------------------------------------------- */

/* Copy row p->row of tensor t to p->line. */
static void fill_numbers(plan *p, const tensor *t)
{
	const table_series *s = p->series;
	for (size_t i = 0; i < s->count; i++) {
		const table_row row = explanation_table_row(s, i);
		int32_t *to = &p->line[s->shape == TABLE_TOKENS ? (size_t)row.token : i];
		if (t->kind == NUMBERS)
			memcpy(to, &row.value, sizeof *to);
		else
			*to = row.token;
	}
}

static void explanation_safetensors_fill(plan *p, const tensor *t, const explanation_table *table)
{
	const int64_t width = t->columns < 0 ? 1 : t->columns;
	for (int64_t i = 0; i < width; i++)
		p->line[i] = t->kind == PAIR_TOKENS ? TABLE_NONE : 0;
	if (t->kind == NUMBERS || t->kind == PAIR_TOKENS) {
		fill_numbers(p, t);
		return;
	}
	if (t->kind >= POSITIONS) {
		p->line[0] = index_of(p, p->series, t->kind);
		return;
	}
	for (int64_t i = 0; i < width; i++)
		p->line[i] = (int32_t)json_integer_value(json_object_get(
		    json_array_get(table->tokens[t->side], (size_t)i), t->kind == TOKEN_IDS ? "id" : "offset"));
}

static status tensors_piece(explanation_writer *w, format_buffer *out, error *err)
{
	if (!w->started) {
		TRY(plan_new(w, err));
		TRY(write_header(w, out));
	}
	plan *p = w->own;
	while (p->at < p->n && !out->failed && out->used < EXPLANATION_PIECE) {
		const tensor *t = &p->tensors[p->at];
		const int64_t rows = t->rows < 0 ? 1 : t->rows, columns = t->columns < 0 ? 1 : t->columns;
		p->series = p->row == 0 ? t->of : t->of ? explanation_safetensors_next_of(&w->table, p->series) : NULL;
		if (rows > 0) {
			explanation_safetensors_fill(p, t, &w->table);
			format_buffer_append(out, p->line, (size_t)columns * sizeof *p->line);
		}
		p->row++;
		if (p->row >= rows) {
			p->at++;
			p->row = 0;
		}
	}
	return STATUS_OK;
}

const explanation_format explanation_safetensors = {"safetensors", "application/vnd.safetensors",
                                                    "explanation.safetensors", tensors_piece};
