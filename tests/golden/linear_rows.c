#include "tests/golden/linear_rows.h"

#include <string.h>

#include "engine/tensor/ops.h"

/* A plan that reads one token into each of B slots. */
typedef struct stream {
	const linear_rows *rows;
	plan *plan;
	float *pool; /* device memory */
	value q, k, v, mask, position, y;
} stream;

static status build(golden *g, stream *s, error *err)
{
	const linear_rows *r = s->rows;
	shape token = SHAPE3(r->b, 1, r->d), each = SHAPE1(r->b);
	int64_t floats = linear_state_floats(r->d, r->heads);
	linear_stream_params params = {.heads = r->heads, .eps = (float)r->eps};
	void *words;
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	value pool = graph_state(made, "pool", SHAPE2(r->b, floats));
	value slot = graph_input(made, "slot", DTYPE_I32, each), length = graph_input(made, "length", DTYPE_I32, each);
	s->position = graph_input(made, "position", DTYPE_I32, each);
	s->q = graph_input(made, "q", DTYPE_F32, token);
	s->k = graph_input(made, "k", DTYPE_F32, token);
	s->v = graph_input(made, "v", DTYPE_F32, token);
	s->mask = r->mask ? graph_input(made, "mask", DTYPE_I32, SHAPE2(r->b, 1)) : VALUE_NONE;
	s->y = op_linear_stream(made, s->q, s->k, s->v, pool, slot, s->position, length, s->mask, VALUE_NONE,
	                        VALUE_NONE, params)
	           .y;
	graph_output(made, s->y, "y");
	status made_pool = golden_pool(g, r->b * floats, &s->pool, err);
	if (made_pool != STATUS_OK) {
		graph_free(made);
		return made_pool;
	}
	TRY(golden_plan(g, made, s->pool, &s->plan, err));
	TRY(golden_memory(g, r->b, sizeof(int32_t), &words, err));
	int32_t *each_slot = words;
	for (int32_t b = 0; b < r->b; b++)
		each_slot[b] = b;
	TRY(plan_write(s->plan, slot, each_slot));
	for (int32_t b = 0; b < r->b; b++)
		each_slot[b] = 1;
	return plan_write(s->plan, length, each_slot);
}

/* Copy token t of each sequence: [B, N, width] floats or int32 to [B, width]. */
static const void *column(const linear_rows *r, const void *from, int64_t t, int64_t width, void *scratch)
{
	size_t bytes = (size_t)width * 4;
	for (int64_t b = 0; b < r->b; b++)
		memcpy((char *)scratch + (size_t)b * bytes, (const char *)from + (size_t)(b * r->n + t) * bytes, bytes);
	return scratch;
}

static status read_token(const stream *s, int64_t t, void *scratch)
{
	const linear_rows *r = s->rows;
	int32_t *position = scratch;
	for (int64_t b = 0; b < r->b; b++)
		position[b] = (int32_t)t;
	TRY(plan_write(s->plan, s->position, position));
	TRY(plan_write(s->plan, s->q, column(r, r->q, t, r->d, scratch)));
	TRY(plan_write(s->plan, s->k, column(r, r->k, t, r->d, scratch)));
	TRY(plan_write(s->plan, s->v, column(r, r->v, t, r->d, scratch)));
	if (r->mask)
		TRY(plan_write(s->plan, s->mask, column(r, r->mask, t, 1, scratch)));
	return plan_run(s->plan);
}

status linear_rows_read(golden *g, const linear_rows *rows, bool every, float **y, float **states, error *err)
{
	int64_t floats = rows->b * linear_state_floats(rows->d, rows->heads), width = rows->b * rows->d;
	stream s = {.rows = rows};
	void *scratch, *all, *out;
	TRY(build(g, &s, err));
	TRY(golden_memory(g, width, sizeof(float), &scratch, err));
	TRY(golden_memory(g, every ? rows->n * floats : floats, sizeof(float), &all, err));
	TRY(golden_memory(g, rows->n * width, sizeof(float), &out, err));
	*y = out;
	*states = all;
	for (int64_t t = 0; t < rows->n; t++) {
		float *state = *states + (every ? t * floats : 0);
		TRY(read_token(&s, t, scratch));
		if (every || t == rows->n - 1)
			TRY(g->backend->download(g->backend, state, s.pool, (size_t)floats * sizeof(float)));
		TRY(plan_read(s.plan, s.y, scratch));
		for (int64_t b = 0; b < rows->b; b++)
			memcpy(*y + (b * rows->n + t) * rows->d, (float *)scratch + b * rows->d,
			       (size_t)rows->d * sizeof(float));
	}
	return STATUS_OK;
}
