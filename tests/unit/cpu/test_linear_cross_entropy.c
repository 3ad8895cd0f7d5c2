/* The vocabulary product with its loss, at sizes that the op cases do not reach. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "engine/tensor/panel.h"
#include "tests/unit/cpu/fixture.h"

enum { HIDDEN, WEIGHT, BIAS, LABEL, N_INPUTS };
enum { LOSS, COUNT, DHIDDEN, DWEIGHT, DBIAS, HIT, N_OUTPUTS };

static const linear_cross_entropy_params params = {0.3f, 0.1f};

/* Labels start at -1 (ignored). */
static op_call problem(int64_t rows, int64_t d, int64_t classes, double std)
{
	return (op_call){.params = &params,
	                 .n_in = N_INPUTS,
	                 .in = {fixture_normal(SHAPE2(rows, d), 71, std), fixture_normal(SHAPE2(classes, d), 72, 1),
	                        fixture_normal(SHAPE1(classes), 73, 1),
	                        fixture_integers(SHAPE1(rows), 74, -1, (int32_t)classes - 1)}};
}

static backend *open_reference(void)
{
	backend *b;
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	return b;
}

static backend *open_isa(const char *name)
{
	assert_int_equal(setenv("ADDITIVE_CPU_ISA", name, 1), 0);
	backend *b = fixture_open(2);
	assert_int_equal(unsetenv("ADDITIVE_CPU_ISA"), 0);
	return b;
}

/* Run on b; true if the outputs are near those of `want`. */
static bool agrees(backend *b, const op_call *want, double tolerance)
{
	static const char *const names[N_OUTPUTS] = {"loss", "count", "dhidden", "dweight", "dbias", "hit"};
	op_call got = *want;
	fixture_run(b, OP_linear_cross_entropy, &got);
	bool same = true;
	for (int i = 0; i < N_OUTPUTS; i++)
		same = compare_close(names[i], got.out[i].data, want->out[i].data, shape_count(want->out[i].shape),
		                     tolerance, tolerance) &&
		       same;
	fixture_free_outputs(&got);
	return same;
}

static void every_instruction_set_agrees_at_the_borders_of_parts_and_chunks(void **state)
{
	(void)state;
	static const char *const isas[] = {"baseline", "avx2", "avx512", "avx512vnni"};
	static const int64_t rows[] = {1, 31, 32, 33, 511, 512, 513, 1023, 1025};
	backend *reference = open_reference();
	for (size_t isa = 0; isa < sizeof isas / sizeof isas[0]; isa++) {
		backend *b = open_isa(isas[isa]);
		for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
			op_call call = problem(rows[i], 3, 5, 1);
			fixture_run(reference, OP_linear_cross_entropy, &call);
			assert_true(agrees(b, &call, 3e-6));
			fixture_free(&call);
		}
		backend_close(b);
	}
	backend_close(reference);
}

/* Also entire chunks of ignored rows: at the beginning, in the middle and at the end. */
static void ignored_rows_have_no_effect(void **state)
{
	(void)state;
	enum { ROWS = 7000, D = 5, SPAN = 2500 };
	backend *reference = open_reference(), *b = fixture_open(2);
	for (int first = 0; first <= ROWS - SPAN; first += (ROWS - SPAN) / 2) {
		op_call call = problem(ROWS, D, 3, 1);
		for (int r = first; r < first + SPAN; r++)
			((int32_t *)call.in[LABEL].data)[r] = r % 2 ? -100 : 3;
		fixture_run(reference, OP_linear_cross_entropy, &call);
		assert_true(agrees(b, &call, 3e-6));
		fixture_free_outputs(&call);
		fixture_run(b, OP_linear_cross_entropy, &call);
		const float *dhidden = call.out[DHIDDEN].data;
		for (int i = first * D; i < (first + SPAN) * D; i++)
			assert_true(dhidden[i] == 0.0f);
		fixture_free(&call);
	}
	backend_close(b);
	backend_close(reference);
}

static void without_labels_loss_and_gradients_are_zero(void **state)
{
	(void)state;
	backend *b = fixture_open(2);
	op_call call = problem(1100, 4, 6, 1);
	for (int r = 0; r < 1100; r++)
		((int32_t *)call.in[LABEL].data)[r] = -1;
	fixture_run(b, OP_linear_cross_entropy, &call);
	for (int i = 0; i < N_OUTPUTS; i++)
		for (int64_t j = 0; j < shape_count(call.out[i].shape); j++)
			assert_true(((float *)call.out[i].data)[j] == 0.0f);
	fixture_free(&call);
	backend_close(b);
}

/* Classes come in equal pairs, and every row's hidden vector is the weight of its label. A label is a hit only if it is
 * the first class in its pair, wherever the pair is in a row. */
