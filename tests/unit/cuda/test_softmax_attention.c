/* softmax_attention and its gradient on the CUDA backend at sizes that cross tiles of queries, keys and channels. In
 * bf16, probabilities are rounded before the second product, so those results are judged in total (tensors_near). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/judges.h"
#include "tests/unit/cuda/tensors.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/op_trial.h"

/* --- sizes ------------------------------------------------------------------------------ */

typedef struct sizes {
	int64_t sequences, length, heads, dh, window, masked, percent; /* percent: dropout */
} sizes;

static const int64_t lengths[] = {1, 63, 64, 65, 130}, windows[] = {1, 5, 64, 65, 0}, widths[] = {8, 16, 20, 64, 128};
enum { LENGTHS = 5, WINDOWS = 5, WIDTHS = 5, SIZES = LENGTHS * WINDOWS };

/* Every length with every window; the other sizes take turns. */
static sizes sizes_at(int i)
{
	int length = i / WINDOWS, window = i % WINDOWS;
	return (sizes){.sequences = 1 + i % 2,
	               .length = lengths[length],
	               .heads = 1 + (i + length) % 3,
	               .dh = widths[(length + window) % WIDTHS],
	               .window = windows[window],
	               .masked = (length + 2 * window) % 3 == 0,
	               .percent = (2 * length + window) % 3 == 0 ? 30 : 0};
}

/* Further sizes: heads wider than the tensor cores' kernels allow, a long sequence, and full words of dropout that end
 * within a tile. */
static const sizes beyond[] = {
    {1, 70, 2, 136, 33, 1, 30}, {1, 65, 1, 200, 0, 0, 0},  {1, 321, 2, 64, 100, 0, 30}, {1, 300, 2, 32, 129, 1, 30},
    {1, 132, 1, 128, 0, 1, 30}, {3, 129, 2, 48, 65, 1, 0}, {1, 191, 1, 128, 70, 0, 30}, {1, 257, 1, 24, 0, 0, 30},
};
enum { BEYOND = sizeof beyond / sizeof beyond[0] };

static sizes each_size(int i)
{
	return i < SIZES ? sizes_at(i) : beyond[i - SIZES];
}

static const char *text_of(sizes s, char text[96])
{
	snprintf(text, 96, "%d x %d, %d heads of %d, window %d%s, dropout %d", (int)s.sequences, (int)s.length,
	         (int)s.heads, (int)s.dh, (int)s.window, s.masked ? ", masked" : "", (int)s.percent);
	return text;
}

/* --- one call, tried as in the op table ----------------------------------------------------- */

static bool trial(op_id id, sizes s, dtype type, double tolerance)
{
	char name[96];
	op_case c = {0};
	for (int i = 0; i < op_cases_count(); i++)
		if (op_cases_at(i)->id == id && strcmp(op_cases_at(i)->name, "global, dropout 0") == 0)
			c = *op_cases_at(i);
	assert_non_null(c.build);
	const int64_t arg[] = {s.sequences, s.length, s.heads * s.dh, s.heads, s.window, s.masked, s.percent, type};
	memcpy(c.arg, arg, sizeof arg);
	c.name = text_of(s, name);
	c.absolute = c.relative = tolerance;
	return op_trial_matches(&c, type == DTYPE_BF16 ? narrow : reference, device);
}

static void f32_agrees_with_the_reference_at_every_size(void **state)
{
	(void)state;
	int failed = 0;
	for (int i = 0; i < SIZES + BEYOND; i++) {
		if (is_left_out(device, i, 7))
			continue;
		failed += !trial(OP_softmax_attention, each_size(i), DTYPE_F32, 4e-5);
		failed += !trial(OP_softmax_attention_grad, each_size(i), DTYPE_F32, 2e-4);
	}
	assert_int_equal(failed, 0);
}

