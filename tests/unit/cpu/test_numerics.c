/* Accuracy of the windowed sums on long sequences with large and drifting scores, where the difference of two running
 * sums is wrong almost everywhere.
 *
 * Channel 0 of a token is its score (w = (√D, 0, …), so a_j = x_j0 exactly), and the other 15 are normal, so scores can
 * be chosen freely. Error: |ĝ - g| / |g| of those 15 against sums of the window in double. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "tests/unit/cpu/fixture.h"

enum { D = 16, N = 65536 };

/* Scores: a line from `first` to `last` plus normal noise. */
static tensor tokens(double first, double last, double noise)
{
	tensor x = fixture_normal(SHAPE3(1, N, D), 21, 1);
	float *data = x.data;
	for (int64_t i = 0; i < N; i++)
		data[i * D] = (float)(first + (last - first) * (double)i / N + noise * (double)data[i * D]);
	return x;
}

static tensor score_direction(void)
{
	tensor w = fixture_tensor(DTYPE_F32, SHAPE1(D));
	for (int i = 0; i < D; i++)
		((float *)w.data)[i] = i == 0 ? 4.0f : 0.0f; /* √16 */
	return w;
}

/* The error at position i of g. */
static double error_at(const float *x, const float *g, int64_t i, int64_t window)
{
	int64_t first = i < window ? 0 : i - window + 1;
	double top = -INFINITY, sum = 0, want[D] = {0}, difference = 0, size = 0;
	for (int64_t j = first; j <= i; j++)
		top = fmax(top, (double)x[j * D]);
	for (int64_t j = first; j <= i; j++) {
		double p = exp((double)x[j * D] - top);
		sum += p;
		for (int c = 1; c < D; c++)
			want[c] += p * (double)x[j * D + c];
	}
	for (int c = 1; c < D; c++) {
		want[c] /= sum;
		difference += ((double)g[i * D + c] - want[c]) * ((double)g[i * D + c] - want[c]);
		size += want[c] * want[c];
	}
	return sqrt(difference / size);
}

/* The largest error over the sequence, NaN if any error is; long windows are sampled. */
static double worst_error(const tensor *x, const float *g, int64_t window)
{
	int64_t stride = 1 + window / 32;
	double worst = 0;
	for (int64_t i = 0; i < N; i += stride) {
		double wrong = error_at(x->data, g, i, window);
		if (!(wrong <= worst))
			worst = wrong;
	}
	return worst;
}

static double parallel_error(backend *b, tensor x, int64_t window)
{
	additive_attention_params p = {.heads = 1, .window = window};
	op_call call = {.params = &p, .n_in = 2, .in = {x, score_direction()}};
	fixture_run(b, OP_additive_attention, &call);
	double wrong = worst_error(&x, call.out[0].data, window);
	call.in[0].data = NULL;
	fixture_free(&call);
	return wrong;
}

static tensor one_integer(int32_t x)
{
	return fixture_integers(SHAPE1(1), 0, x, x);
}

/* Worst error of the recurrent form, in chunks of 997 tokens. */
static double stream_error(backend *b, tensor x, int64_t window)
{
	enum { CHUNK = 997 };
	additive_stream_params p = {1, window, 0};
	float *g = buffer_new((size_t)N * D * sizeof *g);
	tensor chunk = fixture_tensor(DTYPE_F32, SHAPE3(1, CHUNK, D));
	op_call call = {.params = &p, .n_in = 6, .in = {chunk, score_direction()}};
	call.in[2] = fixture_tensor(DTYPE_F32, SHAPE2(1, additive_state_floats(D, 1, window)));
	call.in[3] = one_integer(0);
	call.in[4] = one_integer(0);
	call.in[5] = one_integer(0);
	for (int64_t i = 0; i < N; i += CHUNK) {
		int64_t length = N - i < CHUNK ? N - i : CHUNK;
		*(int32_t *)call.in[4].data = (int32_t)i;
		*(int32_t *)call.in[5].data = (int32_t)length;
		memcpy(chunk.data, (const float *)x.data + i * D, (size_t)(length * D) * sizeof *g);
		fixture_run(b, OP_additive_stream, &call);
		memcpy(g + i * D, call.out[0].data, (size_t)(length * D) * sizeof *g);
		fixture_free_outputs(&call);
	}
	double wrong = worst_error(&x, g, window);
	buffer_free(g);
	fixture_free(&call);
	return wrong;
}

