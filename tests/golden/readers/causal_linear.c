/* Causal linear attention over raw queries, keys and values (before the feature map), and the result of other queries
 * for the same keys. Reads q and k [B,H,N,d], v [B,H,N,m], dO as v, key_keep [B,N], eps in the config. Values:
 *
 *   nomask.*, mask_keys.*   (mask_keys: only the kept keys) out and, for the loss Σ out ⊙ dO, dq, dk and dv
 *   S [B,H,N,d,m], z [B,H,N,d]
 *                           the state after every row, with no key masked
 *   cross.*                 the first rows of q as queries over all kept keys: out, S_md [B,H,m,d], z [B,H,d]
 *
 * out comes from linear_attention or, with --recurrent, token by token from linear_stream, whose state is S and z. In
 * the ops the heads of q, k and v have one width. If d and m differ, the narrower ones are padded: values with zeros,
 * queries and keys with numbers that the feature map turns into 0. */
#include <string.h>

#include "tests/golden/linear_rows.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/linear_attention.h"

enum { CROSS_QUERIES = 4, NO_FEATURE = -200 }; /* e^-200 is 0 in f32 */

typedef struct causal {
	int64_t b, h, n, d, m, width; /* m: of v's heads; width: of a head in the ops */
	int64_t queries;              /* number of queries of cross.* */
	double eps;
	float *q, *k, *v, *dy; /* [B, N, H·width] */
	const int32_t *keep;
} causal;

static bool recognises(const golden *g)
{
	return golden_find(g, "key_keep") ||
	       (json_object_get(g->config, "m") && json_object_get(g->config, "d") && golden_find(g, "dO"));
}

/* --- layouts -------------------------------------------------------------------------------- */

/* [B,H,N,x] to [B,N,H·width], filled up. */
static void interleave(const causal *c, const float *from, int64_t x, float fill, float *to)
{
	for (int64_t i = 0; i < c->b * c->n * c->h * c->width; i++) {
		int64_t j = i % c->width, h = i / c->width % c->h, n = i / c->width / c->h % c->n,
		        b = i / c->width / c->h / c->n;
		to[i] = j < x ? from[((b * c->h + h) * c->n + n) * x + j] : fill;
	}
}

/* The first `rows` of [B,N,H·width], of which the first x columns of each head, to [B,H,rows,x]. */
static void separate(const causal *c, const float *from, int64_t n, int64_t rows, int64_t x, float *to)
{
	for (int64_t i = 0; i < c->b * c->h * rows * x; i++) {
		int64_t j = i % x, row = i / x % rows, h = i / x / rows % c->h, b = i / x / rows / c->h;
		to[i] = from[((b * n + row) * c->h + h) * c->width + j];
	}
}

static status read_rows(golden *g, const causal *c, const char *name, int64_t x, float fill, float **out, error *err)
{
	const float *stored;
	void *data;
	TRY(golden_floats(g, name, EXTENT(c->b, c->h, c->n, x), &stored, err));
	TRY(golden_memory(g, c->b * c->n * c->h * c->width, sizeof(float), &data, err));
	*out = data;
	interleave(c, stored, x, fill, *out);
	return STATUS_OK;
}

static status read_set(golden *g, causal *c, error *err)
{
	extent q, v;
	TRY(golden_rank(g, "q", 4, &q, err));
	TRY(golden_rank(g, "v", 4, &v, err));
	*c = (causal){.b = q.dim[0], .h = q.dim[1], .n = q.dim[2], .d = q.dim[3], .m = v.dim[3]};
	c->width = c->d > c->m ? c->d : c->m;
	golden_tensor *cross = golden_find(g, "cross.out");
	c->queries = cross && cross->entry->rank == 4 ? cross->entry->dim[2] : CROSS_QUERIES;
	c->queries = c->queries < c->n ? c->queries : c->n;
	TRY(golden_config_number(g, "eps", (double)LINEAR_ATTENTION_EPS, &c->eps, err));
	TRY(read_rows(g, c, "q", c->d, NO_FEATURE, &c->q, err));
	TRY(read_rows(g, c, "k", c->d, NO_FEATURE, &c->k, err));
	TRY(read_rows(g, c, "v", c->m, 0, &c->v, err));
	TRY(read_rows(g, c, "dO", c->m, 0, &c->dy, err));
	return golden_integers(g, "key_keep", EXTENT(c->b, c->n), 0, 1, &c->keep, err);
}

/* Add the first rows of [B,n,H·width] as [B,H,rows,x]. */
static status add_rows(golden *g, const causal *c, const float *from, int64_t n, int64_t rows, int64_t x,
                       const char *prefix, const char *name, error *err)
{
	float *out;
	TRY(golden_result(g, EXTENT(c->b, c->h, rows, x), &out, err, "%s.%s", prefix, name));
	separate(c, from, n, rows, x, out);
	return STATUS_OK;
}

/* --- the parallel form ------------------------------------------------------------------------ */

/* A plan of y = linear_attention(q, k, v), written and run. */
typedef struct parallel {
	plan *plan;
	value q, k, v, y;
} parallel;

