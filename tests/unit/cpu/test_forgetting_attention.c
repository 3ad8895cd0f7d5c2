/* Additive attention that forgets: known numbers, the same bits in all forms, cuts and numbers of threads, and extreme
 * scores. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/unit/cpu/fixture.h"

static const char *const names[] = {"baseline", "avx2", "avx512"};
enum { NAMES = sizeof names / sizeof *names };

static backend *open_named(const char *name, int threads)
{
	assert_int_equal(setenv("ADDITIVE_CPU_ISA", name, 1), 0);
	backend *b = fixture_open(threads);
	assert_int_equal(unsetenv("ADDITIVE_CPU_ISA"), 0);
	return b;
}

typedef struct size {
	int64_t batch, length, d, heads;
	bool forgets, shared, masked; /* shared: f is [H] */
	bool bonus;
} size;

static const size sizes[] = {{2, 61, 128, 16, true, false, true, false},  {1, 40, 96, 3, true, true, false, false},
                             {2, 33, 130, 130, true, false, true, false}, {1, 50, 42, 21, false, false, true, false},
                             {3, 300, 128, 16, true, true, true, false},  {1, 64, 512, 8, true, false, false, false},
                             {2, 70, 131, 131, true, true, true, true}};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* v, a, f?, mask?, bonus? */
static op_call parallel_call(const size *s)
{
	static const forgetting_params params;
	const shape a = SHAPE3(s->batch, s->length, s->heads);
	op_call call = {.params = &params,
	                .n_in = 5,
	                .in = {fixture_normal(SHAPE3(s->batch, s->length, s->d), 81, 1), fixture_normal(a, 82, 3)}};
	if (s->forgets)
		call.in[2] = fixture_normal(s->shared ? SHAPE1(s->heads) : a, 83, 0.3);
	for (int64_t i = 0; s->forgets && i < shape_count(call.in[2].shape); i++)
		((float *)call.in[2].data)[i] = -fabsf(((float *)call.in[2].data)[i]);
	if (s->masked)
		call.in[3] = fixture_integers(SHAPE2(s->batch, s->length), 84, 0, 2);
	if (s->bonus)
		call.in[4] = fixture_normal(SHAPE1(s->heads), 87, 1);
	return call;
}

/* --- known numbers --------------------------------------------------------------------------------------------------
 */

/* Two tokens of weights 1/4 and 3/4 after forgetting: e^{a_1 + f_2} = 1, e^{a_2} = 3. */
static void two_tokens_give_their_known_numbers(void **state)
{
	(void)state;
	static const forgetting_params params;
	backend *b[2] = {NULL, fixture_open(1)};
	assert_int_equal(cpu_reference_open(&b[0], 0, NULL), STATUS_OK);
	for (int i = 0; i < 2; i++) {
		op_call call = {.params = &params, .n_in = 3};
		for (int k = 0; k < 3; k++)
			call.in[k] = fixture_tensor(DTYPE_F32, SHAPE3(1, 2, 1));
		float *v = call.in[0].data, *a = call.in[1].data, *f = call.in[2].data;
		v[0] = 8, v[1] = 4, a[0] = 2, a[1] = logf(3), f[0] = -7, f[1] = -2;
		fixture_run(b[i], OP_forgetting_attention, &call);
		assert_true(compare_close("g", call.out[0].data, (float[]){8, 5}, 2, 0, 1e-6));
		assert_true(compare_close("l", call.out[1].data, (float[]){2, logf(4)}, 2, 0, 1e-6));
		fixture_free(&call);
		backend_close(b[i]);
	}
}

/* --- the same bits --------------------------------------------------------------------------------------------------
 */

static void same_bits(const tensor *got, const tensor *want)
{
	size_t bytes;
	assert_true(shape_bytes(want->shape, want->type, &bytes));
	assert_memory_equal(got->data, want->data, bytes);
}

/* Rows first … first + count - 1 of each sequence of a tensor [B, N, …]. */
static tensor rows_of(const tensor *t, int64_t first, int64_t count)
{
	shape s = t->shape;
	const int64_t batch = s.dim[0], length = s.dim[1], width = shape_count(s) / (batch * length);
	s.dim[1] = count;
	tensor part = fixture_tensor(t->type, s);
	for (int64_t b = 0; b < batch; b++)
		memcpy((char *)part.data + b * count * width * 4, (char *)t->data + (b * length + first) * width * 4,
		       (size_t)(count * width) * 4);
	return part;
}

static void check_rows(const tensor *part, const tensor *whole, int64_t first)
{
	tensor want = rows_of(whole, first, part->shape.dim[1]);
	same_bits(part, &want);
	buffer_free(want.data);
}

