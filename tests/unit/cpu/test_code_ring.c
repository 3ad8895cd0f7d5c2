/* softmax_stream with a ring of codes: the bits of a ring of floats on every instruction set, or where queries are
 * codes too its numbers with exact sums of products, and what lies in the ring. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/softmax_stream.h"
#include "tests/unit/cpu/streams.h"

/* --- texts and layers ---------------------------------------------------------------------------------------- */

/* A text whose keys and values are multiples of steps. */
typedef struct coded {
	text t;
	float *step, *log_normalizer;
} coded;

/* Loud values are cut at both ends of the codes; token 3 has keys of 0. */
static coded coded_new(const kind *k, int64_t n, uint64_t seed)
{
	coded c = {text_new(k, n, seed), numbers(n, seed + 5), numbers(n * k->heads, seed + 6)};
	const int64_t keys = key_width(k);
	for (int64_t i = 0; i < n; i++) {
		double squares = 0;
		for (int64_t d = 0; d < keys; d++) {
			c.t.k[i * keys + d] *= i == 3 ? 0 : 1 + (float)(i % 7);
			squares += (double)c.t.k[i * keys + d] * (double)c.t.k[i * keys + d];
		}
		c.step[i] = quantize_step(squares, keys);
		for (int64_t d = 0; d < keys; d++)
			c.t.k[i * keys + d] = quantize_value(c.t.k[i * keys + d], c.step[i], 8);
	}
	for (int64_t i = 0; i < n * value_width(k); i++)
		c.t.v[i] = quantize_value(3 * c.t.v[i], QUANTIZE_FIXED_STEP, 8);
	return c;
}

static void coded_free(coded *c)
{
	text_free(&c->t);
	free(c->step);
	free(c->log_normalizer);
}

/* Two slots of NaN, with a margin on either side of the state in the second. */
typedef struct layer {
	backend *b;
	kind k;
	bool codes;
	softmax_stream_params p;
	tensor pool, memory_k, memory_v, bias;
} layer;

static layer layer_new(backend *b, kind k, bool codes)
{
	const int64_t state = codes ? softmax_code_state_floats(key_width(&k), value_width(&k), k.window)
	                            : softmax_state_floats(key_width(&k), value_width(&k), k.window);
	layer l = {.b = b, .k = k, .codes = codes, .pool = fixture_tensor(DTYPE_F32, SHAPE2(2, state + 2 * MARGIN))};
	l.p = (softmax_stream_params){.heads = k.heads,
	                              .window = k.window,
	                              .offset = MARGIN,
	                              .scale = 0.3f,
	                              .kv_heads = k.kv_heads,
	                              .past = k.past,
	                              .value_step = codes ? QUANTIZE_FIXED_STEP : 0};
	if (k.memories) {
		l.memory_k = fixture_normal(SHAPE2(k.memories, key_width(&k)), 3, 1);
		l.memory_v = fixture_normal(SHAPE2(k.memories, value_width(&k)), 4, 1);
	}
	if (k.biased)
		l.bias = fixture_normal(SHAPE2(k.window + k.memories, k.heads), 5, 1);
	return l;
}

static void layer_free(layer *l)
{
	buffer_free(l->pool.data);
	buffer_free(l->memory_k.data);
	buffer_free(l->memory_v.data);
	buffer_free(l->bias.data);
}

static const float *state_of(const layer *l)
{
	return (const float *)l->pool.data + l->pool.shape.dim[1] + MARGIN;
}

/* The next n tokens of the text, in slot 1. */
static void read_tokens(layer *l, coded *c, int64_t n)
{
	const kind *k = &l->k;
	text *t = &c->t;
	op_call call = {.params = &l->p, .n_in = 13};
	call.in[0] = fixture_tensor(DTYPE_F32, SHAPE3(1, n, k->heads * k->key));
	call.in[1] = fixture_tensor(DTYPE_F32, SHAPE3(1, n, key_width(k)));
	call.in[2] = fixture_tensor(DTYPE_F32, SHAPE3(1, n, value_width(k)));
	call.in[3] = l->pool;
	call.in[4] = integers_of((int32_t[]){1}, 1);
	call.in[5] = integers_of((int32_t[]){(int32_t)t->read}, 1);
	call.in[6] = integers_of((int32_t[]){(int32_t)n}, 1);
	call.in[7] = fixture_tensor(DTYPE_I32, SHAPE2(1, n));
	call.in[9] = l->memory_k;
	call.in[10] = l->memory_v;
	call.in[11] = l->bias;
	put(&call.in[0], 0, 0, t->q, t->read, n, k->heads * k->key);
	put(&call.in[1], 0, 0, t->k, t->read, n, key_width(k));
	put(&call.in[2], 0, 0, t->v, t->read, n, value_width(k));
	memcpy(call.in[7].data, t->mask + t->read, (size_t)n * sizeof(int32_t));
	if (l->codes) {
		call.in[12] = fixture_tensor(DTYPE_F32, SHAPE1(n));
		memcpy(call.in[12].data, c->step + t->read, (size_t)n * sizeof(float));
	}
	fixture_run(l->b, OP_softmax_stream, &call);
	memcpy(t->y + t->read * k->heads * k->value, call.out[0].data,
	       (size_t)(n * k->heads * k->value) * sizeof(float));
	memcpy(c->log_normalizer + t->read * k->heads, call.out[1].data, (size_t)(n * k->heads) * sizeof(float));
	t->read += n;
	call.in[3].data = call.in[9].data = call.in[10].data = call.in[11].data = NULL;
	fixture_free(&call);
}

