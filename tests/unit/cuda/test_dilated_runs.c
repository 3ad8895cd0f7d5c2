/* Dilated attention of prompts on the device. One block reads the keys that a head keeps for a long run of queries. The
 * results have the bits of calls of a few tokens, whichever texts and lengths a call has. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/emulator/count.h"
#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/cuts.h"
#include "tests/unit/cuda/pair.h"
#include "tests/unit/support/compare.h"

/* FEW: most tokens of a sequence that the kernel of long runs leaves to the other. */
enum { FEW = 8, TEXTS = 3, MARGIN = 4 };

/* A layer. `few`: the kernel of long runs cannot have it. */
typedef struct kind {
	dilated_pattern pattern;
	int64_t heads, dh;
	bool masked, few;
} kind;

/* Far queries have more tiles than the other kernel keeps in shared memory. */
#define MANY                                                                                                           \
	{                                                                                                              \
		16, {140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 140},                  \
		    {1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, DILATED_BLOCK                                    \
	}

static const kind kinds[] = {
    {{5, {64, 128, 256, 512, 1024}, {1, 2, 4, 8, 16}, DILATED_BLOCK}, .heads = 3, .dh = 16},
    {{3, {64, 100, 128}, {1, 2, 4}, DILATED_BLOCK}, .heads = 2, .dh = 64, .masked = true},
    {{3, {5, 7, 40}, {1, 2, 3}, DILATED_MOD}, .heads = 3, .dh = 20, .masked = true},
    {{2, {100, 140}, {1, 40}, DILATED_BLOCK}, .heads = 3, .dh = 32},
    {{2, {6, 80}, {2, 3}, DILATED_BLOCK}, .heads = 4, .dh = 12, .masked = true}, /* some queries see no token */
    {{1, {300}, {1}, DILATED_FIRST}, .heads = 2, .dh = 128},
    {MANY, .heads = 2, .dh = 8},
    {MANY, .heads = 1, .dh = 260, .few = true},
    {{2, {40, 90}, {1, 3}, DILATED_BLOCK}, .heads = 2, .dh = 3, .few = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static emulator_counter counter;

static int open_all(void **state)
{
	const int failed = open_pair(state);
	counter = emulator_counting(); /* finds only a plug-in that is loaded */
	return failed;
}

/* Tokens of text i. A call that has all of text 1 is large enough for the kernel of long runs. */
static int64_t length_of(int i)
{
	return (device_is_emulated(device) ? 140 : 3500) - 40 * i;
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

/* --- texts ------------------------------------------------------------------------------------------------------ */

static int64_t width_of(const kind *k)
{
	return k->heads * k->dh;
}

/* One sequence: its tokens, the results, and the number of tokens read. */
typedef struct text {
	int64_t n, read;
	float *in[3], *y; /* in: q, k, v */
	int32_t *mask;
} text;

/* A text whose masked tokens have keys and values of NaN. With `nan` a key that is not masked has one, too. */
static text text_new(const kind *k, int64_t n, uint64_t seed, bool nan)
{
	const int64_t d = width_of(k), bad = 31;
	text t = {
	    .n = n, .y = buffer_new((size_t)(n * d) * sizeof(float)), .mask = buffer_new((size_t)n * sizeof(int32_t))};
	random_integers(t.mask, n, seed, 0, 2);
	for (int64_t i = 0; i < n; i++)
		t.mask[i] = !k->masked || (t.mask[i] && i % 50 > 12) || (nan && i == bad);
	for (int i = 0; i < 3; i++) {
		t.in[i] = buffer_new((size_t)(n * d) * sizeof(float));
		random_normal(t.in[i], n * d, seed + 1 + (uint64_t)i, 1);
		for (int64_t e = 0; e < n * d && i > 0; e++)
			if (!t.mask[e / d] || (nan && i == 1 && e == bad * d))
				t.in[i][e] = NAN;
	}
	return t;
}

static void text_free(text *t)
{
	for (int i = 0; i < 3; i++)
		buffer_free(t->in[i]);
	buffer_free(t->y);
	buffer_free(t->mask);
}

/* --- a layer ---------------------------------------------------------------------------------------------------- */

typedef struct layer {
	backend *b;
	const kind *k;
	dilated_stream_params p;
	tensor pool; /* a slot of NaN, and one for each text */
} layer;

static layer layer_new(backend *b, const kind *k)
{
	const int64_t floats = (dilated_state_floats(width_of(k), &k->pattern) + 3) / 4 * 4 + 2 * MARGIN;
	return (layer){.b = b,
	               .k = k,
	               .p = {.pattern = k->pattern, .heads = k->heads, .offset = MARGIN, .scale = 0.3f},
	               .pool = call_tensor(DTYPE_F32, SHAPE2(TEXTS + 1, floats))};
}

/* Read the next `length` tokens of each text, in slot i + 1, in one call. Texts are rows; with `ragged` they are
 * concatenated, with room for i more tokens after text i. */
static void read_texts(layer *l, text *some, const int32_t *length, int64_t count, bool ragged)
{
	const int64_t d = width_of(l->k);
	int32_t start[TEXTS + 1] = {0}, slot[TEXTS], position[TEXTS], most = 0;
	for (int64_t i = 0; i < count; i++)
		most = length[i] > most ? length[i] : most;
	for (int64_t i = 0; i < count; i++) {
		start[i + 1] = start[i] + (ragged ? length[i] + (int32_t)i : most);
		slot[i] = (int32_t)i + 1;
		position[i] = (int32_t)some[i].read;
	}
	const int64_t rows = ragged ? 1 : count, tokens = start[count] / rows;
	op_call call = {.params = &l->p, .n_in = 9};
	for (int x = 0; x < 3; x++)
		call.in[x] = call_tensor(DTYPE_F32, SHAPE3(rows, tokens, d));
	call.in[3] = l->pool;
	call.in[4] = call_integers(SHAPE1(count), slot);
	call.in[5] = call_integers(SHAPE1(count), position);
	call.in[6] = call_integers(SHAPE1(count), length);
	if (l->k->masked)
		call.in[7] = call_tensor(DTYPE_I32, SHAPE2(rows, tokens));
	if (ragged)
		call.in[8] = call_integers(SHAPE1(count), start);
	for (int64_t i = 0; i < count; i++) {
		const text *t = &some[i];
		for (int x = 0; x < 3; x++)
			memcpy((float *)call.in[x].data + start[i] * d, t->in[x] + t->read * d,
			       (size_t)(length[i] * d) * sizeof(float));
		if (l->k->masked)
			memcpy((int32_t *)call.in[7].data + start[i], t->mask + t->read,
			       (size_t)length[i] * sizeof(int32_t));
	}
	call_run(l->b, OP_dilated_stream, &call);
	for (int64_t i = 0; i < count; i++) {
		const float *y = (const float *)call.out[0].data + start[i] * d;
		memcpy(some[i].y + some[i].read * d, y, (size_t)(length[i] * d) * sizeof *y);
		for (int64_t e = length[i] * d; e < (start[i + 1] - start[i]) * d; e++)
			assert_true(y[e] == 0);
		some[i].read += length[i];
	}
	call.in[3].data = NULL;
	call_free(&call);
}

static void read_in_chunks(layer *l, text *t, int64_t chunk)
{
	for (int64_t left; (left = t->n - t->read) > 0;)
		read_texts(l, t, &(int32_t){(int32_t)(left < chunk ? left : chunk)}, 1, false);
}

static void read_at_random(layer *l, text *texts, uint64_t seed, bool ragged)
{
	bool left = true;
	for (int call = 0; left; call++) {
		int32_t length[TEXTS];
		int64_t rest[TEXTS];
		for (int i = 0; i < TEXTS; i++)
			rest[i] = texts[i].n - texts[i].read;
		left = random_cuts(length, rest, TEXTS, call, FEW, &seed);
		read_texts(l, texts, length, TEXTS, ragged);
	}
}

/* --- tests ------------------------------------------------------------------------------------------------------ */

static void check_cuts(const kind *k, uint64_t seed)
{
	text want[TEXTS];
	if (counter.begin)
		counter.begin();
	for (int i = 0; i < TEXTS; i++) {
		layer alone = layer_new(device, k);
		want[i] = text_new(k, length_of(i), 10 * (uint64_t)i, true);
		read_in_chunks(&alone, &want[i], FEW);
		buffer_free(alone.pool.data);
	}
	if (counter.begin)
		assert_false(is_used("dilated_long_kernel"));
	for (int ragged = 0; ragged < 2; ragged++) {
		layer l = layer_new(device, k);
		text got[TEXTS];
		for (int i = 0; i < TEXTS; i++)
			got[i] = text_new(k, length_of(i), 10 * (uint64_t)i, true);
		if (counter.begin)
			counter.begin();
		read_at_random(&l, got, seed + (uint64_t)ragged, ragged);
		if (counter.begin)
			assert_int_equal(is_used("dilated_long_kernel"), !k->few);
		for (int i = 0; i < TEXTS; i++) {
			assert_true(compare_same("y", got[i].y, want[i].y, want[i].n * width_of(k)));
			text_free(&got[i]);
		}
		buffer_free(l.pool.data);
	}
	for (int i = 0; i < TEXTS; i++)
		text_free(&want[i]);
}

static void long_runs_have_the_bits_of_a_few_tokens(void **state)
{
	(void)state;
	for (int i = 0; i < KINDS; i++)
		check_cuts(&kinds[i], 100 + (uint64_t)i);
}

static void long_runs_have_the_numbers_of_the_cpu(void **state)
{
	(void)state;
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		const int64_t n = length_of(0), first = 10;
		layer ours = layer_new(device, k), theirs = layer_new(cpu, k);
		text got = text_new(k, n, 7, false), want = text_new(k, n, 7, false);
		read_texts(&ours, &got, &(int32_t){(int32_t)first}, 1, false);
		read_in_chunks(&ours, &got, n);
		read_in_chunks(&theirs, &want, n);
		assert_true(compare_close("y", got.y, want.y, n * width_of(k), 1e-5, 1e-5));
		text_free(&got);
		text_free(&want);
		buffer_free(ours.pool.data);
		buffer_free(theirs.pool.data);
	}
}

/* Kernels of a call of n tokens. */
static int kernels_of(int64_t n)
{
	const kind *k = &kinds[0];
	layer l = layer_new(device, k);
	text t = text_new(k, n, 8, false);
	size_t count;
	int kernels = 0;
	counter.begin();
	read_in_chunks(&l, &t, n);
	const emulator_work *w = counter.end(&count);
	for (size_t i = 0; i < count; i++)
		kernels += w[i].kind == EMULATOR_KERNEL;
	text_free(&t);
	buffer_free(l.pool.data);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(long_runs_have_the_bits_of_a_few_tokens),
	    cmocka_unit_test(long_runs_have_the_numbers_of_the_cpu),
	    cmocka_unit_test(long_runs_take_one_more_launch),
	};
	return cmocka_run_group_tests(tests, open_all, close_pair);
}
