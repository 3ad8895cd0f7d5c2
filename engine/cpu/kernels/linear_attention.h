/* linear_attention.h - shared by linear attention, its gradient and its recurrent form: rows of features, and the
 * sweep, which does all of their arithmetic.
 *
 * A sweep takes tokens one after another through a state T [rows, columns]:
 *
 *   T += a_t b_tᵀ,   out_t = T ᵀ c_t          (a_t, c_t [rows], b_t, out_t [columns])
 *
 *   forward   T = S       a = φ(k)      b = v      c = φ(q)     out = normalizer · y
 *   gradient  T = [S|z]ᵀ  a = [v, 1]    b = φ(k)   c = [G, c]   out = dφ(q)
 *             T = [R|r]ᵀ  a = [G, c]    b = φ(q)   c = [v, 1]   out = dφ(k)    from the last token to the first
 *             T = R       a = φ(q)      b = G      c = φ(k)     out = dv       from the last token to the first
 *
 * A tile of T stays in registers while the tokens of a chunk pass; every element of T is one chain over tokens and
 * every out one chain over rows, so neither chunks nor cuts of the columns change a bit. The alternative, dense lower
 * triangles of chunks of C tokens beside T, takes C / 2 dh more multiply-adds and a second copy of T for each chunk. A
 * bidirectional sum is over all tokens first (`product`), and then applied. */
#ifndef ENGINE_CPU_KERNELS_LINEAR_ATTENTION_H
#define ENGINE_CPU_KERNELS_LINEAR_ATTENTION_H

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/product.h"

#include <stdatomic.h>
#include <string.h>

enum { LINEAR_TOKENS = 32 /* tokens of a chunk */ };

/* Floats between rows of a chunk: dh, then the 1 or c, then zeros up to whole vectors. */
static inline int64_t linear_pitch(int64_t dh)
{
	return product_round(dh + 1);
}

/* `count` tokens of one head in global memory: token t at data + t · stride; mask of these tokens, or NULL. */
typedef struct linear_tokens {
	const float *data;
	int64_t stride, count, dh;
	const int32_t *mask;
} linear_tokens;

/* Prefetch the row of a later chunk: the rows of a head are too far apart for the processor to predict the next one. */
static inline void linear_prefetch(const linear_tokens *x, const float *row)
{
	for (int64_t d = 0; d < x->dh; d += 16)
		__builtin_prefetch(row + LINEAR_TOKENS * x->stride + d);
}

/* φ(x) = elu(x) + 1; its slope is min(φ(x), 1). */
static inline float linear_feature(float x)
{
	const float low = x < -87.3365f ? 0.0f : math_exp_near(x);
	return x > 0.0f ? x + 1.0f : low;
}

/* to [count, pitch] = φ followed by zeros; rows of masked tokens are zero. */
static inline void linear_load_features(linear_tokens x, float *to)
{
	const int64_t pitch = linear_pitch(x.dh);
	for (int64_t t = 0; t < x.count; t++, to += pitch) {
		const float *from = x.data + t * x.stride;
		linear_prefetch(&x, from);
		if (x.mask && !x.mask[t]) {
			memset(to, 0, (size_t)pitch * sizeof *to);
			continue;
		}
#pragma omp simd
		for (int64_t d = 0; d < x.dh; d++)
			to[d] = linear_feature(from[d]);
		for (int64_t d = x.dh; d < pitch; d++)
			to[d] = 0.0f;
	}
}

/* to [count, pitch] = [x, 1] followed by zeros; rows of masked tokens are zero. */
static inline void linear_load_values(linear_tokens x, float *to)
{
	const int64_t pitch = linear_pitch(x.dh);
	for (int64_t t = 0; t < x.count; t++, to += pitch) {
		const float *from = x.data + t * x.stride;
		const bool present = !x.mask || x.mask[t];
		linear_prefetch(&x, from);
		for (int64_t d = 0; d < x.dh; d++)
			to[d] = present ? from[d] : 0.0f;
		for (int64_t d = x.dh; d < pitch; d++)
			to[d] = present && d == x.dh ? 1.0f : 0.0f;
	}
}

/* 1 / (normalizer + eps), 0 where nothing is seen. */
static inline float linear_inverse(float normalizer, float eps)
{
	return normalizer > 0.0f ? 1.0f / (normalizer + eps) : 0.0f;
}

/* z += φ(k_t), normalizer_t = φ(q_t)·z; `causal` false: z is complete already. */
static inline __attribute__((always_inline)) void linear_normalize(const bool causal, int64_t count, int64_t dh,
                                                                   const float *query, const float *key, float *z,
                                                                   float *normalizer)
{
	const int64_t pitch = linear_pitch(dh);
	for (int64_t t = 0; t < count; t++) {
		const float *q = query + t * pitch, *k = key + t * pitch;
		float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
		for (int64_t d = 0; d < dh; d++) {
			z[d] = causal ? z[d] + k[d] : z[d];
			sum += q[d] * z[d];
		}
		normalizer[t] = sum;
	}
}

/* --- the sweep ------------------------------------------------------------------------------------------ */

/* Operands of a sweep, row t at · + t · step: step is the pitch, or its negative from the last token on. */
typedef struct linear_sweep {
	const float *a, *b, *c;
	float *out;
	int64_t step, count;
} linear_sweep;

