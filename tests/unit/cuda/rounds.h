/* rounds.h - many runs of one round of additive attention, whose bits are compared on the device. For tests of the look
 * back, which start other work at the same time. Include after cmocka.h. */
#ifndef TESTS_UNIT_CUDA_ROUNDS_H
#define TESTS_UNIT_CUDA_ROUNDS_H

#include "engine/base/clock.h"
#include "engine/tensor/ops.h"
#include "tests/unit/cuda/tensors.h"

typedef struct round_sizes {
	int64_t batch, length, d, heads, window, words; /* window 0: global; words: different rows of x */
} round_sizes;

typedef struct round_run {
	additive_attention_params params;
	op_call call;
} round_run;

static inline void rounds_drop(backend *b, tensor t)
{
	b->release(b, t.data);
}

/* x [B, N, D] in bf16: repeated rows of a small table, so the host does not need that many numbers. */
static inline tensor rounds_rows(backend *b, const round_sizes *s)
{
	const gather_params p = {-1};
	op_call call = {.params = &p, .n_in = 2, .n_out = 1};
	call.in[0] = tensors_normal(b, DTYPE_BF16, SHAPE2(s->words, s->d), 1);
	call.in[1] = tensors_integers(b, SHAPE2(s->batch, s->length), 2, 0, (int32_t)s->words - 1);
	call.out[0] = tensors_empty(b, DTYPE_BF16, SHAPE3(s->batch, s->length, s->d));
	tensors_run(b, OP_gather, &call);
	rounds_drop(b, call.in[0]);
	rounds_drop(b, call.in[1]);
	return call.out[0];
}

/* Make its rows, outputs and scratch; they depend only on the sizes. */
static inline void round_open(round_run *r, backend *b, const round_sizes *s)
{
	r->params = (additive_attention_params){.heads = s->heads, .window = s->window};
	r->call = (op_call){.params = &r->params, .n_in = 2, .n_out = 3};
	r->call.in[0] = rounds_rows(b, s);
	r->call.in[1] = tensors_normal(b, DTYPE_F32, SHAPE1(s->d), 3);
	r->call.out[0] = tensors_empty(b, DTYPE_BF16, r->call.in[0].shape);
	r->call.out[1] = tensors_empty(b, DTYPE_F32, SHAPE3(s->batch, s->length, s->heads));
	r->call.out[2] = tensors_empty(b, DTYPE_F32, SHAPE3(s->batch, s->length, s->heads));
	r->call.scratch = tensors_put(b, NULL, b->scratch[OP_additive_attention](b, &r->call));
}

static inline void round_close(round_run *r, backend *b)
{
	for (int i = 0; i < r->call.n_in; i++)
		rounds_drop(b, r->call.in[i]);
	for (int i = 0; i < r->call.n_out; i++)
		rounds_drop(b, r->call.out[i]);
	b->release(b, r->call.scratch);
}

/* Issue the round without waiting for it. */
static inline void round_issue(round_run *r, backend *b)
{
	assert_int_equal(b->kernel[OP_additive_attention](b, &r->call), STATUS_OK);
}

/* --- comparing bits on the device --------------------------------------------------------------------- */

/* A saved copy of a tensor. */
typedef struct round_bits {
	tensor minus, difference, wide, sum; /* wide: the difference as f32 */
	void *scratch;                       /* scratch of the sum */
} round_bits;

static inline void round_issue_op(backend *b, op_id id, op_call call)
{
	assert_int_equal(b->kernel[id](b, &call), STATUS_OK);
}

static inline op_call round_sum_of(const round_bits *r)
{
	return (op_call){.n_in = 1, .n_out = 1, .in = {r->wide}, .out = {r->sum}, .scratch = r->scratch};
}

/* Save the content of t. */
static inline void round_bits_open(round_bits *r, backend *b, tensor t)
{
	static const scale_params negative = {-1};
	r->minus = tensors_empty(b, t.type, t.shape);
	r->difference = tensors_empty(b, t.type, t.shape);
	r->wide = t.type == DTYPE_F32 ? r->difference : tensors_empty(b, DTYPE_F32, t.shape);
	r->sum = tensors_empty(b, DTYPE_F32, SHAPE0());
	const op_call sum = round_sum_of(r);
	size_t (*scratch)(const backend *, const op_call *) = b->scratch[OP_sum_squares];
	r->scratch = tensors_put(b, NULL, scratch ? scratch(b, &sum) : 0);
	round_issue_op(b, OP_scale,
	               (op_call){.params = &negative, .n_in = 1, .n_out = 1, .in = {t}, .out = {r->minus}});
}

static inline void round_bits_close(round_bits *r, backend *b)
{
	if (r->wide.data != r->difference.data)
		rounds_drop(b, r->wide);
	rounds_drop(b, r->difference);
	rounds_drop(b, r->minus);
	rounds_drop(b, r->sum);
	b->release(b, r->scratch);
}

/* True if t has the saved content; signs of zeros do not count. */
static inline bool round_bits_equal(round_bits *r, backend *b, tensor t)
{
	static const cast_params as = {DTYPE_F32};
	round_issue_op(b, OP_add, (op_call){.n_in = 2, .n_out = 1, .in = {r->minus, t}, .out = {r->difference}});
	if (r->wide.data != r->difference.data)
		round_issue_op(
		    b, OP_cast,
		    (op_call){.params = &as, .n_in = 1, .n_out = 1, .in = {r->difference}, .out = {r->wide}});
	round_issue_op(b, OP_sum_squares, round_sum_of(r));
	float sum;
	assert_int_equal(b->download(b, &sum, r->sum.data, sizeof sum), STATUS_OK);
	return sum == 0;
}

/* Run r repeatedly, at most `runs` times and for at most `seconds` (0: no limit). Returns the number of runs in which
 * an output has other bits than in the first; *made: number of runs. */
static inline int rounds_differing(round_run *r, backend *b, int runs, double seconds, int *made)
{
	round_bits g, log_normalizer;
	int differing = 0;
	round_issue(r, b);
	round_bits_open(&g, b, r->call.out[0]);
	round_bits_open(&log_normalizer, b, r->call.out[2]);
	assert_false(round_bits_equal(&g, b, r->call.in[0])); /* the comparison can fail */
	const uint64_t began = clock_ns();
	for (*made = 0; *made < runs; ++*made) {
		if (seconds > 0 && (double)(clock_ns() - began) > seconds * 1e9)
			break;
		round_issue(r, b);
		const bool same = round_bits_equal(&g, b, r->call.out[0]);
		differing += !(round_bits_equal(&log_normalizer, b, r->call.out[2]) && same);
	}
	round_bits_close(&g, b);
	round_bits_close(&log_normalizer, b);
	return differing;
}

#endif
