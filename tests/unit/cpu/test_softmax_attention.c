/* Softmax attention and its gradient: against the reference at the borders of blocks and tiles, and properties that
 * hold for all numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
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

static tensor rng_of(int32_t seed)
{
	tensor t = fixture_tensor(DTYPE_I32, SHAPE1(4));
	memcpy(t.data, (int32_t[]){seed, 2, 3, 0}, 4 * sizeof(int32_t));
	return t;
}

/* --- the parallel form --------------------------------------------------------------------------------- */

typedef struct size {
	int64_t batch, length, d;
	softmax_params p;
	bool masked;
} size;

/* qkv, mask, rng; masks leave some windows empty. */
static op_call attention(const size *s)
{
	op_call call = {
	    .params = &s->p, .n_in = 6, .in = {fixture_normal(SHAPE3(s->batch, s->length, 3 * s->d), 71, 1)}};
	if (s->masked) {
		call.in[3] = fixture_integers(SHAPE2(s->batch, s->length), 72, 0, 1);
		for (int64_t i = 0; i < s->batch * s->length; i++)
			((int32_t *)call.in[3].data)[i] &= i % 50 > 12;
	}
	if (s->p.p > 0)
		call.in[5] = rng_of(77);
	return call;
}

/* The gradient of a call that has run; shares its inputs and outputs, except dy. */
static op_call attention_grad(const size *s, const op_call *forward)
{
	op_call call = {.params = &s->p, .n_in = 9};
	memcpy(call.in, forward->in, 6 * sizeof call.in[0]);
	call.in[6] = forward->out[0];
	call.in[7] = forward->out[1];
	call.in[8] = fixture_normal(forward->out[0].shape, 73, 1);
	return call;
}

static bool close_outputs(const op_call *got, const op_call *want, double tolerance)
{
	bool same = true;
	for (int i = 0; i < want->n_out; i++)
		same = compare_close("output", got->out[i].data, want->out[i].data, shape_count(want->out[i].shape),
		                     tolerance, tolerance) &&
		       same;
	return same;
}

static bool same_outputs(const op_call *got, const op_call *want)
{
	bool same = true;
	for (int i = 0; i < want->n_out; i++)
		same = compare_same("output", got->out[i].data, want->out[i].data, shape_count(want->out[i].shape)) &&
		       same;
	return same;
}

/* Forward and gradient on two backends. */
static void check_backends(backend *a, backend *b, const size *s, bool (*agree)(const op_call *, const op_call *))
{
	op_call call = attention(s), other = call;
	fixture_run(a, OP_softmax_attention, &call);
	fixture_run(b, OP_softmax_attention, &other);
	assert_true(agree(&other, &call));
	op_call grad = attention_grad(s, &call), other_grad = grad;
	fixture_run(a, OP_softmax_attention_grad, &grad);
	fixture_run(b, OP_softmax_attention_grad, &other_grad);
	assert_true(agree(&other_grad, &grad));
	fixture_free_outputs(&other_grad);
	fixture_free_outputs(&grad);
	buffer_free(grad.in[8].data);
	fixture_free_outputs(&other);
	fixture_free(&call);
}

static bool agree_closely(const op_call *got, const op_call *want)
{
	return close_outputs(got, want, 4e-5);
}

static void the_borders_of_blocks_agree_with_the_reference_on_every_instruction_set(void **state)
{
	static const char *const isas[] = {"baseline", "avx2", "avx512"};
	static const int64_t lengths[] = {1, 2, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 193};
	static const int64_t windows[] = {0, 1, 33, 64, 65};
	static const int64_t widths[] = {3, 16, 40, 1, 64};
	for (int isa = 0; isa < 3; isa++) {
		setenv("ADDITIVE_CPU_ISA", isas[isa], 1);
		backend *b = fixture_open(2);
		unsetenv("ADDITIVE_CPU_ISA");
		for (int i = 0; i < 13; i++) {
			for (int k = 0; k < 5; k++) {
				size s = {1,
				          lengths[i],
				          2 * widths[(i + k) % 5],
				          {.heads = 2, .window = windows[k], .scale = 0.4f, .stream = 9},
				          k % 2};
				s.p.p = i % 3 == 0 ? 0.25f : 0;
				check_backends(((backends *)*state)->reference, b, &s, agree_closely);
			}
		}
		backend_close(b);
	}
}