static void among_equal_logits_the_first_is_the_hit(void **state)
{
	(void)state;
	enum { ROWS = 600, D = 16, CLASSES = 74, HALF = CLASSES / 2 };
	backend *each[] = {open_reference(), fixture_open(2), open_isa("baseline")};
	for (int i = 0; i < 3; i++) {
		op_call call = problem(ROWS, D, CLASSES, 1);
		float *hidden = call.in[HIDDEN].data, *weight = call.in[WEIGHT].data, *bias = call.in[BIAS].data;
		int32_t *label = call.in[LABEL].data;
		for (int v = 0; v < HALF; v++) {
			for (int k = 0; k < D; k++) /* products are exact, and the class's own is the largest */
				weight[v * D + k] = k < 8 && (v >> k & 1) ? -1.0f : 1.0f;
			memcpy(weight + (HALF + v) * D, weight + v * D, D * sizeof *weight);
		}
		memset(bias, 0, CLASSES * sizeof *bias);
		for (int r = 0; r < ROWS; r++)
			memcpy(hidden + r * D, weight + (label[r] < 0 ? 0 : label[r]) * D, D * sizeof *hidden);
		fixture_run(each[i], OP_linear_cross_entropy, &call);
		const float *hit = call.out[HIT].data;
		for (int r = 0; r < ROWS; r++)
			assert_true(hit[r] == (label[r] >= 0 && label[r] < HALF ? 1.0f : 0.0f));
		fixture_free(&call);
	}
	for (int i = 0; i < 3; i++)
		backend_close(each[i]);
}

/* Matrix products guarantee the same bits for a fixed number of threads; nothing else here depends on it. */
static void threads_change_only_the_bits_of_products(void **state)
{
	(void)state;
	static const int64_t shapes[][3] = {{1100, 40, 701}, {70, 48, 9001}, {3000, 16, 259}};
	for (int s = 0; s < 3; s++) {
		backend *one = fixture_open(1);
		op_call call = problem(shapes[s][0], shapes[s][1], shapes[s][2], 1);
		fixture_run(one, OP_linear_cross_entropy, &call);
		for (int threads = 1; threads <= 3; threads++) {
			backend *b = fixture_open(threads);
			op_call got = call, again = call;
			fixture_run(b, OP_linear_cross_entropy, &got);
			fixture_run(b, OP_linear_cross_entropy, &again);
			for (int i = 0; i < N_OUTPUTS; i++) {
				int64_t count = shape_count(call.out[i].shape);
				assert_true(compare_same("again", again.out[i].data, got.out[i].data, count));
				assert_true(compare_close("threads", got.out[i].data, call.out[i].data, count,
				                          1e-6 * compare_magnitude(call.out[i].data, count), 1e-5));
			}
			fixture_free_outputs(&got);
			fixture_free_outputs(&again);
			backend_close(b);
		}
		fixture_free(&call);
		backend_close(one);
	}
}

/* A row of dz sums to 0, because the softmax and its target both sum to 1. */
static void logits_of_ten_thousand_give_a_finite_loss_and_gradient(void **state)
{
	(void)state;
	enum { ROWS = 50, D = 16, CLASSES = 333 };
	backend *reference = open_reference(), *b = fixture_open(2);
	op_call call = problem(ROWS, D, CLASSES, 1e4);
	fixture_run(reference, OP_linear_cross_entropy, &call);
	float want = *(float *)call.out[LOSS].data;
	fixture_free_outputs(&call);
	fixture_run(b, OP_linear_cross_entropy, &call);
	assert_true(want > 1e4f);
	assert_true(compare_close("loss", call.out[LOSS].data, &want, 1, 0, 1e-5));
	double sum = 0;
	for (int v = 0; v < CLASSES; v++)
		sum += (double)((float *)call.out[DBIAS].data)[v];
	assert_true(fabs(sum) <= 1e-6);
	for (int i = DHIDDEN; i < N_OUTPUTS; i++)
		assert_true(isfinite(compare_magnitude(call.out[i].data, shape_count(call.out[i].shape))));
	fixture_free(&call);
	backend_close(b);
	backend_close(reference);
}

/* No pass may hide it, wherever it is in the row. */
static void a_logit_of_nan_makes_the_loss_nan(void **state)
{
	(void)state;
	backend *each[] = {open_reference(), fixture_open(2)};
	for (int i = 0; i < 2 * 37; i++) {
		op_call call = problem(5, 4, 37, 1);
		((float *)call.in[BIAS].data)[i / 2] = NAN;
		((int32_t *)call.in[LABEL].data)[0] = 3;
		fixture_run(each[i % 2], OP_linear_cross_entropy, &call);
		assert_true(isnan(*(float *)call.out[LOSS].data));
		assert_true(isnan(*(float *)call.out[DHIDDEN].data));
		fixture_free(&call);
	}
	backend_close(each[0]);
	backend_close(each[1]);
}

