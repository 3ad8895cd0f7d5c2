#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/tensor/graph.h"
#include "engine/tensor/ops.h"

/* Check that the graph has an error that names `param` and whose message contains `words`. Frees the graph. */
static void expect_error(graph *g, status s, const char *param, const char *words)
{
	error err = ERROR_INIT;
	assert_int_equal(graph_status(g, &err), s);
	if (strcmp(err.param, param) != 0 || !strstr(err.message, words))
		print_error("got \"%s\": %s\n", err.param, err.message);
	assert_string_equal(err.param, param);
	assert_non_null(strstr(err.message, words));
	graph_free(g);
}

static void nodes_and_values_are_in_the_order_of_construction(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE3(2, 3, 5));
	value w = graph_parameter(g, "w", SHAPE2(7, 5));
	value y = op_matmul(g, x, w, false, true, 1);
	value z = op_gelu(g, y, false);
	graph_output(g, z, "layers.%d.out", 3);
	assert_int_equal(graph_status(g, NULL), STATUS_OK);
	assert_int_equal(graph_value_count(g), 4);
	assert_int_equal(graph_node_count(g), 2);
	assert_int_equal(graph_node(g, 1)->id, OP_gelu);
	assert_int_equal(graph_node(g, 1)->in[0], y);
	assert_int_equal(graph_value(g, y)->producer, 0);
	assert_true(shape_equal(graph_value(g, y)->shape, SHAPE3(2, 3, 7)));
	assert_int_equal(graph_value(g, w)->role, ROLE_PARAMETER);
	assert_true(graph_value(g, z)->output);
	assert_false(graph_value(g, y)->output);
	assert_int_equal(graph_find(g, "layers.3.out"), z);
	assert_int_equal(graph_find(g, "w"), w);
	assert_int_equal(graph_find(g, "nothing"), VALUE_NONE);
	graph_free(g);
}

static void a_value_can_have_two_names_but_a_name_only_one_value(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3));
	value y = op_scale(g, x, 2);
	graph_output(g, y, "y");
	graph_output(g, y, "again");
	assert_int_equal(graph_find(g, "again"), y);
	assert_string_equal(graph_value(g, y)->name, "y");
	graph_output(g, y, "x");
	expect_error(g, STATUS_INVALID, "x", "twice");
}

static void infos_keep_their_address_while_the_graph_grows(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3));
	const value_info *info = graph_value(g, x);
	op_scale(g, x, 1);
	const op_node *node = graph_node(g, 0);
	for (int i = 0; i < 1000; i++)
		x = op_scale(g, x, 2);
	assert_ptr_equal(info, graph_value(g, 0));
	assert_ptr_equal(node, graph_node(g, 0));
	assert_int_equal(graph_node_count(g), 1001);
	graph_free(g);
}

static void the_first_error_is_kept_and_later_calls_have_no_effect(void **state)
{
	(void)state;
	graph *g = graph_new();
	value a = graph_input(g, "a", DTYPE_F32, SHAPE2(2, 3));
	value b = graph_input(g, "b", DTYPE_F32, SHAPE2(3, 2));
	value sum = op_add(g, a, b);
	assert_int_equal(sum, VALUE_NONE);
	assert_int_equal(op_gelu(g, sum, false), VALUE_NONE);
	assert_int_equal(graph_input(g, "c", DTYPE_F32, SHAPE1(1)), VALUE_NONE);
	graph_output(g, sum, "sum");
	assert_int_equal(graph_backward(g, sum), STATUS_INVALID);
	assert_int_equal(graph_node_count(g), 0);
	assert_int_equal(graph_value(g, sum)->role, ROLE_TEMPORARY);
	assert_int_equal(shape_last(graph_value(g, sum)->shape), 1);
	expect_error(g, STATUS_INVALID, "add.b", "b is [3, 2], must be [2, 3] like a");
}

