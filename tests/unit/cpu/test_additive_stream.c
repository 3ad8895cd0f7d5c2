/* The recurrent form: the numbers of the parallel form, in any chunks, from a state of constant size that depends only
 * on the tokens read. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/cpu/fixture.h"

enum { N = 301, H = 3, DH = 7, D = H * DH, MARGIN = 5 };

static const int64_t windows[] = {1, 2, 3, 4, 5, 7, 8, 31, 64, 127, 0};
enum { WINDOWS = sizeof windows / sizeof windows[0] };

static int open_backend(void **state)
{
	*state = fixture_open(2);
	return 0;
}

static int close_backend(void **state)
{
	backend_close(*state);
	return 0;
}

/* A pool of slots and the tokens that they have read. */
typedef struct reader {
	backend *b;
	additive_stream_params p;
	tensor w, pool;
	int64_t slots, slot_floats;
} reader;

/* Slots hold the state with MARGIN floats of NaN on either side; everything is poisoned. */
static reader reader_new(backend *b, int64_t window, int64_t slots)
{
	int64_t floats = additive_state_floats(D, H, window) + 2 * MARGIN;
	return (reader){.b = b,
	                .p = {H, window, MARGIN},
	                .w = fixture_normal(SHAPE1(D), 42, 2),
	                .pool = fixture_tensor(DTYPE_F32, SHAPE2(slots, floats)),
	                .slots = slots,
	                .slot_floats = floats};
}

static void reader_free(reader *r)
{
	buffer_free(r->w.data);
	buffer_free(r->pool.data);
}

static tensor integers(int64_t n, const int32_t *values)
{
	tensor t = fixture_tensor(DTYPE_I32, SHAPE1(n));
	memcpy(t.data, values, (size_t)n * sizeof *values);
	return t;
}

/* Read x [rows, n, D]; call fixture_free_outputs afterwards. */
static op_call reader_read(reader *r, tensor x, tensor mask, const int32_t *slot, const int32_t *position,
                           const int32_t *length)
{
	int64_t rows = x.shape.dim[0];
	op_call call = {.params = &r->p, .n_in = 7, .in = {x, r->w, r->pool}};
	call.in[3] = integers(rows, slot);
	call.in[4] = integers(rows, position);
	call.in[5] = integers(rows, length);
	call.in[6] = mask;
	fixture_run(r->b, OP_additive_stream, &call);
	for (int i = 3; i < 6; i++)
		buffer_free(call.in[i].data);
	return call;
}

/* One sequence and its results, [N, …]. */
typedef struct sequence {
	tensor x, mask, g, score, m;
} sequence;

static sequence sequence_new(uint64_t seed, bool masked)
{
	sequence s = {.x = fixture_normal(SHAPE3(1, N, D), seed, 1),
	              .g = fixture_tensor(DTYPE_F32, SHAPE3(1, N, D)),
	              .score = fixture_tensor(DTYPE_F32, SHAPE3(1, N, H)),
	              .m = fixture_tensor(DTYPE_F32, SHAPE3(1, N, H))};
	if (masked) {
		s.mask = fixture_integers(SHAPE2(1, N), seed + 1, 0, 1);
		for (int64_t i = 0; i < N; i++) /* some windows are masked completely */
			((int32_t *)s.mask.data)[i] &= i % 50 > 12;
	}
	return s;
}

static void sequence_free(sequence *s)
{
	buffer_free(s->x.data);
	buffer_free(s->mask.data);
	buffer_free(s->g.data);
	buffer_free(s->score.data);
	buffer_free(s->m.data);
}

/* Tokens first … first + n - 1 of a sequence, as a new tensor. */
static tensor part_of(const tensor *t, int64_t first, int64_t n)
{
	shape s = t->shape;
	int64_t width = s.rank == 3 ? s.dim[2] : 1;
	s.dim[1] = n;
	tensor part = fixture_tensor(t->type, s);
	memcpy(part.data, (const char *)t->data + first * width * 4, (size_t)(n * width) * 4);
	return part;
}