/* Read the tokens of `whole` from slots in parts of `step`, and compare each part. */
static void read_in_parts(backend *b, const size *s, const op_call *whole, int64_t step)
{
	static const forgetting_stream_params params = {3};
	const int64_t floats = 3 + forgetting_state_floats(s->d, s->heads);
	const tensor pool = fixture_normal(SHAPE2(s->batch, floats), 85, 1);
	for (int64_t first = 0; first < s->length; first += step) {
		const int64_t count = first + step < s->length ? step : s->length - first;
		op_call call = {.params = &params, .n_in = 10};
		call.in[0] = rows_of(&whole->in[0], first, count);
		call.in[1] = rows_of(&whole->in[1], first, count);
		call.in[2] = pool;
		for (int k = 3; k < 6; k++)
			call.in[k] = fixture_tensor(DTYPE_I32, SHAPE1(s->batch));
		for (int64_t i = 0; i < s->batch; i++) {
			((int32_t *)call.in[3].data)[i] = (int32_t)(s->batch - 1 - i);
			((int32_t *)call.in[4].data)[i] = (int32_t)first;
			((int32_t *)call.in[5].data)[i] = (int32_t)count;
		}
		if (s->masked)
			call.in[6] = rows_of(&whole->in[3], first, count);
		if (s->forgets)
			call.in[8] = s->shared ? whole->in[2] : rows_of(&whole->in[2], first, count);
		call.in[9] = whole->in[4];
		fixture_run(b, OP_forgetting_stream, &call);
		for (int k = 0; k < 2 + s->bonus; k++)
			check_rows(&call.out[k], &whole->out[k], first);
		call.in[2].data = call.in[9].data = NULL;
		if (s->shared)
			call.in[8].data = NULL;
		fixture_free(&call);
	}
	buffer_free(pool.data);
}

static void a_stream_in_any_cuts_has_the_bits_of_the_parallel_form(void **state)
{
	(void)state;
	static const int64_t steps[] = {1, 2, 7, 32, 1000};
	for (int n = 0; n < NAMES; n++) {
		for (int threads = 1; threads <= 2; threads++) {
			backend *b = open_named(names[n], threads);
			for (int i = 0; i < SIZES; i++) {
				op_call whole = parallel_call(&sizes[i]);
				fixture_run(b, OP_forgetting_attention, &whole);
				for (int k = 0; k < 5; k++)
					read_in_parts(b, &sizes[i], &whole, steps[k]);
				fixture_free(&whole);
			}
			backend_close(b);
		}
	}
}

/* The gradient of a call that has run; shares its inputs and outputs, except dg. */
static op_call grad_call(const op_call *forward)
{
	return (op_call){.params = forward->params,
	                 .n_in = 8,
	                 .in = {forward->in[0], forward->in[1], forward->in[2], forward->in[3],
	                        forward->out[forward->in[4].data ? 2 : 0], forward->out[1],
	                        fixture_normal(forward->out[0].shape, 86, 1), forward->in[4]}};
}

static void results_do_not_depend_on_threads(void **state)
{
	(void)state;
	for (int n = 0; n < NAMES; n++) {
		backend *one = open_named(names[n], 1), *many = open_named(names[n], 7);
		for (int i = 0; i < SIZES; i++) {
			op_call want = parallel_call(&sizes[i]);
			fixture_run(one, OP_forgetting_attention, &want);
			op_call want_grad = grad_call(&want);
			fixture_run(one, OP_forgetting_attention_grad, &want_grad);
			for (int threads = 1; threads <= 7; threads++) {
				op_call got = want, got_grad = want_grad;
				fixture_narrow(many, threads, OP_forgetting_attention, &got);
				fixture_narrow(many, threads, OP_forgetting_attention_grad, &got_grad);
				for (int k = 0; k < 3; k++)
					same_bits(&got.out[k], &want.out[k]);
				for (int k = 0; k < 4; k++)
					same_bits(&got_grad.out[k], &want_grad.out[k]);
				fixture_free_outputs(&got);
				fixture_free_outputs(&got_grad);
			}
			buffer_free(want_grad.in[6].data);
			fixture_free_outputs(&want_grad);
			fixture_free(&want);
		}
		backend_close(one);
		backend_close(many);
	}
}

/* --- extremes -------------------------------------------------------------------------------------------------------
 */