/* The same pieces of the text for both. */
static void read_both(layer *a, coded *x, layer *b, coded *y, uint64_t seed)
{
	while (x->t.read < x->t.n) {
		const int64_t left = x->t.n - x->t.read;
		int64_t n = random_next(&seed, 0, 2) ? random_next(&seed, 1, 5) : random_next(&seed, 5, 90);
		n = n < left ? n : left;
		read_tokens(a, x, n);
		read_tokens(b, y, n);
	}
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
		layer floats = layer_new(b, *k, false), codes = layer_new(b, *k, true);
		coded x = coded_new(k, 230, 11), y = coded_new(k, 230, 11);
		read_both(&floats, &x, &codes, &y, 5 + (uint64_t)i);
		assert_true(compare_same("y", y.t.y, x.t.y, 230 * k->heads * k->value));
		assert_true(compare_same("log_normalizer", y.log_normalizer, x.log_normalizer, 230 * k->heads));
		coded_free(&x);
		coded_free(&y);
		layer_free(&floats);
		layer_free(&codes);
	}
}

static void results_have_the_bits_of_a_ring_of_floats_on_every_instruction_set(void **state)
{
	(void)state;
	static const char *const isas[] = {"baseline", "avx2", "avx512"};
	check_bits(reference);
	for (int i = 0; i < 3; i++) {
		setenv("ADDITIVE_CPU_ISA", isas[i], 1);
		backend *b = fixture_open(2);
		unsetenv("ADDITIVE_CPU_ISA");
		check_bits(b);
		backend_close(b);
	}
}

/* --- queries that are codes ------------------------------------------------------------------------------------ */

static void code_queries(const kind *k, coded *c)
{
	for (int64_t i = 0; i < c->t.n * k->heads * k->key; i++)
		c->t.q[i] = quantize_value(c->t.q[i], QUANTIZE_FIXED_STEP, 8);
}

static void check_coded_queries(backend *b)
{
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		layer floats = layer_new(b, *k, false), codes = layer_new(b, *k, true);
		coded x = coded_new(k, 230, 11), y = coded_new(k, 230, 11);
		codes.p.query_step = QUANTIZE_FIXED_STEP;
		code_queries(k, &x);
		code_queries(k, &y);
		read_both(&floats, &x, &codes, &y, 5 + (uint64_t)i);
		assert_true(compare_close("y", y.t.y, x.t.y, 230 * k->heads * k->value, 2e-5, 2e-5));
		assert_true(
		    compare_close("log_normalizer", y.log_normalizer, x.log_normalizer, 230 * k->heads, 2e-6, 2e-6));
		coded_free(&x);
		coded_free(&y);
		layer_free(&floats);
		layer_free(&codes);
	}
}

/* A masked token sees the one before it alone: its log-normalizer is the score. */
static void check_sums_of_products(backend *b)
{
	static const int64_t widths[] = {1, 5, 15, 16, 17, 31, 32, 33, 48, 100, 176};
	for (int i = 0; i < 11; i++) {
		const kind k = {.heads = 1, .kv_heads = 1, .key = widths[i], .value = 3, .window = 2, .masked = true};
		layer l = layer_new(b, k, true);
		coded c = coded_new(&k, 2, 60 + (uint64_t)i);
		int64_t sum = 0;
		l.p.query_step = QUANTIZE_FIXED_STEP;
		l.p.scale = 0.25f;
		code_queries(&k, &c);
		c.t.mask[0] = 1;
		c.t.mask[1] = 0;
		read_tokens(&l, &c, 1);
		read_tokens(&l, &c, 1);
		for (int64_t d = 0; d < k.key; d++)
			sum +=
			    quantize_byte(c.t.q[k.key + d], QUANTIZE_FIXED_STEP) * quantize_byte(c.t.k[d], c.step[0]);
		assert_true(c.log_normalizer[1] == 0.25f * QUANTIZE_FIXED_STEP * c.step[0] * (float)sum);
		coded_free(&c);
		layer_free(&l);
	}
}

static void scores_of_coded_queries_are_exact_sums_on_every_instruction_set(void **state)
{
	(void)state;
	static const char *const isas[] = {"baseline", "avx2", "avx512"};
	check_coded_queries(reference);
	for (int i = 0; i < 3; i++) {
		setenv("ADDITIVE_CPU_ISA", isas[i], 1);
		backend *b = fixture_open(2);
		unsetenv("ADDITIVE_CPU_ISA");
		check_coded_queries(b);
		check_sums_of_products(b);
		backend_close(b);
	}
}