/* Guards, outputs that are not requested, unchanged inputs, empty windows; the accuracy is tested below. */
static void bf16_stays_in_its_memory(void **state)
{
	(void)state;
	int failed = 0;
	for (int i = 0; i < SIZES + BEYOND; i++) {
		if (is_left_out(device, i + 3, 7))
			continue;
		failed += !trial(OP_softmax_attention, each_size(i), DTYPE_BF16, 0.05);
		failed += !trial(OP_softmax_attention_grad, each_size(i), DTYPE_BF16, 0.25);
	}
	assert_int_equal(failed, 0);
}

/* --- both ops on the same numbers ------------------------------------------------------------- */

/* Forward and gradient of one problem, in host memory. */
typedef struct attended {
	int64_t y_count, m_count;
	float *y, *log_normalizer, *dqkv;
} attended;

static void attended_free(attended *a)
{
	free(a->y);
	free(a->log_normalizer);
	free(a->dqkv);
}

static attended attend(backend *b, sizes s, dtype type)
{
	int64_t d = s.heads * s.dh;
	shape rows = SHAPE3(s.sequences, s.length, d), numbers = SHAPE3(s.sequences, s.length, s.heads);
	shape triple = SHAPE3(s.sequences, s.length, 3 * d);
	softmax_params p = {.heads = s.heads,
	                    .window = s.window,
	                    .scale = 1 / sqrtf((float)s.dh),
	                    .p = (float)s.percent / 100,
	                    .stream = 5};
	op_call forward = {.params = &p, .n_in = 6, .n_out = 2};
	forward.in[0] = tensors_normal(b, type, triple, 1);
	if (s.masked)
		forward.in[3] = tensors_integers(b, SHAPE2(s.sequences, s.length), 2, 0, 1);
	if (s.percent)
		forward.in[5] = tensors_integers(b, SHAPE1(4), 3, INT32_MIN, INT32_MAX);
	forward.out[0] = tensors_empty(b, type, rows);
	forward.out[1] = tensors_empty(b, DTYPE_F32, numbers);
	tensors_run(b, OP_softmax_attention, &forward);
	op_call backward = {.params = &p, .n_in = 9, .n_out = 4};
	memcpy(backward.in, forward.in, 6 * sizeof(tensor));
	memcpy(backward.in + 6, forward.out, 2 * sizeof(tensor));
	backward.in[8] = tensors_normal(b, type, rows, 4);
	backward.out[0] = tensors_empty(b, type, triple);
	tensors_run(b, OP_softmax_attention_grad, &backward);
	attended a = {shape_count(rows), shape_count(numbers), tensors_get(b, forward.out[0]),
	              tensors_get(b, forward.out[1]), tensors_get(b, backward.out[0])};
	for (int i = 0; i < 9; i++)
		b->release(b, backward.in[i].data);
	b->release(b, backward.out[0].data);
	return a;
}

/* --- how exact bf16 is ---------------------------------------------------------------------------- */

static void bf16_equals_the_reference_up_to_rounding(void **state)
{
	(void)state;
	int failed = 0;
	char text[96];
	for (int i = 0; i < SIZES + BEYOND; i++) {
		sizes s = each_size(i);
		if (is_left_out(device, i + 5, 7) || (s.masked && s.length < 3))
			continue; /* in short ones all tokens may be masked, which leaves nothing to compare */
		attended want = attend(narrow, s, DTYPE_BF16), got = attend(device, s, DTYPE_BF16);
		text_of(s, text);
		failed += !compare_close(text, got.log_normalizer, want.log_normalizer, want.m_count, 1e-5, 1e-5);
		failed += !tensors_near("y", text, got.y, want.y, want.y_count);
		failed += !tensors_near("dqkv", text, got.dqkv, want.dqkv, 3 * want.y_count);
		attended_free(&want);
		attended_free(&got);
	}
	assert_int_equal(failed, 0);
}

static void two_runs_have_the_same_bits(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * BEYOND; i++) {
		dtype type = i % 2 ? DTYPE_BF16 : DTYPE_F32;
		if (is_left_out(device, i, 5))
			continue;
		attended a = attend(device, beyond[i / 2], type), b = attend(device, beyond[i / 2], type);
		assert_true(compare_same("y", a.y, b.y, a.y_count));
		assert_true(compare_same("log_normalizer", a.log_normalizer, b.log_normalizer, a.m_count));
		assert_true(compare_same("dqkv", a.dqkv, b.dqkv, 3 * a.y_count));
		attended_free(&a);
		attended_free(&b);
	}
}

