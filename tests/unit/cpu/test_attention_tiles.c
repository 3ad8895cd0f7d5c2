/* One round of additive attention at the borders of tiles: against the reference at lengths and windows around a tile.
 * Heads and spans may be divided among threads in any way and give the same bits. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/cpu/fixture.h"

enum { TILE = 32 }; /* the value of ATTENTION_TILE */

/* Both ops on the same inputs. */
typedef struct rounds {
	additive_attention_params p;
	op_call forward, backward;
} rounds;

static void run(rounds *r, backend *b, shape x, int64_t heads, int64_t window, tensor mask)
{
	*r = (rounds){.p = {.heads = heads, .window = window}};
	r->forward = (op_call){
	    .params = &r->p,
	    .n_in = 3,
	    .in = {fixture_normal(x, 71, 1), fixture_normal(SHAPE1(x.dim[2]), 72, 2), mask},
	};
	fixture_run(b, OP_additive_attention, &r->forward);
	const tensor *in = r->forward.in, *out = r->forward.out;
	r->backward =
	    (op_call){.params = &r->p, .n_in = 6, .in = {in[0], in[1], mask, out[0], out[2], fixture_normal(x, 73, 1)}};
	fixture_run(b, OP_additive_attention_grad, &r->backward);
}

static void rounds_free(rounds *r)
{
	fixture_free_outputs(&r->backward);
	buffer_free(r->backward.in[5].data);
	fixture_free_outputs(&r->forward);
	buffer_free(r->forward.in[0].data);
	buffer_free(r->forward.in[1].data);
}

static bool close(const char *what, const tensor *got, const tensor *want, double tolerance)
{
	return compare_close(what, got->data, want->data, shape_count(want->shape), tolerance, tolerance);
}

static void agrees_with_reference(backend *fast, backend *reference, shape x, int64_t heads, int64_t window,
                                  tensor mask)
{
	rounds got, want;
	run(&got, fast, x, heads, window, mask);
	run(&want, reference, x, heads, window, mask);
	bool same = close("pooled", &got.forward.out[0], &want.forward.out[0], 3e-6);
	same = close("score", &got.forward.out[1], &want.forward.out[1], 3e-6) && same;
	same = close("log-normaliser", &got.forward.out[2], &want.forward.out[2], 3e-6) && same;
	same = close("dx", &got.backward.out[0], &want.backward.out[0], 6e-5) && same;
	same = close("dw", &got.backward.out[1], &want.backward.out[1], 1e-4) && same;
	if (!same)
		fail_msg("length %d, window %d", (int)x.dim[1], (int)window);
	rounds_free(&got);
	rounds_free(&want);
}

/* Runs of masked tokens that begin in one tile and end in another, and single masked tokens. */
static tensor mask_of(int64_t batch, int64_t length)
{
	tensor mask = fixture_tensor(DTYPE_I32, SHAPE2(batch, length));
	for (int64_t e = 0; e < batch * length; e++) {
		int64_t i = e % length;
		((int32_t *)mask.data)[e] = i % 5 != 3 && !(i > 20 && i < 41) && !(i > 58 && i < 134 && e >= length);
	}
	return mask;
}

static void every_border_agrees_with_the_reference(void **state)
{
	(void)state;
	static const int64_t lengths[] = {1, 31, 32, 33, 64, 65, 131};
	static const int64_t windows[] = {1,  4,  5,  6,  7,  15, 16,  17,  31,  32, 33,
	                                  34, 63, 64, 65, 66, 97, 100, 129, 300, 0};
	backend *fast = fixture_open(2), *reference;
	assert_int_equal(cpu_reference_open(&reference, 0, NULL), STATUS_OK);
	for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
		for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
			shape x = SHAPE3(2, lengths[n], 10);
			tensor mask = mask_of(2, lengths[n]);
			agrees_with_reference(fast, reference, x, 2, windows[k], (tensor){0});
			agrees_with_reference(fast, reference, x, 2, windows[k], mask);
			buffer_free(mask.data);
		}
	}
	backend_close(fast);
	backend_close(reference);
}

