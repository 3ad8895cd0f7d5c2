/* softmax_stream with a ring of codes, on every instruction set: the bits of a ring of floats, or, if queries are codes
 * too, its numbers with exact sums of products. Also the content of the ring. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/softmax_stream.h"
#include "tests/unit/cpu/streams.h"

/* --- reading ----------------------------------------------------------------------------------------------------- */

static const float *state_of(const layer *l)
{
	return (const float *)l->pool.data + l->pool.shape.dim[1] + MARGIN;
}

/* --- bits ------------------------------------------------------------------------------------------------------ */

static const kind kinds[] = {
    {.heads = 1, .kv_heads = 1, .key = 48, .value = 32, .window = 130, .biased = true},
    {.heads = 2, .kv_heads = 2, .key = 6, .value = 16, .window = 12, .biased = true, .masked = true},
    {.heads = 4, .kv_heads = 2, .key = 5, .value = 9, .window = 40, .masked = true},
    {.heads = 3, .kv_heads = 1, .key = 33, .value = 21, .window = 1},
    {.heads = 2, .kv_heads = 2, .key = 64, .value = 48, .window = 301, .memories = 3, .past = 70, .masked = true},
    {.heads = 1, .kv_heads = 1, .key = 1, .value = 1, .window = 7, .memories = 70},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void check_bits(backend *b)
{
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		layer floats = layer_new(b, fixture_run, *k, SOFTMAX_F32),
		      codes = layer_new(b, fixture_run, *k, SOFTMAX_CODES);
		text x = coded_new(k, 230, 11), y = coded_new(k, 230, 11);
		read_both(&floats, &x, &codes, &y, 5 + (uint64_t)i);
		assert_true(compare_same("y", y.y, x.y, 230 * k->heads * k->value));
		assert_true(compare_same("log_normalizer", y.log_normalizer, x.log_normalizer, 230 * k->heads));
		text_free(&x);
		text_free(&y);
		layer_free(&floats);
		layer_free(&codes);
	}
}

static void results_have_the_bits_of_a_ring_of_floats_on_every_instruction_set(void **state)
{
	(void)state;
	check_bits(reference);
	on_every_isa(check_bits);
}

/* --- queries that are codes ------------------------------------------------------------------------------------ */

static void code_queries(const kind *k, text *c)
{
	for (int64_t i = 0; i < c->n * k->heads * k->key; i++)
		c->q[i] = quantize_value(c->q[i], QUANTIZE_FIXED_STEP, 8);
}

static void check_coded_queries(backend *b)
{
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		layer floats = layer_new(b, fixture_run, *k, SOFTMAX_F32),
		      codes = layer_new(b, fixture_run, *k, SOFTMAX_CODES);
		text x = coded_new(k, 230, 11), y = coded_new(k, 230, 11);
		codes.p.query_step = QUANTIZE_FIXED_STEP;
		code_queries(k, &x);
		code_queries(k, &y);
		read_both(&floats, &x, &codes, &y, 5 + (uint64_t)i);
		assert_true(compare_close("y", y.y, x.y, 230 * k->heads * k->value, 2e-5, 2e-5));
		assert_true(
		    compare_close("log_normalizer", y.log_normalizer, x.log_normalizer, 230 * k->heads, 2e-6, 2e-6));
		text_free(&x);
		text_free(&y);
		layer_free(&floats);
		layer_free(&codes);
	}
}

/* A masked token sees only the previous token, so its log-normalizer is the score. */
static void check_sums_of_products(backend *b)
{
	static const int64_t widths[] = {1, 5, 15, 16, 17, 31, 32, 33, 48, 100, 176};
	for (int i = 0; i < 11; i++) {
		const kind k = {.heads = 1, .kv_heads = 1, .key = widths[i], .value = 3, .window = 2, .masked = true};
		layer l = layer_new(b, fixture_run, k, SOFTMAX_CODES);
		text c = coded_new(&k, 2, 60 + (uint64_t)i);
		int64_t sum = 0;
		l.p.query_step = QUANTIZE_FIXED_STEP;
		l.p.scale = 0.25f;
		code_queries(&k, &c);
		c.mask[0] = 1;
		c.mask[1] = 0;
		read_one(&l, &c, 1);
		read_one(&l, &c, 1);
		for (int64_t d = 0; d < k.key; d++)
			sum += quantize_byte(c.q[k.key + d], QUANTIZE_FIXED_STEP) * quantize_byte(c.k[d], c.step[0]);
		assert_true(c.log_normalizer[1] == 0.25f * QUANTIZE_FIXED_STEP * c.step[0] * (float)sum);
		text_free(&c);
		layer_free(&l);
	}
}

