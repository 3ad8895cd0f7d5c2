/* Linear attention, its gradient and its recurrent form: known numbers, and properties that hold for all numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/cpu/fixture.h"

typedef struct backends {
	backend *reference, *fast;
} backends;

static int open_backends(void **state)
{
	backends *b = malloc(sizeof *b);
	*state = b;
	if (!b || cpu_reference_open(&b->reference, 0, NULL) != STATUS_OK)
		return 1;
	b->fast = fixture_open(2);
	return 0;
}

static int close_backends(void **state)
{
	backends *b = *state;
	backend_close(b->reference);
	backend_close(b->fast);
	free(b);
	return 0;
}

/* --- one call ---------------------------------------------------------------------------------------------- */

typedef struct size {
	int64_t batch, queries, keys, d;
	linear_attention_params p;
	bool masked;
} size;

/* q, k, v and mask; masks leave the first rows of a sequence without a key. */
static op_call attention(const size *s)
{
	shape q = SHAPE3(s->batch, s->queries, s->d), k = SHAPE3(s->batch, s->keys, s->d);
	op_call call = {.params = &s->p,
	                .n_in = 4,
	                .in = {fixture_normal(q, 71, 1), fixture_normal(k, 72, 1), fixture_normal(k, 73, 1)}};
	if (s->masked) {
		call.in[3] = fixture_integers(SHAPE2(s->batch, s->keys), 74, 0, 1);
		for (int64_t i = 0; i < s->batch * s->keys; i++)
			((int32_t *)call.in[3].data)[i] &= i % s->keys > 12;
	}
	return call;
}

/* The gradient of a call that has run; shares its inputs and outputs, except dy. */
static op_call attention_grad(const size *s, const op_call *forward)
{
	return (op_call){.params = &s->p,
	                 .n_in = 7,
	                 .in = {forward->in[0], forward->in[1], forward->in[2], forward->in[3], forward->out[0],
	                        forward->out[1], fixture_normal(forward->out[0].shape, 75, 1)}};
}

static float *reals(const tensor *t)
{
	return t->data;
}

/* --- known numbers ----------------------------------------------------------------------------------------- */

static const float toy_all[] = {-0.345194f, -0.537154f, -0.345938f, -0.537783f,
                                -0.346754f, -0.538473f, -0.347675f, -0.539253f};
static const float toy_causal[] = {0.141120f,  -0.157746f, -0.136019f, -0.405186f,
                                   -0.283695f, -0.512960f, -0.347675f, -0.539253f};

/* q, k, v [t][j] = sin(id + 0.7 t + 0.3 j), ids 1, 2, 3. */
static op_call toy(const linear_attention_params *p)
{
	op_call call = {.params = p, .n_in = 3};
	for (int id = 0; id < 3; id++) {
		call.in[id] = fixture_tensor(DTYPE_F32, SHAPE3(1, 4, 2));
		for (int e = 0; e < 8; e++)
			reals(&call.in[id])[e] = (float)sin(id + 1 + 0.7 * (e / 2) + 0.3 * (e % 2));
	}
	return call;
}

static void four_rows_give_their_known_numbers(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 4; i++) {
		const linear_attention_params p = {1, i % 2, LINEAR_ATTENTION_EPS};
		op_call call = toy(&p);
		fixture_run(i / 2 ? b->fast : b->reference, OP_linear_attention, &call);
		assert_true(compare_close("y", call.out[0].data, p.causal ? toy_causal : toy_all, 8, 1e-6, 0));
		fixture_free(&call);
	}
}

/* With k = 0, and so φ(k) = 1, the normalizer of one key and one channel is φ(q). */
static void the_feature_of_a_number_is_elu_plus_one(void **state)
{
	backends *b = *state;
	static const float x[] = {0, -1, 2, 1e-7f, -1e-7f, -87, -200, 30, 1e30f, -INFINITY};
	static const float want[] = {1, 0.36787944f, 3, 1.0000001f, 0.9999999f, 1.6458114e-38f, 0, 31, 1e30f, 0};
	for (int i = 0; i < 10; i++) {
		const linear_attention_params p = {1, false, 0};
		op_call call = {.params = &p, .n_in = 3};
		for (int k = 0; k < 3; k++)
			call.in[k] = fixture_tensor(DTYPE_F32, SHAPE3(1, 1, 1));
		*reals(&call.in[0]) = x[i], *reals(&call.in[1]) = 0, *reals(&call.in[2]) = 5;
		fixture_run(b->fast, OP_linear_attention, &call);
		assert_true(compare_close("feature", call.out[1].data, &want[i], 1, 0, 4e-7));
		assert_true(compare_close("y", call.out[0].data, &(float){want[i] > 0 ? 5 : 0}, 1, 1e-6, 0));
		fixture_free(&call);
	}
}

