/* Over 600 lines: each form is compared by the same readers and pools.
 * The recurrent forms on the device: the CPU's numbers, and the properties that sessions depend on. The bits depend
 * neither on the batch nor on the division of tokens into calls. In a pool, only the slots that read are written. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "engine/tensor/plan.h"
#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/pair.h"
#include "tests/unit/support/compare.h"

enum { MARGIN = 4, MOST = 700, MOST_ROWS = 64 };

/* One of the ops, with its sizes; linear_stream has no window. */
typedef struct stream_kind {
	op_id id;
	int64_t d, heads, window;
} stream_kind;

/* Floats of a token's input, of its outputs 0, 1 and 2, and of a session. */
static int64_t input_width(stream_kind s)
{
	return s.id == OP_softmax_stream ? 3 * s.d : s.d;
}
static int64_t output_width(stream_kind s, int output)
{
	return output == 0 ? s.d : s.heads;
}
static int outputs(stream_kind s)
{
	return s.id == OP_additive_stream ? 3 : s.id == OP_linear_stream ? 2 : 1;
}
static int64_t state_floats(stream_kind s)
{
	return s.id == OP_additive_stream ? additive_state_floats(s.d, s.heads, s.window)
	       : s.id == OP_linear_stream ? linear_state_floats(s.d, s.heads)
	                                  : softmax_state_floats(s.d, s.d, s.window);
}

/* A pool of slots, all NaN, with a margin on either side of a session's state. */
typedef struct reader {
	stream_kind kind;
	additive_stream_params additive;
	softmax_stream_params softmax;
	linear_stream_params linear;
	tensor w, pool;
	int64_t slot_floats;
} reader;

static reader reader_new(stream_kind kind, int64_t slots)
{
	const int64_t floats = state_floats(kind) + 2 * MARGIN;
	return (reader){.kind = kind,
	                .additive = {kind.heads, kind.window, MARGIN},
	                .softmax = {.heads = kind.heads, .window = kind.window, .offset = MARGIN, .scale = 0.3f},
	                .linear = {kind.heads, MARGIN, 1e-6f},
	                .w = call_normal(SHAPE1(kind.d), 42, 1.5),
	                .pool = call_tensor(DTYPE_F32, SHAPE2(slots, floats)),
	                .slot_floats = floats};
}

static void reader_free(reader *r)
{
	buffer_free(r->w.data);
	buffer_free(r->pool.data);
}

static float *slot_of(const reader *r, int64_t slot)
{
	return (float *)r->pool.data + slot * r->slot_floats;
}

/* Read x [rows, n, …], or with start [1, tokens, …]; call call_free_outputs afterwards. */
static op_call reader_read(backend *b, reader *r, tensor x, tensor mask, int64_t n_rows, const int32_t *slot,
                           const int32_t *position, const int32_t *length, const int32_t *start)
{
	const shape rows = SHAPE1(n_rows);
	op_call call = {0};
	int n = 0;
	call.params = r->kind.id == OP_additive_stream ? (const void *)&r->additive
	              : r->kind.id == OP_linear_stream ? (const void *)&r->linear
	                                               : &r->softmax;
	call.in[n++] = x;
	if (r->kind.id == OP_additive_stream)
		call.in[n++] = r->w;
	else if (r->kind.id == OP_linear_stream) /* queries, keys and values are the same */
		n += 2, call.in[1] = call.in[2] = x;
	else
		n += 2; /* k and v */
	call.in[n++] = r->pool;
	const int first = n;
	call.in[n++] = call_integers(rows, slot);
	call.in[n++] = call_integers(rows, position);
	call.in[n++] = call_integers(rows, length);
	call.in[n++] = mask;
	if (start)
		call.in[n++] = call_integers(rows, start);
	call.n_in = n;
	call_run(b, r->kind.id, &call);
	for (int i = first; i < first + 3; i++)
		buffer_free(call.in[i].data);
	if (start)
		buffer_free(call.in[n - 1].data);
	return call;
}

