/* Recomputation: the same gradients, bit for bit, from less memory. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/random.h"

enum { ROWS = 33, WIDTH = 24, LAYERS = 8 };

/* The layers that end with a boundary. */
typedef enum marks { MARKS_NONE, MARKS_ONE, MARKS_ALL } marks;

typedef struct trial {
	backend *b;
	plan *p;
	float weight[WIDTH * WIDTH], bias[WIDTH];
	float dweight[WIDTH * WIDTH], dbias[WIDTH];
} trial;

/* h += gelu(dropout(LN(h)) W) ⊙ n, with `early`, a value of the first layer that all layers read. */
static value layer(graph *g, value h, value early, value w, value b, value rng, uint32_t site)
{
	value n = op_layernorm(g, h, b, b, 1e-5f);
	value inner = op_gelu(g, op_matmul(g, op_dropout(g, n, rng, 0.3f, site), w, false, false, 1), false);
	return op_add(g, op_gate(g, h, inner, n), early);
}

static void trial_open(trial *t, marks where)
{
	graph *g = graph_new();
	value w = graph_parameter(g, "weight", SHAPE2(WIDTH, WIDTH)), b = graph_parameter(g, "bias", SHAPE1(WIDTH));
	value rng = graph_input(g, "rng", DTYPE_I32, SHAPE1(4));
	value h = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, WIDTH)), early = VALUE_NONE;
	graph_want_gradient(g, h);
	for (uint32_t i = 0; i < LAYERS; i++) {
		if (where == MARKS_ALL || (where == MARKS_ONE && i == LAYERS / 2))
			graph_checkpoint(g);
		if (i == 0)
			early = op_scale(g, h, 0.5f);
		h = layer(g, h, early, w, b, rng, i);
	}
	if (where == MARKS_ALL)
		graph_checkpoint(g);
	/* The sum of all elements of hᵀh. */
	value x = graph_find(g, "x"), square = op_matmul(g, h, h, true, false, 1);
	value ones = op_fill(g, SHAPE2(1, WIDTH), 1);
	value loss = op_matmul(g, op_matmul(g, ones, square, false, false, 1), ones, false, true, 1);
	graph_output(g, loss, "loss");
	assert_int_equal(graph_backward(g, loss), STATUS_OK);
	graph_output(g, graph_gradient(g, x), "dx");
	plan_binding bindings[] = {
	    {w, t->weight}, {b, t->bias}, {graph_gradient(g, w), t->dweight}, {graph_gradient(g, b), t->dbias}};
	random_normal(t->weight, WIDTH * WIDTH, 1, 0.2);
	random_normal(t->bias, WIDTH, 2, 0.5);
	assert_int_equal(cpu_open(&t->b, 2, NULL), STATUS_OK);
	assert_int_equal(plan_new(&t->p, g, t->b, bindings, 4, NULL), STATUS_OK);
	float data[ROWS * WIDTH];
	const int32_t words[4] = {5, 6, 7, 0};
	random_normal(data, ROWS * WIDTH, 3, 1);
	assert_int_equal(plan_write(t->p, x, data), STATUS_OK);
	assert_int_equal(plan_write(t->p, rng, words), STATUS_OK);
	assert_int_equal(plan_run(t->p), STATUS_OK);
}

static void trial_close(trial *t)
{
	plan_free(t->p);
	backend_close(t->b);
}

static void read_dx(const trial *t, float dx[ROWS * WIDTH])
{
	assert_int_equal(plan_read(t->p, graph_find(plan_graph(t->p), "dx"), dx), STATUS_OK);
}

static void gradients_have_the_same_bits_and_take_less_memory(void **state)
{
	(void)state;
	static trial kept, again;
	float dx[2][ROWS * WIDTH];
	trial_open(&kept, MARKS_NONE);
	trial_open(&again, MARKS_ALL);
	read_dx(&kept, dx[0]);
	read_dx(&again, dx[1]);
	float sum = 0;
	for (int i = 0; i < WIDTH * WIDTH; i++)
		sum += kept.dweight[i] * kept.dweight[i];
	assert_true(sum > 0);
	assert_memory_equal(kept.dweight, again.dweight, sizeof kept.dweight);
	assert_memory_equal(kept.dbias, again.dbias, sizeof kept.dbias);
	assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
	assert_true(2 * plan_bytes(again.p) < plan_bytes(kept.p));
	assert_true(plan_node_count(again.p) > plan_node_count(kept.p));
	trial_close(&kept);
	trial_close(&again);
}

static void a_single_boundary_has_no_effect(void **state)
{
	(void)state;
	static trial kept, one;
	trial_open(&kept, MARKS_NONE);
	trial_open(&one, MARKS_ONE);
	assert_memory_equal(kept.dweight, one.dweight, sizeof kept.dweight);
	assert_int_equal(plan_node_count(one.p), plan_node_count(kept.p));
	assert_int_equal(plan_bytes(one.p), plan_bytes(kept.p));
	trial_close(&kept);
	trial_close(&one);
}

static void a_forward_without_backward_recomputes_nothing(void **state)
{
	(void)state;
	backend *b;
	assert_int_equal(cpu_open(&b, 1, NULL), STATUS_OK);
	graph *g = graph_new();
	value h = graph_input(g, "x", DTYPE_F32, SHAPE2(2, 2));
	for (int i = 0; i < 3; i++) {
		graph_checkpoint(g);
		h = op_scale(g, h, 2);
	}
	graph_output(g, h, "y");
	plan *p;
	assert_int_equal(plan_new(&p, g, b, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(plan_node_count(p), 3);
	plan_free(p);
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(gradients_have_the_same_bits_and_take_less_memory),
	    cmocka_unit_test(a_single_boundary_has_no_effect),
	    cmocka_unit_test(a_forward_without_backward_recomputes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
