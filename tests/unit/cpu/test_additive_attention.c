/* Properties of one round of additive attention that hold for all numbers, and its gradient against finite differences
 * in double. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/unit/cpu/fixture.h"

/* Odd by design: blocks end inside the sequence, vectors inside a head. */
enum { B = 2, N = 61, H = 3, DH = 7, D = H * DH };

static const int64_t windows[] = {1, 2, 3, 4, 5, 7, 8, 16, 31, 59, 60, 61, 62, 1000, 0};
enum { WINDOWS = sizeof windows / sizeof windows[0] };

static int open_backend(void **state)
{
	*state = fixture_open(2);
	return 0;
}

static int close_backend(void **state)
{
	backend_close(*state);
	return 0;
}

static tensor mask_of(int32_t (*kept)(int64_t b, int64_t i))
{
	tensor mask = fixture_tensor(DTYPE_I32, SHAPE2(B, N));
	for (int64_t b = 0; b < B; b++)
		for (int64_t i = 0; i < N; i++)
			((int32_t *)mask.data)[b * N + i] = kept(b, i);
	return mask;
}

static op_call attention(const additive_attention_params *p, double score_size)
{
	return (op_call){.params = p,
	                 .n_in = 3,
	                 .in = {fixture_normal(SHAPE3(B, N, D), 31, 1), fixture_normal(SHAPE1(D), 32, score_size)}};
}

/* --- the definition, in double ------------------------------------------------------------ */

typedef struct definition {
	double g[B * N * D], m[B * N * H], score[B * N * H];
} definition;

static double score_of(const double *x, const double *w, int64_t token, int64_t h)
{
	double sum = 0;
	for (int64_t c = h * DH; c < (h + 1) * DH; c++)
		sum += w[c] * x[token * D + c];
	return sum / sqrt(DH);
}

static void define_token(definition *out, const double *x, const int32_t *mask, int64_t window, int64_t b, int64_t i,
                         int64_t h)
{
	int64_t first = window <= 0 || i < window ? 0 : i - window + 1, at = b * N + i;
	double top = -INFINITY, sum = 0;
	for (int64_t j = first; j <= i; j++)
		if (!mask || mask[b * N + j])
			top = fmax(top, out->score[(b * N + j) * H + h]);
	for (int64_t c = h * DH; c < (h + 1) * DH; c++)
		out->g[at * D + c] = 0;
	for (int64_t j = first; j <= i; j++) {
		if (mask && !mask[b * N + j])
			continue;
		double p = exp(out->score[(b * N + j) * H + h] - top);
		sum += p;
		for (int64_t c = h * DH; c < (h + 1) * DH; c++)
			out->g[at * D + c] += p * x[(b * N + j) * D + c];
	}
	for (int64_t c = h * DH; c < (h + 1) * DH && sum > 0; c++)
		out->g[at * D + c] /= sum;
	out->m[at * H + h] = sum > 0 ? top + log(sum) : -INFINITY;
}

static void define(definition *out, const double *x, const double *w, const int32_t *mask, int64_t window)
{
	for (int64_t t = 0; t < B * N; t++)
		for (int64_t h = 0; h < H; h++)
			out->score[t * H + h] = score_of(x, w, t, h);
	for (int64_t t = 0; t < B * N; t++)
		for (int64_t h = 0; h < H; h++)
			define_token(out, x, mask, window, t / N, t % N, h);
}

static void widen(double *to, const tensor *from)
{
	for (int64_t i = 0; i < shape_count(from->shape); i++)
		to[i] = (double)((const float *)from->data)[i];
}

static bool near(const char *what, const tensor *got, const double *want, double tolerance)
{
	int64_t n = shape_count(got->shape);
	float *rounded = buffer_new((size_t)n * sizeof *rounded);
	for (int64_t i = 0; i < n; i++)
		rounded[i] = (float)want[i];
	bool same = compare_close(what, got->data, rounded, n, tolerance, tolerance);
	buffer_free(rounded);
	return same;
}

static bool agrees_with_the_definition(const op_call *call)
{
	static definition want;
	static double x[B * N * D], w[D];
	widen(x, &call->in[0]);
	widen(w, &call->in[1]);
	define(&want, x, w, call->in[2].data, ((const additive_attention_params *)call->params)->window);
	return near("pooled", &call->out[0], want.g, 2e-6) && near("score", &call->out[1], want.score, 2e-6) &&
	       near("log-normaliser", &call->out[2], want.m, 2e-6);
}