/* --- packed weights ------------------------------------------------------------------ */

/* Run for the loss only. */
static status run_loss(backend *b, op_call *call, float *loss)
{
	float count;
	call->n_out = N_OUTPUTS;
	assert_int_equal(op_get(OP_linear_cross_entropy)->check(call, NULL), STATUS_OK);
	call->out[LOSS].data = loss;
	call->out[COUNT].data = &count;
	call->scratch = buffer_new(b->scratch[OP_linear_cross_entropy](b, call));
	status s = b->kernel[OP_linear_cross_entropy](b, call);
	assert_true(buffer_intact(call->scratch));
	buffer_free(call->scratch);
	call->out[LOSS].data = call->out[COUNT].data = NULL;
	return s;
}

/* `w` [V, D] packed; *unpacked: the numbers that the panels hold. Both are buffers. */
static tensor pack(dtype type, const tensor *w, float **unpacked)
{
	int64_t n = w->shape.dim[0], k = w->shape.dim[1];
	size_t bytes;
	assert_true(panel_bytes(type, n, k, &bytes));
	tensor out = {buffer_new(bytes), type, w->shape};
	panel_pack(type, w->data, n, k, out.data);
	*unpacked = buffer_new((size_t)(n * k) * sizeof(float));
	for (int64_t row = 0; row < n; row++)
		panel_row(type, out.data, k, row, *unpacked + row * k);
	return out;
}

static void packed_weights_give_the_loss_of_their_rounded_numbers(void **state)
{
	(void)state;
	/* Largest distance of the loss from that of the unpacked panels, and from that of the original weights. int8
	 * also rounds hidden states. */
	static const struct {
		dtype type;
		double own, original;
	} packings[] = {{DTYPE_PANEL_F32, 1e-5, 1e-5}, {DTYPE_PANEL_BF16, 1e-5, 5e-3}, {DTYPE_PANEL_INT8, 1e-2, 2e-2}};
	backend *each[] = {open_reference(), fixture_open(2)};
	for (int i = 0; i < 6; i++) {
		backend *b = each[i % 2];
		op_call call = problem(1500, 45, 77, 1);
		float original, own, packed, *unpacked, *weight = call.in[WEIGHT].data;
		tensor panels = pack(packings[i / 2].type, &call.in[WEIGHT], &unpacked);
		assert_int_equal(run_loss(b, &call, &original), STATUS_OK);
		call.in[WEIGHT].data = unpacked;
		assert_int_equal(run_loss(b, &call, &own), STATUS_OK);
		call.in[WEIGHT] = panels;
		assert_int_equal(run_loss(b, &call, &packed), STATUS_OK);
		assert_true(compare_close("loss", &packed, &own, 1, packings[i / 2].own, 0));
		assert_true(compare_close("loss", &packed, &original, 1, packings[i / 2].original, 0));
		buffer_free(weight);
		buffer_free(unpacked);
		fixture_free(&call);
	}
	backend_close(each[0]);
	backend_close(each[1]);
}

static void packed_weights_have_no_gradient(void **state)
{
	(void)state;
	backend *each[] = {open_reference(), fixture_open(2)};
	for (int i = 0; i < 6; i++) {
		backend *b = each[i % 2];
		op_call call = problem(3, 8, 16, 1);
		float loss, *unpacked, *weight = call.in[WEIGHT].data;
		call.in[WEIGHT] = pack(DTYPE_PANEL_BF16, &call.in[WEIGHT], &unpacked);
		assert_int_equal(run_loss(b, &call, &loss), STATUS_OK);
		int requested = DHIDDEN + i / 2;
		call.out[requested].data = buffer_new((size_t)shape_count(call.out[requested].shape) * sizeof(float));
		call.scratch = buffer_new(b->scratch[OP_linear_cross_entropy](b, &call));
		assert_int_equal(b->kernel[OP_linear_cross_entropy](b, &call), STATUS_UNSUPPORTED);
		buffer_free(call.scratch);
		buffer_free(weight);
		buffer_free(unpacked);
		fixture_free(&call);
	}
	backend_close(each[0]);
	backend_close(each[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_instruction_set_agrees_at_the_borders_of_parts_and_chunks),
	    cmocka_unit_test(ignored_rows_have_no_effect),
	    cmocka_unit_test(without_labels_loss_and_gradients_are_zero),
	    cmocka_unit_test(among_equal_logits_the_first_is_the_hit),
	    cmocka_unit_test(threads_change_only_the_bits_of_products),
	    cmocka_unit_test(logits_of_ten_thousand_give_a_finite_loss_and_gradient),
	    cmocka_unit_test(a_logit_of_nan_makes_the_loss_nan),
	    cmocka_unit_test(packed_weights_give_the_loss_of_their_rounded_numbers),
	    cmocka_unit_test(packed_weights_have_no_gradient),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