static status run_parallel(golden *g, const causal *c, bool is_causal, bool masked, bool gradients, parallel *p,
                           error *err)
{
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	int64_t rows = is_causal ? c->n : c->queries, wide = c->h * c->width;
	linear_attention_params params = {.heads = c->h, .causal = is_causal, .eps = (float)c->eps};
	value mask = masked ? graph_input(made, "mask", DTYPE_I32, SHAPE2(c->b, c->n)) : VALUE_NONE, dy = VALUE_NONE;
	p->q = graph_input(made, "q", DTYPE_F32, SHAPE3(c->b, rows, wide));
	p->k = graph_input(made, "k", DTYPE_F32, SHAPE3(c->b, c->n, wide));
	p->v = graph_input(made, "v", DTYPE_F32, SHAPE3(c->b, c->n, wide));
	p->y = op_linear_attention(made, p->q, p->k, p->v, mask, params).y;
	graph_output(made, p->y, "y");
	if (gradients)
		dy = golden_backward(made, p->y);
	TRY(golden_plan(g, made, NULL, &p->plan, err));
	void *queries;
	TRY(golden_memory(g, c->b * rows * wide, sizeof(float), &queries, err));
	for (int64_t b = 0; b < c->b; b++)
		memcpy((float *)queries + b * rows * wide, c->q + b * c->n * wide,
		       (size_t)(rows * wide) * sizeof(float));
	TRY(plan_write(p->plan, p->q, queries));
	TRY(plan_write(p->plan, p->k, c->k));
	TRY(plan_write(p->plan, p->v, c->v));
	if (masked)
		TRY(plan_write(p->plan, mask, c->keep));
	if (gradients)
		TRY(plan_write(p->plan, dy, c->dy));
	return plan_run(p->plan);
}

/* An output [B,rows,H·width] of a plan. */
static status add_output(golden *g, const causal *c, plan *p, value v, int64_t rows, int64_t x, const char *prefix,
                         const char *name, error *err)
{
	void *data;
	TRY(golden_memory(g, c->b * rows * c->h * c->width, sizeof(float), &data, err));
	TRY(plan_read(p, v, data));
	return add_rows(g, c, data, rows, rows, x, prefix, name, err);
}

static status evaluate_parallel(golden *g, const causal *c, bool masked, const char *prefix, error *err)
{
	parallel p;
	bool gradients = g->options->spec.gradients;
	TRY(run_parallel(g, c, true, masked, gradients, &p, err));
	TRY(add_output(g, c, p.plan, p.y, c->n, c->m, prefix, "out", err));
	if (!gradients)
		return STATUS_OK;
	const graph *made = plan_graph(p.plan);
	TRY(add_output(g, c, p.plan, graph_gradient(made, p.q), c->n, c->d, prefix, "dq", err));
	TRY(add_output(g, c, p.plan, graph_gradient(made, p.k), c->n, c->d, prefix, "dk", err));
	return add_output(g, c, p.plan, graph_gradient(made, p.v), c->n, c->m, prefix, "dv", err);
}

/* --- the recurrent form ------------------------------------------------------------------------- */

static status add_states(golden *g, const causal *c, const float *states, error *err)
{
	int64_t floats = linear_state_floats(c->h * c->width, c->h), w = c->width, d = c->d, m = c->m;
	float *sums, *normals;
	TRY(golden_result(g, EXTENT(c->b, c->h, c->n, d, m), &sums, err, "S"));
	TRY(golden_result(g, EXTENT(c->b, c->h, c->n, d), &normals, err, "z"));
	for (int64_t i = 0; i < c->b * c->h * c->n * d; i++) {
		int64_t k = i % d, n = i / d % c->n, h = i / d / c->n % c->h, b = i / d / c->n / c->h;
		const float *state = states + (n * c->b + b) * floats;
		normals[i] = state[linear_normals(w, h) + k];
		memcpy(sums + i * m, state + linear_sums(w, h) + k * w, (size_t)m * sizeof *sums);
	}
	return STATUS_OK;
}

/* Add the state after the last row. */
static status add_cross_state(golden *g, const causal *c, const float *states, error *err)
{
	int64_t floats = linear_state_floats(c->h * c->width, c->h), w = c->width, d = c->d, m = c->m;
	float *sums, *normals;
	TRY(golden_result(g, EXTENT(c->b, c->h, m, d), &sums, err, "cross.S_md"));
	TRY(golden_result(g, EXTENT(c->b, c->h, d), &normals, err, "cross.z"));
	for (int64_t i = 0; i < c->b * c->h * m * d; i++) {
		int64_t k = i % d, j = i / d % m, h = i / d / m % c->h, b = i / d / m / c->h;
		sums[i] = states[b * floats + linear_sums(w, h) + k * w + j];
	}
	for (int64_t i = 0; i < c->b * c->h * d; i++)
		normals[i] = states[i / d / c->h * floats + linear_normals(w, i / d % c->h) + i % d];
	return STATUS_OK;
}

static status evaluate_recurrent(golden *g, const causal *c, bool masked, const char *prefix, error *err)
{
	linear_rows rows = {c->b, c->n, c->h * c->width, c->h, c->eps, c->q, c->k, c->v, masked ? c->keep : NULL};
	float *y, *states;
	TRY(linear_rows_read(g, &rows, !masked, &y, &states, err));
	if (g->options->spec.recurrent)
		TRY(add_rows(g, c, y, c->n, c->n, c->m, prefix, "out", err));
	return masked ? add_cross_state(g, c, states, err) : add_states(g, c, states, err);
}

static status evaluate(golden *g, error *err)
{
	static const char *const prefixes[] = {"nomask", "mask_keys"};
	causal c;
	parallel cross;
	TRY(read_set(g, &c, err));
	for (int masked = 0; masked < 2; masked++) {
		if (!g->options->spec.recurrent)
			TRY(evaluate_parallel(g, &c, masked, prefixes[masked], err));
		TRY(evaluate_recurrent(g, &c, masked, prefixes[masked], err));
	}
	TRY(run_parallel(g, &c, false, true, false, &cross, err));
	return add_output(g, &c, cross.plan, cross.y, c.queries, c.m, "cross", "out", err);
}

static bool is_gradient(const char *name)
{
	return strstr(name, ".dq") || strstr(name, ".dk") || strstr(name, ".dv");
}

const golden_reader golden_reader_causal_linear = {
    .source = "causal linear attention",
    .recurrent = true,
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
