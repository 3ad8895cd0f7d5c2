/* A walk over the op table: every row has cases, and every case passes on every backend. Cases:
 * tests/unit/support/op_cases/. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/panel.h"
#include "tests/unit/support/bf16_backend.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/op_trial.h"

/* A machine without an instruction set repeats the next lower one. */
static const char *const isas[] = {"avx512vnni", "avx512", "avx2", "baseline"};
enum { N_ISAS = sizeof isas / sizeof isas[0] };

typedef struct backends {
	backend *reference, *cpu[N_ISAS];
	backend *bf16, *bf16_cpu; /* wrap the reference and the fast kernels */
} backends;

static backend *bf16_around(backend_opener open)
{
	backend *inner;
	return open(&inner, 1, NULL) == STATUS_OK ? bf16_backend_new(inner) : NULL;
}

static int open_backends(void **state)
{
	backends *b = calloc(1, sizeof *b);
	*state = b;
	if (!b || cpu_reference_open(&b->reference, 0, NULL) != STATUS_OK)
		return 1;
	for (int i = 0; i < N_ISAS; i++) {
		setenv("ADDITIVE_CPU_ISA", isas[i], 1);
		if (cpu_open(&b->cpu[i], 3, NULL) != STATUS_OK)
			return 1;
	}
	if (unsetenv("ADDITIVE_CPU_ISA") != 0)
		return 1;
	b->bf16 = bf16_around(cpu_reference_open);
	b->bf16_cpu = bf16_around(cpu_open);
	return !b->bf16 || !b->bf16_cpu;
}

static int close_backends(void **state)
{
	backends *b = *state;
	backend_close(b->reference);
	for (int i = 0; i < N_ISAS; i++)
		backend_close(b->cpu[i]);
	backend_close(b->bf16);
	backend_close(b->bf16_cpu);
	free(b);
	return 0;
}

static void every_op_has_a_case(void **state)
{
	(void)state;
	for (int id = 0; id < OP_COUNT; id++) {
		int found = 0;
		for (int i = 0; i < op_cases_count(); i++)
			found += op_cases_at(i)->id == (op_id)id;
		if (!found)
			print_error("no case for op %s\n", op_get((op_id)id)->name);
		assert_true(found);
	}
}

static void every_op_with_a_backward_has_a_gradient_case(void **state)
{
	(void)state;
	for (int id = 0; id < OP_COUNT; id++) {
		int found = 0;
		for (int i = 0; i < op_cases_count(); i++)
			found += op_cases_at(i)->id == (op_id)id && op_cases_at(i)->step > 0;
		if (!found == !!op_get((op_id)id)->backward)
			print_error("gradient cases of op %s: %d\n", op_get((op_id)id)->name, found);
		assert_int_equal(!!found, !!op_get((op_id)id)->backward);
	}
}

static void the_reference_stays_in_bounds_and_keeps_its_inputs(void **state)
{
	const backends *b = *state;
	int failed = 0;
	for (int i = 0; i < op_cases_count(); i++)
		failed += !op_trial_matches(op_cases_at(i), b->reference, b->reference);
	assert_int_equal(failed, 0);
}

static void the_fast_kernels_agree_with_the_reference(void **state)
{
	const backends *b = *state;
	int failed = 0;
	for (int isa = 0; isa < N_ISAS; isa++)
		for (int i = 0; i < op_cases_count(); i++)
			failed += !op_trial_matches(op_cases_at(i), b->reference, b->cpu[isa]);
	assert_int_equal(failed, 0);
}

static void reference_gradients_agree_with_finite_differences(void **state)
{
	const backends *b = *state;
	int failed = 0;
	for (int i = 0; i < op_cases_count(); i++)
		failed += !op_trial_gradient(op_cases_at(i), b->reference);
	assert_int_equal(failed, 0);
}

static void fast_gradients_agree_with_finite_differences(void **state)
{
	const backends *b = *state;
	int failed = 0;
	for (int i = 0; i < op_cases_count(); i++)
		failed += !op_trial_gradient(op_cases_at(i), b->cpu[0]);
	assert_int_equal(failed, 0);
}

