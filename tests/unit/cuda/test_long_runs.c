/* Softmax attention of prompts on the device. One block reads the keys of a long run of queries. The results have the
 * bits of calls of a few tokens, whichever texts and lengths a call has. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "tests/emulator/count.h"
#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/cuts.h"
#include "tests/unit/cuda/pair.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/softmax_layer.h"

/* FEW: most tokens of a sequence that the kernel of long runs leaves to the other. A call of TEXTS rows that has all of
 * text 1 is large enough for a device with 132 processors. */
enum { FEW = 4, HEADS = 8, TEXTS = 4, LENGTH = 210 };

static const kind kinds[] = {
    {.heads = HEADS, .kv_heads = HEADS, .key = 16, .value = 16, .window = 2100, .together = true},
    {.heads = HEADS,
     .kv_heads = 2,
     .key = 64,
     .value = 32,
     .window = 100,
     .memories = 70,
     .biased = true,
     .masked = true},
    {.heads = HEADS, .kv_heads = HEADS, .key = 16, .value = 16, .window = 100, .memories = 5, .stored = true},
    {.heads = HEADS, .kv_heads = 4, .key = 20, .value = 12, .window = 64, .past = 50, .memories = 3, .masked = true},
    {.heads = 9, .kv_heads = 3, .key = 8, .value = 128, .window = 33, .masked = true},
    {.heads = HEADS, .kv_heads = HEADS, .key = 32, .value = 32, .window = 1, .together = true},
    {.heads = HEADS, .kv_heads = HEADS, .key = 64, .value = 64, .window = LENGTH, .together = true, .masked = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static emulator_counter counter;

static int open_all(void **state)
{
	const int failed = open_pair(state);
	counter = emulator_counting(); /* finds only a plug-in that is loaded */
	return failed;
}

/* A text whose masked tokens have keys and values of NaN. */
static text text_of(const kind *k, int64_t n, uint64_t seed)
{
	text t = text_new(k, n, seed);
	for (int64_t i = 0; i < n; i++) {
		for (int64_t d = 0; d < key_width(k) && !t.mask[i]; d++)
			t.k[i * key_width(k) + d] = NAN;
		for (int64_t d = 0; d < value_width(k) && !t.mask[i]; d++)
			t.v[i * value_width(k) + d] = NAN;
	}
	return t;
}

/* Such a text with a key of NaN that is not masked. A query of position 63 that sees 33 tokens sees no other key of its
 * tile. */
static text text_with_nan(const kind *k, int64_t n, uint64_t seed)
{
	text t = text_of(k, n, seed);
	const int64_t token = 31;
	t.mask[token] = 1;
	for (int64_t d = 0; d < key_width(k); d++)
		t.k[token * key_width(k) + d] = d == 0 ? NAN : 1;
	return t;
}

static bool is_used(const char *kernel)
{
	size_t n;
	const emulator_work *w = counter.end(&n);
	for (size_t i = 0; i < n; i++)
		if (strstr(w[i].name, kernel))
			return true;
	return false;
}

static void assert_same_text(const kind *k, const text *got, const text *want)
{
	assert_true(compare_same("y", got->y, want->y, want->n * k->heads * k->value));
	assert_true(compare_same("log_normalizer", got->log_normalizer, want->log_normalizer, want->n * k->heads));
}

static void read_at_random(layer *l, text *texts, uint64_t seed, bool ragged)
{
	text *some[TEXTS];
	bool left = true;
	for (int call = 0; left; call++) {
		int32_t length[TEXTS];
		int64_t rest[TEXTS];
		for (int i = 0; i < TEXTS; i++) {
			some[i] = &texts[i];
			rest[i] = texts[i].n - texts[i].read;
		}
		left = random_cuts(length, rest, TEXTS, call, FEW, &seed);
		read_texts(l, some, length, TEXTS, ragged);
	}
}

static void check_cuts(const kind *k, softmax_format format, uint64_t seed)
{
	text want[TEXTS];
	if (counter.begin)
		counter.begin();
	for (int i = 0; i < TEXTS; i++) {
		want[i] = text_with_nan(k, LENGTH - 50 * i, 10 * (uint64_t)i);
		layer alone = layer_new(device, call_run, *k, format);
		read_in_chunks(&alone, &want[i], FEW);
		layer_free(&alone);
	}
	if (counter.begin)
		assert_false(is_used("softmax_long_kernel"));
	for (int ragged = 0; ragged < 2; ragged++) {
		layer l = layer_new(device, call_run, *k, format);
		text got[TEXTS];
		for (int i = 0; i < TEXTS; i++)
			got[i] = text_with_nan(k, LENGTH - 50 * i, 10 * (uint64_t)i);
		if (counter.begin)
			counter.begin();
		read_at_random(&l, got, seed + (uint64_t)ragged, ragged);
		if (counter.begin)
			assert_int_equal(is_used("softmax_long_kernel"), !k->stored);
		for (int i = 0; i < TEXTS; i++) {
			assert_same_text(k, &got[i], &want[i]);
			text_free(&got[i]);
		}
		layer_free(&l);
	}
	for (int i = 0; i < TEXTS; i++)
		text_free(&want[i]);
}

static void long_runs_have_the_bits_of_a_few_tokens(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * KINDS; i++)
		check_cuts(&kinds[i / 2], i % 2 ? SOFTMAX_BF16 : SOFTMAX_F32, 100 + (uint64_t)i / 2);
}

/* Tokens of one call that the kernel of long runs reads: n suffice for the few processors of the emulated device. */
static int64_t enough(int64_t n)
{
	return device_is_emulated(device) ? n : 720;
}

static void long_runs_have_the_numbers_of_the_cpu(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * KINDS; i++) {
		const kind *k = &kinds[i / 2];
		const softmax_format format = i % 2 ? SOFTMAX_BF16 : SOFTMAX_F32;
		layer ours = layer_new(device, call_run, *k, format), theirs = layer_new(cpu, call_run, *k, format);
		const int64_t n = enough(150);
		text got = text_of(k, n, 7), want = text_of(k, n, 7);
		read_in_chunks(&ours, &got, n);
		read_in_chunks(&theirs, &want, n);
		assert_true(compare_close("y", got.y, want.y, n * k->heads * k->value, 1e-5, 1e-5));
		assert_true(
		    compare_close("log_normalizer", got.log_normalizer, want.log_normalizer, n * k->heads, 1e-5, 1e-5));
		text_free(&got);
		text_free(&want);
		layer_free(&ours);
		layer_free(&theirs);
	}
}

