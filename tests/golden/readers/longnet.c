/* LongNet's dilated attention over raw queries, keys and values, in two kinds of set.
 *
 * Cases, one object of the config each, {N, heads, head_dim, segment, dilation}: CASE.{q,k,v,dO} [H,N,h]. Values are
 * CASE.DIRECTION.OFFSET.PADDING.*, DIRECTION bidir or causal, OFFSET block or mod, PADDING mask or zero_keys (bidir
 * only): out [H,N,h]; lse and weight [branches,H,N], the log-normalizers
 * (-1e8 where a branch does not keep the row) and the weights of the branches; d{q,k,v}_{detach,full}, the gradients of
 * Σ out ⊙ dO with the weights of the branches constant or not.
 *
 * A mixture of branches: batch, heads, N, head_dim, segment and dilation in the config, q, k, v, dO [B,H,N,h], alpha
 * [branches]. Values: out, dq, dk, dv, dalpha. Every head begins at row 0 of a segment. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/attention_module.h"
#include "tests/golden/dilated_set.h"

enum { NAME_BYTES = 128 };
#define NOT_KEPT -1e8f

typedef struct longnet {
	int64_t b, h, n, d; /* d: of a head */
	dilated_params params;
	const float *mixture;        /* or NULL */
	const float *q, *k, *v, *dy; /* [B,N,H·d] */
	bool gradients;
} longnet;

static bool recognises(const golden *g)
{
	const char *key;
	json_t *json;
	if (attention_module_recognises(g))
		return false; /* longnet_module.c */
	json_object_foreach(g->config, key, json)
	{
		if (dilated_set_is_config(json))
			return true;
	}
	return dilated_set_is_config(g->config);
}

/* --- reading a set --------------------------------------------------------------------------- */

static status read_config(const json_t *json, longnet *c, error *err)
{
	TRY(dilated_set_size(json, "N", &c->n, err));
	TRY(dilated_set_size(json, "head_dim", &c->d, err));
	TRY(dilated_set_read(json, &c->params, err));
	c->h = c->params.heads;
	c->params.scale = (float)(1 / sqrt((double)c->d));
	return STATUS_OK;
}

/* The shape of rows [H,N,x] in the set, or [B,H,N,x] of a mixture. */
static extent rows_extent(const longnet *c)
{
	return c->mixture ? EXTENT(c->b, c->h, c->n, c->d) : EXTENT(c->h, c->n, c->d);
}

/* Element i of [B,N,H·d] in [B,H,N,d]. */
static int64_t stored_at(const longnet *c, int64_t i)
{
	const int64_t x = i % c->d, h = i / c->d % c->h, n = i / c->d / c->h % c->n, b = i / c->d / c->h / c->n;
	return ((b * c->h + h) * c->n + n) * c->d + x;
}

static status read_rows(golden *g, const longnet *c, const char *prefix, const char *name, const float **out,
                        error *err)
{
	char full[NAME_BYTES];
	const float *stored;
	void *data;
	const int64_t count = c->b * c->n * c->h * c->d;
	snprintf(full, sizeof full, "%s%s", prefix, name);
	TRY(golden_floats(g, full, rows_extent(c), &stored, err));
	TRY(golden_memory(g, count, sizeof(float), &data, err));
	for (int64_t i = 0; i < count; i++)
		((float *)data)[i] = stored[stored_at(c, i)];
	*out = data;
	return STATUS_OK;
}

static status read_inputs(golden *g, longnet *c, const char *prefix, error *err)
{
	c->gradients = g->options->spec.gradients;
	TRY(read_rows(g, c, prefix, "q", &c->q, err));
	TRY(read_rows(g, c, prefix, "k", &c->k, err));
	TRY(read_rows(g, c, prefix, "v", &c->v, err));
	return read_rows(g, c, prefix, "dO", &c->dy, err);
}

/* --- running it -------------------------------------------------------------------------------- */

/* A plan, written and run. */
typedef struct attended {
	plan *plan;
	value q, k, v, mixture;
	dilated_values y;
} attended;

static status run(golden *g, const longnet *c, attended *a, error *err)
{
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	const shape rows = SHAPE3(c->b, c->n, c->h * c->d);
	value dy = VALUE_NONE;
	a->q = graph_input(made, "q", DTYPE_F32, rows);
	a->k = graph_input(made, "k", DTYPE_F32, rows);
	a->v = graph_input(made, "v", DTYPE_F32, rows);
	a->mixture =
	    c->mixture ? graph_input(made, "mixture", DTYPE_F32, SHAPE1(c->params.pattern.branches)) : VALUE_NONE;
	a->y = op_dilated_attention(made, a->q, a->k, a->v, VALUE_NONE, a->mixture, c->params);
	graph_output(made, a->y.y, "y");
	graph_output(made, a->y.log_normalizer, "log_normalizer");
	if (c->gradients)
		dy = golden_backward(made, a->y.y);
	TRY(golden_plan(g, made, NULL, &a->plan, err));
	TRY(plan_write(a->plan, a->q, c->q));
	TRY(plan_write(a->plan, a->k, c->k));
	TRY(plan_write(a->plan, a->v, c->v));
	if (c->mixture)
		TRY(plan_write(a->plan, a->mixture, c->mixture));
	if (c->gradients)
		TRY(plan_write(a->plan, dy, c->dy));
	return plan_run(a->plan);
}

static status add_rows(golden *g, const longnet *c, plan *p, value v, const char *prefix, const char *name, error *err)
{
	const int64_t count = c->b * c->n * c->h * c->d;
	void *data;
	float *out;
	TRY(golden_memory(g, count, sizeof(float), &data, err));
	TRY(plan_read(p, v, data));
	TRY(golden_result(g, rows_extent(c), &out, err, "%s%s", prefix, name));
	for (int64_t i = 0; i < count; i++)
		out[stored_at(c, i)] = ((const float *)data)[i];
	return STATUS_OK;
}