/* Results of extreme scores are finite and means of the values, however long the text is. */
static void extreme_scores_give_finite_means(void **state)
{
	(void)state;
	enum { N = 4000, H = 3 };
	static const forgetting_params params;
	backend *b = fixture_open(1);
	for (int kind = 0; kind < 5; kind++) {
		op_call call = {.params = &params,
		                .n_in = 3,
		                .in = {fixture_normal(SHAPE3(1, N, H), 91, 1), fixture_normal(SHAPE3(1, N, H), 92, 1),
		                       fixture_normal(SHAPE3(1, N, H), 93, 1)}};
		float *a = call.in[1].data, *f = call.in[2].data;
		for (int i = 0; i < N * H; i++) {
			a[i] = kind == 0 ? 1e4f : kind == 1 ? -1e4f : kind == 2 ? (i % 2 ? 1e4f : -1e4f) : a[i] * 1e4f;
			f[i] = kind == 4 && i % 2 ? -INFINITY : kind % 2 ? -1e4f * fabsf(f[i]) : -0.0f;
		}
		fixture_run(b, OP_forgetting_attention, &call);
		op_call grad = grad_call(&call);
		fixture_run(b, OP_forgetting_attention_grad, &grad);
		const float *g = call.out[0].data, *l = call.out[1].data;
		for (int i = 0; i < N * H; i++)
			assert_true(fabsf(g[i]) < 6 && isfinite(l[i]));
		for (int k = 0; k < 3; k++)
			for (int i = 0; i < N * H; i++)
				assert_true(isfinite(((const float *)grad.out[k].data)[i]));
		buffer_free(grad.in[6].data);
		fixture_free_outputs(&grad);
		fixture_free(&call);
	}
	backend_close(b);
}

/* 20,000 equal tokens: g is their value, and l grows like the logarithm of their number. */
static void many_equal_tokens_are_their_value(void **state)
{
	(void)state;
	enum { N = 20000 };
	static const forgetting_params params;
	backend *b = fixture_open(1);
	op_call call = {.params = &params, .n_in = 2};
	for (int k = 0; k < 2; k++) {
		call.in[k] = fixture_tensor(DTYPE_F32, SHAPE3(1, N, 1));
		for (int i = 0; i < N; i++)
			((float *)call.in[k].data)[i] = k ? 0 : 3;
	}
	fixture_run(b, OP_forgetting_attention, &call);
	float want[N], logs[N];
	for (int i = 0; i < N; i++)
		want[i] = 3, logs[i] = logf((float)(i + 1));
	assert_true(compare_close("g", call.out[0].data, want, N, 0, 1e-6));
	assert_true(compare_close("l", call.out[1].data, logs, N, 2e-6, 1e-6));
	fixture_free(&call);
	backend_close(b);
}

/* Read one head of n tokens with every instruction set; check the mean and the log-sum of the last. */
static void check_last(const float *v, const float *a, const float *f, int64_t n, double g, double l)
{
	static const forgetting_params params;
	for (int i = 0; i < NAMES; i++) {
		backend *b = open_named(names[i], 1);
		op_call call = {.params = &params, .n_in = 3};
		const float *const from[] = {v, a, f};
		for (int k = 0; k < 3; k++) {
			call.in[k] = fixture_tensor(DTYPE_F32, SHAPE3(1, n, 1));
			memcpy(call.in[k].data, from[k], (size_t)n * sizeof(float));
		}
		fixture_run(b, OP_forgetting_attention, &call);
		const double got_g = (double)((float *)call.out[0].data)[n - 1],
		             got_l = (double)((float *)call.out[1].data)[n - 1];
		if (!(fabs(got_g - g) <= 2e-5 * (1 + fabs(g))) ||
		    !(got_l == l || fabs(got_l - l) <= 1e-6 * (1 + fabs(l))))
			fail_msg("%s: g %.9g, must be %.9g; l %.9g, must be %.9g", names[i], got_g, g, got_l, l);
		fixture_free(&call);
		backend_close(b);
	}
}

/* The roundings of a million additions do not add up: equal tokens after a larger one, with and without forgetting. */
/* Each token outweighs all before it, in an order that repeats and in random ones, as slow channels of RWKV-4 do. */
static void tokens_that_outweigh_all_before_them(void **state)
{
	(void)state;
	static const forgetting_params params;
	enum { N = 2048, HEADS = 40 };
	const shape all = SHAPE3(1, N, HEADS);
	op_call want = {
	    .params = &params,
	    .n_in = 3,
	    .in = {fixture_normal(all, 91, 1), fixture_normal(all, 92, 1), fixture_tensor(DTYPE_F32, SHAPE1(HEADS))}};
	float *v = want.in[0].data, *a = want.in[1].data, *f = want.in[2].data;
	for (int64_t h = 0; h < HEADS; h++)
		f[h] = h % 4 == 0 ? -INFINITY : -10.0f * (float)(1 + h);
	for (int64_t t = 0; t < N; t++) { /* head 0 */
		v[t * HEADS] = t % 2 ? 1 : -1;
		a[t * HEADS] = t % 2 ? 0.1f : -0.3f;
	}
	backend *reference;
	assert_int_equal(cpu_reference_open(&reference, 0, NULL), STATUS_OK);
	fixture_run(reference, OP_forgetting_attention, &want);
	for (int i = 0; i < NAMES; i++) {
		backend *b = open_named(names[i], 1);
		op_call got = {.params = &params, .n_in = 3, .in = {want.in[0], want.in[1], want.in[2]}};
		fixture_run(b, OP_forgetting_attention, &got);
		assert_true(compare_close("g", got.out[0].data, want.out[0].data, N * HEADS, 1e-6, 1e-6));
		assert_true(compare_close("l", got.out[1].data, want.out[1].data, N * HEADS, 1e-6, 1e-6));
		got.n_in = 0;
		fixture_free(&got);
		backend_close(b);
	}
	fixture_free(&want);
	backend_close(reference);
}