/* --- wgmma ------------------------------------------------------------------------------------------ */

/* Forms of both ops in bf16. wgmma: false where they keep mma.sync. */
typedef struct form {
	int64_t batch, queries, keys, heads, kv_heads, dh, dv, window;
	bool bidirectional, masked, biased, wgmma;
	int64_t percent;
} form;

static const form forms[] = {
    {2, 130, 130, 2, 2, 64, 64, 0, .wgmma = true},
    {1, 128, 128, 1, 1, 64, 64, 0, .wgmma = true},
    {1, 1, 1, 1, 1, 64, 64, 0, .wgmma = true},
    {1, 65, 65, 2, 1, 128, 128, 0, .wgmma = true, .masked = true},
    {1, 700, 700, 1, 1, 64, 64, 100, .wgmma = true},                /* more tiles than the ring has places */
    {1, 300, 300, 4, 1, 64, 64, 40, .wgmma = true, .percent = 20},  /* four heads read the same keys */
    {1, 300, 300, 3, 1, 128, 72, 0, .wgmma = true},
    {1, 250, 280, 1, 1, 96, 96, 0, .wgmma = true, .masked = true}, /* groups of keys whose first queries are in one tile */
    {1, 450, 450, 1, 1, 40, 72, 1, .wgmma = true},
    {2, 200, 200, 4, 2, 128, 96, 70, .wgmma = true, .masked = true, .percent = 30},
    {1, 64, 333, 2, 2, 72, 40, 0, .wgmma = true, .percent = 30},
    {2, 300, 70, 2, 1, 64, 48, 50, .wgmma = true, .masked = true}, /* queries before the first key */
    {1, 129, 257, 2, 2, 64, 64, 0, .wgmma = true, .bidirectional = true, .percent = 20},
    {1, 200, 321, 1, 1, 128, 128, 65, .wgmma = true, .bidirectional = true, .masked = true},
    {1, 70, 70, 2, 2, 64, 64, 0, .biased = true},
    {1, 70, 70, 2, 2, 32, 32, 0, .wgmma = false},
    {1, 70, 70, 2, 2, 36, 64, 0, .wgmma = false},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

/* Both ops of a form, in host memory: y, log_normalizer, dq, dk, dv. */
enum { RESULTS = 5 };
typedef struct results {
	float *at[RESULTS];
	int64_t count[RESULTS];
} results;
static const char *const result_names[RESULTS] = {"y", "log_normalizer", "dq", "dk", "dv"};

static void results_free(results *r)
{
	for (int i = 0; i < RESULTS; i++)
		free(r->at[i]);
}

static void results_get(results *r, int i, backend *b, tensor t)
{
	r->at[i] = tensors_get(b, t);
	r->count[i] = shape_count(t.shape);
}

/* Run the op; return the number of kernels whose names begin so, or -1 if the device does not count its work. */
static int run_and_count(backend *b, op_id id, op_call *call, const char *kernel)
{
	const emulator_counter counter = emulator_counting();
	size_t works = 0;
	int found = 0;
	if (counter.begin)
		counter.begin();
	tensors_run(b, id, call);
	const emulator_work *work = counter.begin ? counter.end(&works) : NULL;
	for (size_t i = 0; i < works; i++)
		found += work[i].kind == EMULATOR_KERNEL && strstr(work[i].name, kernel) != NULL;
	return counter.begin ? found : -1;
}

/* Both ops must run by wgmma, or by mma.sync: one kernel of the forward, two of the gradient. */
static results attend_form(backend *b, const form *f, bool wgmma)
{
	const char *kernel = wgmma ? "_wgmma<" : "_mma<";
	softmax_params p = {.heads = f->heads,
	                    .kv_heads = f->kv_heads,
	                    .window = f->window,
	                    .bias_first = 1 - f->keys,
	                    .scale = 1 / sqrtf((float)f->dh),
	                    .p = (float)f->percent / 100,
	                    .stream = 5,
	                    .bidirectional = f->bidirectional};
	op_call call = {.params = &p, .n_in = 6, .n_out = 2}, grad = {.params = &p, .n_in = 9, .n_out = 4};
	results r;
	call.in[0] = tensors_normal(b, DTYPE_BF16, SHAPE3(f->batch, f->queries, f->heads * f->dh), 1);
	call.in[1] = tensors_normal(b, DTYPE_BF16, SHAPE3(f->batch, f->keys, f->kv_heads * f->dh), 2);
	call.in[2] = tensors_normal(b, DTYPE_BF16, SHAPE3(f->batch, f->keys, f->kv_heads * f->dv), 3);
	if (f->masked)
		call.in[3] = tensors_integers(b, SHAPE2(f->batch, f->keys), 4, 0, 1);
	if (f->biased)
		call.in[4] = tensors_normal(b, DTYPE_F32, SHAPE2(2 * f->keys, f->heads), 6);
	if (f->percent)
		call.in[5] = tensors_integers(b, SHAPE1(4), 5, INT32_MIN, INT32_MAX);
	call.out[0] = tensors_empty(b, DTYPE_BF16, SHAPE3(f->batch, f->queries, f->heads * f->dv));
	call.out[1] = tensors_empty(b, DTYPE_F32, SHAPE3(f->batch, f->queries, f->heads));
	const int forward = run_and_count(b, OP_softmax_attention, &call, kernel);
	assert_true(forward == 1 || forward < 0);
	memcpy(grad.in, call.in, 6 * sizeof(tensor));
	memcpy(grad.in + 6, call.out, 2 * sizeof(tensor));
	grad.in[8] = tensors_normal(b, DTYPE_BF16, call.out[0].shape, 7);
	for (int i = 0; i < 3; i++)
		grad.out[i] = tensors_empty(b, DTYPE_BF16, call.in[i].shape);
	const int backward = run_and_count(b, OP_softmax_attention_grad, &grad, kernel);
	assert_true(backward == 2 || backward < 0);
	for (int i = 0; i < RESULTS; i++)
		results_get(&r, i, b, i < 2 ? call.out[i] : grad.out[i - 2]);
	for (int i = 0; i < 9; i++)
		b->release(b, grad.in[i].data);
	for (int i = 0; i < 3; i++)
		b->release(b, grad.out[i].data);
	return r;
}

/* A device on which attention uses wgmma if products do. */
static backend *open_with(const char *attention)
{
	const char *products = getenv("ADDITIVE_CUDA_WGMMA");
	setenv("ADDITIVE_CUDA_WGMMA", "1", 1);
	setenv("ADDITIVE_CUDA_WGMMA_ATTENTION", attention, 1);
	backend *b = open_device();
	unsetenv("ADDITIVE_CUDA_WGMMA_ATTENTION");
	if (!products)
		unsetenv("ADDITIVE_CUDA_WGMMA");
	return b;
}

static void wgmma_gives_the_bits_of_mma(void **state)
{
	(void)state;
	backend *by_wgmma = open_with("1"), *by_mma = open_with("0");
	for (int i = 0; i < FORMS; i++) {
		results got = attend_form(by_wgmma, &forms[i], forms[i].wgmma), want = attend_form(by_mma, &forms[i], false);
		for (int j = 0; j < RESULTS; j++)
			assert_true(compare_same(result_names[j], got.at[j], want.at[j], want.count[j]));
		results_free(&got);
		results_free(&want);
	}
	backend_close(by_mma);
	backend_close(by_wgmma);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(f32_agrees_with_the_reference_at_every_size),
	    cmocka_unit_test(bf16_stays_in_its_memory),
	    cmocka_unit_test(bf16_equals_the_reference_up_to_rounding),
	    cmocka_unit_test(two_runs_have_the_same_bits),
	    cmocka_unit_test(wgmma_gives_the_bits_of_mma),
	};
	return cmocka_run_group_tests(tests, open_judges, close_judges);
}