static void scores_of_coded_queries_are_exact_sums_on_every_instruction_set(void **state)
{
	(void)state;
	check_coded_queries(reference);
	on_every_isa(check_coded_queries);
	on_every_isa(check_sums_of_products);
}

/* --- content of the ring ---------------------------------------------------------------------------------------- */

static void check_codes_of(const int8_t *code, float step, const float *x, int64_t width)
{
	for (int64_t d = 0; d < width; d++)
		assert_true((float)code[d] * step == x[d]);
	for (int64_t d = width; d % 4; d++)
		assert_int_equal(code[d], 0);
}

/* Check that the last tokens of the text are in their places, and that the margins and slot 0 are unchanged. */
static void check_ring(const layer *l, const text *c)
{
	const kind *k = &l->k;
	const int64_t keys = key_width(k), values = value_width(k), n = c->n;
	const softmax_store ring = softmax_store_of(keys, values, k->window, SOFTMAX_CODES);
	const float *state = state_of(l), *pool = l->pool.data;
	for (int64_t t = n > k->window ? n - k->window : 0; t < n; t++) {
		const int64_t place = t % k->window;
		const float step = state[softmax_there(ring, place)];
		assert_true(step == (c->mask[t] ? c->step[t] : SOFTMAX_MASKED_STEP));
		check_codes_of((const int8_t *)(state + softmax_key(ring, place)), c->step[t], c->k + t * keys, keys);
		check_codes_of((const int8_t *)(state + softmax_value(ring, place)), QUANTIZE_FIXED_STEP,
		               c->v + t * values, values);
	}
	for (const float *x = pool; x < state; x++)
		assert_true(isnan(*x));
	for (int64_t i = 0; i < MARGIN; i++)
		assert_true(isnan(state[softmax_code_state_floats(keys, values, k->window) + i]));
}

static void the_ring_holds_codes_in_a_quarter_of_the_bytes(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * KINDS; i++) {
		const kind *k = &kinds[i / 2];
		layer l = layer_new(i % 2 ? fast : reference, fixture_run, *k, SOFTMAX_CODES);
		text c = coded_new(k, 230, 21);
		for (int64_t n = 1; c.read < c.n; n = 3 * n < c.n - c.read ? 3 * n : c.n - c.read)
			read_one(&l, &c, n);
		check_ring(&l, &c);
		text_free(&c);
		layer_free(&l);
	}
	assert_int_equal(softmax_code_state_floats(48, 32, 2048), 2048 * (12 + 8 + 1));
	assert_int_equal(softmax_state_floats(48, 32, 2048), 2048 * (48 + 32 + 1));
}

/* The keys of masked tokens may have any bits. */
static void masked_keys_with_nan_have_no_effect(void **state)
{
	(void)state;
	const kind *k = &kinds[1];
	layer plain = layer_new(fast, fixture_run, *k, SOFTMAX_CODES),
	      odd = layer_new(fast, fixture_run, *k, SOFTMAX_CODES);
	text x = coded_new(k, 90, 31), y = coded_new(k, 90, 31);
	for (int64_t t = 0; t < 90; t++)
		if (!y.mask[t])
			y.k[t * key_width(k)] = y.step[t] = NAN;
	read_both(&plain, &x, &odd, &y, 7);
	for (int64_t t = 0; t < 90; t++)
		if (x.mask[t])
			assert_true(compare_same("y", y.y + t * k->heads * k->value, x.y + t * k->heads * k->value,
			                         k->heads * k->value));
	text_free(&x);
	text_free(&y);
	layer_free(&plain);
	layer_free(&odd);
}