/* The widths and numbers of heads that have their own code. */
static void every_width_agrees_with_the_reference(void **state)
{
	(void)state;
	static const int64_t shapes[][2] = {{32, 4}, {64, 1}, {32, 8}, {64, 16}, {24, 3}, {1030, 1}};
	static const int64_t windows[] = {5, 45, 0};
	backend *fast = fixture_open(2), *reference;
	assert_int_equal(cpu_reference_open(&reference, 0, NULL), STATUS_OK);
	for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
		for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
			shape x = SHAPE3(1, 2 * TILE + 5, shapes[s][0] * shapes[s][1]);
			agrees_with_reference(fast, reference, x, shapes[s][1], windows[k], (tensor){0});
		}
	}
	backend_close(fast);
	backend_close(reference);
}

static bool same_bits(const op_call *got, const op_call *want)
{
	bool same = true;
	for (int i = 0; i < want->n_out; i++)
		same = compare_same("output", got->out[i].data, want->out[i].data, shape_count(want->out[i].shape)) &&
		       same;
	return same;
}

static void check_threads(shape x, int64_t heads, int64_t window)
{
	static const int threads[] = {2, 3, 5, 16};
	tensor mask = mask_of(x.dim[0], x.dim[1]);
	backend *one = fixture_open(1);
	rounds want;
	run(&want, one, x, heads, window, mask);
	for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
		backend *b = fixture_open(threads[i]);
		rounds got;
		run(&got, b, x, heads, window, mask);
		assert_true(same_bits(&got.forward, &want.forward));
		assert_true(same_bits(&got.backward, &want.backward));
		rounds_free(&got);
		backend_close(b);
	}
	rounds_free(&want);
	backend_close(one);
	buffer_free(mask.data);
}

static void spans_of_a_long_sequence_do_not_depend_on_threads(void **state)
{
	(void)state;
	static const int64_t windows[] = {1, 7, 32, 100, 1030};
	for (size_t k = 0; k < sizeof windows / sizeof *windows; k++)
		check_threads(SHAPE3(1, 6007, 24), 3, windows[k]);
}

static void groups_of_heads_do_not_depend_on_threads(void **state)
{
	(void)state;
	static const int64_t windows[] = {7, 300, 0};
	for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
		check_threads(SHAPE3(1, 517, 384), 6, windows[k]);
		check_threads(SHAPE3(3, 300, 384), 12, windows[k]);
	}
}

/* A NaN affects exactly the windows that contain it; no other window, not even through a factor of zero. */
static void a_token_with_nan_affects_only_its_windows(void **state)
{
	static const int64_t windows[] = {1, 4, 32, 45, 0};
	enum { LENGTH = 200, D = 6, BAD = 77 };
	(void)state;
	backend *b = fixture_open(1);
	for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
		additive_attention_params p = {.heads = 1, .window = windows[k]};
		op_call call = {.params = &p,
		                .n_in = 2,
		                .in = {fixture_normal(SHAPE3(1, LENGTH, D), 74, 1), fixture_normal(SHAPE1(D), 75, 1)}};
		((float *)call.in[0].data)[BAD * D + 2] = NAN;
		fixture_run(b, OP_additive_attention, &call);
		for (int64_t i = 0; i < LENGTH; i++) {
			bool sees = i >= BAD && (windows[k] == 0 || i < BAD + windows[k]);
			assert_true(isnan(((float *)call.out[0].data)[i * D]) == sees);
		}
		fixture_free(&call);
	}
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_border_agrees_with_the_reference),
	    cmocka_unit_test(every_width_agrees_with_the_reference),
	    cmocka_unit_test(spans_of_a_long_sequence_do_not_depend_on_threads),
	    cmocka_unit_test(groups_of_heads_do_not_depend_on_threads),
	    cmocka_unit_test(a_token_with_nan_affects_only_its_windows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