static void errors_name_the_argument(void **state)
{
	(void)state;
	graph *g = graph_new();
	value a = graph_input(g, "a", DTYPE_F32, SHAPE2(2, 3)), i = graph_input(g, "i", DTYPE_I32, SHAPE2(2, 3));
	op_mul(g, a, i);
	expect_error(g, STATUS_INVALID, "mul.b", "b is i32, must be f32");

	g = graph_new();
	op_gelu(g, VALUE_NONE, false);
	expect_error(g, STATUS_INVALID, "gelu.x", "missing");

	g = graph_new();
	a = graph_input(g, "a", DTYPE_F32, SHAPE2(2, 3));
	op_matmul(g, a, a, false, false, 1);
	expect_error(g, STATUS_INVALID, "matmul.b", "inner dimensions 3 and 2 differ");

	g = graph_new();
	op_additive_attention(g, graph_input(g, "x", DTYPE_F32, SHAPE3(1, 2, 6)), graph_parameter(g, "w", SHAPE1(6)),
	                      VALUE_NONE, 4, 0);
	expect_error(g, STATUS_INVALID, "additive_attention.heads", "6 channels cannot be split into 4 heads");

	g = graph_new();
	op_dropout(g, graph_input(g, "x", DTYPE_F32, SHAPE1(6)), graph_input(g, "rng", DTYPE_I32, SHAPE1(4)), 1, 0);
	expect_error(g, STATUS_INVALID, "dropout.p", "below 1");

	g = graph_new();
	op_normalize(g, graph_input(g, "x", DTYPE_F32, SHAPE2(1, 6)), VALUE_NONE,
	             (normalize_params){.groups = 1, .scale = 1, .floor = 1e-5f, .eps = -1});
	expect_error(g, STATUS_INVALID, "normalize.eps", "eps is -1, must be a number from 0");

	g = graph_new();
	op_glu(g, graph_input(g, "x", DTYPE_F32, SHAPE2(1, 6)), ACTIVATION_LOG_SIGMOID);
	expect_error(g, STATUS_INVALID, "glu.kind", "no kind of gate");

	g = graph_new();
	graph_output(g, VALUE_NONE, "y");
	expect_error(g, STATUS_INVALID, "y", "no value");
}

static void a_wrong_number_of_inputs_is_an_error(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(6)), out;
	assert_int_equal(graph_apply(g, OP_add, &x, 1, NULL, &out), STATUS_INVALID);
	assert_int_equal(out, VALUE_NONE);
	expect_error(g, STATUS_INVALID, "add", "takes 2 to 2 inputs, not 1");
}

static void sizes_that_overflow_are_errors(void **state)
{
	(void)state;
	const int64_t big = INT64_C(1) << 40;
	graph *g = graph_new();
	graph_input(g, "x", DTYPE_F32, SHAPE2(big, big));
	expect_error(g, STATUS_INVALID, "x", "shape");

	g = graph_new();
	graph_input(g, "x", DTYPE_F32, SHAPE3(big, big, 0));
	expect_error(g, STATUS_INVALID, "x", "shape");

	g = graph_new();
	graph_input(g, "x", DTYPE_F32, SHAPE1(-1));
	expect_error(g, STATUS_INVALID, "x", "shape");

	g = graph_new(); /* each argument fits, but their product does not */
	value a = graph_input(g, "a", DTYPE_F32, SHAPE2(big, 1)), b = graph_input(g, "b", DTYPE_F32, SHAPE2(1, big));
	op_matmul(g, a, b, false, false, 1);
	expect_error(g, STATUS_INVALID, "matmul", "too large");
}

static void only_persistent_memory_is_updated_in_place(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3));
	op_accumulate(g, op_scale(g, x, 1), x, 1);
	expect_error(g, STATUS_INVALID, "accumulate", "must be a state");

	g = graph_new();
	value s = graph_state(g, "s", SHAPE1(3));
	op_accumulate(g, s, s, 1);
	expect_error(g, STATUS_INVALID, "accumulate", "also given as input 1");

	g = graph_new();
	op_accumulate(g, graph_state(g, "s", SHAPE1(3)), graph_input(g, "x", DTYPE_F32, SHAPE1(3)), 1);
	assert_int_equal(graph_status(g, NULL), STATUS_OK);
	graph_free(g);
}

static void shapes_count_and_print(void **state)
{
	(void)state;
	char text[64], small[8];
	assert_int_equal(shape_count(SHAPE0()), 1);
	assert_int_equal(shape_count(SHAPE3(2, 0, 5)), 0);
	assert_int_equal(shape_rows(SHAPE3(2, 3, 5)), 6);
	assert_int_equal(shape_last(SHAPE3(2, 3, 5)), 5);
	assert_false(shape_equal(SHAPE1(1), SHAPE0()));
	assert_string_equal(shape_text(SHAPE3(8, 512, 128), text, sizeof text), "[8, 512, 128]");
	assert_string_equal(shape_text(SHAPE0(), text, sizeof text), "[]");
	assert_string_equal(shape_text(SHAPE3(8, 512, 128), small, sizeof small), "[8, 512");
}

static void freeing_null_is_legal(void **state)
{
	(void)state;
	graph_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(nodes_and_values_are_in_the_order_of_construction),
	    cmocka_unit_test(a_value_can_have_two_names_but_a_name_only_one_value),
	    cmocka_unit_test(infos_keep_their_address_while_the_graph_grows),
	    cmocka_unit_test(the_first_error_is_kept_and_later_calls_have_no_effect),
	    cmocka_unit_test(errors_name_the_argument),
	    cmocka_unit_test(a_wrong_number_of_inputs_is_an_error),
	    cmocka_unit_test(sizes_that_overflow_are_errors),
	    cmocka_unit_test(only_persistent_memory_is_updated_in_place),
	    cmocka_unit_test(shapes_count_and_print),
	    cmocka_unit_test(freeing_null_is_legal),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