/* Read tokens first … first + n - 1 of s into slot 0. */
static void read_part(reader *r, sequence *s, int64_t first, int64_t n)
{
	tensor x = part_of(&s->x, first, n), mask = s->mask.data ? part_of(&s->mask, first, n) : (tensor){0};
	op_call call = reader_read(r, x, mask, &(int32_t){0}, &(int32_t){(int32_t)first}, &(int32_t){(int32_t)n});
	memcpy((float *)s->g.data + first * D, call.out[0].data, (size_t)(n * D) * sizeof(float));
	memcpy((float *)s->score.data + first * H, call.out[1].data, (size_t)(n * H) * sizeof(float));
	memcpy((float *)s->m.data + first * H, call.out[2].data, (size_t)(n * H) * sizeof(float));
	fixture_free_outputs(&call);
	buffer_free(x.data);
	buffer_free(mask.data);
}

static void read_in_chunks(reader *r, sequence *s, int64_t chunk)
{
	for (int64_t i = 0; i < N; i += chunk)
		read_part(r, s, i, N - i < chunk ? N - i : chunk);
}

/* --- parallel = recurrent ------------------------------------------------------------------------ */

static void check_against_parallel(backend *b, int64_t window, bool masked)
{
	reader r = reader_new(b, window, 1);
	sequence s = sequence_new(43, masked);
	read_in_chunks(&r, &s, N);
	additive_attention_params p = {.heads = H, .window = window};
	op_call call = {.params = &p, .n_in = 3, .in = {s.x, r.w, s.mask}};
	fixture_run(b, OP_additive_attention, &call);
	assert_true(compare_close("pooled", s.g.data, call.out[0].data, N * D, 1e-6, 1e-6));
	assert_true(compare_same("score", s.score.data, call.out[1].data, N * H));
	assert_true(compare_close("log-normaliser", s.m.data, call.out[2].data, N * H, 1e-6, 1e-6));
	fixture_free_outputs(&call);
	sequence_free(&s);
	reader_free(&r);
}

static void every_window_agrees_with_the_parallel_form(void **state)
{
	for (int i = 0; i < WINDOWS; i++)
		check_against_parallel(*state, windows[i], false);
}

static void every_window_agrees_with_the_parallel_form_under_a_mask(void **state)
{
	for (int i = 0; i < WINDOWS; i++)
		check_against_parallel(*state, windows[i], true);
}

static void chunks_of_any_size_give_the_same_bits_and_the_same_state(void **state)
{
	static const int64_t chunks[] = {1, 2, 3, 5, 16, 63, 64, 128, 300};
	for (int i = 0; i < WINDOWS * 9; i++) {
		int64_t window = windows[i / 9];
		reader whole = reader_new(*state, window, 1), cut = reader_new(*state, window, 1);
		sequence want = sequence_new(44, i % 2), got = sequence_new(44, i % 2);
		read_in_chunks(&whole, &want, N);
		read_in_chunks(&cut, &got, chunks[i % 9]);
		assert_true(compare_same("pooled", got.g.data, want.g.data, N * D));
		assert_true(compare_same("score", got.score.data, want.score.data, N * H));
		assert_true(compare_same("log-normaliser", got.m.data, want.m.data, N * H));
		assert_true(compare_same("state", cut.pool.data, whole.pool.data, whole.slot_floats));
		sequence_free(&want);
		sequence_free(&got);
		reader_free(&whole);
		reader_free(&cut);
	}
}

/* --- the state ------------------------------------------------------------------------------------- */

static void the_state_is_exactly_as_large_as_the_window(void **state)
{
	(void)state;
	int64_t width = D + 2 * H;
	assert_int_equal(additive_state_floats(D, H, 0), width);
	assert_int_equal(additive_state_floats(D, H, -3), width);
	assert_int_equal(additive_state_floats(D, H, (int64_t)1 << 40), width);
	assert_int_equal(additive_state_floats(D, H, 1), 0);
	for (int64_t k = 2; k < 200; k++)
		assert_int_equal(additive_state_floats(D, H, k), (2 + k / 2 * 2) * width);
}