static void results_do_not_depend_on_threads(void **state)
{
	(void)state;
	static const int threads[] = {2, 3, 7};
	static const size sizes[] = {
	    {2, 391, 40, {.heads = 2, .scale = 0.3f}, true},
	    {1, 450, 32, {.heads = 1, .window = 130, .scale = 0.3f, .p = 0.1f, .stream = 4}, false},
	    {3, 130, 96, {.heads = 12, .scale = 0.3f}, false}};
	backend *one = fixture_open(1);
	for (int t = 0; t < 3; t++) {
		backend *b = fixture_open(threads[t]);
		for (int i = 0; i < 3; i++)
			check_backends(one, b, &sizes[i], same_outputs);
		backend_close(b);
	}
	backend_close(one);
}

/* Replace the rows of token `changed` of sequence 0 by `with`; true if y and M of tokens first … last keep their
 * bits. */
static bool unchanged(backend *b, const size *s, int64_t changed, float with, int64_t first, int64_t last)
{
	op_call before = attention(s), after = attention(s);
	for (int64_t c = 0; c < 3 * s->d; c++)
		((float *)after.in[0].data)[changed * 3 * s->d + c] = with;
	fixture_run(b, OP_softmax_attention, &before);
	fixture_run(b, OP_softmax_attention, &after);
	int64_t heads = s->p.heads, count = last - first + 1;
	bool same = memcmp((float *)before.out[0].data + first * s->d, (float *)after.out[0].data + first * s->d,
	                   (size_t)(count * s->d) * sizeof(float)) == 0 &&
	            memcmp((float *)before.out[1].data + first * heads, (float *)after.out[1].data + first * heads,
	                   (size_t)(count * heads) * sizeof(float)) == 0;
	fixture_free(&before);
	fixture_free(&after);
	return same;
}

static void a_token_changes_no_earlier_result(void **state)
{
	backend *b = ((backends *)*state)->fast;
	size s = {1, 150, 34, {.heads = 2, .scale = 0.3f}, false};
	static const int64_t changed[] = {1, 15, 16, 63, 64, 65, 100, 128, 149};
	for (int i = 0; i < 9; i++) {
		assert_true(unchanged(b, &s, changed[i], 3, 0, changed[i] - 1));
		for (int64_t later = changed[i]; later < s.length; later += 40)
			assert_false(unchanged(b, &s, changed[i], 3, later, later));
	}
}

static void a_token_changes_no_result_past_its_window(void **state)
{
	backend *b = ((backends *)*state)->fast;
	static const int64_t windows[] = {1, 7, 64, 70};
	for (int i = 0; i < 4; i++) {
		size s = {1, 150, 34, {.heads = 2, .window = windows[i], .scale = 0.3f}, false};
		for (int64_t j = 0; j + windows[i] < s.length; j += 13) {
			assert_true(unchanged(b, &s, j, 3, j + windows[i], s.length - 1));
			assert_false(unchanged(b, &s, j, 3, j + windows[i] - 1, j + windows[i] - 1));
		}
	}
}

static void a_masked_token_has_no_influence(void **state)
{
	backend *b = ((backends *)*state)->fast;
	size s = {1, 150, 34, {.heads = 2, .scale = 0.3f}, true};
	op_call call = attention(&s);
	for (int64_t j = 0, tried = 0; j < s.length && tried < 10; j += 7) {
		if (((int32_t *)call.in[3].data)[j])
			continue;
		tried++;
		assert_true(unchanged(b, &s, j, 1e30f, 0, j - 1));
		assert_true(unchanged(b, &s, j, 1e30f, j + 1, s.length - 1));
	}
	fixture_free(&call);
}