/* One sequence of n tokens and the outputs for them. */
typedef struct sequence {
	int64_t n;
	tensor x, mask;
	float *y[3];
} sequence;

static sequence sequence_new(stream_kind kind, int64_t n, uint64_t seed, bool masked)
{
	sequence s = {.n = n, .x = call_normal(SHAPE3(1, n, input_width(kind)), seed, 1)};
	for (int o = 0; o < outputs(kind); o++)
		s.y[o] = buffer_new((size_t)(n * output_width(kind, o)) * sizeof(float));
	if (!masked)
		return s;
	s.mask = call_tensor(DTYPE_I32, SHAPE2(1, n));
	random_integers(s.mask.data, n, seed + 1, 0, 1);
	for (int64_t i = 0; i < n;
	     i++) { /* some windows are masked completely; outputs of masked tokens are not compared */
		((int32_t *)s.mask.data)[i] &= i % 50 > 12;
		if (!((int32_t *)s.mask.data)[i] && kind.id == OP_softmax_stream)
			for (int64_t d = 2 * kind.d; d < 3 * kind.d; d++)
				((float *)s.x.data)[i * 3 * kind.d + d] = NAN;
	}
	return s;
}

static void sequence_free(sequence *s)
{
	buffer_free(s->x.data);
	buffer_free(s->mask.data);
	for (int o = 0; o < 3; o++)
		buffer_free(s->y[o]);
}

/* Copy tokens first … first + n - 1 to token `at` of a tensor. */
static void put_tokens(tensor *to, int64_t at, const tensor *from, int64_t first, int64_t n)
{
	const int64_t width = to->shape.rank == 3 ? to->shape.dim[2] : 1;
	memcpy((char *)to->data + at * width * 4, (const char *)from->data + first * width * 4,
	       (size_t)(n * width) * 4);
}

/* Read the next tokens of several sequences in one call: as rows of the longest one's length, or concatenated, with
 * room after every third. */
static void read_rows(backend *b, reader *r, sequence *const *s, const int32_t *slot, const int32_t *position,
                      const int32_t *length, int64_t rows, bool masked, bool ragged)
{
	int32_t most = 0, start[MOST_ROWS + 1] = {0};
	for (int64_t i = 0; i < rows; i++)
		most = length[i] > most ? length[i] : most;
	for (int64_t i = 0; i < rows; i++)
		start[i + 1] = start[i] + (ragged ? length[i] + (i % 3 == 2) : most);
	const int64_t n = ragged ? start[rows] : most, batch = ragged ? 1 : rows;
	tensor x = call_tensor(DTYPE_F32, SHAPE3(batch, n, input_width(r->kind))), mask = {0};
	if (masked)
		mask = call_tensor(DTYPE_I32, SHAPE2(batch, n));
	for (int64_t i = 0; i < rows; i++) {
		put_tokens(&x, start[i], &s[i]->x, position[i], length[i]);
		if (masked)
			put_tokens(&mask, start[i], &s[i]->mask, position[i], length[i]);
	}
	op_call call = reader_read(b, r, x, mask, rows, slot, position, length, ragged ? start : NULL);
	for (int64_t i = 0; i < rows; i++)
		for (int o = 0; o < outputs(r->kind); o++) {
			const int64_t width = output_width(r->kind, o), room = start[i + 1] - start[i];
			const float *y = (const float *)call.out[o].data + start[i] * width;
			memcpy(s[i]->y[o] + position[i] * width, y, (size_t)(length[i] * width) * sizeof *y);
			for (int64_t e = length[i] * width; e < room * width; e++)
				assert_true(y[e] == 0);
		}
	call_free_outputs(&call);
	buffer_free(x.data);
	buffer_free(mask.data);
}

static void read_together(backend *b, reader *r, sequence *const *s, const int32_t *slot, const int32_t *position,
                          const int32_t *length, int64_t rows, bool masked)
{
	read_rows(b, r, s, slot, position, length, rows, masked, false);
}