/* --- what lies in the ring -------------------------------------------------------------------------------------- */

static void check_codes_of(const int8_t *code, float step, const float *x, int64_t width)
{
	for (int64_t d = 0; d < width; d++)
		assert_true((float)code[d] * step == x[d]);
	for (int64_t d = width; d % 4; d++)
		assert_int_equal(code[d], 0);
}

/* The last tokens of the text, each in its place; the margins and slot 0 are as they were. */
static void check_ring(const layer *l, const coded *c)
{
	const kind *k = &l->k;
	const int64_t keys = key_width(k), values = value_width(k), n = c->t.n;
	const softmax_store ring = softmax_store_of(keys, values, k->window, true);
	const float *state = state_of(l), *pool = l->pool.data;
	for (int64_t t = n > k->window ? n - k->window : 0; t < n; t++) {
		const int64_t place = t % k->window;
		const float step = state[softmax_there(ring, place)];
		assert_true(step == (c->t.mask[t] ? c->step[t] : SOFTMAX_MASKED_STEP));
		check_codes_of((const int8_t *)(state + softmax_key(ring, place)), c->step[t], c->t.k + t * keys, keys);
		check_codes_of((const int8_t *)(state + softmax_value(ring, place)), QUANTIZE_FIXED_STEP,
		               c->t.v + t * values, values);
	}
	for (const float *x = pool; x < state; x++)
		assert_true(isnan(*x));
	for (int64_t i = 0; i < MARGIN; i++)
		assert_true(isnan(state[softmax_code_state_floats(keys, values, k->window) + i]));
}

static void the_ring_holds_the_codes_themselves_in_a_quarter_of_the_bytes(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * KINDS; i++) {
		const kind *k = &kinds[i / 2];
		layer l = layer_new(i % 2 ? fast : reference, *k, true);
		coded c = coded_new(k, 230, 21);
		for (int64_t n = 1; c.t.read < c.t.n; n = 3 * n < c.t.n - c.t.read ? 3 * n : c.t.n - c.t.read)
			read_tokens(&l, &c, n);
		check_ring(&l, &c);
		coded_free(&c);
		layer_free(&l);
	}
	assert_int_equal(softmax_code_state_floats(48, 32, 2048), 2048 * (12 + 8 + 1));
	assert_int_equal(softmax_state_floats(48, 32, 2048), 2048 * (48 + 32 + 1));
}

/* Of masked tokens keys may be anything. */
static void masked_keys_that_are_no_numbers_change_nothing(void **state)
{
	(void)state;
	const kind *k = &kinds[1];
	layer plain = layer_new(fast, *k, true), odd = layer_new(fast, *k, true);
	coded x = coded_new(k, 90, 31), y = coded_new(k, 90, 31);
	for (int64_t t = 0; t < 90; t++)
		if (!y.t.mask[t])
			y.t.k[t * key_width(k)] = y.step[t] = NAN;
	read_both(&plain, &x, &odd, &y, 7);
	for (int64_t t = 0; t < 90; t++)
		if (x.t.mask[t])
			assert_true(compare_same("y", y.t.y + t * k->heads * k->value, x.t.y + t * k->heads * k->value,
			                         k->heads * k->value));
	coded_free(&x);
	coded_free(&y);
	layer_free(&plain);
	layer_free(&odd);
}

/* --- threads and checks ------------------------------------------------------------------------------------------ */

static void decoding_does_not_depend_on_threads(void **state)
{
	(void)state;
	const kind k = {.heads = 4, .kv_heads = 4, .key = 16, .value = 16, .window = 1500, .biased = true};
	coded first = coded_new(&k, 1600, 41);
	for (int threads = 1; threads <= 7; threads += 3) {
		backend *b = fixture_open(threads);
		layer l = layer_new(b, k, true);
		coded c = coded_new(&k, 1600, 41);
		read_tokens(&l, &c, 1590);
		while (c.t.read < c.t.n)
			read_tokens(&l, &c, 1);
		if (threads == 1)
			memcpy(first.t.y, c.t.y, (size_t)(1600 * k.heads * k.value) * sizeof(float));
		assert_true(compare_same("y", c.t.y, first.t.y, 1600 * k.heads * k.value));
		coded_free(&c);
		layer_free(&l);
		backend_close(b);
	}
	coded_free(&first);
}

static void what_does_not_fit_is_refused_by_its_name(void **state)
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
	    cmocka_unit_test(the_ring_holds_the_codes_themselves_in_a_quarter_of_the_bytes),
	    cmocka_unit_test(masked_keys_that_are_no_numbers_change_nothing),
	    cmocka_unit_test(decoding_does_not_depend_on_threads),
	    cmocka_unit_test(what_does_not_fit_is_refused_by_its_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