/* --- threads and checks ------------------------------------------------------------------------------------------ */

static void decoding_does_not_depend_on_threads(void **state)
{
	(void)state;
	const kind k = {.heads = 4, .kv_heads = 4, .key = 16, .value = 16, .window = 1500, .biased = true};
	text first = coded_new(&k, 1600, 41);
	for (int threads = 1; threads <= 7; threads += 3) {
		backend *b = fixture_open(threads);
		layer l = layer_new(b, fixture_run, k, SOFTMAX_CODES);
		text c = coded_new(&k, 1600, 41);
		read_one(&l, &c, 1590);
		while (c.read < c.n)
			read_one(&l, &c, 1);
		if (threads == 1)
			memcpy(first.y, c.y, (size_t)(1600 * k.heads * k.value) * sizeof(float));
		assert_true(compare_same("y", c.y, first.y, 1600 * k.heads * k.value));
		text_free(&c);
		layer_free(&l);
		backend_close(b);
	}
	text_free(&first);
}

static void arguments_that_do_not_fit_are_refused_by_name(void **state)
{
	(void)state;
	enum { H = 2, KEY = 6, VALUE = 5, WINDOW = 6, STATE = (3 + 3 + 1) * WINDOW };
	const softmax_stream_params right = {.heads = H, .window = WINDOW, .scale = 1, .value_step = 0.5f};
	const tensor in[13] = {
	    FLOATS(SHAPE3(1, 2, H * KEY)),
	    FLOATS(SHAPE3(1, 2, H * KEY)),
	    FLOATS(SHAPE3(1, 2, H * VALUE)),
	    FLOATS(SHAPE2(3, STATE)),
	    INTEGERS(SHAPE1(1)),
	    INTEGERS(SHAPE1(1)),
	    INTEGERS(SHAPE1(1)),
	    {0},
	    {0},
	    {0},
	    {0},
	    {0},
	    FLOATS(SHAPE1(2)),
	};
	static const struct {
		int input;
		tensor instead;
		const char *name;
	} wrong[] = {
	    {3, FLOATS(SHAPE2(3, STATE - 1)), "pool"},   {12, FLOATS(SHAPE1(3)), "key_step"},
	    {12, INTEGERS(SHAPE1(2)), "key_step"},       {12, {0}, "value_step"},
	    {0, FLOATS(SHAPE3(1, 2, H * KEY + 1)), "q"},
	};
	assert_int_equal(softmax_code_state_floats(H * KEY, H * VALUE, WINDOW), STATE);
	assert_string_equal(refused(OP_softmax_stream, &right, 13, in), "");
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		tensor some[13];
		memcpy(some, in, sizeof some);
		some[wrong[i].input] = wrong[i].instead;
		assert_string_equal(refused(OP_softmax_stream, &right, 13, some), wrong[i].name);
	}
	softmax_stream_params p = right;
	p.value_step = 0;
	assert_string_equal(refused(OP_softmax_stream, &p, 13, in), "value_step");
	p.value_step = INFINITY;
	assert_string_equal(refused(OP_softmax_stream, &p, 13, in), "value_step");
	p = right, p.query_step = -1;
	assert_string_equal(refused(OP_softmax_stream, &p, 13, in), "query_step");
	p = right, p.value_step = 0, p.query_step = 1;
	assert_string_equal(refused(OP_softmax_stream, &p, 12, in), "query_step");
	tensor together[13] = {FLOATS(SHAPE3(1, 2, 3 * H * KEY)), {0}, {0}};
	memcpy(together + 3, in + 3, 10 * sizeof *in);
	assert_string_equal(refused(OP_softmax_stream, &right, 13, together), "k");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(results_have_the_bits_of_a_ring_of_floats_on_every_instruction_set),
	    cmocka_unit_test(scores_of_coded_queries_are_exact_sums_on_every_instruction_set),
	    cmocka_unit_test(the_ring_holds_codes_in_a_quarter_of_the_bytes),
	    cmocka_unit_test(masked_keys_with_nan_have_no_effect),
	    cmocka_unit_test(decoding_does_not_depend_on_threads),
	    cmocka_unit_test(arguments_that_do_not_fit_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
