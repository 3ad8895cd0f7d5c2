/* Additive attention against its definition: independent formulas and invariants, for the reference and the fast
 * kernels, in both forms. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

enum { LENGTH = 50, HEADS = 2, WIDTH = 3, HIDDEN = HEADS * WIDTH, X = LENGTH * HIDDEN, S = LENGTH * HEADS };

static const int64_t windows[] = {0, 1, 2, 3, 4, 7, 16, LENGTH - 1, LENGTH, LENGTH + 5};
enum { N_WINDOWS = sizeof windows / sizeof windows[0] };

/* One sequence through one round. */
typedef struct round {
	float x[X], w[HIDDEN];
	int32_t mask[LENGTH];
	float g[X], score[S], log_normalizer[S];
} round_data;

static void draw(round_data *r, double std)
{
	random_normal(r->x, X, 1, 1);
	random_normal(r->w, HIDDEN, 2, std);
	for (int i = 0; i < LENGTH; i++)
		r->mask[i] = 1;
}

static void read_out(plan *p, attention_values y, round_data *r)
{
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, y.pooled, r->g), STATUS_OK);
	assert_int_equal(plan_read(p, y.score, r->score), STATUS_OK);
	assert_int_equal(plan_read(p, y.log_normalizer, r->log_normalizer), STATUS_OK);
}

static void name_outputs(graph *g, attention_values y)
{
	graph_output(g, y.pooled, "g");
	graph_output(g, y.score, "score");
	graph_output(g, y.log_normalizer, "log_normalizer");
}

/* The sequence in one call. */
static void run_parallel(backend *b, round_data *r, int64_t window)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE3(1, LENGTH, HIDDEN));
	value w = graph_input(g, "w", DTYPE_F32, SHAPE1(HIDDEN));
	value mask = graph_input(g, "mask", DTYPE_I32, SHAPE2(1, LENGTH));
	attention_values y = op_additive_attention(g, x, w, mask, HEADS, window);
	plan *p;
	name_outputs(g, y);
	assert_int_equal(plan_new(&p, g, b, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, x, r->x), STATUS_OK);
	assert_int_equal(plan_write(p, w, r->w), STATUS_OK);
	assert_int_equal(plan_write(p, mask, r->mask), STATUS_OK);
	read_out(p, y, r);
	plan_free(p);
}

/* Read `length` tokens of r from `position` on into slot 1 of the pool. */
static void run_chunk(backend *b, round_data *r, int64_t window, float *pool, int32_t position, int32_t length)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE3(1, length, HIDDEN));
	value w = graph_input(g, "w", DTYPE_F32, SHAPE1(HIDDEN));
	value mask = graph_input(g, "mask", DTYPE_I32, SHAPE2(1, length));
	value state = graph_state(g, "pool", SHAPE2(2, additive_state_floats(HIDDEN, HEADS, window)));
	value slot = graph_input(g, "slot", DTYPE_I32, SHAPE1(1)),
	      at = graph_input(g, "position", DTYPE_I32, SHAPE1(1));
	value count = graph_input(g, "length", DTYPE_I32, SHAPE1(1));
	attention_values y = op_additive_stream(g, x, w, state, slot, at, count, mask, VALUE_NONE,
	                                        (additive_stream_params){HEADS, window, 0});
	plan *p;
	round_data part;
	name_outputs(g, y);
	assert_int_equal(plan_new(&p, g, b, (plan_binding[]){{state, pool}}, 1, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, x, r->x + position * HIDDEN), STATUS_OK);
	assert_int_equal(plan_write(p, w, r->w), STATUS_OK);
	assert_int_equal(plan_write(p, mask, r->mask + position), STATUS_OK);
	assert_int_equal(plan_write(p, slot, (int32_t[]){1}), STATUS_OK);
	assert_int_equal(plan_write(p, at, &position), STATUS_OK);
	assert_int_equal(plan_write(p, count, &length), STATUS_OK);
	read_out(p, y, &part);
	memcpy(r->g + position * HIDDEN, part.g, (size_t)length * HIDDEN * sizeof(float));
	memcpy(r->score + position * HEADS, part.score, (size_t)length * HEADS * sizeof(float));
	memcpy(r->log_normalizer + position * HEADS, part.log_normalizer, (size_t)length * HEADS * sizeof(float));
	plan_free(p);
}

