/* Kernels that pass over memory once, at sizes that op_cases lacks. Rows of complete packs of 16 bytes have other
 * kernels than odd rows. Rows have one warp, many, and one more. There are several blocks, and tables in which a row is
 * used everywhere or nowhere. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/cuda/judges.h"
#include "tests/unit/support/op_trial.h"

/* A case of op_cases with other sizes. */
typedef struct resized {
	op_id id;
	const char *name; /* name of the case in op_cases */
	int64_t arg[6];
	int32_t low, high;
	double tolerance;
} resized;

static const op_case *find_case(const resized *r)
{
	for (int i = 0; i < op_cases_count(); i++)
		if (op_cases_at(i)->id == r->id && strcmp(op_cases_at(i)->name, r->name) == 0)
			return op_cases_at(i);
	fail_msg("op_cases has no %s (%s)", op_get(r->id)->name, r->name);
	return NULL;
}

/* Try the case in f32 and, if it has [real] inputs, in bf16; returns the number of failures. */
static int failures(const resized *r)
{
	op_case c = *find_case(r), half;
	char name[96];
	memcpy(c.arg, r->arg, sizeof r->arg);
	snprintf(name, sizeof name, "%lld, %lld, %lld, %lld", (long long)r->arg[0], (long long)r->arg[1],
	         (long long)r->arg[2], (long long)r->arg[3]);
	c.name = name;
	c.low = r->low;
	c.high = r->high;
	c.absolute = c.relative = r->tolerance;
	int failed = !op_trial_matches(&c, reference, device);
	if (op_cases_bf16(&c, &half))
		failed += !op_trial_matches(&half, narrow, device);
	return failed;
}

static void try_all(const resized *r, size_t n)
{
	int failed = 0;
	for (size_t i = 0; i < n; i++)
		failed += failures(&r[i]);
	assert_int_equal(failed, 0);
}
#define TRY_ALL(list) try_all(list, sizeof(list) / sizeof(list)[0])

static void elements_of_complete_packs_and_of_the_remainder(void **state)
{
	(void)state;
	static const resized list[] = {
	    {OP_add, "odd", {1, 8}, 0, 0, 0},
	    {OP_add, "odd", {9, 2056}, 0, 0, 0},
	    {OP_add, "odd", {1, 7}, 0, 0, 0},
	    {OP_mul, "odd", {33, 513}, 0, 0, 1e-7},
	    {OP_gate, "odd", {16, 64}, 0, 0, 3e-7},
	    {OP_scale, "odd", {5, 1024}, 0, 0, 1e-7},
	    {OP_scale_by, "odd", {5, 1023}, 0, 0, 1e-7},
	    {OP_gelu, "odd", {8, 512}, 0, 0, 1e-6},
	    {OP_gelu_grad, "odd", {8, 512}, 0, 0, 2e-6},
	    {OP_gelu, "tanh form", {8, 512, 1}, 0, 0, 1e-6},
	    {OP_gelu_grad, "tanh form", {8, 512, 1}, 0, 0, 2e-6},
	    {OP_dropout, "odd", {16, 2048, 30, 5}, 0, 0, 1e-6},
	    {OP_dropout, "odd", {1, 2051, 30, 5}, 0, 0, 1e-6},
	    {OP_dropout, "odd", {1, 8, 100 - 1, 5}, 0, 0, 1e-4},
	    {OP_accumulate, "odd", {32, 64}, 0, 0, 3e-7},
	    {OP_lerp, "odd", {32, 64}, 0, 0, 3e-7},
	    {OP_secant_grad, "odd", {9, 1028}, 0, 0, 3e-7},
	};
	TRY_ALL(list);
}

