#include "tests/golden/attention_module.h"

#include <string.h>

#include "engine/tensor/ops.h"

enum { QUERY, KEY, VALUE, OUT, BIASES, NORM = ATTENTION_MODULE_LINEAR, MAX_HEADS = 1 << 16 };

static const char *const names[ATTENTION_MODULE_TENSORS] = {
    "q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight",      "q_proj.bias",
    "k_proj.bias",   "v_proj.bias",   "out_proj.bias", "inner_attn_ln.weight", "inner_attn_ln.bias"};

bool attention_module_recognises(const golden *g)
{
	for (int i = 0; i < ATTENTION_MODULE_TENSORS; i++)
		if (golden_find(g, "%s", names[i]))
			return true;
	return false;
}

bool attention_module_has_norm(const golden *g)
{
	return golden_find(g, "%s", names[NORM]) || golden_find(g, "%s", names[NORM + 1]);
}

static shape weight_shape(const attention_module *m, int i)
{
	return i < BIASES ? SHAPE2(m->d, m->d) : SHAPE1(m->d);
}

status attention_module_read(golden *g, attention_module *m, error *err)
{
	extent x;
	TRY(golden_rank(g, "x", 3, &x, err));
	*m = (attention_module){.b = x.dim[0], .n = x.dim[1], .d = x.dim[2], .tensors = ATTENTION_MODULE_LINEAR};
	TRY(golden_config_integer(g, "heads", MAX_HEADS, &m->heads, err));
	if (m->d % m->heads != 0)
		return error_set(err, STATUS_INVALID, "heads", "the config's \"heads\" must divide the width of x");
	TRY(golden_floats(g, "x", x, &m->x, err));
	TRY(golden_floats(g, golden_find(g, "dO") ? "dO" : "dy", x, &m->dy, err));
	if (attention_module_has_norm(g)) {
		static const char *const keys[] = {"eps", "ln_eps", "layernorm_eps"};
		m->tensors = ATTENTION_MODULE_TENSORS;
		m->norm_eps = 1e-5;
		for (int i = 0; i < 3; i++)
			TRY(golden_config_number(g, keys[i], m->norm_eps, &m->norm_eps, err));
	}
	for (int i = 0; i < m->tensors; i++)
		TRY(golden_floats(g, names[i], extent_of(weight_shape(m, i)), &m->weights[i], err));
	return STATUS_OK;
}

static value project(graph *made, const attention_module_planned *p, int which, value x)
{
	return op_linear(made, x, p->weights[which], p->weights[which + BIASES], 1);
}

status attention_module_plan(golden *g, const attention_module *m, attention_module_attend *attend, void *context,
                             attention_module_planned *p, error *err)
{
	const bool gradients = g->options->spec.gradients;
	value dy = VALUE_NONE;
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	p->x = graph_input(made, "x", DTYPE_F32, SHAPE3(m->b, m->n, m->d));
	for (int i = 0; i < m->tensors; i++)
		p->weights[i] = graph_input(made, names[i], DTYPE_F32, weight_shape(m, i));
	value q = project(made, p, QUERY, p->x), k = project(made, p, KEY, p->x), v = project(made, p, VALUE, p->x);
	value h = attend(made, q, k, v, context);
	if (m->tensors > NORM)
		h = op_layernorm(made, h, p->weights[NORM], p->weights[NORM + 1], (float)m->norm_eps);
	p->y = project(made, p, OUT, h);
	graph_output(made, p->y, "y");
	if (gradients)
		dy = golden_backward(made, p->y);
	TRY(golden_plan(g, made, NULL, &p->plan, err));
	TRY(plan_write(p->plan, p->x, m->x));
	for (int i = 0; i < m->tensors; i++)
		TRY(plan_write(p->plan, p->weights[i], m->weights[i]));
	return gradients ? plan_write(p->plan, dy, m->dy) : STATUS_OK;
}

static status add_gradients(golden *g, const attention_module *m, const attention_module_planned *p, const char *prefix,
                            error *err)
{
	const graph *made = plan_graph(p->plan);
	TRY(golden_output(g, p->plan, graph_gradient(made, p->x), EXTENT(m->b, m->n, m->d), err, "%s.dx", prefix));
	for (int i = 0; i < m->tensors; i++) {
		const extent e = extent_of(weight_shape(m, i));
		const value gradient = graph_gradient(made, p->weights[i]);
		TRY(golden_output(g, p->plan, gradient, e, err, "%s.d.%s", prefix, names[i]));
		if (golden_find(g, "%s.grad.%s", prefix, names[i]))
			TRY(golden_output(g, p->plan, gradient, e, err, "%s.grad.%s", prefix, names[i]));
	}
	return STATUS_OK;
}

status attention_module_run(golden *g, const attention_module *m, const attention_module_planned *p, const char *prefix,
                            error *err)
{
	TRY(plan_run(p->plan));
	TRY(golden_output(g, p->plan, p->y, EXTENT(m->b, m->n, m->d), err, "%s.y", prefix));
	return g->options->spec.gradients ? add_gradients(g, m, p, prefix, err) : STATUS_OK;
}

bool attention_module_is_gradient(const char *name)
{
	return strstr(name, ".d.") || strstr(name, ".dx") || strstr(name, ".grad.");
}