/* --- the parallel form --------------------------------------------------------------------------------------- */

static void results_do_not_depend_on_threads(void **state)
{
	(void)state;
	static const size sizes[] = {{1, 300, 300, 64, {1, true, 1e-6f}, true},
	                             {2, 130, 700, 96, {1, false, 1e-6f}, false},
	                             {3, 140, 140, 160, {2, true, 1e-6f}, false}};
	backend *one = fixture_open(1), *many = fixture_open(7);
	for (int i = 0; i < 3; i++) {
		op_call want = attention(&sizes[i]);
		fixture_run(one, OP_linear_attention, &want);
		op_call want_grad = attention_grad(&sizes[i], &want);
		fixture_run(one, OP_linear_attention_grad, &want_grad);
		for (int threads = 1; threads <= 7; threads++) {
			op_call got = want, got_grad = want_grad;
			fixture_narrow(many, threads, OP_linear_attention, &got);
			fixture_narrow(many, threads, OP_linear_attention_grad, &got_grad);
			for (int o = 0; o < 3; o++) {
				const tensor *g = &got_grad.out[o], *w = &want_grad.out[o];
				assert_true(compare_same("gradient", g->data, w->data, shape_count(w->shape)));
			}
			for (int o = 0; o < 2; o++) {
				const tensor *g = &got.out[o], *w = &want.out[o];
				assert_true(compare_same("output", g->data, w->data, shape_count(w->shape)));
			}
			fixture_free_outputs(&got_grad);
			fixture_free_outputs(&got);
		}
		fixture_free_outputs(&want_grad);
		buffer_free(want_grad.in[6].data);
		fixture_free(&want);
	}
	backend_close(many);
	backend_close(one);
}

/* True if outputs of rows first … last - 1 keep their bits when `change` is added to row `row` of input `input`. */
static bool unchanged(backend *b, const size *s, int input, int64_t row, float change, int64_t first, int64_t last)
{
	op_call before = attention(s), after = attention(s);
	for (int64_t c = 0; c < s->d; c++)
		reals(&after.in[input])[row * s->d + c] += change;
	fixture_run(b, OP_linear_attention, &before);
	fixture_run(b, OP_linear_attention, &after);
	bool same = memcmp(reals(&before.out[0]) + first * s->d, reals(&after.out[0]) + first * s->d,
	                   (size_t)((last - first) * s->d) * sizeof(float)) == 0;
	fixture_free(&before);
	fixture_free(&after);
	return same;
}

static void a_token_changes_no_earlier_result(void **state)
{
	backend *b = ((backends *)*state)->fast;
	const size s = {1, 150, 150, 34, {2, true, 1e-6f}, false};
	static const int64_t changed[] = {1, 15, 31, 32, 33, 64, 100, 149};
	for (int i = 0; i < 8; i++) {
		for (int input = 0; input < 3; input++) {
			assert_true(unchanged(b, &s, input, changed[i], 3, 0, changed[i]));
			assert_false(unchanged(b, &s, input, changed[i], 3, changed[i], changed[i] + 1));
		}
	}
}

static void a_masked_key_has_no_influence_whatever_its_values(void **state)
{
	backend *b = ((backends *)*state)->fast;
	for (int causal = 0; causal < 2; causal++) {
		const size s = {1, 70, 70, 34, {2, causal, 1e-6f}, true};
		op_call call = attention(&s);
		const int32_t *mask = call.in[3].data;
		for (int64_t j = 0; j < s.keys; j += 5) {
			assert_int_equal(unchanged(b, &s, 1, j, NAN, 0, s.queries), !mask[j]);
			assert_int_equal(unchanged(b, &s, 2, j, INFINITY, 0, s.queries), !mask[j]);
		}
		fixture_free(&call);
	}
}

