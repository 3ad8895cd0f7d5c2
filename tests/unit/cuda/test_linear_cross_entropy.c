/* linear_cross_entropy on the CUDA backend at sizes that cross packs, tiles, chunks and groups of rows, and parts of a
 * walk. Chunks and groups are small on the emulated device. bf16 with up to 128 channels, a multiple of 8, has its own
 * kernels. In bf16 the gradient of a logit is rounded and logits are not, so a loss is as exact as in f32. */
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
#include "tests/unit/cuda/judges.h"
#include "tests/unit/cuda/tensors.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/op_trial.h"

typedef struct sizes {
	int64_t rows, d, classes, smoothing /* in percent */;
	bool biased;
	int32_t low, high; /* labels; those outside the classes are ignored */
} sizes;

static const sizes list[] = {
    {1, 8, 1, 0, true, 0, 0},          {33, 5, 1, 10, false, -1, 0},     {9, 8, 7, 0, false, 0, 6},
    {2100, 3, 7, 10, true, -1, 7},     {9000, 2, 5, 0, true, -3, 5},     {31, 16, 1000, 0, true, 0, 999},
    {70, 7, 1000, 10, false, -9, 999}, {33, 8, 5003, 0, true, -1, 5003}, {65, 6, 5003, 10, true, 0, 5002},
    {40, 8, 1000, 10, true, -2, -1},   {97, 16, 264, 100, true, 0, 263}, {130, 64, 200, 0, true, -1, 199},
    {129, 128, 65, 10, false, 0, 64},  {1100, 8, 70, 0, true, -5, 69},   {40, 120, 500, 10, true, 0, 499},
    {33, 8, 72, 10, true, -1, 71},
};
/* A trial is 34 runs; tiles of tensor cores are slow on an emulated device. */
enum { SIZES = sizeof list / sizeof list[0], TRIAL_LOGITS = 32000, TRIAL_PRODUCTS = 500000, TRIAL_TILED = 2500 };

static const char *text_of(sizes s, char text[96])
{
	snprintf(text, 96, "%d x %d, %d classes, smoothing %d, labels %d to %d%s", (int)s.rows, (int)s.d,
	         (int)s.classes, (int)s.smoothing, (int)s.low, (int)s.high, s.biased ? ", biased" : "");
	return text;
}

/* --- one call, tried as in the op table ----------------------------------------------------- */

static bool trial(sizes s, dtype type, double tolerance)
{
	char name[96];
	op_case c = {0};
	for (int i = 0; i < op_cases_count(); i++)
		if (op_cases_at(i)->id == OP_linear_cross_entropy && strcmp(op_cases_at(i)->name, "plain") == 0)
			c = *op_cases_at(i);
	assert_non_null(c.build);
	const int64_t arg[] = {s.rows, s.d, s.classes, s.smoothing, s.biased, 0, 0, type};
	memcpy(c.arg, arg, sizeof arg);
	c.name = text_of(s, name);
	c.low = s.low;
	c.high = s.high;
	c.absolute = c.relative = tolerance;
	return op_trial_matches(&c, type == DTYPE_BF16 ? narrow : reference, device);
}

static void every_size_with_any_requested_outputs(void **state)
{
	(void)state;
	int failed = 0;
	for (int i = 0; i < SIZES; i++) {
		const int64_t logits = list[i].rows * list[i].classes;
		if (logits > TRIAL_LOGITS || logits * list[i].d > TRIAL_PRODUCTS || is_left_out(device, i, 7))
			continue;
		failed += !trial(list[i], DTYPE_F32, 2e-5);
		if (list[i].d % 8 != 0 || logits <= TRIAL_TILED)
			failed += !trial(list[i], DTYPE_BF16, 5e-3); /* accuracy is tested below */
	}
	assert_int_equal(failed, 0);
}

/* --- one call with the test's own numbers ------------------------------------------------------- */

/* Results of an op, in host memory. Gradients are NULL if not requested. */
typedef struct result {
	float loss, count, *dhidden, *dweight, *dbias, *hit;
	size_t scratch;
} result;

static void result_free(result *r)
{
	free(r->dhidden);
	free(r->dweight);
	free(r->dbias);
	free(r->hit);
}

static float *take(backend *b, tensor t)
{
	float *x = t.data ? tensors_get(b, t) : NULL;
	b->release(b, t.data);
	return x;
}

/* Confident predictions: a row of hidden is its label's row of weight. */
static void point_at_labels(backend *b, const op_call *call)
{
	const int64_t rows = call->in[0].shape.dim[0], d = call->in[0].shape.dim[1];
	float *weight = tensors_get(b, call->in[1]);
	int32_t *label = tensors_room((size_t)rows * sizeof *label);
	uint16_t *hidden = tensors_room((size_t)(rows * d) * sizeof *hidden);
	assert_int_equal(b->download(b, label, call->in[3].data, (size_t)rows * sizeof *label), STATUS_OK);
	for (int64_t i = 0; i < rows * d; i++)
		hidden[i] = panel_bf16(weight[(label[i / d] < 0 ? 0 : label[i / d]) * d + i % d]);
	assert_int_equal(b->upload(b, call->in[0].data, hidden, (size_t)(rows * d) * sizeof *hidden), STATUS_OK);
	assert_int_equal(b->synchronize(b), STATUS_OK);
	free(weight);
	free(label);
	free(hidden);
}