static void an_empty_window_gives_zero_and_no_gradient(void **state)
{
	backend *b = ((backends *)*state)->fast;
	size s = {1, 130, 34, {.heads = 2, .window = 8, .scale = 0.3f}, true};
	op_call call = attention(&s);
	for (int64_t i = 0; i < s.length; i++)
		((int32_t *)call.in[3].data)[i] = i < 60 || i > 90;
	fixture_run(b, OP_softmax_attention, &call);
	op_call grad = attention_grad(&s, &call);
	fixture_run(b, OP_softmax_attention_grad, &grad);
	for (int64_t i = 0; i < s.length; i++) {
		bool empty = i >= 60 + 7 && i <= 90;
		for (int64_t c = 0; c < s.d; c++) {
			assert_true((((float *)call.out[0].data)[i * s.d + c] == 0) == empty);
			assert_true(!empty || ((float *)grad.out[0].data)[i * 3 * s.d + c] == 0);
		}
		for (int64_t h = 0; h < 2; h++)
			assert_true((((float *)call.out[1].data)[i * 2 + h] == -INFINITY) == empty);
	}
	fixture_free_outputs(&grad);
	buffer_free(grad.in[8].data);
	fixture_free(&call);
}

static void scores_of_ten_thousand_give_finite_results(void **state)
{
	backends *b = *state;
	size s = {1, 200, 32, {.heads = 2, .scale = 1000}, false};
	op_call call = attention(&s), want = call;
	fixture_run(b->fast, OP_softmax_attention, &call);
	fixture_run(b->reference, OP_softmax_attention, &want);
	assert_true(compare_magnitude(call.out[1].data, 400) >= 1e4);
	assert_true(compare_close("log-normaliser", call.out[1].data, want.out[1].data, 400, 0, 1e-6));
	/* Scores are rounded at 1e-3, so y may be slightly off, but within the range of the values. */
	assert_true(compare_close("pooled", call.out[0].data, want.out[0].data, 200 * 32, 2e-2, 0));
	op_call grad = attention_grad(&s, &call);
	fixture_run(b->fast, OP_softmax_attention_grad, &grad);
	assert_true(compare_magnitude(grad.out[0].data, 200 * 96) < 1e7);
	fixture_free_outputs(&grad);
	buffer_free(grad.in[8].data);
	fixture_free_outputs(&want);
	fixture_free(&call);
}

/* With q = 0 all probabilities are equal. If v = 1, every y_i is the mean of a row: that of dropout's result for a
 * matrix with only ones, up to the diagonal. */
static void probabilities_are_dropped_like_elements_of_the_op_dropout(void **state)
{
	backend *b = ((backends *)*state)->fast;
	static const int64_t lengths[] = {64, 131, 129, 130}; /* so that rows begin at every place in a Philox block */
	for (int n = 0; n < 4; n++) {
		int64_t length = lengths[n], matrix = length * length;
		size s = {2, length, 8, {.heads = 2, .scale = 1, .p = 0.2f, .stream = 6}, false};
		op_call call = attention(&s);
		for (int64_t e = 0; e < 2 * length * 24; e++)
			((float *)call.in[0].data)[e] = e % 24 < 16 ? 0 : 1;
		fixture_run(b, OP_softmax_attention, &call);
		dropout_params p = {0.2f, 6};
		op_call drop = {
		    .params = &p, .n_in = 2, .in = {fixture_tensor(DTYPE_F32, SHAPE2(4, matrix)), rng_of(77)}};
		for (int64_t e = 0; e < 4 * matrix; e++)
			((float *)drop.in[0].data)[e] = 1;
		fixture_run(b, OP_dropout, &drop);
		double mean = 0;
		for (int64_t row = 0; row < 4 * length; row++) {
			int64_t i = row % length, h = row / length % 2, sequence = row / length / 2;
			double want = 0, got = ((float *)call.out[0].data)[(sequence * length + i) * 8 + h * 4];
			for (int64_t j = 0; j <= i; j++)
				want += (double)((float *)drop.out[0].data)[row * length + j] / (double)(i + 1);
			assert_true(fabs(got - want) <= 1e-5);
			mean += got / (double)(4 * length);
		}
		assert_true(fabs(mean - 1) < 0.03);
		fixture_free(&drop);
		fixture_free(&call);
	}
}

/* --- options ------------------------------------------------------------------------------------------- */

enum { Q, K, V, MASK, BIAS, RNG, Y, LOG_NORMALIZER, DY };

/* Forward and gradient of one call; `grad` shares the inputs of `call`, which attended_free frees. */
typedef struct attended {
	op_call call, grad;
} attended;

