/* One module of linear attention with its projections, which replaces the attention of BART's encoder.
 * attention_module.h reads it; keep [B,N], and eps of the attention in the config. Values, under ignore.* (all rows are
 * keys) and mask_keys.* (those that are kept): y, dx, d.NAME; M{b} [H,m,d] and z{b} [H,d], the sums over all keys of
 * sequence b.
 *
 * The op linear_attention does not output the sums. They come from the state of linear_stream after all rows. */
#include "tests/golden/attention_module.h"
#include "tests/golden/dilated_set.h"
#include "tests/golden/linear_rows.h"
#include "engine/tensor/ops/linear_attention.h"

static bool recognises(const golden *g)
{
	return attention_module_recognises(g) && !dilated_set_is_module(g);
}

/* Inputs of the attention besides q, k and v, and its values in a graph. */
typedef struct attention {
	linear_attention_params params;
	bool masked;
	value mask, k, v;
} attention;

/* A [B,N,D] output. */
static status read_rows(golden *g, plan *p, const attention_module *m, value v, float **out, error *err)
{
	void *data;
	TRY(golden_memory(g, m->b * m->n * m->d, sizeof(float), &data, err));
	*out = data;
	return plan_read(p, v, data);
}

static status add_sums(golden *g, const attention_module *m, const linear_rows *rows, const char *prefix, error *err)
{
	int64_t dh = m->d / m->heads, floats = linear_state_floats(m->d, m->heads);
	float *y, *states;
	TRY(linear_rows_read(g, rows, false, &y, &states, err));
	for (int64_t b = 0; b < m->b; b++, states += floats) {
		float *sums, *normals;
		TRY(golden_result(g, EXTENT(m->heads, dh, dh), &sums, err, "%s.M%d", prefix, (int)b));
		TRY(golden_result(g, EXTENT(m->heads, dh), &normals, err, "%s.z%d", prefix, (int)b));
		for (int64_t i = 0; i < m->heads * dh * dh; i++) /* S[d][m] to M[m][d] */
			sums[i] = states[linear_sums(dh, i / dh / dh) + i % dh * dh + i / dh % dh];
		for (int64_t i = 0; i < m->heads * dh; i++)
			normals[i] = states[linear_normals(dh, i / dh) + i % dh];
	}
	return STATUS_OK;
}

static value attend(graph *made, value q, value k, value v, void *context)
{
	attention *a = context;
	const shape s = graph_value(made, k)->shape;
	a->k = k;
	a->v = v;
	a->mask = a->masked ? graph_input(made, "mask", DTYPE_I32, SHAPE2(s.dim[0], s.dim[1])) : VALUE_NONE;
	graph_output(made, k, "k");
	graph_output(made, v, "v");
	return op_linear_attention(made, q, k, v, a->mask, a->params).y;
}

static status evaluate_module(golden *g, const attention_module *m, attention a, const int32_t *keep, error *err)
{
	const char *prefix = a.masked ? "mask_keys" : "ignore";
	attention_module_planned p;
	float *keys, *values;
	TRY(attention_module_plan(g, m, attend, &a, &p, err));
	if (a.masked)
		TRY(plan_write(p.plan, a.mask, keep));
	TRY(attention_module_run(g, m, &p, prefix, err));
	TRY(read_rows(g, p.plan, m, a.k, &keys, err));
	TRY(read_rows(g, p.plan, m, a.v, &values, err));
	linear_rows rows = {
	    m->b, m->n, m->d, m->heads, (double)a.params.eps, keys, keys, values, a.masked ? keep : NULL};
	return add_sums(g, m, &rows, prefix, err);
}

static status evaluate(golden *g, error *err)
{
	attention_module m;
	const int32_t *keep;
	double eps;
	TRY(attention_module_read(g, &m, err));
	TRY(golden_integers(g, "keep", EXTENT(m.b, m.n), 0, 1, &keep, err));
	TRY(golden_config_number(g, "eps", (double)LINEAR_ATTENTION_EPS, &eps, err));
	attention a = {.params = {.heads = m.heads, .eps = (float)eps}};
	TRY(evaluate_module(g, &m, a, keep, err));
	a.masked = true;
	return evaluate_module(g, &m, a, keep, err);
}

const golden_reader golden_reader_linear_attention = {
    .source = "a module of linear attention",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = attention_module_is_gradient,
};
