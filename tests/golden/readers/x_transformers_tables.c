/* The tables of x-transformers' positions, each computed by the op that uses it:
 *   bucket.{bidir,causal}.B.D [n]: T5's bucket, of B and of distances up to D, of bucket.query_minus_key [n], which are
 *     integers that follow each other;
 *   alibi_slopes.H [H]: the slopes of H heads;
 * rotary_inv_freq.W and xpos_scale.W [W / 2]: the angle by which position 1 rotates each pair of W channels, and its
 *     scale with a base of 1. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden/golden.h"
#include "engine/tensor/ops.h"

#define DISTANCES "bucket.query_minus_key"
#define ROTARY_BASE 10000

enum { MAX_DISTANCE = 1 << 20, MAX_WIDTH = 1 << 12 };

static bool recognises(const golden *g)
{
	return golden_find(g, DISTANCES);
}

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* Run a graph of one op without inputs but "x". */
static status run(golden *g, graph *made, value y, const float *x, plan **out, error *err)
{
	graph_output(made, y, "y");
	TRY(golden_plan(g, made, NULL, out, err));
	if (x)
		TRY(plan_write(*out, graph_find(plan_graph(*out), "x"), x));
	return plan_run(*out);
}

static status add_buckets(golden *g, const char *name, bool bidirectional, int64_t buckets, int64_t furthest,
                          error *err)
{
	extent e;
	const int32_t *distance;
	float *out;
	void *rows;
	plan *p;
	TRY(golden_rank(g, DISTANCES, 1, &e, err));
	TRY(golden_integers(g, DISTANCES, e, -MAX_DISTANCE, MAX_DISTANCE, &distance, err));
	for (int64_t i = 1; i < e.dim[0]; i++)
		if (distance[i] != distance[i - 1] + 1)
			return error_set(err, STATUS_INVALID, DISTANCES, "\"%s\" are not consecutive", DISTANCES);
	graph *made = graph_new();
	if (!made)
		return no_memory(err);
	value y = op_t5_buckets(made, (t5_buckets_params){.first = distance[0],
	                                                  .count = e.dim[0],
	                                                  .buckets = buckets,
	                                                  .max_distance = furthest,
	                                                  .bidirectional = bidirectional});
	TRY(run(g, made, y, NULL, &p, err));
	TRY(golden_memory(g, e.dim[0], sizeof(int32_t), &rows, err));
	TRY(plan_read(p, graph_find(plan_graph(p), "y"), rows));
	TRY(golden_result(g, e, &out, err, "%s", name));
	for (int64_t i = 0; i < e.dim[0]; i++)
		out[i] = (float)((int32_t *)rows)[i];
	return STATUS_OK;
}

static status add_slopes(golden *g, const char *name, int64_t heads, error *err)
{
	float *out;
	plan *p;
	graph *made = graph_new();
	if (!made)
		return no_memory(err);
	alibi_params params = {.first = 1, .count = 1, .heads = heads, .alibi_heads = heads};
	TRY(run(g, made, op_alibi(made, VALUE_NONE, params), NULL, &p, err));
	TRY(golden_result(g, EXTENT(heads), &out, err, "%s", name));
	TRY(plan_read(p, graph_find(plan_graph(p), "y"), out));
	for (int64_t h = 0; h < heads; h++)
		out[h] = -out[h];
	return STATUS_OK;
}

/* Add the angles or the lengths of pairs (1, 0) rotated to position 1. */
static status add_rotary(golden *g, const char *name, int64_t width, bool lengths, error *err)
{
	void *pairs, *turned;
	float *out;
	plan *p;
	TRY(golden_memory(g, width, sizeof(float), &pairs, err));
	TRY(golden_memory(g, width, sizeof(float), &turned, err));
	for (int64_t i = 0; i < width / 2; i++)
		((float *)pairs)[i] = 1;
	graph *made = graph_new();
	if (!made)
		return no_memory(err);
	value x = graph_input(made, "x", DTYPE_F32, SHAPE3(1, 1, width));
	rotary_params params = {
	    .heads = 1, .width = width, .first = 1, .base = ROTARY_BASE, .xpos_base = lengths ? 1 : 0};
	TRY(run(g, made, op_rotary(made, x, VALUE_NONE, params), pairs, &p, err));
	TRY(plan_read(p, graph_find(plan_graph(p), "y"), turned));
	TRY(golden_result(g, EXTENT(width / 2), &out, err, "%s", name));
	const float *a = turned, *b = a + width / 2;
	for (int64_t i = 0; i < width / 2; i++)
		out[i] = lengths ? hypotf(a[i], b[i]) : atan2f(b[i], a[i]);
	return STATUS_OK;
}

/* The table of that name, or nothing if it is none of these. */
static status add(golden *g, const char *name, error *err)
{
	char side[8] = "";
	int64_t buckets = 0, furthest = 0, n = 0;
	int end = 0;
	if (sscanf(name, "bucket.%7[a-z].%" SCNd64 ".%" SCNd64 "%n", side, &buckets, &furthest, &end) == 3 &&
	    !name[end] && (strcmp(side, "bidir") == 0 || strcmp(side, "causal") == 0))
		return add_buckets(g, name, side[0] == 'b', buckets, furthest, err);
	if (sscanf(name, "alibi_slopes.%" SCNd64 "%n", &n, &end) == 1 && !name[end] && n > 0 && n <= MAX_WIDTH)
		return add_slopes(g, name, n, err);
	bool lengths = strncmp(name, "xpos_scale.", strlen("xpos_scale.")) == 0;
	if (sscanf(name, lengths ? "xpos_scale.%" SCNd64 "%n" : "rotary_inv_freq.%" SCNd64 "%n", &n, &end) == 1 &&
	    !name[end] && n > 0 && n <= MAX_WIDTH && n % 2 == 0)
		return add_rotary(g, name, n, lengths, err);
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	for (int i = 0; i < g->count; i++)
		TRY(add(g, g->tensors[i].entry->name, err));
	return STATUS_OK;
}

const golden_reader golden_reader_x_transformers_tables = {
    .source = "tables of x-transformers",
    .recognises = recognises,
    .evaluate = evaluate,
};
