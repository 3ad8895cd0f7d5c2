/* trilinear, trilinear_grad: a block of 16 channels is one vector, whose lanes `xor b` are b's bits, each a swap of
 * halves. A row of p is written once, 16 times the bytes read. */
#include "engine/tensor/ops/trilinear.h"
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

/* Passed by address alone: without AVX-512 a vector of this size has no place among the arguments. */
typedef float block __attribute__((vector_size(TRILINEAR_TAPS * sizeof(float))));

static inline __attribute__((always_inline)) void load(block *x, const float *from)
{
	memcpy(x, from, sizeof *x);
}

static inline __attribute__((always_inline)) void store_block(float *to, const block *x)
{
	memcpy(to, x, sizeof *x);
}

/* y = x, lane i xor bit at lane i, of a bit that the compiler knows. */
static inline __attribute__((always_inline)) void swap(block *y, const block *x, const int bit)
{
	const block from = *x;
	if (bit == 1)
		*y = __builtin_shufflevector(from, from, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
	else if (bit == 2)
		*y = __builtin_shufflevector(from, from, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
	else if (bit == 4)
		*y = __builtin_shufflevector(from, from, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
	else
		*y = __builtin_shufflevector(from, from, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}

/* tap[0] is x; tap[b] becomes x, lane i xor b at lane i. */
static inline __attribute__((always_inline)) void spread(block tap[TRILINEAR_TAPS])
{
#pragma GCC unroll 16
	for (int b = 1; b < TRILINEAR_TAPS; b++)
		swap(&tap[b], &tap[b & (b - 1)], b & -b);
}

/* x[0] becomes Σ_b x[b], lane i xor b at lane i; the others are overwritten. */
static inline __attribute__((always_inline)) void gather(block x[TRILINEAR_TAPS])
{
	block swapped;
#pragma GCC unroll 4
	for (int bit = TRILINEAR_TAPS / 2; bit > 0; bit /= 2) {
#pragma GCC unroll 8
		for (int b = 0; b < bit; b++) {
			swap(&swapped, &x[b + bit], bit);
			x[b] += swapped;
		}
	}
}

/* Rows first … last - 1. */
static void products(const op_call *call, int64_t first, int64_t last)
{
	const int64_t width = shape_last(call->in[0].shape);
	const float *k = call->in[0].data, *u = call->in[1].data;
	float *p = call->out[0].data;
	for (int64_t r = first; r < last; r++) {
		for (int64_t i = 0; i < width; i += TRILINEAR_TAPS) {
			block by, tap[TRILINEAR_TAPS];
			load(&by, u + r * width + i);
			load(&tap[0], k + r * width + i);
			spread(tap);
#pragma GCC unroll 16
			for (int64_t b = 0; b < TRILINEAR_TAPS; b++) {
				const block product = tap[b] * by;
				store_block(p + (r * TRILINEAR_TAPS + b) * width + i, &product);
			}
		}
	}
}

status KERNEL(trilinear)(backend *b, const op_call *call)
{
	return kernel_for(b, call, shape_rows(call->in[0].shape), shape_count(call->out[0].shape), products);
}

static void gradients(const op_call *call, int64_t first, int64_t last)
{
	const int64_t width = shape_last(call->in[0].shape);
	const float *k = call->in[0].data, *u = call->in[1].data, *dp = call->in[2].data;
	float *dk = call->out[0].data, *du = call->out[1].data;
	for (int64_t r = first; r < last; r++) {
		for (int64_t i = 0; i < width; i += TRILINEAR_TAPS) {
			const int64_t at = r * width + i;
			block by, d, sum = {0}, tap[TRILINEAR_TAPS];
			load(&by, u + at);
			load(&tap[0], k + at);
			spread(tap);
#pragma GCC unroll 16
			for (int64_t b = 0; b < TRILINEAR_TAPS; b++) {
				load(&d, dp + (r * TRILINEAR_TAPS + b) * width + i);
				sum += d * tap[b];
				tap[b] = d * by;
			}
			gather(tap);
			if (dk)
				store_block(dk + at, &tap[0]);
			if (du)
				store_block(du + at, &sum);
		}
	}
}

status KERNEL(trilinear_grad)(backend *b, const op_call *call)
{
	return kernel_for(b, call, shape_rows(call->in[0].shape), shape_count(call->in[2].shape), gradients);
}