static void rows_of_one_warp_of_many_and_beyond(void **state)
{
	(void)state;
	static const resized list[] = {
	    {OP_layernorm, "odd", {3, 8}, 0, 0, 2e-6},    /* one pack, or two: many rows to a warp */
	    {OP_layernorm, "odd", {99, 40}, 0, 0, 5e-6},  /* a few, with idle lanes */
	    {OP_layernorm, "odd", {77, 256}, 0, 0, 5e-6}, /* a warp, or half of one */
	    {OP_layernorm, "odd", {9, 264}, 0, 0, 5e-6},  /* in f32 one pack more than a warp can hold */
	    {OP_layernorm, "odd", {5, 768}, 0, 0, 5e-6},  /* groups that do not fill the block */
	    {OP_layernorm, "odd", {3, 4096}, 0, 0, 5e-6}, /* the widest rows of packs in f32 */
	    {OP_layernorm, "odd", {2, 8192}, 0, 0, 5e-6}, /* and in bf16 */
	    {OP_layernorm, "odd", {2, 8200}, 0, 0, 5e-6}, /* wider than that */
	    {OP_layernorm_grad, "odd", {3, 8}, 0, 0, 1e-5},
	    {OP_layernorm_grad, "odd", {99, 40}, 0, 0, 1e-4},
	    {OP_layernorm_grad, "odd", {301, 256}, 0, 0, 1e-4},
	    {OP_layernorm_grad, "odd", {61, 264}, 0, 0, 1e-4},
	    {OP_layernorm_grad, "odd", {33, 768}, 0, 0, 1e-4},
	    {OP_layernorm_grad, "odd", {9, 2048}, 0, 0, 1e-4}, /* the widest rows in f32 */
	    {OP_layernorm_grad, "odd", {3, 4096}, 0, 0, 1e-4}, /* and in bf16 */
	    {OP_layernorm_grad, "odd", {3, 4104}, 0, 0, 1e-4},
	    {OP_layernorm_grad, "frozen", {61, 264, 1}, 0, 0, 1e-4},
	};
	TRY_ALL(list);
}

static void sums_over_rows_in_strips_and_parts(void **state)
{
	(void)state;
	static const resized list[] = {
	    {OP_sum_rows, "odd", {1, 8}, 0, 0, 1e-5},     {OP_sum_rows, "odd", {700, 256}, 0, 0, 1e-4},
	    {OP_sum_rows, "odd", {2049, 40}, 0, 0, 2e-4}, {OP_sum_rows, "odd", {257, 1032}, 0, 0, 1e-4},
	    {OP_sum_squares, "odd", {4096}, 0, 0, 1e-6},  {OP_sum_squares, "odd", {4099}, 0, 0, 1e-6},
	    {OP_sum_squares, "odd", {3}, 0, 0, 1e-6},
	};
	TRY_ALL(list);
}

static void tables_in_which_a_row_is_everywhere_or_nowhere(void **state)
{
	(void)state;
	static const resized list[] = {
	    {OP_gather, "wide", {101, 64, 300, -1}, -1, 101, 0},
	    {OP_gather, "wide", {7, 1032, 19, -1}, -1, 7, 0},
	    {OP_gather, "wide", {7, 66, 19, -1}, -1, 7, 0}, /* in bf16 by 4 bytes */
	    {OP_gather, "panels of f32", {200, 96, 50, DTYPE_PANEL_F32}, -1, 200, 0},
	    {OP_gather, "panels of bf16", {200, 97, 50, DTYPE_PANEL_BF16}, -1, 200, 0},
	    {OP_gather, "panels of int8", {200, 99, 50, DTYPE_PANEL_INT8}, -1, 200, 0},
	    {OP_gather_grad, "wide", {40, 64, 32, -1}, 3, 3, 1e-5},      /* one run, one chunk */
	    {OP_gather_grad, "wide", {40, 64, 33, -1}, 3, 3, 1e-5},      /* one run, two chunks */
	    {OP_gather_grad, "wide", {3, 64, 1000, -1}, 0, 2, 1e-4},     /* runs over many chunks */
	    {OP_gather_grad, "wide", {3, 64, 1000, 1}, -1, 3, 1e-4},     /* one of the rows is padding */
	    {OP_gather_grad, "wide", {300, 24, 5000, -1}, 0, 299, 1e-5}, /* two digits, several tiles */
	    {OP_gather_grad, "wide", {255, 8, 100, -1}, 0, 254, 1e-5},
	    {OP_gather_grad, "wide", {256, 8, 100, -1}, 0, 255, 1e-5},
	    {OP_gather_grad, "wide", {70000, 4, 4100, -1}, 0, 69999, 1e-5}, /* three digits */
	    {OP_gather_grad, "wide", {5, 600, 70, -1}, 0, 4, 1e-5},         /* strips of columns */
	};
	TRY_ALL(list);
}