static void check(double first, double last, double noise)
{
	static const int64_t windows[] = {4, 64, 1024};
	backend *b = fixture_open(2);
	tensor x = tokens(first, last, noise);
	for (int i = 0; i < 3; i++) {
		double parallel = parallel_error(b, x, windows[i]), stream = stream_error(b, x, windows[i]);
		printf("scores %g … %g ± %g, window %d: error %.1e, as a stream %.1e\n", first, last, noise,
		       (int)windows[i], parallel, stream);
		assert_true(parallel < 1e-5);
		assert_true(stream < 1e-5);
	}
	buffer_free(x.data);
	backend_close(b);
}

static void widely_spread_scores_are_exact_over_65536_tokens(void **state)
{
	(void)state;
	check(0, 0, 10);
}

static void a_falling_mean_score_is_exact_over_65536_tokens(void **state)
{
	(void)state;
	check(15, -15, 1);
}

static void a_rising_mean_score_is_exact_over_65536_tokens(void **state)
{
	(void)state;
	check(0, 100, 1);
}

static void scores_of_ten_thousand_are_exact(void **state)
{
	(void)state;
	check(-1e4, 1e4, 100);
}

/* The full range at once: every number is finite, forward and backward. */
static void scores_that_jump_between_plus_and_minus_ten_thousand_are_finite(void **state)
{
	(void)state;
	static const int64_t windows[] = {1, 3, 64, 0};
	enum { LENGTH = 500 };
	backend *b = fixture_open(2);
	for (int i = 0; i < 4; i++) {
		additive_attention_params p = {.heads = 1, .window = windows[i]};
		op_call call = {
		    .params = &p, .n_in = 2, .in = {fixture_normal(SHAPE3(1, LENGTH, D), 22, 1), score_direction()}};
		for (int64_t t = 0; t < LENGTH; t++)
			((float *)call.in[0].data)[t * D] = t % 3 ? 1e4f : -1e4f;
		fixture_run(b, OP_additive_attention, &call);
		op_call back = {.params = &p, .n_in = 6, .in = {call.in[0], call.in[1], {0}, call.out[0], call.out[2]}};
		back.in[5] = fixture_normal(SHAPE3(1, LENGTH, D), 23, 1);
		fixture_run(b, OP_additive_attention_grad, &back);
		assert_true(isfinite(compare_magnitude(call.out[0].data, LENGTH * D)));
		assert_true(compare_magnitude(call.out[2].data, LENGTH) <= 1e4 + 7);
		assert_true(isfinite(compare_magnitude(back.out[0].data, LENGTH * D)));
		assert_true(isfinite(compare_magnitude(back.out[1].data, D)));
		fixture_free_outputs(&back);
		buffer_free(back.in[5].data);
		fixture_free(&call);
	}
	backend_close(b);
}

/* This needs an exact running maximum. With log-normalizers alone, log 65536 would be lost in the last place of 1e4,
 * and later tokens would weigh too much. */
static void many_equal_large_scores_are_all_counted(void **state)
{
	(void)state;
	backend *b = fixture_open(2);
	additive_stream_params p = {1, 0, 0};
	op_call call = {.params = &p, .n_in = 6, .in = {fixture_tensor(DTYPE_F32, SHAPE3(1, N, D)), score_direction()}};
	for (int64_t i = 0; i < N * D; i++)
		((float *)call.in[0].data)[i] = i % D == 0 ? 1e4f : i < N * D / 2 ? 0.0f : 1.0f;
	call.in[2] = fixture_tensor(DTYPE_F32, SHAPE2(1, additive_state_floats(D, 1, 0)));
	call.in[3] = one_integer(0);
	call.in[4] = one_integer(0);
	call.in[5] = one_integer(N);
	fixture_run(b, OP_additive_stream, &call);
	const float *g = call.out[0].data;
	assert_true(fabs((double)g[N * D - 1] - 0.5) <= 1e-6);
	fixture_free(&call);
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(widely_spread_scores_are_exact_over_65536_tokens),
	    cmocka_unit_test(a_falling_mean_score_is_exact_over_65536_tokens),
	    cmocka_unit_test(a_rising_mean_score_is_exact_over_65536_tokens),
	    cmocka_unit_test(scores_of_ten_thousand_are_exact),
	    cmocka_unit_test(scores_that_jump_between_plus_and_minus_ten_thousand_are_finite),
	    cmocka_unit_test(many_equal_large_scores_are_all_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