static void reading_writes_nothing_outside_the_state(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		reader r = reader_new(*state, windows[i], 3);
		sequence s = sequence_new(45, false);
		tensor x = part_of(&s.x, 0, N);
		op_call call = reader_read(&r, x, (tensor){0}, &(int32_t){1}, &(int32_t){0}, &(int32_t){N});
		const float *pool = r.pool.data;
		for (int64_t f = 0; f < 3 * r.slot_floats; f++) {
			int64_t at = f % r.slot_floats;
			bool inside = f / r.slot_floats == 1 && at >= MARGIN && at < r.slot_floats - MARGIN;
			assert_true(isnan(pool[f]) == !inside);
		}
		fixture_free_outputs(&call);
		buffer_free(x.data);
		sequence_free(&s);
		reader_free(&r);
	}
}

static void an_earlier_session_has_no_effect_on_its_slot(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		reader fresh = reader_new(*state, windows[i], 1), used = reader_new(*state, windows[i], 1);
		sequence before = sequence_new(46, false), want = sequence_new(47, false),
		         got = sequence_new(47, false);
		read_in_chunks(&used, &before, 100);
		read_part(&fresh, &want, 0, 3);
		read_part(&used, &got, 0, 3);
		assert_true(compare_same("state", used.pool.data, fresh.pool.data, fresh.slot_floats));
		read_part(&fresh, &want, 3, N - 3);
		read_part(&used, &got, 3, N - 3);
		assert_true(compare_same("pooled", got.g.data, want.g.data, N * D));
		sequence_free(&before);
		sequence_free(&want);
		sequence_free(&got);
		reader_free(&fresh);
		reader_free(&used);
	}
}

/* --- batches ------------------------------------------------------------------------------------------- */

static void sessions_read_side_by_side_are_independent(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		reader alone = reader_new(*state, windows[i], 1), both = reader_new(*state, windows[i], 4);
		sequence want[2] = {sequence_new(48, false), sequence_new(49, false)};
		tensor x = fixture_tensor(DTYPE_F32, SHAPE3(2, N, D));
		for (int s = 0; s < 2; s++) {
			read_in_chunks(&alone, &want[s], N);
			memcpy((float *)x.data + s * N * D, want[s].x.data, (size_t)(N * D) * sizeof(float));
		}
		op_call call =
		    reader_read(&both, x, (tensor){0}, (int32_t[]){3, 1}, (int32_t[]){0, 0}, (int32_t[]){N, N});
		for (int s = 0; s < 2; s++)
			assert_true(
			    compare_same("pooled", (float *)call.out[0].data + s * N * D, want[s].g.data, N * D));
		fixture_free_outputs(&call);
		buffer_free(x.data);
		sequence_free(&want[0]);
		sequence_free(&want[1]);
		reader_free(&alone);
		reader_free(&both);
	}
}

/* Two sessions at different positions take turns, a few tokens each. */
static void sessions_that_take_turns_are_independent(void **state)
{
	static const int32_t lengths[] = {1, 4, 2, 30, 7};
	for (int i = 0; i < WINDOWS; i++) {
		reader alone = reader_new(*state, windows[i], 1), shared = reader_new(*state, windows[i], 2);
		sequence want[2] = {sequence_new(50, false), sequence_new(51, false)};
		read_in_chunks(&alone, &want[0], N);
		read_in_chunks(&alone, &want[1], N);
		int32_t position[2] = {0, 0};
		for (int turn = 0; turn < 40; turn++) {
			int s = turn % 2;
			int32_t n = lengths[turn % 5], slot = 1 - s;
			if (position[s] + n > N)
				continue;
			tensor x = part_of(&want[s].x, position[s], n);
			op_call call = reader_read(&shared, x, (tensor){0}, &slot, &position[s], &n);
			assert_true(
			    compare_same("pooled", call.out[0].data, (float *)want[s].g.data + position[s] * D, n * D));
			position[s] += n;
			fixture_free_outputs(&call);
			buffer_free(x.data);
		}
		assert_true(position[0] > 100 && position[1] > 100);
		sequence_free(&want[0]);
		sequence_free(&want[1]);
		reader_free(&alone);
		reader_free(&shared);
	}
}