/* --- the forward ----------------------------------------------------------------------------- */

static void every_window_agrees_with_direct_sums(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		additive_attention_params p = {.heads = H, .window = windows[i]};
		op_call call = attention(&p, 3);
		fixture_run(*state, OP_additive_attention, &call);
		assert_true(agrees_with_the_definition(&call));
		fixture_free(&call);
	}
}

static void the_comparison_detects_a_small_error(void **state)
{
	additive_attention_params p = {.heads = H, .window = 8};
	op_call call = attention(&p, 3);
	fixture_run(*state, OP_additive_attention, &call);
	assert_true(agrees_with_the_definition(&call));
	((float *)call.out[0].data)[17] += 1e-4f;
	assert_false(agrees_with_the_definition(&call));
	fixture_free(&call);
}

/* Run with token `changed` of sequence 0 replaced; true if tokens `first` to `last` of sequence 0 have the same
 * bits. */
static bool unchanged(backend *b, int64_t window, int64_t changed, int64_t first, int64_t last)
{
	additive_attention_params p = {.heads = H, .window = window};
	op_call before = attention(&p, 3), after = attention(&p, 3);
	random_normal((float *)after.in[0].data + changed * D, D, 99, 5);
	fixture_run(b, OP_additive_attention, &before);
	fixture_run(b, OP_additive_attention, &after);
	int64_t count = last - first + 1;
	const float *g = before.out[0].data, *m = before.out[2].data;
	bool same = memcmp(g + first * D, (const float *)after.out[0].data + first * D, (size_t)(count * D) * 4) == 0 &&
	            memcmp(m + first * H, (const float *)after.out[2].data + first * H, (size_t)(count * H) * 4) == 0;
	fixture_free(&before);
	fixture_free(&after);
	return same;
}

static void a_token_changes_no_earlier_result(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		for (int64_t j = 1; j < N; j += 9)
			assert_true(unchanged(*state, windows[i], j, 0, j - 1));
		assert_false(unchanged(*state, windows[i], 20, 20, 20));
	}
}

static void a_token_changes_no_result_past_its_window(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		int64_t k = windows[i];
		if (k <= 0)
			continue;
		for (int64_t j = 0; j + k < N; j += 5) {
			assert_true(unchanged(*state, k, j, j + k, N - 1));
			assert_false(unchanged(*state, k, j, j + k - 1, j + k - 1));
		}
	}
}

static void a_window_as_long_as_the_sequence_is_global(void **state)
{
	static const int64_t same[] = {N, N + 1, 10 * N, INT64_MAX, -1};
	additive_attention_params global = {.heads = H, .window = 0};
	op_call want = attention(&global, 3);
	fixture_run(*state, OP_additive_attention, &want);
	for (int i = 0; i < 5; i++) {
		additive_attention_params p = {.heads = H, .window = same[i]};
		op_call got = attention(&p, 3);
		fixture_run(*state, OP_additive_attention, &got);
		for (int o = 0; o < 3; o++)
			assert_true(
			    compare_same("global", got.out[o].data, want.out[o].data, shape_count(want.out[o].shape)));
		fixture_free(&got);
	}
	fixture_free(&want);
}

static void a_window_of_one_returns_the_token_itself(void **state)
{
	additive_attention_params p = {.heads = H, .window = 1};
	op_call call = attention(&p, 3);
	fixture_run(*state, OP_additive_attention, &call);
	assert_true(compare_same("pooled", call.out[0].data, call.in[0].data, B * N * D));
	assert_true(compare_same("log-normaliser", call.out[2].data, call.out[1].data, B * N * H));
	fixture_free(&call);
}

/* Only channel 0 of each head makes the score, so a constant can be added to all scores. The other channels must not
 * change. */