static attended attend(backend *b, const softmax_params *p, const tensor in[6])
{
	attended a = {.call = {.params = p, .n_in = 6}, .grad = {.params = p, .n_in = 9}};
	memcpy(a.call.in, in, 6 * sizeof in[0]);
	fixture_run(b, OP_softmax_attention, &a.call);
	memcpy(a.grad.in, in, 6 * sizeof in[0]);
	a.grad.in[Y] = a.call.out[0];
	a.grad.in[LOG_NORMALIZER] = a.call.out[1];
	a.grad.in[DY] = fixture_normal(a.call.out[0].shape, 73, 1);
	fixture_run(b, OP_softmax_attention_grad, &a.grad);
	return a;
}

static void attended_free(attended *a)
{
	fixture_free_outputs(&a->grad);
	buffer_free(a->grad.in[DY].data);
	fixture_free_outputs(&a->call);
}

static bool same(const tensor *a, const tensor *b)
{
	return compare_same("result", a->data, b->data, shape_count(a->shape));
}

enum { LONG = 150, FOUR = 4, WIDE = 9 };

/* q, k, v of FOUR heads, a mask, a table with a row for each distance, and a seed; a form uses those that it needs. */
static void inputs(tensor in[6], int64_t queries, int64_t keys, int64_t kv_heads, int64_t dv)
{
	in[Q] = fixture_normal(SHAPE3(1, queries, FOUR * WIDE), 61, 1);
	in[K] = fixture_normal(SHAPE3(1, keys, kv_heads * WIDE), 62, 1);
	in[V] = fixture_normal(SHAPE3(1, keys, kv_heads * dv), 63, 1);
	in[MASK] = fixture_integers(SHAPE2(1, keys), 64, 0, 1);
	in[BIAS] = fixture_normal(SHAPE2(queries + keys, FOUR), 65, 1);
	in[RNG] = rng_of(66);
}

static void inputs_free(tensor in[6])
{
	for (int i = 0; i < 6; i++)
		buffer_free(in[i].data);
}

/* Columns from … from + width - 1 of every row. */
static tensor columns(const tensor *t, int64_t from, int64_t width, int64_t times)
{
	const int64_t rows = shape_rows(t->shape), row = shape_last(t->shape), heads = width / WIDE;
	tensor part = fixture_tensor(DTYPE_F32, SHAPE3(1, rows, width * times));
	for (int64_t e = 0; e < rows * width * times; e++) {
		const int64_t c = e % (width * times), head = c / WIDE / times % heads;
		((float *)part.data)[e] = ((float *)t->data)[e / (width * times) * row + from + head * WIDE + c % WIDE];
	}
	return part;
}

static void separate_keys_give_the_bits_of_a_combined_tensor(void **state)
{
	backend *b = ((backends *)*state)->fast;
	tensor in[6], one[6];
	inputs(in, LONG, LONG, FOUR, WIDE);
	memcpy(one, in, sizeof one);
	one[Q] = fixture_normal(SHAPE3(1, LONG, 3 * FOUR * WIDE), 67, 1);
	one[K] = one[V] = (tensor){0};
	tensor parts[6];
	memcpy(parts, in, sizeof parts);
	for (int i = Q; i <= V; i++)
		parts[i] = columns(&one[Q], i * FOUR * WIDE, FOUR * WIDE, 1);
	const softmax_params p = {.heads = FOUR, .window = 90, .scale = 0.3f, .p = 0.1f, .uniform = true};
	attended whole = attend(b, &p, one), apart = attend(b, &p, parts);
	assert_true(same(&whole.call.out[0], &apart.call.out[0]) && same(&whole.call.out[1], &apart.call.out[1]));
	for (int i = Q; i <= V; i++) {
		tensor part = columns(&whole.grad.out[0], i * FOUR * WIDE, FOUR * WIDE, 1);
		assert_true(same(&part, &apart.grad.out[i]));
		buffer_free(part.data);
		buffer_free(parts[i].data);
	}
	assert_true(same(&whole.grad.out[3], &apart.grad.out[3]));
	attended_free(&whole);
	attended_free(&apart);
	buffer_free(one[Q].data);
	inputs_free(in);
}