static void read_part(backend *b, reader *r, sequence *s, int64_t first, int64_t n)
{
	read_together(b, r, &s, &(int32_t){0}, &(int32_t){(int32_t)first}, &(int32_t){(int32_t)n}, 1, s->mask.data);
}

static void assert_same_sequence(stream_kind kind, const sequence *got, const sequence *want)
{
	for (int o = 0; o < outputs(kind); o++)
		assert_true(compare_same("output", got->y[o], want->y[o], want->n * output_width(kind, o)));
}

static const int64_t windows[] = {1, 2, 3, 4, 5, 64, 256, 0};
enum { WINDOWS = sizeof windows / sizeof windows[0] };

/* Run a check for both ops with every window, in sizes that are multiples of four (d 24) and others. */
typedef void (*check_fn)(stream_kind kind, bool masked);
static void for_every_kind(check_fn check)
{
	for (int i = 0; i < 2 * WINDOWS; i++) {
		if (is_left_out(device, i, 3))
			continue;
		const int64_t window = windows[i / 2];
		const stream_kind additive = i % 2 ? (stream_kind){OP_additive_stream, 24, 2, window}
		                                   : (stream_kind){OP_additive_stream, 21, 3, window};
		check(additive, i / 2 % 2);
		const stream_kind softmax = {OP_softmax_stream, additive.d, additive.heads, window ? window : MOST};
		check(softmax, i / 2 % 2);
	}
}

/* --- the CPU's numbers --------------------------------------------------------------------- */

static void check_against_cpu(stream_kind kind, bool masked)
{
	enum { N = 301 };
	reader ours = reader_new(kind, 1), theirs = reader_new(kind, 1);
	sequence got = sequence_new(kind, N, 43, masked), want = sequence_new(kind, N, 43, masked);
	read_part(device, &ours, &got, 0, 150);
	read_part(device, &ours, &got, 150, N - 150);
	read_part(cpu, &theirs, &want, 0, N);
	for (int o = 0; o < outputs(kind); o++)
		assert_true(compare_close("output", got.y[o], want.y[o], N * output_width(kind, o), 1e-5, 1e-5));
	if (kind.id == OP_additive_stream)
		assert_true(compare_close("state", slot_of(&ours, 0) + MARGIN, slot_of(&theirs, 0) + MARGIN,
		                          state_floats(kind), 1e-5, 1e-5));
	/* a session also continues from a state of the other device */
	memcpy(slot_of(&ours, 0), slot_of(&theirs, 0), (size_t)ours.slot_floats * sizeof(float));
	if (kind.window != 1 || kind.id != OP_additive_stream) {
		sequence more = sequence_new(kind, N + 1, 44, false), same = sequence_new(kind, N + 1, 44, false);
		read_part(device, &ours, &more, N, 1);
		read_part(cpu, &theirs, &same, N, 1);
		assert_true(compare_close("next", more.y[0] + N * kind.d, same.y[0] + N * kind.d, kind.d, 1e-5, 1e-5));
		sequence_free(&more);
		sequence_free(&same);
	}
	sequence_free(&got);
	sequence_free(&want);
	reader_free(&ours);
	reader_free(&theirs);
}

static void every_window_gives_the_numbers_of_the_cpu(void **state)
{
	(void)state;
	for_every_kind(check_against_cpu);
}

/* The parallel form of both ops, on the CPU. */
static void check_against_parallel(stream_kind kind, bool masked)
{
	enum { N = 301 };
	reader r = reader_new(kind, 1);
	sequence s = sequence_new(kind, N, 45, masked);
	for (int64_t i = 0; i < N; i += 64)
		read_part(device, &r, &s, i, N - i < 64 ? N - i : 64);
	const additive_attention_params additive = {.heads = kind.heads, .window = kind.window};
	const softmax_params softmax = {.heads = kind.heads, .window = kind.window, .scale = r.softmax.scale};
	op_call call = {.params = &additive, .n_in = 3, .in = {s.x, r.w, s.mask}};
	if (kind.id == OP_softmax_stream)
		call = (op_call){.params = &softmax, .n_in = 4, .in = {s.x, {0}, {0}, s.mask}};
	call_run(cpu, kind.id == OP_additive_stream ? OP_additive_attention : OP_softmax_attention, &call);
	for (int o = 0; o < outputs(kind); o++)
		assert_true(compare_close("output", s.y[o], call.out[o].data, N * output_width(kind, o), 1e-5, 1e-5));
	call_free_outputs(&call);
	sequence_free(&s);
	reader_free(&r);
}

