/* product.h - products of matrices that fit in a cache, for kernels that make them tile by tile.
 *
 * C is made in pieces of a few rows and vectors whose sums stay in registers; every element is one chain over k in
 * order, so it does not depend on the pieces. A may have any strides; B and C have whole vectors of columns. Each
 * multiply-add takes one vector of B and one broadcast element of A, so nothing is packed. On two cores of an AMD
 * EPYC (Zen 5), whose multiply-adds reach about 450 GFLOP/s, softmax attention including its exps runs at 350 to
 * 385. */
#ifndef ENGINE_CPU_KERNELS_PRODUCT_H
#define ENGINE_CPU_KERNELS_PRODUCT_H

#include "engine/cpu/kernels/kernels.h"

#if defined(__AVX512F__)
enum { PRODUCT_VECTOR = 16, PRODUCT_REGISTERS = 32 };
#elif defined(__AVX__)
enum { PRODUCT_VECTOR = 8, PRODUCT_REGISTERS = 16 };
#elif defined(__aarch64__)
enum { PRODUCT_VECTOR = 4, PRODUCT_REGISTERS = 32 };
#else
enum { PRODUCT_VECTOR = 4, PRODUCT_REGISTERS = 16 };
#endif

/* Floats of one register, at any address. */
typedef float product_vector
    __attribute__((vector_size(PRODUCT_VECTOR * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Four floats: the sums of the lanes of four vectors. */
typedef float product_quad __attribute__((vector_size(4 * sizeof(float)), aligned(sizeof(float)), may_alias));

static inline __attribute__((always_inline)) product_quad product_lane_sums(const product_vector x[4])
{
	enum { QUADS = PRODUCT_VECTOR / 4 };
	product_quad sum[4];
	for (int i = 0; i < 4; i++) {
		const product_quad *from = (const product_quad *)&x[i];
		sum[i] = from[0];
		for (int q = 1; q < QUADS; q++)
			sum[i] += from[q];
	}
	const product_quad low =
	    __builtin_shufflevector(sum[0], sum[1], 0, 4, 1, 5) + __builtin_shufflevector(sum[0], sum[1], 2, 6, 3, 7);
	const product_quad high =
	    __builtin_shufflevector(sum[2], sum[3], 0, 4, 1, 5) + __builtin_shufflevector(sum[2], sum[3], 2, 6, 3, 7);
	return __builtin_shufflevector(low, high, 0, 1, 4, 5) + __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

/* The next multiple of a vector. */
static inline int64_t product_round(int64_t n)
{
	return kernel_parts(n, PRODUCT_VECTOR) * PRODUCT_VECTOR;
}

/* A matrix whose element [r][k] is data[r · row + k · step]. */
typedef struct product_matrix {
	const float *data;
	int64_t row, step;
} product_matrix;

/* `rows` x `vectors` of C = A B or, with `add`, C += A B; the sums stay in registers. */
static inline __attribute__((always_inline)) void product_tile(const int rows, const int vectors, int64_t depth,
                                                               product_matrix a, const float *b, int64_t b_row,
                                                               float *c, int64_t c_row, bool add)
{
	product_vector sum[8][4];
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < vectors; v++)
			sum[r][v] =
			    add ? *(const product_vector *)(c + r * c_row + v * PRODUCT_VECTOR) : (product_vector){0};
	for (int64_t k = 0; k < depth; k++) {
		for (int r = 0; r < rows; r++)
			for (int v = 0; v < vectors; v++)
				sum[r][v] += a.data[r * a.row + k * a.step] *
				             *(const product_vector *)(b + k * b_row + v * PRODUCT_VECTOR);
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < vectors; v++)
			*(product_vector *)(c + r * c_row + v * PRODUCT_VECTOR) = sum[r][v];
}

/* All rows of `vectors` columns, `step` rows at a time. */
static inline __attribute__((always_inline)) void product_columns(const int step, const int vectors, int64_t rows,
                                                                  int64_t depth, product_matrix a, const float *b,
                                                                  int64_t b_row, float *c, int64_t c_row, bool add)
{
	int64_t r = 0;
	for (; r + step <= rows; r += step, a.data += step * a.row, c += step * c_row)
		product_tile(step, vectors, depth, a, b, b_row, c, c_row, add);
	for (; r < rows; r++, a.data += a.row, c += c_row)
		product_tile(1, vectors, depth, a, b, b_row, c, c_row, add);
}

/* C = A B or, with `add`, C += A B: C [rows, columns], A [rows, depth], B [depth, columns]. */
static inline __attribute__((always_inline)) void product(int64_t rows, int64_t columns, int64_t depth,
                                                          product_matrix a, const float *b, int64_t b_row, float *c,
                                                          int64_t c_row, bool add)
{
	int64_t n = 0;
	for (; PRODUCT_REGISTERS == 32 && n + 4 * PRODUCT_VECTOR <= columns; n += 4 * PRODUCT_VECTOR)
		product_columns(4, 4, rows, depth, a, b + n, b_row, c + n, c_row, add);
	for (; n + 2 * PRODUCT_VECTOR <= columns; n += 2 * PRODUCT_VECTOR)
		product_columns(PRODUCT_REGISTERS == 32 ? 8 : 4, 2, rows, depth, a, b + n, b_row, c + n, c_row, add);
	for (; n < columns; n += PRODUCT_VECTOR)
		product_columns(8, 1, rows, depth, a, b + n, b_row, c + n, c_row, add);
}

#endif