/* A pool of two slots filled with NaN. */
static float *new_pool(int64_t window, size_t *bytes)
{
	*bytes = 2 * (size_t)additive_state_floats(HIDDEN, HEADS, window) * sizeof(float);
	float *pool = aligned_alloc(64, (*bytes / 64 + 1) * 64);
	assert_non_null(pool);
	memset(pool, 0xff, (*bytes / 64 + 1) * 64);
	return pool;
}

/* Read in chunks of `chunk` tokens (0: of random sizes). The backends in `each` take turns, so that one continues the
 * state of another. */
static void run_stream(backend *const *each, int n_each, round_data *r, int64_t window, int chunk)
{
	size_t bytes;
	float *pool = new_pool(window, &bytes);
	uint64_t seed = 5;
	for (int at = 0, turn = 0; at < LENGTH; turn++) {
		int n = chunk ? chunk : (int)random_next(&seed, 1, 9);
		n = n < LENGTH - at ? n : LENGTH - at;
		run_chunk(each[turn % n_each], r, window, pool, at, n);
		at += n;
	}
	for (size_t i = 0; i < bytes / 2; i++) /* slot 0 belongs to another session */
		assert_int_equal(((unsigned char *)pool)[i], 0xff);
	free(pool);
}

static void assert_close(const char *what, const round_data *got, const round_data *want, double tolerance)
{
	bool fine = compare_close(what, got->g, want->g, X, tolerance, tolerance);
	fine = compare_close(what, got->score, want->score, S, tolerance, tolerance) && fine;
	assert_true(compare_close(what, got->log_normalizer, want->log_normalizer, S, tolerance, tolerance) && fine);
}

/* --- independent formulas ------------------------------------------------------------------ */

/* The published formula in double: a window is the difference of two running sums of raw exponentials. It is exact
 * enough for small scores and unlike the kernels. */
static void published(round_data *r, int64_t window)
{
	static double weights[LENGTH + 1], sums[LENGTH + 1][WIDTH];
	for (int h = 0; h < HEADS; h++) {
		for (int i = 0; i < LENGTH; i++) {
			double a = 0;
			for (int d = 0; d < WIDTH; d++)
				a += (double)r->w[h * WIDTH + d] * (double)r->x[i * HIDDEN + h * WIDTH + d] /
				     sqrt(WIDTH);
			r->score[i * HEADS + h] = (float)a;
			double e = r->mask[i] ? exp(a) : 0;
			weights[i + 1] = weights[i] + e;
			for (int d = 0; d < WIDTH; d++)
				sums[i + 1][d] = sums[i][d] + e * (double)r->x[i * HIDDEN + h * WIDTH + d];
		}
		for (int i = 0; i < LENGTH; i++) {
			int first = window > 0 && window <= i ? i + 1 - (int)window : 0;
			double z = weights[i + 1] - weights[first];
			r->log_normalizer[i * HEADS + h] = (float)log(z);
			for (int d = 0; d < WIDTH; d++)
				r->g[i * HIDDEN + h * WIDTH + d] = (float)((sums[i + 1][d] - sums[first][d]) / z);
		}
	}
}

static void small_scores_agree_with_the_published_form(void **state)
{
	const backends *b = *state;
	static round_data got, want;
	for (int k = 0; k < N_WINDOWS; k++) {
		draw(&want, 1);
		published(&want, windows[k]);
		for (int i = 0; i < 2; i++) {
			draw(&got, 1);
			run_parallel(b->each[i], &got, windows[k]);
			assert_close("parallel", &got, &want, 1e-5);
			draw(&got, 1);
			run_stream(&b->each[i], 1, &got, windows[k], 1);
			assert_close("token by token", &got, &want, 1e-5);
		}
	}
}

static void chunks_of_any_size_give_the_results_of_one_call(void **state)
{
	const backends *b = *state;
	static const int chunks[] = {0, 1, 2, 5, 33, LENGTH};
	static round_data got, want;
	for (int k = 0; k < N_WINDOWS; k++) {
		draw(&want, 4);
		random_integers(want.mask, LENGTH, 9, 0, 2);
		got = want;
		run_parallel(b->each[0], &want, windows[k]);
		for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++)
			for (int i = 0; i < 2; i++) {
				run_stream(&b->each[i], 1, &got, windows[k], chunks[c]);
				assert_close("chunks", &got, &want, 2e-5);
			}
	}
}