static void every_window_gives_the_numbers_of_the_parallel_form(void **state)
{
	(void)state;
	for_every_kind(check_against_parallel);
}

/* Heads of every size: parts of a warp, full warps, several passes of one. */
static void every_width_of_a_head_is_right(void **state)
{
	(void)state;
	static const int64_t widths[] = {1, 3, 4, 16, 17, 32, 36, 64, 100, 128, 129, 300};
	for (int i = 0; i < 2 * 12; i++) {
		const int64_t dh = widths[i / 2], heads = i % 3 + 1;
		const stream_kind kind = {i % 2 ? OP_additive_stream : OP_softmax_stream, dh * heads, heads, 7};
		check_against_cpu(kind, false);
	}
}

/* --- cuts and batches ------------------------------------------------------------------------ */

static void check_cuts(stream_kind kind, bool masked)
{
	const int64_t n = MOST;
	reader whole = reader_new(kind, 1);
	sequence want = sequence_new(kind, n, 46, masked);
	read_part(device, &whole, &want, 0, n);
	for (int trial = 0; trial < 2; trial++) {
		if (is_left_out(device, trial + 1, 2))
			continue;
		reader cut = reader_new(kind, 1);
		sequence got = sequence_new(kind, n, 46, masked);
		uint64_t seed = (uint64_t)trial + 5;
		for (int64_t i = 0, length; i < n; i += length) {
			length = random_next(&seed, 1, trial && i < 150 ? 5 : 70);
			length = n - i < length ? n - i : length;
			read_part(device, &cut, &got, i, length);
		}
		assert_same_sequence(kind, &got, &want);
		assert_true(
		    compare_same("state", slot_of(&cut, 0) + MARGIN, slot_of(&whole, 0) + MARGIN, state_floats(kind)));
		sequence_free(&got);
		reader_free(&cut);
	}
	sequence_free(&want);
	reader_free(&whole);
}

static void any_division_of_tokens_into_calls_gives_the_same_bits_and_state(void **state)
{
	(void)state;
	for_every_kind(check_cuts);
}

/* 64 sequences, each alone and 2, 7 and 64 at once, one token each and in chunks of different lengths. */
static void check_batches(stream_kind kind, bool masked)
{
	enum { ROWS = MOST_ROWS, N = 40, ALONE = 3 };
	static const int sizes[] = {2, 7, ROWS};
	sequence want[ALONE];
	reader alone[ALONE];
	for (int i = 0; i < ALONE; i++) {
		want[i] = sequence_new(kind, N, 50 + 2 * (uint64_t)i, masked);
		alone[i] = reader_new(kind, 1);
		read_part(device, &alone[i], &want[i], 0, N);
	}
	for (int b = 0; b < 3; b++) {
		reader together = reader_new(kind, ROWS + 1);
		sequence got[ROWS], *row[ROWS];
		int32_t slot[ROWS], position[ROWS] = {0}, length[ROWS];
		const int rows = sizes[b];
		for (int i = 0; i < rows; i++) { /* the sequences that were read alone are among others, including the
			                            first and the last place */
			got[i] = sequence_new(kind, N, 50 + 2 * (uint64_t)(i % ALONE), masked);
			row[i] = &got[i];
			slot[i] = (i * 4 + 1) % (ROWS + 1);
		}
		for (int turn = 0; turn < 5; turn++) {
			for (int i = 0; i < rows; i++) {
				const int left = N - position[i], wish = turn < 2   ? 1
				                                         : turn < 4 ? (i + turn) % 17
				                                                    : left;
				length[i] = wish < left ? wish : left;
			}
			read_rows(device, &together, row, slot, position, length, rows, masked, turn % 2);
			for (int i = 0; i < rows; i++)
				position[i] += length[i];
		}
		for (int i = 0; i < rows; i++) {
			assert_same_sequence(kind, &got[i], &want[i % ALONE]);
			assert_true(compare_same("state", slot_of(&together, slot[i]) + MARGIN,
			                         slot_of(&alone[i % ALONE], 0) + MARGIN, state_floats(kind)));
			sequence_free(&got[i]);
		}
		reader_free(&together);
	}
	for (int i = 0; i < ALONE; i++) {
		sequence_free(&want[i]);
		reader_free(&alone[i]);
	}
}