/* Keys and values in reverse order, and in a longer sequence whose end is masked. */
static void the_order_of_keys_and_padding_after_them_do_not_matter(void **state)
{
	backend *b = ((backends *)*state)->fast;
	enum { KEYS = 90, LONGER = 141, WIDTH = 34 };
	const size s = {1, 70, KEYS, WIDTH, {2, false, 1e-6f}, false}, longer = {1, 70, LONGER, WIDTH, s.p, false};
	op_call want = attention(&s), turned = attention(&s), padded = attention(&longer);
	padded.in[3] = fixture_integers(SHAPE2(1, LONGER), 1, 1, 1);
	for (int i = 1; i < 3; i++) {
		for (int64_t e = 0; e < KEYS * WIDTH; e++) {
			const int64_t j = e / WIDTH;
			reals(&turned.in[i])[(KEYS - 1 - j) * WIDTH + e % WIDTH] = reals(&want.in[i])[e];
			reals(&padded.in[i])[e] = reals(&want.in[i])[e];
		}
	}
	for (int64_t j = KEYS; j < LONGER; j++)
		((int32_t *)padded.in[3].data)[j] = 0;
	fixture_run(b, OP_linear_attention, &want);
	fixture_run(b, OP_linear_attention, &turned);
	fixture_run(b, OP_linear_attention, &padded);
	const int64_t count = shape_count(want.out[0].shape);
	assert_true(compare_close("turned", turned.out[0].data, want.out[0].data, count, 1e-6, 1e-6));
	assert_true(compare_same("padded", padded.out[0].data, want.out[0].data, count));
	((int32_t *)padded.in[3].data)[KEYS] = 1; /* an unmasked key does matter */
	fixture_free_outputs(&padded);
	fixture_run(b, OP_linear_attention, &padded);
	assert_false(compare_close("one more", padded.out[0].data, want.out[0].data, count, 1e-4, 1e-4));
	fixture_free(&padded);
	fixture_free(&turned);
	fixture_free(&want);
}

static void equal_values_are_returned_except_for_the_share_of_eps(void **state)
{
	backend *b = ((backends *)*state)->fast;
	for (int causal = 0; causal < 2; causal++) {
		const size s = {2, 60, 60, 10, {2, causal, 0.5f}, false};
		op_call call = attention(&s);
		for (int64_t e = 0; e < shape_count(call.in[2].shape); e++)
			reals(&call.in[2])[e] = 3;
		fixture_run(b, OP_linear_attention, &call);
		for (int64_t e = 0; e < shape_count(call.out[0].shape); e++) {
			const double normalizer = (double)reals(&call.out[1])[e / 5];
			const double want = 3 * (1 - 0.5 / (normalizer + 0.5));
			assert_true(fabs((double)reals(&call.out[0])[e] - want) < 3e-6);
		}
		fixture_free(&call);
	}
}

static void a_row_without_a_key_is_zero_and_has_no_gradient(void **state)
{
	backend *b = ((backends *)*state)->fast;
	for (int i = 0; i < 4; i++) {
		const size s = {2, 45, 45, 34, {2, i % 2, i / 2 ? 0 : 1e-6f}, true};
		op_call call = attention(&s);
		int32_t *mask = call.in[3].data;
		for (int64_t j = 0; j < 90; j++)
			mask[j] =
			    j >= 45 && j >= 45 + 20; /* no key in the first sequence, leading padding in the second */
		fixture_run(b, OP_linear_attention, &call);
		op_call grad = attention_grad(&s, &call);
		fixture_run(b, OP_linear_attention_grad, &grad);
		for (int64_t e = 0; e < 90 * s.d; e++) {
			const int64_t row = e / s.d;
			const bool blind = row < 45 || (s.p.causal && row < 65);
			assert_int_equal(reals(&call.out[0])[e] == 0, blind);
			assert_int_equal(reals(&grad.out[0])[e] == 0, blind);
			for (int o = 1; o < 3; o++) {
				assert_true(isfinite(reals(&grad.out[o])[e]));
				assert_int_equal(reals(&grad.out[o])[e] == 0, !mask[row]);
			}
		}
		fixture_free_outputs(&grad);
		buffer_free(grad.in[6].data);
		fixture_free(&call);
	}
}