static void a_sum_of_a_million_tokens_stays_right(void **state)
{
	(void)state;
	enum { N = 1 << 20 };
	static const float rates[] = {0, -1e-5f, -1e-3f};
	float *v = malloc(3 * N * sizeof *v), *a = v + N, *f = a + N;
	for (int k = 0; k < 3; k++) {
		double sum = 0, values = 0;
		for (int64_t i = 0; i < N; i++) {
			v[i] = (float)(i % 5);
			a[i] = i ? 0.3f : 1;
			f[i] = rates[k];
			sum = sum * exp((double)f[i]) + exp((double)a[i]);
			values = values * exp((double)f[i]) + exp((double)a[i]) * (double)v[i];
		}
		check_last(v, a, f, N, values / sum, log(sum));
	}
	free(v);
}

static void tokens_that_forget_everything_or_have_no_weight(void **state)
{
	(void)state;
	/* All is forgotten: the last token is alone. */
	check_last((float[]){1, 2, 3}, (float[]){0, 50, -50}, (float[]){0, 0, -INFINITY}, 3, 3, -50);
	check_last((float[]){1, 2, 3}, (float[]){0, 8e6f, -8e6f}, (float[]){0, 0, -INFINITY}, 3, 3, -8e6);
	check_last((float[]){1, 7, 2, 3}, (float[]){0, -INFINITY, -300, 300}, (float[]){0, -INFINITY, 0, 0}, 4, 3, 300);
	/* A score of -inf has no weight, as the first token and later. */
	check_last((float[]){7, 1, 7, 2}, (float[]){-INFINITY, 0, -INFINITY, 0}, (float[]){0, 0, 0, 0}, 4, 1.5, log(2));
	check_last((float[]){7, 7}, (float[]){-INFINITY, -INFINITY}, (float[]){-INFINITY, -3}, 2, 0, -INFINITY);
	/* Scores beyond the range of the sums count as its ends. */
	check_last((float[]){1, 2}, (float[]){1e30f, 1e20f}, (float[]){0, 0}, 2, 1.5, 0x1p23);
	check_last((float[]){1, 2}, (float[]){-1e30f, 0}, (float[]){0, 0}, 2, 2, 0);
}

/* A score that is no number is not hidden. */
static void a_nan_reaches_the_mean(void **state)
{
	(void)state;
	static const forgetting_params params;
	for (int i = 0; i < NAMES; i++) {
		backend *b = open_named(names[i], 1);
		for (int k = 1; k < 3; k++) {
			op_call call = {.params = &params, .n_in = 3};
			for (int j = 0; j < 3; j++) {
				call.in[j] = fixture_tensor(DTYPE_F32, SHAPE3(1, 3, 1));
				for (int t = 0; t < 3; t++)
					((float *)call.in[j].data)[t] = j == k && t == 1 ? NAN : 0;
			}
			fixture_run(b, OP_forgetting_attention, &call);
			assert_false(isnan(((float *)call.out[0].data)[0]));
			assert_true(isnan(((float *)call.out[0].data)[1]) && isnan(((float *)call.out[0].data)[2]));
			fixture_free(&call);
		}
		backend_close(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(two_tokens_give_their_known_numbers),
	    cmocka_unit_test(a_stream_in_any_cuts_has_the_bits_of_the_parallel_form),
	    cmocka_unit_test(results_do_not_depend_on_threads),
	    cmocka_unit_test(extreme_scores_give_finite_means),
	    cmocka_unit_test(many_equal_tokens_are_their_value),
	    cmocka_unit_test(tokens_that_outweigh_all_before_them),
	    cmocka_unit_test(a_sum_of_a_million_tokens_stays_right),
	    cmocka_unit_test(tokens_that_forget_everything_or_have_no_weight),
	    cmocka_unit_test(a_nan_reaches_the_mean),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
