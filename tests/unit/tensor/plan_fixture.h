/* plan_fixture.h - random graphs, which depend only on a seed, and their plans. Include it first. */
#ifndef TESTS_UNIT_TENSOR_PLAN_FIXTURE_H
#define TESTS_UNIT_TENSOR_PLAN_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/buffer.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

static inline int open_backend(void **state)
{
	backend *b;
	if (cpu_reference_open(&b, 0, NULL) != STATUS_OK)
		return 1;
	*state = b;
	return 0;
}

static inline int close_backend(void **state)
{
	backend_close(*state);
	return 0;
}

static inline plan *compile(backend *b, graph *g, const plan_binding *bindings, int n)
{
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, bindings, n, &err) != STATUS_OK)
		print_error("%s\n", error_message(&err));
	assert_non_null(p);
	return p;
}

enum { ROWS = 5, WIDTH = 7, N_NODES = 40 };

/* Pick an input among all existing values, so that lifetimes are long and short. */
static inline value pick(uint64_t *seed, const value *pool, int n)
{
	return pool[random_next(seed, n > 6 && random_next(seed, 0, 2) ? n - 6 : 0, n - 1)];
}

static inline value random_node(graph *g, uint64_t *seed, const value *pool, int n, value w, value b)
{
	value x = pick(seed, pool, n), y = pick(seed, pool, n), z = pick(seed, pool, n);
	switch (random_next(seed, 0, 7)) {
	case 0:
		return op_add(g, x, y);
	case 1:
		return op_mul(g, x, y);
	case 2:
		return op_gate(g, x, y, z);
	case 3:
		return op_scale(g, x, 0.5f);
	case 4:
		return op_matmul(g, x, w, false, true, 0.3f);
	case 5:
		return op_layernorm(g, x, b, b, 1e-5f);
	case 6:
		return op_linear(g, x, w, b, 0.5f);
	default:
		return op_gelu(g, x, false);
	}
}

/* Build a graph that depends only on the seed. */
static inline graph *random_graph(uint64_t seed)
{
	graph *g = graph_new();
	value pool[N_NODES + 2];
	value w = graph_parameter(g, "w", SHAPE2(WIDTH, WIDTH)), b = graph_parameter(g, "b", SHAPE1(WIDTH));
	pool[0] = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, WIDTH));
	pool[1] = graph_input(g, "y", DTYPE_F32, SHAPE2(ROWS, WIDTH));
	int n = 2;
	for (int i = 0; i < N_NODES; i++, n++) {
		pool[n] = random_node(g, &seed, pool, n, w, b);
		if (random_next(&seed, 0, 9) == 0)
			graph_output(g, pool[n], "out.%d", i);
	}
	value u = graph_input(g, "u", DTYPE_F32, SHAPE2(1, ROWS)), v = graph_input(g, "v", DTYPE_F32, SHAPE2(WIDTH, 1));
	value row = op_matmul(g, u, pool[n - 1], false, false, 1);
	value loss = op_matmul(g, row, v, false, false, 1);
	graph_output(g, loss, "loss");
	graph_backward(g, loss);
	if (graph_gradient(g, w) != VALUE_NONE)
		graph_output(g, graph_gradient(g, w), "grad.w");
	assert_int_equal(graph_status(g, NULL), STATUS_OK);
	return g;
}

static inline void fill_inputs(plan *p)
{
	const graph *g = plan_graph(p);
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		if (info->role == ROLE_INPUT)
			random_normal(plan_data(p, v), shape_count(info->shape), (uint64_t)v, 1);
	}
}

/* Allocate a buffer for every value of a role, as bindings. */
static inline int bind_role(const graph *g, value_role role, plan_binding *out)
{
	int n = 0;
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		size_t bytes;
		if (info->role != role || !shape_bytes(info->shape, info->type, &bytes))
			continue;
		out[n++] = (plan_binding){v, buffer_new(bytes)};
		if (role == ROLE_PARAMETER)
			random_normal(out[n - 1].data, shape_count(info->shape), 100 + (uint64_t)v, 0.5);
	}
	return n;
}

static inline void free_bindings(plan_binding *bindings, int n)
{
	for (int i = 0; i < n; i++) {
		assert_true(buffer_intact(bindings[i].data));
		buffer_free(bindings[i].data);
	}
}

static inline void assert_same_outputs(plan *a, plan *b)
{
	const graph *g = plan_graph(a);
	for (value v = 0; v < graph_value_count(g); v++)
		if (graph_value(g, v)->output)
			assert_true(compare_same(graph_value(g, v)->name, plan_data(a, v), plan_data(b, v),
			                         shape_count(graph_value(g, v)->shape)));
}

#endif