static void one_backend_continues_the_state_of_another(void **state)
{
	const backends *b = *state;
	static round_data got, want;
	for (int k = 0; k < N_WINDOWS; k++) {
		draw(&want, 2);
		got = want;
		run_parallel(b->each[0], &want, windows[k]);
		run_stream(b->each, 2, &got, windows[k], 0);
		assert_close("taking turns", &got, &want, 1e-5);
	}
}

/* --- invariants ------------------------------------------------------------------------------- */

static void a_window_of_one_returns_the_token_itself(void **state)
{
	const backends *b = *state;
	static round_data r;
	for (int i = 0; i < 2; i++) {
		draw(&r, 100);
		run_parallel(b->each[i], &r, 1);
		assert_true(compare_close("g", r.g, r.x, X, 0, 1e-6));
		assert_true(compare_close("M", r.log_normalizer, r.score, S, 0, 1e-6));
		run_stream(&b->each[i], 1, &r, 1, 1);
		assert_true(compare_close("g", r.g, r.x, X, 0, 1e-6));
	}
}

static void a_window_of_the_full_length_is_global(void **state)
{
	const backends *b = *state;
	static round_data global, wide;
	for (int i = 0; i < 2; i++) {
		draw(&global, 3);
		wide = global;
		run_parallel(b->each[i], &global, 0);
		run_parallel(b->each[i], &wide, LENGTH);
		assert_close("window of the length", &wide, &global, 1e-6);
	}
}

static void a_constant_added_to_all_scores_has_no_effect(void **state)
{
	const backends *b = *state;
	static round_data plain, shifted;
	for (int k = 0; k < N_WINDOWS; k++) {
		for (int i = 0; i < 2; i++) {
			draw(&plain, 1); /* a channel of ones adds the constant */
			for (int t = 0; t < LENGTH; t++)
				plain.x[t * HIDDEN] = plain.x[t * HIDDEN + WIDTH] = 1;
			shifted = plain;
			shifted.w[0] += 32;
			shifted.w[WIDTH] -= 32;
			run_parallel(b->each[i], &plain, windows[k]);
			run_parallel(b->each[i], &shifted, windows[k]);
			assert_true(compare_close("g", shifted.g, plain.g, X, 2e-5, 0));
		}
	}
}

static void importance_weights_of_a_window_sum_to_one(void **state)
{
	const backends *b = *state;
	static round_data r;
	for (int k = 0; k < N_WINDOWS; k++) {
		for (int i = 0; i < 2; i++) {
			draw(&r, 5);
			run_parallel(b->each[i], &r, windows[k]);
			for (int at = 0; at < LENGTH; at++) {
				int first = windows[k] > 0 && windows[k] <= at ? at + 1 - (int)windows[k] : 0;
				double sum = 0;
				for (int j = first; j <= at; j++)
					sum += exp((double)r.score[j * HEADS] - (double)r.log_normalizer[at * HEADS]);
				assert_true(fabs(sum - 1) <= 1e-5);
			}
		}
	}
}

static void a_token_is_seen_only_inside_its_window(void **state)
{
	const backends *b = *state;
	enum { CHANGED = 20 };
	static round_data before, after;
	for (int k = 0; k < N_WINDOWS; k++) {
		for (int i = 0; i < 2; i++) {
			draw(&before, 1);
			after = before;
			after.x[CHANGED * HIDDEN + 1] += 5;
			run_parallel(b->each[i], &before, windows[k]);
			run_parallel(b->each[i], &after, windows[k]);
			int64_t end = windows[k] > 0 ? CHANGED + windows[k] : LENGTH;
			for (int64_t t = 0; t < LENGTH; t++) {
				bool same =
				    memcmp(before.g + t * HIDDEN, after.g + t * HIDDEN, WIDTH * sizeof(float)) == 0;
				if (t < CHANGED)
					assert_true(same);
				else if (t >= end) /* may differ only by the rounding of blocks */
					assert_true(compare_close("after", after.g + t * HIDDEN, before.g + t * HIDDEN,
					                          WIDTH, 1e-5, 1e-5));
				else
					assert_false(same);
			}
		}
	}
}

