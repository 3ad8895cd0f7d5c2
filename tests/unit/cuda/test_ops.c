/* Every op on the CUDA backend against the CPU's reference, on the emulated device: kernels run from their own source,
 * with a fibre for each CUDA thread (tests/emulator). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cuda/judges.h"
#include "tests/unit/support/op_trial.h"

/* True if OP in the environment names this op or is unset; for work on a single op. */
static bool is_selected(const op_case *c)
{
	const char *only = getenv("OP");
	return !only || strcmp(only, op_get(c->id)->name) == 0;
}

/* Number of cases of the same op before case i. */
static int turn_of(int i)
{
	int turn = 0;
	for (int k = 0; k < i; k++)
		turn += op_cases_at(k)->id == op_cases_at(i)->id;
	return turn;
}

/* True if this case is left to ADDITIVE_ALL_CASES: every other case in bf16, and most cases of attention. Every short
 * sequence is a tile of 64 by 64, and an emulated device computes about a hundred tiles per second, for each set of
 * requested outputs again.
 *
 * The choice depends only on the op's own cases: `first` is run, and in bf16 the one before it. The cases of
 * softmax_attention_grad that run include tiles, windows, masks, dropout, biases and grouped heads. Those of
 * dilated_attention_grad include a causal masked mixture and zero keys. Only dilated_attention runs segments with
 * several tiles. */
static bool is_skipped(int i, bool in_bf16)
{
	static const struct {
		op_id id;
		int first, stride;
	} slow[] = {{OP_softmax_attention, 0, 5},     {OP_softmax_attention_grad, 8, 11},
	            {OP_dilated_attention, 2, 3},     {OP_dilated_attention_grad, 4, 29},
	            {OP_linear_attention, 0, 3},      {OP_linear_attention_grad, 1, 3},
	            {OP_additive_attention, 0, 5},    {OP_additive_attention_grad, 0, 5},
	            {OP_linear_cross_entropy, 1, 3},  {OP_decay_merge, 0, 3},
	            {OP_decay_merge_grad, 2, 3},      {OP_softmax_stream, 1, 3}};
	int first = 0, stride = in_bf16 ? 2 : 1;
	for (size_t k = 0; k < sizeof slow / sizeof *slow; k++)
		if (slow[k].id == op_cases_at(i)->id) {
			first = slow[k].first;
			stride = slow[k].stride;
		}
	return is_left_out(device, turn_of(i) - first + in_bf16, stride);
}

static void ops_agree_with_the_reference(void **state)
{
	(void)state;
	int failed = 0;
	for (int i = 0; i < op_cases_count(); i++)
		failed += is_selected(op_cases_at(i)) && !is_skipped(i, false) &&
		          !op_trial_matches(op_cases_at(i), reference, device);
	assert_int_equal(failed, 0);
}

/* These round terms of their sums to bf16: attention weights, and the gradients of logits. */
static bool rounds_inside(op_id id)
{
	return id == OP_softmax_attention || id == OP_softmax_attention_grad || id == OP_linear_cross_entropy;
}

static void ops_in_bf16_agree_with_the_rounded_reference(void **state)
{
	(void)state;
	int failed = 0, tried = 0;
	for (int i = 0; i < op_cases_count(); i++) {
		op_case c;
		if (!is_selected(op_cases_at(i)) || is_skipped(i, true) || !op_cases_bf16(op_cases_at(i), &c))
			continue;
		if (c.id == OP_linear)
			c.absolute +=
			    1.0 / 128; /* its bias, about 4, is rounded to bf16 like the weight, by 2^-9 of its value */
		failed += !op_trial_near(&c, narrow, device, rounds_inside(c.id) ? 1.0 / 128 : 0);
		tried++;
	}
	assert_int_equal(failed, 0);
	assert_true(tried > 0 || getenv("OP"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ops_agree_with_the_reference),
	    cmocka_unit_test(ops_in_bf16_agree_with_the_rounded_reference),
	};
	return cmocka_run_group_tests(tests, open_judges, close_judges);
}