/* --- in bf16 ------------------------------------------------------------------------------ */

static void every_op_on_activations_has_a_case_in_bf16(void **state)
{
	(void)state;
	/* Ops without [real] arguments in ops.h. */
	static const op_id f32_only[] = {OP_additive_stream,
	                                 OP_softmax_stream,
	                                 OP_source_store,
	                                 OP_source_attention,
	                                 OP_linear_stream,
	                                 OP_linear_stream_grad,
	                                 OP_forgetting_stream,
	                                 OP_fill,
	                                 OP_accumulate,
	                                 OP_lerp,
	                                 OP_sum_squares,
	                                 OP_adamw,
	                                 OP_sgd,
	                                 OP_row_squares,
	                                 OP_normalized_sgd,
	                                 OP_muon_direction,
	                                 OP_write_range,
	                                 OP_muon,
	                                 OP_sample,
	                                 OP_secant_grad,
	                                 OP_lora,
	                                 OP_dot_rows,
	                                 OP_hide_keys,
	                                 OP_attention_weights,
	                                 OP_attention_weights_grad,
	                                 OP_mix_heads,
	                                 OP_mix_heads_grad,
	                                 OP_stream_scores,
	                                 OP_stream_apply,
	                                 OP_stream_store,
	                                 OP_t5_buckets,
	                                 OP_distances,
	                                 OP_alibi,
	                                 OP_pad_mask,
	                                 OP_hash_rows,
	                                 OP_longest_match,
	                                 OP_longest_match_stream,
	                                 OP_segment_rows,
	                                 OP_segment_begin,
	                                 OP_shift_stream,
	                                 OP_dilated_stream,
	                                 OP_sinusoids,
	                                 OP_quantize,
	                                 OP_decay_biases};
	for (int id = 0; id < OP_COUNT; id++) {
		bool found = false, expected = true;
		op_case in_bf16;
		for (size_t i = 0; i < sizeof f32_only / sizeof f32_only[0]; i++)
			expected = expected && f32_only[i] != (op_id)id;
		for (int i = 0; i < op_cases_count(); i++)
			found = found || (op_cases_at(i)->id == (op_id)id && op_cases_bf16(op_cases_at(i), &in_bf16));
		if (found != expected)
			print_error("cases of op %s in bf16: %d\n", op_get((op_id)id)->name, found);
		assert_int_equal(found, expected);
	}
}

/* The wrapped fast kernels differ from the wrapped reference by at most a step of bf16. */
static void in_bf16_the_fast_kernels_agree_with_the_reference(void **state)
{
	const backends *b = *state;
	int failed = 0;
	for (int i = 0; i < op_cases_count(); i++) {
		op_case in_bf16;
		if (op_cases_bf16(op_cases_at(i), &in_bf16))
			failed += !op_trial_matches(&in_bf16, b->bf16, b->bf16_cpu);
	}
	assert_int_equal(failed, 0);
}

/* --- the checker itself can fail -------------------------------------------------------- */

static const op_case *case_of(op_id id)
{
	const op_case *found = NULL;
	for (int i = 0; i < op_cases_count(); i++)
		if (op_cases_at(i)->id == id && op_cases_at(i)->step > 0)
			found = op_cases_at(i);
	assert_non_null(found);
	return found;
}

static status forgets_to_write(backend *b, const op_call *call)
{
	(void)b, (void)call;
	return STATUS_OK;
}

static status is_a_little_wrong(backend *b, const op_call *call)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	(void)b;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = -1.7501f * x[i];
	return STATUS_OK;
}

static status writes_one_too_many(backend *b, const op_call *call)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	(void)b;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = -1.75f * x[i];
	y[shape_count(call->out[0].shape)] = 0;
	return STATUS_OK;
}

static status changes_its_input(backend *b, const op_call *call)
{
	float *x = call->in[0].data, *y = call->out[0].data;
	(void)b;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = -1.75f * x[i];
	if (x != y)
		x[0] += 1;
	return STATUS_OK;
}