static void the_optimizer_at_complete_packs(void **state)
{
	(void)state;
	static const resized list[] = {
	    {OP_adamw, "clipped", {64, 100}, 0, 0, 1e-6},
	    {OP_adamw, "narrow", {4096, 100, 0, 1}, 0, 0, 1e-6},
	    {OP_adamw, "narrow", {4095, 0, 0, 1}, 0, 0, 1e-6},
	    {OP_adamw, "narrow", {64, 100, 1, 1}, 0, 0, 0},
	    {OP_sgd, "clipped", {64, 100}, 0, 0, 1e-6},
	    {OP_sgd, "normalized", {4095, 0, 0, 1, 1}, 0, 0, 1e-6},
	    {OP_sgd, "clipped", {64, 100, 1, 1}, 0, 0, 0},
	    {OP_adamw, "factors", {4095, 100, 0, 1, 1, 1}, 0, 0, 1e-6},
	    {OP_sgd, "factors", {4095, 0, 0, 1, 0, 1}, 0, 0, 1e-6},
	};
	TRY_ALL(list);
}

/* --- two runs ------------------------------------------------------------------------------ */

enum { ROWS = 1200, WIDTH = 96, TABLE = 50 };

/* All ops that sum over rows; their outputs are concatenated in `out`. Returns the number of bytes. */
static size_t run_sums(float *out)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, WIDTH)),
	      weight = graph_input(g, "weight", DTYPE_F32, SHAPE1(WIDTH));
	value index = graph_input(g, "index", DTYPE_I32, SHAPE1(ROWS)), norm[3], grads[3];
	graph_apply(g, OP_layernorm, (value[]){x, weight, weight}, 3, &(layernorm_params){.eps = 1e-5f}, norm);
	graph_apply(g, OP_layernorm_grad, (value[]){x, weight, norm[1], norm[2], norm[0]}, 5,
	            &(layernorm_grad_params){0}, grads);
	value results[] = {grads[0],
	                   grads[1],
	                   grads[2],
	                   op_sum_rows(g, x, 0.7f),
	                   op_sum_squares(g, x),
	                   op_gather_grad(g, index, x, TABLE, 3)};
	enum { RESULTS = sizeof results / sizeof results[0] };
	for (int i = 0; i < RESULTS; i++)
		graph_output(g, results[i], "result %d", i);
	plan *p;
	assert_int_equal(plan_new(&p, g, device, NULL, 0, NULL), STATUS_OK);
	const op_case c = {.low = 0, .high = 9};
	for (value v = 0; v < graph_value_count(g); v++) {
		static float content[ROWS * WIDTH];
		if (graph_value(g, v)->role != ROLE_INPUT)
			continue;
		op_cases_fill(&c, graph_value(g, v), content);
		assert_int_equal(plan_write(p, v, content), STATUS_OK);
	}
	assert_int_equal(plan_run(p), STATUS_OK);
	size_t n = 0;
	for (int i = 0; i < RESULTS; i++) {
		assert_int_equal(plan_read(p, results[i], out + n), STATUS_OK);
		n += (size_t)shape_count(graph_value(g, results[i])->shape);
	}
	plan_free(p);
	return n;
}

static void two_runs_give_the_same_bits(void **state)
{
	(void)state;
	static float first[2 * ROWS * WIDTH], second[2 * ROWS * WIDTH];
	const size_t n = run_sums(first);
	assert_int_equal(run_sums(second), n);
	assert_memory_equal(first, second, n * sizeof *first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(elements_of_complete_packs_and_of_the_remainder),
	    cmocka_unit_test(rows_of_one_warp_of_many_and_beyond),
	    cmocka_unit_test(sums_over_rows_in_strips_and_parts),
	    cmocka_unit_test(tables_in_which_a_row_is_everywhere_or_nowhere),
	    cmocka_unit_test(the_optimizer_at_complete_packs),
	    cmocka_unit_test(two_runs_give_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_judges, close_judges);
}