static void a_masked_token_has_no_weight_whatever_its_values(void **state)
{
	const backends *b = *state;
	static round_data before, after;
	for (int k = 0; k < N_WINDOWS; k++) {
		for (int i = 0; i < 2; i++) {
			draw(&before, 1);
			random_integers(before.mask, LENGTH, 4, 0, 1);
			after = before;
			for (int t = 0; t < LENGTH; t++)
				for (int d = 0; d < HIDDEN && !after.mask[t]; d++)
					after.x[t * HIDDEN + d] = 300;
			run_parallel(b->each[i], &before, windows[k]);
			run_parallel(b->each[i], &after, windows[k]);
			assert_true(compare_close("g", after.g, before.g, X, 1e-6, 1e-6));
			assert_true(compare_close("M", after.log_normalizer, before.log_normalizer, S, 1e-6, 1e-6));
		}
	}
}

static void an_empty_window_gives_zero(void **state)
{
	const backends *b = *state;
	static round_data r;
	for (int i = 0; i < 2; i++) {
		draw(&r, 1);
		memset(r.mask, 0, 10 * sizeof r.mask[0]); /* left padding */
		for (int form = 0; form < 2; form++) {
			if (form)
				run_stream(&b->each[i], 1, &r, 4, 3);
			else
				run_parallel(b->each[i], &r, 4);
			for (int t = 0; t < 10; t++) {
				assert_true(isinf(r.log_normalizer[t * HEADS]) && r.log_normalizer[t * HEADS] < 0);
				for (int d = 0; d < HIDDEN; d++)
					assert_true(r.g[t * HIDDEN + d] == 0);
			}
			assert_true(
			    compare_close("first token", r.g + 10 * HIDDEN, r.x + 10 * HIDDEN, HIDDEN, 0, 1e-6));
		}
	}
}

static void scores_of_ten_thousand_give_finite_results(void **state)
{
	const backends *b = *state;
	static round_data r;
	for (int k = 0; k < N_WINDOWS; k++) {
		for (int i = 0; i < 2; i++) {
			draw(&r, 1e4);
			run_parallel(b->each[i], &r, windows[k]);
			assert_true(compare_magnitude(r.g, X) <= compare_magnitude(r.x, X) * (1 + 1e-6));
			assert_true(compare_magnitude(r.log_normalizer, S) < 1e6);
			run_stream(&b->each[i], 1, &r, windows[k], 0);
			assert_true(compare_magnitude(r.g, X) <= compare_magnitude(r.x, X) * (1 + 1e-6));
			assert_true(compare_magnitude(r.log_normalizer, S) < 1e6);
		}
	}
}

static void the_state_does_not_grow_with_the_tokens(void **state)
{
	(void)state;
	assert_int_equal(additive_state_floats(128, 4, 1), 0);
	assert_int_equal(additive_state_floats(128, 4, 0), 136);
	assert_true(additive_state_floats(128, 4, 64) <= 136 * 66);
	assert_true(additive_state_floats(128, 4, 65) <= 136 * 66);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(small_scores_agree_with_the_published_form),
	    cmocka_unit_test(chunks_of_any_size_give_the_results_of_one_call),
	    cmocka_unit_test(one_backend_continues_the_state_of_another),
	    cmocka_unit_test(a_window_of_one_returns_the_token_itself),
	    cmocka_unit_test(a_window_of_the_full_length_is_global),
	    cmocka_unit_test(a_constant_added_to_all_scores_has_no_effect),
	    cmocka_unit_test(importance_weights_of_a_window_sum_to_one),
	    cmocka_unit_test(a_token_is_seen_only_inside_its_window),
	    cmocka_unit_test(a_masked_token_has_no_weight_whatever_its_values),
	    cmocka_unit_test(an_empty_window_gives_zero),
	    cmocka_unit_test(scores_of_ten_thousand_give_finite_results),
	    cmocka_unit_test(the_state_does_not_grow_with_the_tokens),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