/* `rows` x `vectors` of T; out begins at 0 with the first rows. */
static inline __attribute__((always_inline)) void linear_sweep_tile(const int rows, const int vectors, linear_sweep s,
                                                                    float *state, int64_t pitch, const bool begins)
{
	product_vector sum[8][4];
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < vectors; v++)
			sum[r][v] = *(const product_vector *)(state + r * pitch + v * PRODUCT_VECTOR);
	for (int64_t t = 0; t < s.count; t++, s.a += s.step, s.b += s.step, s.c += s.step, s.out += s.step) {
		product_vector out[4];
		for (int v = 0; v < vectors; v++)
			out[v] = !begins ? *(const product_vector *)(s.out + v * PRODUCT_VECTOR) : (product_vector){0};
		for (int r = 0; r < rows; r++)
			for (int v = 0; v < vectors; v++) {
				sum[r][v] += s.a[r] * *(const product_vector *)(s.b + v * PRODUCT_VECTOR);
				out[v] += s.c[r] * sum[r][v];
			}
		for (int v = 0; v < vectors; v++)
			*(product_vector *)(s.out + v * PRODUCT_VECTOR) = out[v];
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < vectors; v++)
			*(product_vector *)(state + r * pitch + v * PRODUCT_VECTOR) = sum[r][v];
}

/* All rows of `vectors` columns, `step` rows at a time. */
static inline __attribute__((always_inline)) void linear_sweep_columns(const int step, const int vectors, int64_t rows,
                                                                       linear_sweep s, float *state, int64_t pitch)
{
	int64_t r = 0;
	for (; r + step <= rows; r += step, s.a += step, s.c += step, state += step * pitch) {
		if (r == 0)
			linear_sweep_tile(step, vectors, s, state, pitch, true);
		else
			linear_sweep_tile(step, vectors, s, state, pitch, false);
	}
	for (; r < rows; r++, s.a++, s.c++, state += pitch) {
		if (r == 0)
			linear_sweep_tile(1, vectors, s, state, pitch, true);
		else
			linear_sweep_tile(1, vectors, s, state, pitch, false);
	}
}

/* T [rows, columns] of whole vectors, its rows `pitch` apart. b and out begin at T's first column. */
static inline __attribute__((always_inline)) void linear_sweep_run(int64_t rows, int64_t columns, linear_sweep s,
                                                                   float *state, int64_t pitch)
{
	int64_t n = 0;
	for (; PRODUCT_REGISTERS == 32 && n + 4 * PRODUCT_VECTOR <= columns; n += 4 * PRODUCT_VECTOR) {
		linear_sweep_columns(4, 4, rows, s, state + n, pitch);
		s.b += 4 * PRODUCT_VECTOR;
		s.out += 4 * PRODUCT_VECTOR;
	}
	for (; n + 2 * PRODUCT_VECTOR <= columns; n += 2 * PRODUCT_VECTOR) {
		linear_sweep_columns(PRODUCT_REGISTERS == 32 ? 8 : 4, 2, rows, s, state + n, pitch);
		s.b += 2 * PRODUCT_VECTOR;
		s.out += 2 * PRODUCT_VECTOR;
	}
	for (; n < columns; n += PRODUCT_VECTOR) {
		linear_sweep_columns(8, 1, rows, s, state + n, pitch);
		s.b += PRODUCT_VECTOR;
		s.out += PRODUCT_VECTOR;
	}
}

/* --- how the work is cut ----------------------------------------------------------------------------------- */

/* Heads of all sequences, each in `cuts` groups of columns of T where there are fewer heads than threads. */
typedef struct linear_cut {
	int64_t units, cuts, columns; /* columns of a cut, whole vectors */
} linear_cut;

static inline linear_cut linear_cut_of(int64_t heads, int64_t dh, int threads)
{
	const int64_t vectors = kernel_parts(dh, PRODUCT_VECTOR);
	const int64_t requested = heads ? kernel_parts(threads, heads) : 1;
	const int64_t each = kernel_parts(vectors, kernel_min(requested, vectors));
	const int64_t cuts = kernel_parts(vectors, each);
	return (linear_cut){heads * cuts, cuts, each * PRODUCT_VECTOR};
}

/* One unit: columns first … first + columns - 1 of a head. */
typedef struct linear_unit {
	int64_t sequence, head, first, columns;
} linear_unit;

static inline linear_unit linear_unit_at(const linear_cut *cut, int64_t heads, int64_t dh, int64_t index)
{
	const int64_t head = index / cut->cuts, first = index % cut->cuts * cut->columns;
	return (linear_unit){head / heads, head % heads, first, kernel_min(cut->columns, product_round(dh) - first)};
}

/* Tokens t … t + count - 1 of a unit's head in a tensor [sequences, length, d]. */
static inline linear_tokens linear_tokens_at(const linear_unit *u, int64_t d, int64_t dh, const float *data,
                                             int64_t length, int64_t t, int64_t count, const int32_t *mask)
{
	const int64_t row = u->sequence * length + t;
	return (linear_tokens){data + row * d + u->head * dh, d, count, dh, mask ? mask + row : NULL};
}

#endif