/* Kernels of a call of n tokens. */
static int kernels_of(int64_t n)
{
	const kind *k = &kinds[0];
	layer l = layer_new(device, call_run, *k, SOFTMAX_F32);
	text t = text_of(k, n, 8);
	size_t count;
	int kernels = 0;
	counter.begin();
	read_one(&l, &t, n);
	const emulator_work *w = counter.end(&count);
	for (size_t i = 0; i < count; i++)
		kernels += w[i].kind == EMULATOR_KERNEL;
	text_free(&t);
	layer_free(&l);
	return kernels;
}

static void long_runs_take_one_more_launch(void **state)
{
	(void)state;
	if (!counter.begin)
		skip();
	assert_int_equal(kernels_of(FEW), 2);
	assert_int_equal(kernels_of(100), 3);
}

/* --- a source -------------------------------------------------------------------------------------------------- */

enum { WIDTH = 32, SOURCE = 110 };

/* y of n queries to a source of SOURCE - 7 tokens and 5 memories, `each` in a call. */
static float *ask(const float *q, int64_t n, int64_t each)
{
	const int64_t width = HEADS * WIDTH, keys = width / 2, floats = source_state_floats(keys, keys, SOURCE);
	const source_params p = {.heads = HEADS,
	                         .kv_heads = HEADS / 2,
	                         .value_width = keys,
	                         .capacity = SOURCE,
	                         .offset = MARGIN,
	                         .scale = 0.3f};
	tensor pool = call_tensor(DTYPE_F32, SHAPE2(1, (floats + 3) / 4 * 4 + 2 * MARGIN));
	const shape source = SHAPE3(1, SOURCE - 7, keys);
	op_call store = {.params = &p,
	                 .n_in = 6,
	                 .in = {call_normal(source, 1, 1), call_normal(source, 2, 1), pool,
	                        call_integers(SHAPE1(1), &(int32_t){0})}};
	call_run(device, OP_source_store, &store);
	float *y = buffer_new((size_t)(n * width) * sizeof *y);
	tensor memory_k = call_normal(SHAPE2(5, keys), 3, 1), memory_v = call_normal(SHAPE2(5, keys), 4, 1);
	for (int64_t i = 0; i < n; i += each) {
		tensor some = call_tensor(DTYPE_F32, SHAPE3(1, each, width));
		memcpy(some.data, q + i * width, (size_t)(each * width) * sizeof *q);
		op_call call = {.params = &p,
		                .n_in = 7,
		                .in = {some,
		                       pool,
		                       store.in[3],
		                       call_integers(SHAPE1(1), &(int32_t){(int32_t)each}),
		                       {0},
		                       memory_k,
		                       memory_v}};
		call_run(device, OP_source_attention, &call);
		memcpy(y + i * width, call.out[0].data, (size_t)(each * width) * sizeof *y);
		call_free_outputs(&call);
		buffer_free(some.data);
		buffer_free(call.in[3].data);
	}
	buffer_free(memory_k.data);
	buffer_free(memory_v.data);
	call_free(&store);
	return y;
}

static void long_runs_read_a_source_with_the_bits_of_a_few_tokens(void **state)
{
	(void)state;
	const int64_t n = enough(80);
	tensor q = call_normal(SHAPE2(n, HEADS * WIDTH), 9, 1);
	float *few = ask(q.data, n, FEW);
	if (counter.begin)
		counter.begin();
	float *many = ask(q.data, n, n);
	if (counter.begin)
		assert_true(is_used("softmax_long_kernel"));
	assert_true(compare_same("y", many, few, n * HEADS * WIDTH));
	buffer_free(few);
	buffer_free(many);
	buffer_free(q.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(long_runs_have_the_bits_of_a_few_tokens),
	    cmocka_unit_test(long_runs_have_the_numbers_of_the_cpu),
	    cmocka_unit_test(long_runs_take_one_more_launch),
	    cmocka_unit_test(long_runs_read_a_source_with_the_bits_of_a_few_tokens),
	};
	return cmocka_run_group_tests(tests, open_all, close_pair);
}
