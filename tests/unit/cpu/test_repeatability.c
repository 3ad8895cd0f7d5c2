/* A call gives the same bits every time and, matrix products apart, for any number of threads. Sizes are large enough
 * that the work is divided. The loss: test_linear_cross_entropy.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/cpu/fixture.h"

static bool same_outputs(const op_call *got, const op_call *want)
{
	bool same = true;
	for (int i = 0; i < want->n_out; i++)
		same = compare_same("output", got->out[i].data, want->out[i].data, shape_count(want->out[i].shape)) &&
		       same;
	return same;
}

/* Run once on one thread, then several times on one to three, and on fewer than the backend has; frees the call. */
static void repeat(op_id id, op_call *call)
{
	backend *one = fixture_open(1);
	op_call want = *call;
	fixture_run(one, id, &want);
	for (int threads = 1; threads <= 3; threads++) {
		backend *b = fixture_open(threads);
		for (int again = 0; again < 2; again++) {
			op_call got = *call;
			fixture_run(b, id, &got);
			assert_true(same_outputs(&got, &want));
			fixture_free_outputs(&got);
		}
		for (int fewer = 1; fewer < threads; fewer++) {
			op_call got = *call;
			fixture_narrow(b, fewer, id, &got);
			assert_true(same_outputs(&got, &want));
			fixture_free_outputs(&got);
		}
		backend_close(b);
	}
	fixture_free(&want);
	backend_close(one);
}

static tensor reals(shape s)
{
	return fixture_normal(s, 61, 1);
}

static void attention_does_not_depend_on_threads(void **state)
{
	(void)state;
	static const int64_t windows[] = {4, 100, 700, 0};
	for (int i = 0; i < 4; i++) {
		additive_attention_params p = {.heads = 4, .window = windows[i]};
		shape s = SHAPE3(2, 1111, 64), per_head = SHAPE3(2, 1111, 4);
		repeat(OP_additive_attention, &(op_call){.params = &p, .n_in = 2, .in = {reals(s), reals(SHAPE1(64))}});
		op_call back = {.params = &p,
		                .n_in = 6,
		                .in = {reals(s), reals(SHAPE1(64)), {0}, reals(s), reals(per_head), reals(s)}};
		repeat(OP_additive_attention_grad, &back);
	}
}

static void frozen_gradients_do_not_depend_on_threads(void **state)
{
	(void)state;
	shape s = SHAPE3(2, 311, 64), per_head = SHAPE3(2, 311, 4);
	additive_attention_params pooled = {.heads = 4, .window = 100, .frozen = true};
	softmax_params softmax = {.heads = 4, .scale = 0.1f, .frozen = true};
	op_call pooling = {.params = &pooled,
	                   .n_in = 6,
	                   .in = {reals(s), reals(SHAPE1(64)), {0}, reals(s), reals(per_head), reals(s)}};
	op_call attention = {
	    .params = &softmax,
	    .n_in = 9,
	    .in = {reals(SHAPE3(2, 311, 192)), {0}, {0}, {0}, {0}, {0}, reals(s), reals(per_head), reals(s)}};
	op_call norm = {.params = &(layernorm_grad_params){.frozen = true},
	                .n_in = 5,
	                .in = {reals(s), reals(SHAPE1(64)), reals(SHAPE1(622)), reals(SHAPE1(622)), reals(s)}};
	repeat(OP_additive_attention_grad, &pooling);
	repeat(OP_softmax_attention_grad, &attention);
	repeat(OP_layernorm_grad, &norm);
}

static void sums_over_rows_do_not_depend_on_threads(void **state)
{
	(void)state;
	shape s = SHAPE2(5003, 70);
	shape row = SHAPE1(70), column = SHAPE1(5003);
	repeat(OP_sum_rows, &(op_call){.params = &(scale_params){2}, .n_in = 1, .in = {reals(s)}});
	repeat(OP_dot_rows, &(op_call){.params = &(scale_params){2}, .n_in = 2, .in = {reals(s), reals(row)}});
	repeat(OP_sum_squares, &(op_call){.n_in = 1, .in = {reals(s)}});
	repeat(OP_layernorm_grad, &(op_call){.params = &(layernorm_grad_params){0},
	                                     .n_in = 5,
	                                     .in = {reals(s), reals(row), reals(column), reals(column), reals(s)}});
}