/* --- a hundred thousand rows ----------------------------------------------------------------------------------- */

enum { MANY = 100000, WIDTH = 8 };

static double feature(float x)
{
	return x > 0 ? (double)x + 1 : exp((double)x);
}

typedef struct sums {
	double s[WIDTH][WIDTH], z[WIDTH];
} sums;

static void add(sums *t, const float *k, const float *v)
{
	for (int d = 0; d < WIDTH; d++) {
		t->z[d] += feature(k[d]);
		for (int m = 0; m < WIDTH; m++)
			t->s[d][m] += feature(k[d]) * (double)v[m];
	}
}

/* |y - want| / |want| of a row */
static double error_of(const sums *t, const float *q, const float *y)
{
	double normalizer = 1e-6, difference = 0, magnitude = 0;
	for (int d = 0; d < WIDTH; d++)
		normalizer += feature(q[d]) * t->z[d];
	for (int m = 0; m < WIDTH; m++) {
		double want = 0;
		for (int d = 0; d < WIDTH; d++)
			want += feature(q[d]) * t->s[d][m] / normalizer;
		difference += ((double)y[m] - want) * ((double)y[m] - want);
		magnitude += want * want;
	}
	return sqrt(difference / magnitude);
}

/* The worst error of y [MANY, WIDTH]; NaN if any error is. */
static double worst_error(const op_call *call, const float *y, bool causal)
{
	sums t = {0};
	double worst = 0;
	for (int64_t i = 0; i < MANY && !causal; i++)
		add(&t, reals(&call->in[1]) + i * WIDTH, reals(&call->in[2]) + i * WIDTH);
	for (int64_t i = 0; i < MANY; i++) {
		if (causal)
			add(&t, reals(&call->in[1]) + i * WIDTH, reals(&call->in[2]) + i * WIDTH);
		const double off = error_of(&t, reals(&call->in[0]) + i * WIDTH, y + i * WIDTH);
		if (isnan(off))
			return off;
		worst = fmax(worst, off);
	}
	return worst;
}

static void a_hundred_thousand_rows_stay_near_double_precision(void **state)
{
	backend *b = ((backends *)*state)->fast;
	for (int causal = 0; causal < 2; causal++) {
		const size s = {1, MANY, MANY, WIDTH, {1, causal, 1e-6f}, false};
		op_call call = attention(&s);
		fixture_run(b, OP_linear_attention, &call);
		const double worst = worst_error(&call, call.out[0].data, causal);
		print_message("causal %d: worst relative error %.2g\n", causal, worst);
		assert_true(worst < 1e-3);
		fixture_free(&call);
	}
}

/* --- the recurrent form ------------------------------------------------------------------------------------------ */

enum { N = 150, H = 2, MARGIN = 5 };

/* One session's tokens, its place in a pool with NaN around it, and its results. */
typedef struct session {
	backend *b;
	linear_stream_params p;
	tensor in[3], mask, pool, y, normalizer;
	int64_t d;
} session;

static session session_new(backend *b, int64_t dh, bool masked)
{
	const int64_t d = H * dh;
	const shape tokens = SHAPE3(1, N, d);
	session s = {
	    .b = b,
	    .p = {H, MARGIN, 1e-6f},
	    .in = {fixture_normal(tokens, 71, 1), fixture_normal(tokens, 72, 1), fixture_normal(tokens, 73, 1)},
	    .pool = fixture_tensor(DTYPE_F32, SHAPE2(3, linear_state_floats(d, H) + 2 * MARGIN)),
	    .y = fixture_tensor(DTYPE_F32, tokens),
	    .normalizer = fixture_tensor(DTYPE_F32, SHAPE3(1, N, H)),
	    .d = d};
	if (masked) {
		s.mask = fixture_integers(SHAPE2(1, N), 82, 0, 1);
		for (int64_t i = 0; i < N; i++)
			((int32_t *)s.mask.data)[i] &= i > 3;
	}
	return s;
}

static void session_free(session *s)
{
	for (int i = 0; i < 3; i++)
		buffer_free(s->in[i].data);
	buffer_free(s->mask.data);
	buffer_free(s->pool.data);
	buffer_free(s->y.data);
	buffer_free(s->normalizer.data);
}