/* Also, the second half of the classes repeats the first. */
static void point_at_labels_of_equal_classes(backend *b, const op_call *call)
{
	const int64_t half = call->in[1].shape.dim[0] / 2, d = call->in[1].shape.dim[1];
	const size_t bytes = (size_t)(half * d) * dtype_bytes(call->in[1].type);
	void *rows = tensors_room(bytes);
	assert_int_equal(b->download(b, rows, call->in[1].data, bytes), STATUS_OK);
	assert_int_equal(b->upload(b, (char *)call->in[1].data + bytes, rows, bytes), STATUS_OK);
	assert_int_equal(b->synchronize(b), STATUS_OK);
	free(rows);
	point_at_labels(b, call);
}

static op_call call_of(backend *b, sizes s, dtype type, const linear_cross_entropy_params *p)
{
	op_call call = {.params = p, .n_in = 4, .n_out = 6};
	call.in[0] = tensors_normal(b, type, SHAPE2(s.rows, s.d), 1);
	call.in[1] = tensors_normal(b, type, SHAPE2(s.classes, s.d), 2);
	if (s.biased)
		call.in[2] = tensors_normal(b, DTYPE_F32, SHAPE1(s.classes), 3);
	call.in[3] = tensors_integers(b, SHAPE1(s.rows), 4, s.low, s.high);
	call.out[0] = tensors_empty(b, DTYPE_F32, SHAPE0());
	call.out[1] = tensors_empty(b, DTYPE_F32, SHAPE0());
	call.out[5] = tensors_empty(b, DTYPE_F32, SHAPE1(s.rows));
	return call;
}

static result run_on(backend *b, sizes s, dtype type, float alpha, bool gradients,
                     void (*prepare)(backend *b, const op_call *call))
{
	linear_cross_entropy_params p = {alpha, (float)s.smoothing / 100};
	op_call call = call_of(b, s, type, &p);
	if (prepare)
		prepare(b, &call);
	if (gradients) {
		call.out[2] = tensors_empty(b, type, call.in[0].shape);
		call.out[3] = tensors_empty(b, DTYPE_F32, call.in[1].shape);
		call.out[4] = tensors_empty(b, DTYPE_F32, SHAPE1(s.classes));
	}
	result r = {.scratch = b->scratch[OP_linear_cross_entropy](b, &call)};
	tensors_run(b, OP_linear_cross_entropy, &call);
	for (int i = 0; i < 4; i++)
		b->release(b, call.in[i].data);
	float *loss = take(b, call.out[0]), *count = take(b, call.out[1]);
	r.loss = *loss, r.count = *count;
	free(loss);
	free(count);
	r.dhidden = take(b, call.out[2]), r.dweight = take(b, call.out[3]), r.dbias = take(b, call.out[4]);
	r.hit = take(b, call.out[5]);
	return r;
}

static result run(backend *b, sizes s, dtype type, float alpha, bool gradients)
{
	return run_on(b, s, type, alpha, gradients, NULL);
}

/* f32 is compared with the bounds of bf16 here, and with its own above. */
static int failures(sizes s, dtype type, float alpha, void (*prepare)(backend *b, const op_call *call))
{
	char text[96];
	text_of(s, text);
	result want = run_on(type == DTYPE_BF16 ? narrow : reference, s, type, alpha, true, prepare),
	       got = run_on(device, s, type, alpha, true, prepare);
	/* Tensor cores truncate terms that do not fit into a sum in f32; the label's logit, alpha d, is a sum of its
	 * own. */
	const double cut = prepare ? alpha * (double)s.d * 0x1p-22 : 0;
	int failed = !compare_close(text, &got.loss, &want.loss, 1, 1e-6 + cut, 2e-6) + !(got.count == want.count);
	failed += !compare_same("hit", got.hit, want.hit, s.rows);
	/* Without labels, or with one class, all numbers are zero. */
	if (s.classes > 1 && want.count > 0) {
		failed += !tensors_near("dhidden", text, got.dhidden, want.dhidden, s.rows * s.d);
		failed += !tensors_near("dweight", text, got.dweight, want.dweight, s.classes * s.d);
		failed += !tensors_near("dbias", text, got.dbias, want.dbias, s.classes);
	}
	result_free(&want);
	result_free(&got);
	return failed;
}

static void both_types_equal_the_reference_up_to_rounding(void **state)
{
	(void)state;
	int failed = 0;
	for (int i = 0; i < 2 * SIZES; i++)
		failed += failures(list[i / 2], i % 2 ? DTYPE_BF16 : DTYPE_F32, 0.7f, NULL);
	assert_int_equal(failed, 0);
}