static void a_constant_added_to_all_scores_has_no_effect(void **state)
{
	static const float shifts[] = {1, -50, 1000};
	for (int i = 0; i < WINDOWS * 3; i++) {
		additive_attention_params p = {.heads = H, .window = windows[i / 3]};
		op_call before = attention(&p, 1), after = attention(&p, 1);
		float shift = shifts[i % 3], *moved = after.in[0].data;
		for (int64_t c = 0; c < D; c++)
			((float *)before.in[1].data)[c] = ((float *)after.in[1].data)[c] = c % DH ? 0 : sqrtf(DH);
		for (int64_t e = 0; e < B * N * D; e += DH)
			moved[e] += shift;
		fixture_run(*state, OP_additive_attention, &before);
		fixture_run(*state, OP_additive_attention, &after);
		float *g = before.out[0].data, *m = before.out[2].data;
		for (int64_t e = 0; e < B * N * D; e++)
			if (e % DH == 0)
				g[e] += shift;
		for (int64_t e = 0; e < B * N * H; e++)
			m[e] += shift;
		/* The scores are rounded when the constant is added: 1000 leaves 3e-5. */
		double rounding = 1e-6 + 1e-7 * fabs((double)shift);
		assert_true(compare_close("pooled", after.out[0].data, g, B * N * D, 2 * rounding, 2 * rounding));
		assert_true(compare_close("log-normaliser", after.out[2].data, m, B * N * H, rounding, rounding));
		fixture_free(&before);
		fixture_free(&after);
	}
}

/* --- masks ----------------------------------------------------------------------------------------- */

static int32_t scattered(int64_t b, int64_t i)
{
	return (i * 7 + b) % 3 != 0;
}

static int32_t left_padded(int64_t b, int64_t i)
{
	return b == 0 || i >= 40;
}

static int32_t right_padded(int64_t b, int64_t i)
{
	return b == 0 || i < 20;
}

static int32_t nothing(int64_t b, int64_t i)
{
	(void)b, (void)i;
	return 0;
}

static int32_t (*const masks[])(int64_t, int64_t) = {scattered, left_padded, right_padded, nothing};
enum { MASKS = sizeof masks / sizeof masks[0] };

static void masked_windows_agree_with_direct_sums(void **state)
{
	for (int i = 0; i < WINDOWS * MASKS; i++) {
		additive_attention_params p = {.heads = H, .window = windows[i / MASKS]};
		op_call call = attention(&p, 3);
		call.in[2] = mask_of(masks[i % MASKS]);
		fixture_run(*state, OP_additive_attention, &call);
		assert_true(agrees_with_the_definition(&call));
		fixture_free(&call);
	}
}

static void a_masked_token_has_no_influence(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		additive_attention_params p = {.heads = H, .window = windows[i]};
		op_call before = attention(&p, 3), after = attention(&p, 3);
		before.in[2] = mask_of(scattered);
		after.in[2] = mask_of(scattered);
		for (int64_t t = 0; t < B * N; t++)
			for (int64_t c = 0; c < D && !((int32_t *)after.in[2].data)[t]; c++)
				((float *)after.in[0].data)[t * D + c] = 1e30f;
		fixture_run(*state, OP_additive_attention, &before);
		fixture_run(*state, OP_additive_attention, &after);
		assert_true(compare_same("pooled", after.out[0].data, before.out[0].data, B * N * D));
		assert_true(compare_same("log-normaliser", after.out[2].data, before.out[2].data, B * N * H));
		fixture_free(&before);
		fixture_free(&after);
	}
}

static void an_empty_window_pools_to_zero(void **state)
{
	additive_attention_params p = {.heads = H, .window = 8};
	op_call call = attention(&p, 3);
	call.in[2] = mask_of(right_padded); /* sequence 1 has empty windows from 20 + 7 on */
	fixture_run(*state, OP_additive_attention, &call);
	for (int64_t i = 0; i < N; i++) {
		for (int64_t c = 0; c < D; c++)
			assert_true((((float *)call.out[0].data)[(N + i) * D + c] == 0) == (i >= 27));
		for (int64_t h = 0; h < H; h++)
			assert_true((((float *)call.out[2].data)[(N + i) * H + h] == -INFINITY) == (i >= 27));
	}
	fixture_free(&call);
}

static void an_empty_batch_or_sequence_is_legal(void **state)
{
	static const int64_t shapes[][2] = {{0, 5}, {2, 0}, {0, 0}};
	for (int i = 0; i < 3; i++) {
		for (int64_t window = 0; window < 3; window++) {
			additive_attention_params p = {.heads = H, .window = window};
			shape s = SHAPE3(shapes[i][0], shapes[i][1], D),
			      per_head = SHAPE3(shapes[i][0], shapes[i][1], H);
			op_call call = {
			    .params = &p, .n_in = 2, .in = {fixture_normal(s, 1, 1), fixture_normal(SHAPE1(D), 1, 1)}};
			fixture_run(*state, OP_additive_attention, &call);
			op_call back = {
			    .params = &p, .n_in = 6, .in = {call.in[0], call.in[1], {0}, fixture_normal(s, 1, 1)}};
			back.in[4] = fixture_normal(per_head, 1, 1);
			back.in[5] = fixture_normal(s, 1, 1);
			fixture_run(*state, OP_additive_attention_grad, &back);
			for (int64_t c = 0; c < D; c++)
				assert_true(((float *)back.out[1].data)[c] == 0);
			fixture_free_outputs(&call);
			fixture_free(&back);
		}
	}
}