static void sequences_have_the_same_bits_in_any_batch(void **state)
{
	(void)state;
	static const int64_t some[] = {1, 5, 16, 0};
	for (int i = 0; i < 4; i++) {
		check_batches((stream_kind){OP_additive_stream, 24, 2, some[i]}, i % 2);
		check_batches((stream_kind){OP_softmax_stream, 24, 2, some[i] ? some[i] : 64}, i % 2);
	}
}

/* Rows that are cut into stretches, some of them several times and some not at all, leave the bits of pieces. With
 * `ahead` these are single tokens, which another kernel reads, else 7 tokens. */
static void check_stretches(stream_kind kind, int64_t ahead, bool packed)
{
	enum { ROWS = 5 };
	static const int64_t lengths[ROWS] = {1, MOST - 7, 130, 31, 300};
	const int64_t piece = ahead > 0 ? 1 : 7;
	sequence got[ROWS], want[ROWS], *row[ROWS];
	reader together = reader_new(kind, ROWS), alone = reader_new(kind, ROWS);
	int32_t slot[ROWS], position[ROWS], length[ROWS];
	for (int i = 0; i < ROWS; i++) {
		const int64_t n = lengths[i] + ahead;
		got[i] = sequence_new(kind, n, 60 + 2 * (uint64_t)i, true);
		want[i] = sequence_new(kind, n, 60 + 2 * (uint64_t)i, true);
		row[i] = &want[i];
		for (int64_t at = 0; at < n; at += piece) {
			slot[i] = i;
			position[i] = (int32_t)at;
			length[i] = (int32_t)(n - at < piece ? n - at : piece);
			read_rows(device, &alone, &row[i], &slot[i], &position[i], &length[i], 1, true, false);
		}
		row[i] = &got[i];
		position[i] = 0;
		length[i] = (int32_t)ahead;
	}
	if (ahead > 0)
		read_rows(device, &together, row, slot, position, length, ROWS, true, packed);
	for (int i = 0; i < ROWS; i++) {
		position[i] = (int32_t)ahead;
		length[i] = (int32_t)lengths[i];
	}
	read_rows(device, &together, row, slot, position, length, ROWS, true, packed);
	for (int i = 0; i < ROWS; i++) {
		assert_same_sequence(kind, &got[i], &want[i]);
		assert_true(compare_same("state", slot_of(&together, i) + MARGIN, slot_of(&alone, i) + MARGIN,
		                         state_floats(kind)));
		sequence_free(&got[i]);
		sequence_free(&want[i]);
	}
	reader_free(&together);
	reader_free(&alone);
}

static void long_prompts_have_the_bits_of_short_pieces(void **state)
{
	(void)state;
	static const int64_t some[] = {2, 5, 16, 64, 131, 0};
	static const int64_t widths[] = {1, 12, 32, 64, 100};
	check_stretches((stream_kind){OP_additive_stream, 300, 1, 40}, 0, true); /* several quads per lane */
	for (int i = 0; i < 5; i++)
		check_stretches((stream_kind){OP_linear_stream, 2 * widths[i], 2, 0}, 5, i % 2);
	for (int i = 0; i < 6; i++) {
		check_stretches((stream_kind){OP_additive_stream, 24, 2, some[i]}, i % 2 ? 5 : 0, true);
		check_stretches((stream_kind){OP_additive_stream, 21, 3, some[i]}, i % 2 ? 0 : 5, false);
	}
}