static void a_shared_head_of_keys_equals_the_repeated_head(void **state)
{
	backend *b = ((backends *)*state)->fast;
	tensor in[6], repeated[6];
	inputs(in, LONG, LONG + 30, 2, WIDE);
	memcpy(repeated, in, sizeof repeated);
	repeated[K] = columns(&in[K], 0, 2 * WIDE, 2);
	repeated[V] = columns(&in[V], 0, 2 * WIDE, 2);
	const softmax_params grouped = {.heads = FOUR, .kv_heads = 2, .scale = 0.3f, .p = 0.1f},
	                     single = {.heads = FOUR, .scale = 0.3f, .p = 0.1f};
	attended a = attend(b, &grouped, in), s = attend(b, &single, repeated);
	assert_true(same(&a.call.out[0], &s.call.out[0]) && same(&a.call.out[1], &s.call.out[1]));
	assert_true(same(&a.grad.out[0], &s.grad.out[0]));
	for (int i = K; i <= V; i++) {
		const float *sum = a.grad.out[i].data, *each = s.grad.out[i].data;
		for (int64_t e = 0; e < (LONG + 30) * 2 * WIDE; e++) {
			const float *pair = each + e / WIDE * 2 * WIDE + e % WIDE;
			assert_true(fabsf(sum[e] - (pair[0] + pair[WIDE])) <= 1e-5f);
		}
	}
	attended_free(&a);
	attended_free(&s);
	buffer_free(repeated[K].data);
	buffer_free(repeated[V].data);
	inputs_free(in);
}

static void options_without_effect_change_no_bit(void **state)
{
	backend *b = ((backends *)*state)->fast;
	tensor in[6], bare[6];
	inputs(in, LONG, LONG, FOUR, 5);
	memcpy(bare, in, sizeof bare);
	bare[BIAS] = (tensor){0};
	const softmax_params p = {.heads = FOUR, .scale = 0.3f};
	softmax_params wide = p, uniform = p, both = p;
	wide.window = LONG; /* as long as the keys: no limit */
	uniform.uniform = both.bidirectional = true;
	both.bias_first = 1 - LONG;
	((int32_t *)in[MASK].data)[0] = 1; /* every query sees at least one key */
	memset(in[BIAS].data, 0, (size_t)shape_count(in[BIAS].shape) * sizeof(float));
	attended plain = attend(b, &p, bare), windowed = attend(b, &wide, bare), zero = attend(b, &p, in),
	         equal = attend(b, &uniform, bare), seen = attend(b, &both, in);
	for (int o = 0; o < 3; o++) {
		assert_true(same(&plain.grad.out[o], &windowed.grad.out[o]));
		assert_true(same(&plain.grad.out[o], &zero.grad.out[o]));
		assert_true(same(&plain.grad.out[o], &equal.grad.out[o]));
		assert_true(o > 1 || same(&plain.call.out[o], &windowed.call.out[o]));
		assert_true(o > 1 || same(&plain.call.out[o], &zero.call.out[o]));
		assert_true(o > 1 || same(&plain.call.out[o], &equal.call.out[o]));
	}
	/* The last query sees all keys in both forms; the first one does not. */
	const float *y = plain.call.out[0].data, *other = seen.call.out[0].data;
	assert_memory_equal(y + (LONG - 1) * FOUR * 5, other + (LONG - 1) * FOUR * 5, FOUR * 5 * sizeof *y);
	assert_memory_not_equal(y, other, FOUR * 5 * sizeof *y);
	attended *all[] = {&plain, &windowed, &zero, &equal, &seen};
	for (int i = 0; i < 5; i++)
		attended_free(all[i]);
	inputs_free(in);
}

/* The table is zero except at one distance, whose key then gets all the weight. */
static void the_bias_depends_on_the_distance_of_positions(void **state)
{
	backend *b = ((backends *)*state)->fast;
	enum { QUERIES = 70, KEYS = 131, DISTANCE = 64 };
	tensor in[6];
	inputs(in, QUERIES, KEYS, FOUR, 5);
	for (int64_t j = 0; j < KEYS; j++)
		((int32_t *)in[MASK].data)[j] = 1;
	memset(in[BIAS].data, 0, (size_t)shape_count(in[BIAS].shape) * sizeof(float));
	for (int64_t h = 0; h < FOUR; h++)
		((float *)in[BIAS].data)[(DISTANCE + 2) * FOUR + h] = 60; /* selects that key */
	const softmax_params p = {.heads = FOUR, .scale = 0.01f, .bias_first = -2};
	attended a = attend(b, &p, in);
	for (int64_t i = DISTANCE - (KEYS - QUERIES); i < QUERIES; i++) {
		const int64_t j = i + KEYS - QUERIES - DISTANCE;
		for (int64_t c = 0; c < FOUR * 5; c++)
			assert_true(((float *)a.call.out[0].data)[i * FOUR * 5 + c] ==
			            ((float *)in[V].data)[j * FOUR * 5 + c]);
	}
	attended_free(&a);
	inputs_free(in);
}