static void rows_past_a_length_are_zero_and_a_length_of_zero_reads_nothing(void **state)
{
	enum { ROWS = 3, LONGEST = 9 };
	static const int32_t slot[] = {2, 0, 1}, position[] = {0, 0, 0}, length[] = {5, 0, 9};
	for (int i = 0; i < WINDOWS; i++) {
		reader r = reader_new(*state, windows[i], ROWS);
		tensor x = fixture_normal(SHAPE3(ROWS, LONGEST, D), 52, 1);
		op_call call = reader_read(&r, x, (tensor){0}, slot, position, length);
		for (int64_t e = 0; e < ROWS * LONGEST * D; e++)
			assert_true((((float *)call.out[0].data)[e] == 0) ==
			            (e / D % LONGEST >= length[e / D / LONGEST]));
		for (int64_t e = 0; e < ROWS * LONGEST * H; e++) {
			bool past = e / H % LONGEST >= length[e / H / LONGEST];
			assert_true((((float *)call.out[1].data)[e] == 0) == past);
			assert_true((((float *)call.out[2].data)[e] == 0) == past);
		}
		for (int64_t f = 0; f < r.slot_floats; f++)
			assert_true(isnan(((float *)r.pool.data)[f])); /* slot 0 was never written */
		fixture_free_outputs(&call);
		buffer_free(x.data);
		reader_free(&r);
	}
}

static void the_first_tokens_of_a_masked_session_pool_to_zero(void **state)
{
	for (int i = 0; i < WINDOWS; i++) {
		reader r = reader_new(*state, windows[i], 1);
		sequence s = sequence_new(53, true); /* tokens 0 … 12 are masked */
		read_in_chunks(&r, &s, 4);
		for (int64_t e = 0; e < 13 * D; e++)
			assert_true(((float *)s.g.data)[e] == 0);
		for (int64_t e = 0; e < 13 * H; e++)
			assert_true(((float *)s.m.data)[e] == -INFINITY);
		sequence_free(&s);
		reader_free(&r);
	}
}

/* The heads of one session run on several threads and give the same results and the same state. */
static void heads_on_several_threads_give_the_same_bits(void **state)
{
	enum { LENGTH = 300, HEADS = 34, WIDTH = 8, CHANNELS = HEADS * WIDTH };
	(void)state;
	for (int i = 0; i < WINDOWS; i++) {
		additive_stream_params p = {HEADS, windows[i], 0};
		int64_t floats = additive_state_floats(CHANNELS, HEADS, windows[i]);
		op_call calls[4];
		for (int threads = 1; threads <= 4; threads++) {
			backend *b = fixture_open(4);
			op_call *call = &calls[threads - 1];
			*call =
			    (op_call){.params = &p,
			              .n_in = 7,
			              .in = {fixture_normal(SHAPE3(1, LENGTH, CHANNELS), 54, 1),
			                     fixture_normal(SHAPE1(CHANNELS), 55, 1),
			                     fixture_tensor(DTYPE_F32, SHAPE2(1, floats)), integers(1, (int32_t[]){0}),
			                     integers(1, (int32_t[]){0}), integers(1, (int32_t[]){LENGTH}),
			                     fixture_integers(SHAPE2(1, LENGTH), 56, 0, 3)}};
			fixture_narrow(b, threads, OP_additive_stream, call);
			for (int o = 0; o < 3; o++)
				assert_true(compare_same("output", call->out[o].data, calls[0].out[o].data,
				                         shape_count(call->out[o].shape)));
			assert_true(compare_same("state", call->in[2].data, calls[0].in[2].data, floats));
			backend_close(b);
		}
		for (int threads = 1; threads <= 4; threads++)
			fixture_free(&calls[threads - 1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_window_agrees_with_the_parallel_form),
	    cmocka_unit_test(every_window_agrees_with_the_parallel_form_under_a_mask),
	    cmocka_unit_test(chunks_of_any_size_give_the_same_bits_and_the_same_state),
	    cmocka_unit_test(the_state_is_exactly_as_large_as_the_window),
	    cmocka_unit_test(reading_writes_nothing_outside_the_state),
	    cmocka_unit_test(an_earlier_session_has_no_effect_on_its_slot),
	    cmocka_unit_test(sessions_read_side_by_side_are_independent),
	    cmocka_unit_test(sessions_that_take_turns_are_independent),
	    cmocka_unit_test(rows_past_a_length_are_zero_and_a_length_of_zero_reads_nothing),
	    cmocka_unit_test(the_first_tokens_of_a_masked_session_pool_to_zero),
	    cmocka_unit_test(heads_on_several_threads_give_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_backend, close_backend);
}