/* --- the pool -------------------------------------------------------------------------------- */

static void check_pool(stream_kind kind, bool masked)
{
	enum { N = 9 };
	reader r = reader_new(kind, 4);
	sequence s[3] = {sequence_new(kind, N, 60, masked), sequence_new(kind, N, 62, masked),
	                 sequence_new(kind, N, 64, masked)};
	read_together(device, &r, (sequence *[]){&s[0], &s[1], &s[2]}, (int32_t[]){2, 3, 0}, (int32_t[]){0, 0, 0},
	              (int32_t[]){N, 0, 4}, 3, masked);
	for (int64_t slot = 0; slot < 4; slot++) {
		for (int64_t f = 0; f < r.slot_floats; f++) {
			const bool inside = (slot == 2 || slot == 0) && f >= MARGIN && f < r.slot_floats - MARGIN;
			if (kind.id == OP_additive_stream || !inside)
				assert_int_equal(isnan(slot_of(&r, slot)[f]) != 0, !inside);
		}
	}
	for (int i = 0; i < 3; i++)
		sequence_free(&s[i]);
	reader_free(&r);
}

static void nothing_outside_the_state_of_a_reading_slot_is_written(void **state)
{
	(void)state;
	for_every_kind(check_pool);
}

/* reader_new leaves NaN in a slot; another session has used it before. */
static void check_former(stream_kind kind, bool masked)
{
	enum { N = 30 };
	reader fresh = reader_new(kind, 1), used = reader_new(kind, 1);
	sequence before = sequence_new(kind, 400, 66, false), want = sequence_new(kind, N, 68, masked),
	         got = sequence_new(kind, N, 68, masked);
	read_part(device, &used, &before, 0, 400);
	read_part(device, &fresh, &want, 0, 3);
	read_part(device, &used, &got, 0, 3);
	if (kind.id == OP_additive_stream)
		assert_true(compare_same("state", slot_of(&used, 0), slot_of(&fresh, 0), fresh.slot_floats));
	read_part(device, &fresh, &want, 3, N - 3);
	read_part(device, &used, &got, 3, N - 3);
	assert_same_sequence(kind, &got, &want);
	sequence_free(&before);
	sequence_free(&want);
	sequence_free(&got);
	reader_free(&fresh);
	reader_free(&used);
}

static void an_earlier_session_has_no_effect_on_its_slot(void **state)
{
	(void)state;
	for_every_kind(check_former);
}

static void masked_tokens_at_the_beginning_pool_to_zero(void **state)
{
	(void)state;
	for (int i = 0; i < WINDOWS; i++) {
		const stream_kind kind = {OP_additive_stream, 24, 2, windows[i]};
		reader r = reader_new(kind, 1);
		sequence s = sequence_new(kind, 20, 70, true); /* tokens 0 … 12 are masked */
		read_part(device, &r, &s, 0, 20);
		for (int64_t e = 0; e < 13 * kind.d; e++)
			assert_true(s.y[0][e] == 0);
		for (int64_t e = 0; e < 13 * kind.heads; e++)
			assert_true(s.y[2][e] == -INFINITY);
		sequence_free(&s);
		reader_free(&r);
	}
}