static void a_later_token_has_no_influence_on_fewer_queries_than_keys(void **state)
{
	backend *b = ((backends *)*state)->fast;
	enum { QUERIES = 70, KEYS = 131 };
	tensor in[6];
	inputs(in, QUERIES, KEYS, 1, 5);
	const softmax_params p = {.heads = FOUR, .kv_heads = 1, .scale = 0.3f, .bias_first = 0};
	attended before = attend(b, &p, in);
	const int64_t changed = 100, i = changed - (KEYS - QUERIES); /* the first query that sees the token */
	((int32_t *)in[MASK].data)[changed] = 1;
	for (int64_t c = 0; c < 5; c++)
		((float *)in[V].data)[changed * 5 + c] += 1;
	attended after = attend(b, &p, in);
	const float *y = before.call.out[0].data, *other = after.call.out[0].data;
	assert_memory_equal(y, other, (size_t)(i * FOUR * 5) * sizeof *y);
	assert_memory_not_equal(y + i * FOUR * 5, other + i * FOUR * 5, FOUR * 5 * sizeof *y);
	attended_free(&before);
	attended_free(&after);
	inputs_free(in);
}

static void a_table_that_lacks_a_distance_is_refused(void **state)
{
	(void)state;
	const struct {
		softmax_params p;
		int64_t rows;
		const char *blames;
	} table[] = {
	    {{.heads = FOUR}, 8, ""},
	    {{.heads = FOUR}, 7, "bias"},
	    {{.heads = FOUR, .window = 5}, 5, ""},
	    {{.heads = FOUR, .window = 5}, 4, "bias"},
	    {{.heads = FOUR, .bidirectional = true}, 100, "bias_first"},
	    {{.heads = FOUR, .bidirectional = true, .bias_first = -2}, 10, ""},
	    {{.heads = FOUR, .bidirectional = true, .bias_first = -2}, 9, "bias"},
	    {{.heads = FOUR, .bias_first = 1}, 100, "bias_first"},
	    {{.heads = FOUR, .kv_heads = 3}, 8, "kv_heads"},
	    {{.heads = FOUR, .kv_heads = 2}, 8, "k"},
	    {{.heads = 0}, 8, "heads"},
	};
	tensor in[6];
	inputs(in, 3, 8, FOUR, 5);
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		error err = ERROR_INIT;
		op_call call = {.params = &table[i].p, .n_in = 6, .n_out = 2};
		memcpy(call.in, in, sizeof in);
		call.in[BIAS].shape = SHAPE2(table[i].rows, FOUR);
		const status s = op_get(OP_softmax_attention)->check(&call, &err);
		assert_int_equal(s, *table[i].blames ? STATUS_INVALID : STATUS_OK);
		assert_string_equal(err.param, table[i].blames);
	}
	inputs_free(in);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_borders_of_blocks_agree_with_the_reference_on_every_instruction_set),
	    cmocka_unit_test(results_do_not_depend_on_threads),
	    cmocka_unit_test(a_token_changes_no_earlier_result),
	    cmocka_unit_test(a_token_changes_no_result_past_its_window),
	    cmocka_unit_test(a_masked_token_has_no_influence),
	    cmocka_unit_test(an_empty_window_gives_zero_and_no_gradient),
	    cmocka_unit_test(scores_of_ten_thousand_give_finite_results),
	    cmocka_unit_test(probabilities_are_dropped_like_elements_of_the_op_dropout),
	    cmocka_unit_test(separate_keys_give_the_bits_of_a_combined_tensor),
	    cmocka_unit_test(a_shared_head_of_keys_equals_the_repeated_head),
	    cmocka_unit_test(options_without_effect_change_no_bit),
	    cmocka_unit_test(the_bias_depends_on_the_distance_of_positions),
	    cmocka_unit_test(a_later_token_has_no_influence_on_fewer_queries_than_keys),
	    cmocka_unit_test(a_table_that_lacks_a_distance_is_refused),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