/* Logits of a row range from about -100 to 100, and the largest may be anywhere. */
static void logits_may_be_far_apart(void **state)
{
	(void)state;
	assert_int_equal(failures((sizes){40, 64, 500, 10, true, -1, 499}, DTYPE_BF16, 4, NULL), 0);
	assert_int_equal(failures((sizes){40, 128, 200, 0, false, 0, 199}, DTYPE_BF16, 3, NULL), 0);
	assert_int_equal(failures((sizes){70, 7, 900, 10, true, -1, 899}, DTYPE_BF16, 12, NULL), 0);
}

/* p of a label differs from 1 by less than bf16 resolves; the gradient is that difference. */
static void gradients_of_confident_predictions_are_as_exact(void **state)
{
	(void)state;
	for (int smoothing = 0; smoothing <= 10; smoothing += 10)
		assert_int_equal(
		    failures((sizes){40, 64, 700, smoothing, false, 0, 699}, DTYPE_BF16, 0.25f, point_at_labels), 0);
}

/* Logits of up to a few hundred: rounding them to bf16 would change the loss by about 1. */
static void a_loss_of_large_logits_is_exact_in_bf16(void **state)
{
	(void)state;
	sizes s = {50, 64, 700, 10, true, 0, 699};
	result want = run(narrow, s, DTYPE_BF16, 12, false), got = run(device, s, DTYPE_BF16, 12, false);
	assert_true(want.loss > 100);
	assert_true(compare_close("loss", &got.loss, &want.loss, 1, 0, 1e-6));
	result_free(&want);
	result_free(&got);
}

/* Confident predictions for classes that come in pairs: the first one counts. */
static void among_equal_logits_the_first_is_the_hit(void **state)
{
	(void)state;
	for (int wide = 0; wide < 2; wide++) { /* few channels and many have different kernels */
		const sizes s = {140, wide ? 136 : 64, 404, 0, false, -1, 403};
		int32_t *label = tensors_room((size_t)s.rows * sizeof *label);
		random_integers(label, s.rows, 4, s.low, s.high); /* the labels of call_of */
		result r = run_on(device, s, DTYPE_BF16, 0.25f, false, point_at_labels_of_equal_classes);
		for (int64_t i = 0; i < s.rows; i++)
			assert_true(r.hit[i] == (label[i] >= 0 && label[i] < s.classes / 2 ? 1.0f : 0.0f));
		result_free(&r);
		free(label);
	}
}

static void an_evaluation_needs_less_memory_and_has_the_same_loss(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		dtype type = i ? DTYPE_BF16 : DTYPE_F32;
		sizes s = {300, 8, 1003, 10, true, -1, 1002};
		result all = run(device, s, type, 0.5f, true), loss = run(device, s, type, 0.5f, false);
		assert_true(compare_same("loss", &loss.loss, &all.loss, 1));
		assert_true(compare_same("hit", loss.hit, all.hit, s.rows));
		assert_true(loss.scratch < all.scratch);
		result_free(&all);
		result_free(&loss);
	}
}

static void two_runs_have_the_same_bits(void **state)
{
	(void)state;
	for (int i = 0; i < SIZES; i++) {
		sizes s = list[i];
		dtype type = i % 2 ? DTYPE_BF16 : DTYPE_F32;
		result a = run(device, s, type, 0.5f, true), b = run(device, s, type, 0.5f, true);
		assert_true(compare_same("loss", &a.loss, &b.loss, 1));
		assert_true(compare_same("hit", a.hit, b.hit, s.rows));
		assert_true(compare_same("dhidden", a.dhidden, b.dhidden, s.rows * s.d));
		assert_true(compare_same("dweight", a.dweight, b.dweight, s.classes * s.d));
		assert_true(compare_same("dbias", a.dbias, b.dbias, s.classes));
		result_free(&a);
		result_free(&b);
	}
}

static void panels_are_not_supported(void **state)
{
	(void)state;
	linear_cross_entropy_params p = {1, 0};
	op_call call = call_of(device, (sizes){3, 4, 5, 0, false, 0, 4}, DTYPE_F32, &p);
	call.in[1].type = DTYPE_PANEL_F32;
	assert_int_equal(device->kernel[OP_linear_cross_entropy](device, &call), STATUS_UNSUPPORTED);
	for (int i = 0; i < 4; i++)
		device->release(device, call.in[i].data);
	device->release(device, call.out[0].data);
	device->release(device, call.out[1].data);
	device->release(device, call.out[5].data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(both_types_equal_the_reference_up_to_rounding),
	    cmocka_unit_test(logits_may_be_far_apart),
	    cmocka_unit_test(gradients_of_confident_predictions_are_as_exact),
	    cmocka_unit_test(a_loss_of_large_logits_is_exact_in_bf16),
	    cmocka_unit_test(among_equal_logits_the_first_is_the_hit),
	    cmocka_unit_test(an_evaluation_needs_less_memory_and_has_the_same_loss),
	    cmocka_unit_test(two_runs_have_the_same_bits),
	    cmocka_unit_test(every_size_with_any_requested_outputs),
	    cmocka_unit_test(panels_are_not_supported),
	};
	return cmocka_run_group_tests(tests, open_judges, close_judges);
}