/* A cache of many chunks, read to its end and beyond: every 64th token has the numbers of the CPU. */
static void a_long_ring_gives_the_numbers_of_the_cpu(void **state)
{
	(void)state;
	enum { N = 2600 };
	const stream_kind kind = {OP_softmax_stream, 8, 1, 2100};
	reader ours = reader_new(kind, 1), theirs = reader_new(kind, 1);
	sequence got = sequence_new(kind, N, 72, false), want = sequence_new(kind, N, 72, false);
	for (int64_t i = 0; i < N; i += 260) {
		read_part(device, &ours, &got, i, 259);
		read_part(device, &ours, &got, i + 259, 1);
		read_part(cpu, &theirs, &want, i, 260);
	}
	assert_true(compare_close("y", got.y[0], want.y[0], N * kind.d, 1e-5, 1e-5));
	assert_true(compare_same("ring", slot_of(&ours, 0), slot_of(&theirs, 0), ours.slot_floats));
	sequence_free(&got);
	sequence_free(&want);
	reader_free(&ours);
	reader_free(&theirs);
}

/* Outputs that are not requested are not written, and the state is the same. */
static void unrequested_outputs_have_no_other_effect(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		const stream_kind kind = {i ? OP_softmax_stream : OP_additive_stream, 24, 2, 6};
		reader all = reader_new(kind, 1), none = reader_new(kind, 1);
		sequence s = sequence_new(kind, 50, 74, false);
		read_part(device, &all, &s, 0, 50);
		op_call call = {.params = i ? (const void *)&none.softmax : &none.additive};
		call.in[call.n_in++] = s.x;
		if (i)
			call.n_in += 2;
		else
			call.in[call.n_in++] = none.w;
		call.in[call.n_in++] = none.pool;
		const int first = call.n_in;
		for (int v = 0; v < 3; v++)
			call.in[call.n_in++] = call_integers(SHAPE1(1), &(int32_t){v == 2 ? 50 : 0});
		call_run_requested(device, kind.id, &call, 0);
		assert_true(
		    compare_same("state", slot_of(&none, 0) + MARGIN, slot_of(&all, 0) + MARGIN, state_floats(kind)));
		for (int v = 0; v < 3; v++)
			buffer_free(call.in[first + v].data);
		sequence_free(&s);
		reader_free(&all);
		reader_free(&none);
	}
}

/* --- with neighbouring calls ----------------------------------------------------------------------------- */

/* layernorm, additive_stream and gate; one token of every session per run. */
typedef struct chained {
	plan *p;
	tensor pool;
} chained;

enum { CHAINED_ROWS = 3 };