static tensor integer(int32_t x)
{
	tensor t = fixture_tensor(DTYPE_I32, SHAPE1(1));
	memcpy(t.data, &x, sizeof x);
	return t;
}

static tensor part_of(const tensor *t, int64_t first, int64_t n, int64_t width)
{
	tensor part = fixture_tensor(t->type, t->shape.rank == 3 ? SHAPE3(1, n, width) : SHAPE2(1, n));
	memcpy(part.data, (char *)t->data + first * width * 4, (size_t)(n * width) * 4);
	return part;
}

/* Read tokens first … first + n - 1, in a call with room for `extra` more tokens. */
static void session_read(session *s, int64_t first, int64_t n, int64_t extra)
{
	op_call call = {.params = &s->p, .n_in = 8};
	for (int i = 0; i < 3; i++)
		call.in[i] = part_of(&s->in[i], first, n + extra, s->d);
	call.in[3] = s->pool;
	call.in[4] = integer(1);
	call.in[5] = integer((int32_t)first);
	call.in[6] = integer((int32_t)n);
	if (s->mask.data)
		call.in[7] = part_of(&s->mask, first, n + extra, 1);
	fixture_run(s->b, OP_linear_stream, &call);
	memcpy(reals(&s->y) + first * s->d, call.out[0].data, (size_t)(n * s->d) * sizeof(float));
	memcpy(reals(&s->normalizer) + first * H, call.out[1].data, (size_t)(n * H) * sizeof(float));
	for (int64_t e = n * s->d; e < (n + extra) * s->d; e++)
		assert_true(reals(&call.out[0])[e] == 0);
	call.in[3].data = NULL;
	fixture_free(&call);
}

static void read_in_chunks(session *s, int64_t chunk)
{
	for (int64_t i = 0; i < N; i += chunk)
		session_read(s, i, N - i < chunk ? N - i : chunk, 0);
}

static const int64_t widths[] = {1, 5, 8, 32, 64, 80};
static const int64_t chunks[] = {1, 2, 7, 31, 32, 33, 64, 100, N};
enum { WIDTHS = sizeof widths / sizeof widths[0], CHUNKS = sizeof chunks / sizeof chunks[0] };

static void reading_token_by_token_gives_the_numbers_of_the_parallel_form(void **state)
{
	backends *b = *state;
	for (int i = 0; i < 2 * WIDTHS; i++) {
		session s = session_new(b->fast, widths[i / 2], i % 2);
		read_in_chunks(&s, 1);
		const linear_attention_params p = {H, true, 1e-6f};
		op_call call = {.params = &p, .n_in = 4, .in = {s.in[0], s.in[1], s.in[2], s.mask}};
		fixture_run(i / 2 % 2 ? b->fast : b->reference, OP_linear_attention, &call);
		assert_true(compare_close("y", s.y.data, call.out[0].data, N * s.d, 1e-5, 1e-5));
		assert_true(compare_close("normalizer", s.normalizer.data, call.out[1].data, N * H, 1e-5, 1e-5));
		fixture_free_outputs(&call);
		session_free(&s);
	}
}

static void chunks_of_any_size_give_the_same_state_and_outputs(void **state)
{
	backends *b = *state;
	for (int i = 0; i < WIDTHS; i++) {
		session one = session_new(b->fast, widths[i], true);
		read_in_chunks(&one, 1);
		for (int c = 1; c < CHUNKS; c++) {
			session many = session_new(b->fast, widths[i], true);
			read_in_chunks(&many, chunks[c]);
			assert_memory_equal(one.pool.data, many.pool.data, (size_t)shape_count(one.pool.shape) * 4);
			assert_true(compare_same("y", many.y.data, one.y.data, N * one.d));
			assert_true(compare_same("normalizer", many.normalizer.data, one.normalizer.data, N * H));
			session_free(&many);
		}
		session_free(&one);
	}
}