/* --- the gradient ------------------------------------------------------------------------------------- */

/* Σ dg·g in double. */
static double loss(const double *x, const double *w, const int32_t *mask, int64_t window, const double *dg)
{
	static definition d;
	double sum = 0;
	define(&d, x, w, mask, window);
	for (int64_t e = 0; e < B * N * D; e++)
		sum += dg[e] * d.g[e];
	return sum;
}

static double difference(double *at, const double *x, const double *w, const int32_t *mask, int64_t window,
                         const double *dg)
{
	const double h = 1e-5, before = *at;
	*at = before + h;
	double more = loss(x, w, mask, window, dg);
	*at = before - h;
	double less = loss(x, w, mask, window, dg);
	*at = before;
	return (more - less) / (2 * h);
}

static void check_gradient(backend *b, int64_t window, int32_t (*kept)(int64_t, int64_t))
{
	static double x[B * N * D], w[D], dg[B * N * D];
	additive_attention_params p = {.heads = H, .window = window};
	op_call call = attention(&p, 2);
	if (kept)
		call.in[2] = mask_of(kept);
	fixture_run(b, OP_additive_attention, &call);
	op_call back = {.params = &p, .n_in = 6, .in = {call.in[0], call.in[1], call.in[2], call.out[0], call.out[2]}};
	back.in[5] = fixture_normal(SHAPE3(B, N, D), 33, 1);
	fixture_run(b, OP_additive_attention_grad, &back);
	widen(x, &call.in[0]);
	widen(w, &call.in[1]);
	widen(dg, &back.in[5]);
	const int32_t *mask = call.in[2].data;
	for (int64_t e = 0; e < B * N * D; e += 37) {
		double got = (double)((float *)back.out[0].data)[e], want = difference(&x[e], x, w, mask, window, dg);
		assert_true(fabs(got - want) <= 2e-5 * (1 + fabs(want)));
		if (mask && !mask[e / D])
			assert_true(got == 0);
	}
	for (int64_t c = 0; c < D; c += 4) {
		double got = (double)((float *)back.out[1].data)[c], want = difference(&w[c], x, w, mask, window, dg);
		assert_true(fabs(got - want) <= 1e-4 * (1 + fabs(want)));
	}
	fixture_free_outputs(&back);
	buffer_free(back.in[5].data);
	fixture_free(&call);
}

static void gradients_agree_with_differences_in_double(void **state)
{
	static const int64_t tried[] = {1, 2, 3, 5, 8, 31, 60, 61, 0};
	for (int i = 0; i < 9; i++)
		check_gradient(*state, tried[i], NULL);
}

static void gradients_through_masks_agree_with_differences_in_double(void **state)
{
	static const int64_t tried[] = {1, 3, 8, 0};
	for (int i = 0; i < 4 * MASKS; i++)
		check_gradient(*state, tried[i / MASKS], masks[i % MASKS]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_window_agrees_with_direct_sums),
	    cmocka_unit_test(the_comparison_detects_a_small_error),
	    cmocka_unit_test(a_token_changes_no_earlier_result),
	    cmocka_unit_test(a_token_changes_no_result_past_its_window),
	    cmocka_unit_test(a_window_as_long_as_the_sequence_is_global),
	    cmocka_unit_test(a_window_of_one_returns_the_token_itself),
	    cmocka_unit_test(a_constant_added_to_all_scores_has_no_effect),
	    cmocka_unit_test(masked_windows_agree_with_direct_sums),
	    cmocka_unit_test(a_masked_token_has_no_influence),
	    cmocka_unit_test(an_empty_window_pools_to_zero),
	    cmocka_unit_test(an_empty_batch_or_sequence_is_legal),
	    cmocka_unit_test(gradients_agree_with_differences_in_double),
	    cmocka_unit_test(gradients_through_masks_agree_with_differences_in_double),
	};
	return cmocka_run_group_tests(tests, open_backend, close_backend);
}