static chained chained_new(stream_kind kind)
{
	const int64_t floats = (state_floats(kind) + 3) / 4 * 4;
	const shape x = SHAPE3(CHAINED_ROWS, 1, kind.d), weight = SHAPE1(kind.d), rows = SHAPE1(CHAINED_ROWS);
	graph *g = graph_new();
	value r = graph_input(g, "x", DTYPE_F32, x);
	value n = op_layernorm(g, r, graph_input(g, "weight", DTYPE_F32, weight),
	                       graph_input(g, "bias", DTYPE_F32, weight), 1e-5f);
	value pool = graph_state(g, "pool", SHAPE2(CHAINED_ROWS, floats));
	value slot = graph_input(g, "slot", DTYPE_I32, rows), position = graph_input(g, "position", DTYPE_I32, rows),
	      length = graph_input(g, "length", DTYPE_I32, rows);
	attention_values a =
	    op_additive_stream(g, n, graph_input(g, "w", DTYPE_F32, weight), pool, slot, position, length, VALUE_NONE,
	                       VALUE_NONE, (additive_stream_params){kind.heads, kind.window, 0});
	graph_output(g, op_gate(g, r, a.pooled, graph_input(g, "values", DTYPE_F32, x)), "y");
	tensor t = call_tensor(DTYPE_F32, SHAPE2(CHAINED_ROWS, floats));
	chained c = {.pool = t};
	c.pool.data = call_up(device, t.data, call_bytes(&t));
	buffer_free(t.data);
	plan_binding binding = {pool, c.pool.data};
	error err = ERROR_INIT;
	if (plan_new(&c.p, g, device, &binding, 1, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return c;
}

static void chained_write(chained *c, const char *name, tensor t)
{
	assert_int_equal(plan_write(c->p, graph_find(plan_graph(c->p), name), t.data), STATUS_OK);
	buffer_free(t.data);
}

/* Read token i of all sessions but one into y. */
static void chained_read(chained *c, stream_kind kind, int32_t i, tensor y)
{
	const int32_t slot[] = {2, 0, 1}, position[] = {i, i, i}, length[] = {1, i % 5 != 3, 1};
	const shape rows = SHAPE1(CHAINED_ROWS), x = SHAPE3(CHAINED_ROWS, 1, kind.d);
	chained_write(c, "slot", call_integers(rows, slot));
	chained_write(c, "position", call_integers(rows, position));
	chained_write(c, "length", call_integers(rows, length));
	chained_write(c, "x", call_normal(x, 100 + (uint64_t)i, 1));
	chained_write(c, "values", call_normal(x, 200 + (uint64_t)i, 1));
	chained_write(c, "weight", call_normal(SHAPE1(kind.d), 81, 1));
	chained_write(c, "bias", call_normal(SHAPE1(kind.d), 82, 1));
	chained_write(c, "w", call_normal(SHAPE1(kind.d), 83, 1));
	assert_int_equal(plan_run(c->p), STATUS_OK);
	assert_int_equal(plan_read(c->p, graph_find(plan_graph(c->p), "y"), y.data), STATUS_OK);
}

static void a_round_with_its_layernorm_and_gate_gives_the_same_bits(void **state)
{
	(void)state;
	static const stream_kind kinds[] = {
	    {OP_additive_stream, 16, 2, 4},   {OP_additive_stream, 24, 2, 0},  {OP_additive_stream, 64, 2, 5},
	    {OP_additive_stream, 128, 2, 16}, {OP_additive_stream, 384, 2, 1}, {OP_additive_stream, 384, 6, 3},
	    {OP_additive_stream, 768, 2, 7},  {OP_additive_stream, 18, 2, 4},
	};
	__typeof__(device->fuse) fuse = device->fuse;
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
		chained one = chained_new(kinds[k]);
		device->fuse = NULL;
		chained single = chained_new(kinds[k]);
		device->fuse = fuse;
		assert_int_equal(plan_node_count(one.p), kinds[k].d == 18 ? 3 : 1);
		assert_int_equal(plan_node_count(single.p), 3);
		tensor got = call_tensor(DTYPE_F32, SHAPE2(CHAINED_ROWS, kinds[k].d)),
		       want = call_tensor(DTYPE_F32, got.shape);
		for (int32_t i = 0; i < 23; i++) {
			chained_read(&one, kinds[k], i, got);
			chained_read(&single, kinds[k], i, want);
			assert_true(compare_same("y", got.data, want.data, shape_count(got.shape)));
		}
		buffer_free(got.data);
		buffer_free(want.data);
		plan_free(one.p);
		plan_free(single.p);
		device->release(device, one.pool.data);
		device->release(device, single.pool.data);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_window_gives_the_numbers_of_the_cpu),
	    cmocka_unit_test(every_window_gives_the_numbers_of_the_parallel_form),
	    cmocka_unit_test(every_width_of_a_head_is_right),
	    cmocka_unit_test(any_division_of_tokens_into_calls_gives_the_same_bits_and_state),
	    cmocka_unit_test(sequences_have_the_same_bits_in_any_batch),
	    cmocka_unit_test(long_prompts_have_the_bits_of_short_pieces),
	    cmocka_unit_test(nothing_outside_the_state_of_a_reading_slot_is_written),
	    cmocka_unit_test(an_earlier_session_has_no_effect_on_its_slot),
	    cmocka_unit_test(masked_tokens_at_the_beginning_pool_to_zero),
	    cmocka_unit_test(a_long_ring_gives_the_numbers_of_the_cpu),
	    cmocka_unit_test(unrequested_outputs_have_no_other_effect),
	    cmocka_unit_test(a_round_with_its_layernorm_and_gate_gives_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_pair, close_pair);
}