/* e^{L_i - log Σ e^L} of one row and head from log-normalizers `next` apart; 0 where no branch has one. */
static float branch_weight(const float *l, int64_t next, int64_t branches, int64_t branch)
{
	double top = -INFINITY, sum = 0;
	for (int64_t i = 0; i < branches; i++)
		top = fmax(top, (double)l[i * next]);
	for (int64_t i = 0; i < branches && top > -INFINITY; i++)
		sum += exp((double)l[i * next] - top);
	return sum > 0 ? (float)(exp((double)l[branch * next] - top) / sum) : 0;
}

static status add_weights(golden *g, const longnet *c, const attended *a, const char *prefix, error *err)
{
	const int64_t branches = c->params.pattern.branches, next = c->n * c->h;
	const extent e = EXTENT(branches, c->h, c->n);
	void *data;
	float *lse, *weight;
	TRY(golden_memory(g, branches * next, sizeof(float), &data, err));
	TRY(plan_read(a->plan, a->y.log_normalizer, data));
	TRY(golden_result(g, e, &lse, err, "%slse", prefix));
	TRY(golden_result(g, e, &weight, err, "%sweight", prefix));
	for (int64_t i = 0; i < branches * next; i++) {
		const int64_t n = i % c->n, h = i / c->n % c->h, branch = i / next;
		const float *l = (const float *)data + n * c->h + h;
		lse[i] = l[branch * next] > -INFINITY ? l[branch * next] : NOT_KEPT;
		weight[i] = branch_weight(l, next, branches, branch);
	}
	return STATUS_OK;
}

/* The gradients of q, k and v, their names with that ending. */
static status add_gradients(golden *g, const longnet *c, const attended *a, const char *prefix, const char *ending,
                            error *err)
{
	const value from[] = {a->q, a->k, a->v};
	char name[NAME_BYTES];
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "d%c%s", "qkv"[i], ending);
		TRY(add_rows(g, c, a->plan, graph_gradient(plan_graph(a->plan), from[i]), prefix, name, err));
	}
	return STATUS_OK;
}

/* --- the two kinds ------------------------------------------------------------------------------ */

static status evaluate_combination(golden *g, longnet *c, const char *prefix, error *err)
{
	attended a;
	c->params.detach_weights = true;
	TRY(run(g, c, &a, err));
	TRY(add_rows(g, c, a.plan, a.y.y, prefix, "out", err));
	TRY(add_weights(g, c, &a, prefix, err));
	if (!c->gradients)
		return STATUS_OK;
	TRY(add_gradients(g, c, &a, prefix, "_detach", err));
	c->params.detach_weights = false;
	TRY(run(g, c, &a, err));
	return add_gradients(g, c, &a, prefix, "_full", err);
}

static status evaluate_case(golden *g, const char *name, const json_t *config, error *err)
{
	static const char *const directions[] = {"bidir", "causal"}, *const offsets[] = {"block", "mod"},
	                         *const paddings[] = {"mask", "zero_keys"};
	longnet c = {.b = 1};
	char prefix[NAME_BYTES];
	TRY(read_config(config, &c, err));
	snprintf(prefix, sizeof prefix, "%.60s.", name);
	TRY(read_inputs(g, &c, prefix, err));
	for (int i = 0; i < 8; i++) {
		c.params.causal = i & 1;
		c.params.pattern.offset = i & 2 ? DILATED_MOD : DILATED_BLOCK;
		c.params.zero_keys = i & 4;
		if (c.params.causal && c.params.zero_keys)
			continue;
		snprintf(prefix, sizeof prefix, "%.60s.%s.%s.%s.", name, directions[i & 1], offsets[i >> 1 & 1],
		         paddings[i >> 2]);
		TRY(evaluate_combination(g, &c, prefix, err));
	}
	return STATUS_OK;
}

static status evaluate_mixture(golden *g, error *err)
{
	longnet c = {.params.pattern.offset = DILATED_FIRST};
	attended a;
	float *dalpha;
	TRY(read_config(g->config, &c, err));
	TRY(dilated_set_size(g->config, "batch", &c.b, err));
	const extent branches = EXTENT(c.params.pattern.branches);
	TRY(golden_floats(g, "alpha", branches, &c.mixture, err));
	TRY(read_inputs(g, &c, "", err));
	TRY(run(g, &c, &a, err));
	TRY(add_rows(g, &c, a.plan, a.y.y, "", "out", err));
	if (!c.gradients)
		return STATUS_OK;
	TRY(add_gradients(g, &c, &a, "", "", err));
	TRY(golden_result(g, branches, &dalpha, err, "dalpha"));
	return plan_read(a.plan, graph_gradient(plan_graph(a.plan), a.mixture), dalpha);
}

static status evaluate(golden *g, error *err)
{
	const char *key;
	json_t *json;
	if (dilated_set_is_config(g->config))
		return evaluate_mixture(g, err);
	json_object_foreach(g->config, key, json)
	{
		if (dilated_set_is_config(json))
			TRY(evaluate_case(g, key, json, err));
	}
	return STATUS_OK;
}

static bool is_gradient(const char *name)
{
	const char *last = strrchr(name, '.');
	last = last ? last + 1 : name;
	return strncmp(last, "dq", 2) == 0 || strncmp(last, "dk", 2) == 0 || strncmp(last, "dv", 2) == 0 ||
	       strcmp(last, "dalpha") == 0;
}

const golden_reader golden_reader_longnet = {
    .source = "dilated attention",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