static void the_scattered_gradient_does_not_depend_on_threads(void **state)
{
	(void)state;
	gather_grad_params p = {300, 0};
	op_call call = {
	    .params = &p, .n_in = 2, .in = {fixture_integers(SHAPE1(4000), 62, 0, 299), reals(SHAPE2(4000, 150))}};
	repeat(OP_gather_grad, &call);
}

static void dropout_does_not_depend_on_threads(void **state)
{
	(void)state;
	dropout_params p = {0.1f, 5};
	tensor rng = fixture_integers(SHAPE1(4), 64, 0, 1000000);
	repeat(OP_dropout, &(op_call){.params = &p, .n_in = 2, .in = {reals(SHAPE2(701, 129)), rng}});
}

static void elementwise_work_does_not_depend_on_threads(void **state)
{
	(void)state;
	shape s = SHAPE2(1403, 131);
	repeat(OP_gate, &(op_call){.n_in = 3, .in = {reals(s), reals(s), reals(s)}});
	repeat(OP_secant_grad,
	       &(op_call){.params = &(secant_params){0.5f}, .n_in = 3, .in = {reals(s), reals(s), reals(s)}});
	for (int form = 0; form < 2; form++) {
		gelu_params p = {form};
		repeat(OP_gelu, &(op_call){.params = &p, .n_in = 1, .in = {reals(s)}});
		repeat(OP_gelu_grad, &(op_call){.params = &p, .n_in = 2, .in = {reals(s), reals(s)}});
	}
}

/* Its bits depend on the backend's number of threads, not on how many share its loops. */
static void a_product_of_plain_weights_does_not_depend_on_threads_that_share_loops(void **state)
{
	(void)state;
	backend *b = fixture_open(3);
	op_call all = {.params = &(linear_params){.alpha = 1},
	               .n_in = 3,
	               .in = {reals(SHAPE2(500, 300)), reals(SHAPE2(700, 300)), reals(SHAPE1(700))}},
	        one = all;
	fixture_run(b, OP_linear, &all);
	fixture_narrow(b, 1, OP_linear, &one);
	assert_true(same_outputs(&one, &all));
	fixture_free_outputs(&one);
	fixture_free(&all);
	backend_close(b);
}

static void adamw_does_not_depend_on_threads(void **state)
{
	(void)state;
	enum { PARAMETERS = 100003 };
	adamw_params p = {0.9f, 0.999f, 1e-8f, 0.01f, 1, false};
	shape s = SHAPE1(PARAMETERS);
	float *first = NULL;
	for (int threads = 1; threads <= 3; threads++) {
		backend *b = fixture_open(threads);
		op_call call = {.params = &p,
		                .n_in = 6,
		                .in = {reals(s), reals(s), reals(s), reals(s), reals(SHAPE0()), reals(SHAPE1(2))}};
		for (int64_t i = 0; i < PARAMETERS; i++)
			((float *)call.in[3].data)[i] *= ((float *)call.in[3].data)[i];
		*(float *)call.in[4].data = 4;
		memcpy(call.in[5].data, (float[]){1e-3f, 7}, 2 * sizeof(float));
		fixture_run(b, OP_adamw, &call);
		if (first)
			assert_true(compare_same("parameters", call.in[0].data, first, PARAMETERS));
		else
			first = call.in[0].data, call.in[0].data = NULL;
		fixture_free(&call);
		backend_close(b);
	}
	buffer_free(first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(attention_does_not_depend_on_threads),
	    cmocka_unit_test(frozen_gradients_do_not_depend_on_threads),
	    cmocka_unit_test(sums_over_rows_do_not_depend_on_threads),
	    cmocka_unit_test(the_scattered_gradient_does_not_depend_on_threads),
	    cmocka_unit_test(dropout_does_not_depend_on_threads),
	    cmocka_unit_test(elementwise_work_does_not_depend_on_threads),
	    cmocka_unit_test(a_product_of_plain_weights_does_not_depend_on_threads_that_share_loops),
	    cmocka_unit_test(adamw_does_not_depend_on_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