static void the_checker_rejects_wrong_kernels(void **state)
{
	const backends *b = *state;
	static const backend_kernel wrong[] = {forgets_to_write, is_a_little_wrong, writes_one_too_many,
	                                       changes_its_input};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		backend broken = *b->reference;
		broken.kernel[OP_scale] = wrong[i];
		assert_false(op_trial_matches(case_of(OP_scale), b->reference, &broken));
	}
	assert_true(op_trial_matches(case_of(OP_scale), b->reference, b->reference));
}

static status is_wrong_in_bf16(backend *b, const op_call *call)
{
	const uint16_t *x = call->in[0].data;
	uint16_t *y = call->out[0].data;
	(void)b;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = panel_bf16(-1.78f * panel_f32(x[i]));
	return STATUS_OK;
}

static status truncates(backend *b, const op_call *call)
{
	const uint32_t *x = call->in[0].data;
	uint16_t *y = call->out[0].data;
	(void)b;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (uint16_t)(x[i] >> 16);
	return STATUS_OK;
}

static void the_checker_rejects_wrong_kernels_in_bf16(void **state)
{
	const backends *b = *state;
	op_case in_bf16;
	backend_kernel right = b->bf16_cpu->kernel[OP_scale];
	assert_true(op_cases_bf16(case_of(OP_scale), &in_bf16));
	b->bf16_cpu->kernel[OP_scale] = is_wrong_in_bf16;
	assert_false(op_trial_matches(&in_bf16, b->bf16, b->bf16_cpu));
	b->bf16_cpu->kernel[OP_scale] = forgets_to_write;
	assert_false(op_trial_matches(&in_bf16, b->bf16, b->bf16_cpu));
	b->bf16_cpu->kernel[OP_scale] = right;
	backend broken = *b->reference;
	broken.kernel[OP_cast] = truncates;
	for (int i = 0; i < op_cases_count(); i++) {
		if (strcmp(op_cases_at(i)->name, "f32 to bf16") == 0)
			assert_false(op_trial_matches(op_cases_at(i), b->reference, &broken));
	}
}

static void the_gradient_checker_rejects_a_wrong_gradient(void **state)
{
	const backends *b = *state;
	backend broken = *b->reference;
	broken.kernel[OP_gelu_grad] = b->reference->kernel[OP_mul];
	assert_false(op_trial_gradient(case_of(OP_gelu), &broken));
	assert_true(op_trial_gradient(case_of(OP_gelu), b->reference));
}

static void the_comparison_rejects_nan_and_infinity(void **state)
{
	(void)state;
	const float nan = strtof("nan", NULL), inf = strtof("inf", NULL), one = 1;
	assert_false(compare_close("NaN against one", &nan, &one, 1, 1e9, 1e9));
	assert_false(compare_close("one against NaN", &one, &nan, 1, 1e9, 1e9));
	assert_false(compare_close("NaN against NaN", &nan, &nan, 1, 1e9, 1e9));
	assert_false(compare_close("infinity against one", &inf, &one, 1, 1, 1));
	assert_false(compare_close("one against infinity", &one, &inf, 1, 1e9, 1e9));
	assert_true(compare_close("infinity", &inf, &inf, 1, 0, 0));
	assert_true(compare_magnitude(&nan, 1) != compare_magnitude(&nan, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_op_has_a_case),
	    cmocka_unit_test(every_op_with_a_backward_has_a_gradient_case),
	    cmocka_unit_test(the_reference_stays_in_bounds_and_keeps_its_inputs),
	    cmocka_unit_test(the_fast_kernels_agree_with_the_reference),
	    cmocka_unit_test(reference_gradients_agree_with_finite_differences),
	    cmocka_unit_test(fast_gradients_agree_with_finite_differences),
	    cmocka_unit_test(every_op_on_activations_has_a_case_in_bf16),
	    cmocka_unit_test(in_bf16_the_fast_kernels_agree_with_the_reference),
	    cmocka_unit_test(the_checker_rejects_wrong_kernels),
	    cmocka_unit_test(the_checker_rejects_wrong_kernels_in_bf16),
	    cmocka_unit_test(the_gradient_checker_rejects_a_wrong_gradient),
	    cmocka_unit_test(the_comparison_rejects_nan_and_infinity),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