static void reading_writes_nothing_outside_the_state(void **state)
{
	backends *b = *state;
	session s = session_new(b->fast, 19, false);
	const int64_t count = shape_count(s.pool.shape), floats = count / 3, end = 2 * floats - MARGIN;
	float *before = malloc((size_t)count * sizeof *before), *after = s.pool.data;
	assert_non_null(before);
	memcpy(before, after, (size_t)count * sizeof *before);
	session_read(&s, 0, 0, 3);
	assert_memory_equal(after, before, (size_t)count * sizeof *before);
	session_read(&s, 0, 70, 10);
	session_read(&s, 70, 0, 3);
	assert_memory_equal(after, before, (size_t)(floats + MARGIN) * sizeof *before);
	assert_memory_equal(after + end, before + end, (size_t)(count - end) * sizeof *before);
	for (int64_t e = floats + MARGIN; e < end; e++)
		assert_true(isfinite(after[e]));
	free(before);
	session_free(&s);
}

/* Three sessions in one call, and each alone. */
static void other_sessions_and_threads_change_no_bit(void **state)
{
	(void)state;
	enum { B = 3, LENGTH = 70, D = 96 };
	const linear_stream_params p = {3, 0, 1e-6f};
	const int32_t length[B] = {LENGTH, 33, 64}, slot[B] = {2, 0, 1}, position[B] = {5000, 0, 300};
	const shape tokens = SHAPE3(B, LENGTH, D);
	const int64_t row = LENGTH * D, floats = linear_state_floats(D, 3);
	backend *b = fixture_open(7);
	op_call all[2];
	for (int i = 0; i < 2; i++) {
		all[i] = (op_call){.params = &p, .n_in = 7};
		for (int k = 0; k < 3; k++)
			all[i].in[k] = fixture_normal(tokens, 91 + (uint64_t)k, 1);
		all[i].in[3] = fixture_normal(SHAPE2(B, floats), 95, 1);
		for (int k = 4; k < 7; k++)
			all[i].in[k] = fixture_tensor(DTYPE_I32, SHAPE1(B));
		memcpy(all[i].in[4].data, slot, sizeof slot);
		memcpy(all[i].in[5].data, position, sizeof position);
		memcpy(all[i].in[6].data, length, sizeof length);
		fixture_narrow(b, i ? 7 : 1, OP_linear_stream, &all[i]);
	}
	assert_true(compare_same("y", all[1].out[0].data, all[0].out[0].data, B * row));
	assert_true(compare_same("pool", all[1].in[3].data, all[0].in[3].data, B * floats));
	for (int s = 0; s < B; s++) {
		op_call one = {.params = &p, .n_in = 7};
		for (int k = 0; k < 3; k++)
			one.in[k] = part_of(&all[0].in[k], s * LENGTH, LENGTH, D);
		one.in[3] = fixture_normal(SHAPE2(B, floats), 95, 1);
		one.in[4] = integer(slot[s]);
		one.in[5] = integer(position[s]);
		one.in[6] = integer(length[s]);
		fixture_run(b, OP_linear_stream, &one);
		assert_true(compare_same("y alone", one.out[0].data, reals(&all[0].out[0]) + s * row, row));
		assert_true(compare_same("state alone", reals(&one.in[3]) + slot[s] * floats,
		                         reals(&all[0].in[3]) + slot[s] * floats, floats));
		fixture_free(&one);
	}
	fixture_free(&all[0]);
	fixture_free(&all[1]);
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(four_rows_give_their_known_numbers),
	    cmocka_unit_test(the_feature_of_a_number_is_elu_plus_one),
	    cmocka_unit_test(results_do_not_depend_on_threads),
	    cmocka_unit_test(a_token_changes_no_earlier_result),
	    cmocka_unit_test(a_masked_key_has_no_influence_whatever_its_values),
	    cmocka_unit_test(the_order_of_keys_and_padding_after_them_do_not_matter),
	    cmocka_unit_test(equal_values_are_returned_except_for_the_share_of_eps),
	    cmocka_unit_test(a_row_without_a_key_is_zero_and_has_no_gradient),
	    cmocka_unit_test(a_hundred_thousand_rows_stay_near_double_precision),
	    cmocka_unit_test(reading_token_by_token_gives_the_numbers_of_the_parallel_form),
	    cmocka_unit_test(chunks_of_any_size_give_the_same_state_and_outputs),
	    cmocka_unit_test(reading_writes_nothing_outside_the_state),
	    cmocka_unit_test(other_sessions_and_threads_change_no_bit),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
