/* One module of linear attention with its projections (the attention that replaces the one of BART's encoder): x and
 * dy [B,N,D], keep [B,N], {q,k,v,out}_proj.{weight,bias}, heads and eps in the config. Values, under ignore.* (all rows
 * are keys) and mask_keys.* (those that are kept): y; M{b} [H,m,d] and z{b} [H,d], the sums over all keys of sequence
 * b; and for the loss Σ y ⊙ dy the gradients dx and d.NAME.
 *
 * The module is a graph of linear and linear_attention. The sums, which that op does not give, are what linear_stream
 * has in its state when it has read all rows. */
#include <string.h>

#include "engine/eval/golden.h"
#include "engine/eval/linear_rows.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/linear_attention.h"

enum { TENSORS = 8, MAX_HEADS = 1 << 16 };

static const char *const names[TENSORS] = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight",
                                           "q_proj.bias",   "k_proj.bias",   "v_proj.bias",   "out_proj.bias"};
enum { QUERY, KEY, VALUE, OUT };

typedef struct module {
	int64_t b, n, d, heads;
	double eps;
	const float *x, *dy, *weights[TENSORS];
	const int32_t *keep;
} module;

static bool recognises(const golden *g)
{
	for (int i = 0; i < TENSORS; i++)
		if (golden_find(g, "%s", names[i]))
			return true;
	return false;
}

static status read_module(golden *g, module *m, error *err)
{
	extent x;
	TRY(golden_rank(g, "x", 3, &x, err));
	m->b = x.dim[0], m->n = x.dim[1], m->d = x.dim[2];
	TRY(golden_config_integer(g, "heads", MAX_HEADS, &m->heads, err));
	TRY(golden_config_number(g, "eps", (double)LINEAR_ATTENTION_EPS, &m->eps, err));
	if (m->d % m->heads != 0)
		return error_set(err, STATUS_INVALID, "heads", "the config's \"heads\" must divide the width of x");
	TRY(golden_floats(g, "x", x, &m->x, err));
	TRY(golden_floats(g, "dy", x, &m->dy, err));
	TRY(golden_integers(g, "keep", EXTENT(m->b, m->n), 0, 1, &m->keep, err));
	for (int i = 0; i < TENSORS; i++)
		TRY(golden_floats(g, names[i], i <= OUT ? EXTENT(m->d, m->d) : EXTENT(m->d), &m->weights[i], err));
	return STATUS_OK;
}

/* x and the parameters as inputs of a graph. */
typedef struct inputs {
	value x, weights[TENSORS], mask;
} inputs;

static inputs add_inputs(graph *g, const module *m, bool masked)
{
	inputs in = {.x = graph_input(g, "x", DTYPE_F32, SHAPE3(m->b, m->n, m->d)), .mask = VALUE_NONE};
	for (int i = 0; i < TENSORS; i++)
		in.weights[i] = graph_input(g, names[i], DTYPE_F32, i <= OUT ? SHAPE2(m->d, m->d) : SHAPE1(m->d));
	if (masked)
		in.mask = graph_input(g, "mask", DTYPE_I32, SHAPE2(m->b, m->n));
	return in;
}

static status write_inputs(plan *p, const module *m, const inputs *in)
{
	TRY(plan_write(p, in->x, m->x));
	for (int i = 0; i < TENSORS; i++)
		TRY(plan_write(p, in->weights[i], m->weights[i]));
	return in->mask == VALUE_NONE ? STATUS_OK : plan_write(p, in->mask, m->keep);
}

static value project(graph *g, const inputs *in, int which, value x)
{
	return op_linear(g, x, in->weights[which], in->weights[which + OUT + 1], 1);
}

/* A [B,N,D] output. */
static status read_rows(golden *g, plan *p, const module *m, value v, float **out, error *err)
{
	void *data;
	TRY(golden_memory(g, m->b * m->n * m->d, sizeof(float), &data, err));
	*out = data;
	return plan_read(p, v, data);
}

static status add_gradients(golden *g, plan *p, const module *m, const inputs *in, const char *prefix, error *err)
{
	const graph *made = plan_graph(p);
	TRY(golden_output(g, p, graph_gradient(made, in->x), EXTENT(m->b, m->n, m->d), err, "%s.dx", prefix));
	for (int i = 0; i < TENSORS; i++)
		TRY(golden_output(g, p, graph_gradient(made, in->weights[i]),
		                  i <= OUT ? EXTENT(m->d, m->d) : EXTENT(m->d), err, "%s.d.%s", prefix, names[i]));
	return STATUS_OK;
}

static status add_sums(golden *g, const module *m, const linear_rows *rows, const char *prefix, error *err)
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

static status evaluate_module(golden *g, const module *m, bool masked, const char *prefix, error *err)
{
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	plan *p;
	inputs in = add_inputs(made, m, masked);
	bool gradients = g->options->spec.gradients;
	linear_attention_params params = {.heads = m->heads, .eps = (float)m->eps};
	/* Of q, k and v, k and v are read afterwards. */
	value q = project(made, &in, QUERY, in.x), k = project(made, &in, KEY, in.x),
	      v = project(made, &in, VALUE, in.x);
	value y = project(made, &in, OUT, op_linear_attention(made, q, k, v, in.mask, params).y), dy = VALUE_NONE;
	graph_output(made, k, "k");
	graph_output(made, v, "v");
	graph_output(made, y, "y");
	if (gradients)
		dy = golden_backward(made, y);
	TRY(golden_plan(g, made, NULL, &p, err));
	TRY(write_inputs(p, m, &in));
	if (gradients)
		TRY(plan_write(p, dy, m->dy));
	TRY(plan_run(p));
	TRY(golden_output(g, p, y, EXTENT(m->b, m->n, m->d), err, "%s.y", prefix));
	if (gradients)
		TRY(add_gradients(g, p, m, &in, prefix, err));
	float *keys, *values;
	TRY(read_rows(g, p, m, k, &keys, err));
	TRY(read_rows(g, p, m, v, &values, err));
	linear_rows rows = {m->b, m->n, m->d, m->heads, m->eps, keys, keys, values, masked ? m->keep : NULL};
	return add_sums(g, m, &rows, prefix, err);
}

static status evaluate(golden *g, error *err)
{
	module m;
	TRY(read_module(g, &m, err));
	TRY(evaluate_module(g, &m, false, "ignore", err));
	return evaluate_module(g, &m, true, "mask_keys", err);
}

static bool is_gradient(const char *name)
{
	return strstr(name, ".d.") || strstr(name, ".dx");
}

const golden_reader golden_reader_linear_attention = {
    .source = "a module of linear attention",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
