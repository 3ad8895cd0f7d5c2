/* linear_tile.h - the products of a few rows and a few panels (panel.h), in vector registers.
 *
 * A tile of R rows and P panels keeps its R x P x 16 sums in registers and walks once over the inputs, adding x[r][k] ·
 * w[k][0 … 15] to each. This is the outer-product form of a matrix product (Goto and van de Geijn 2008). A panel is
 * read in order, and R rows use each of its weights. The sum of an output is one chain over k in any tile, so every
 * tile gives the same bits.
 *
 * Tiles are functions of constants R and P that are always inlined, so that the compiler unrolls their loops and keeps
 * the arrays in registers. Half of the registers are sums, which is enough for the latency of the multiply-adds; the
 * other half is for the weights and broadcasts of x. At an edge, missing rows or panels are computed as copies of the
 * last ones and not stored. So tile sizes are only powers of two up to TILE_ROWS. */
#ifndef ENGINE_CPU_KERNELS_LINEAR_TILE_H
#define ENGINE_CPU_KERNELS_LINEAR_TILE_H

#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/maxima.h"
#include "engine/cpu/kernels/panel_vector.h"
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

enum {
	TILE_SUMS = VECTOR_REGISTERS / 2,
	TILE_PANELS = 8, /* maximum panels of a tile, and a multiple of the other sizes */
	TILE_ROWS = TILE_SUMS / PANEL_VECTORS < 8 ? TILE_SUMS / PANEL_VECTORS : 8,
	/* Tiles of whole blocks of outputs store their maxima. */
	TILE_MAXIMA = VECTOR_BYTES == 64 && TILE_SUMS / PANEL_VECTORS / TILE_ROWS * PANEL_WIDTH % LINEAR_BLOCK == 0,
};

_Static_assert(TILE_PANELS *PANEL_WIDTH % LINEAR_BLOCK == 0, "no block of outputs is in two groups of panels");

/* A whole product, as tiles see it. */
typedef struct product {
	int64_t n, k;
	const unsigned char *panels;
	size_t panel_bytes;
	const unsigned char *x; /* a row: K floats, or the result of quantise_row */
	size_t row_bytes;
	const float *row_scale; /* int8 */
	float alpha;
	const float *bias; /* or NULL */
	float *y;
	float *maxima; /* or NULL */
} product;

/* Sums of a tile in memory: [row][output]. */
typedef float tile_sums[TILE_ROWS][TILE_PANELS * PANEL_WIDTH];

#ifdef __AVX512F__
/* y = alpha (sum + b) and the maxima of whole blocks of outputs, from registers, because most blocks in y cross cache
 * lines that are still being written. Four blocks at a time; the last one is repeated if fewer remain. */
__attribute__((noinline)) static void tile_store_maxima(const product *p, tile_sums sums, int64_t row, int64_t rows,
                                                        int64_t first, int64_t blocks)
{
	const int64_t stride = kernel_parts(p->n, LINEAR_BLOCK), all = rows * blocks;
	for (int64_t done = 0, i = 0, j = 0; done < all; done += 4) {
		__m512 lanes[4];
		float *y[4], *to[4], maxima[4];
		for (int k = 0; k < 4; k++) {
			reals low = load_reals(sums[i] + j), high = load_reals(sums[i] + j + LANES);
			if (p->bias) {
				low += load_reals(p->bias + first + j);
				high += load_reals(p->bias + first + j + LANES);
			}
			low = p->alpha * low;
			high = p->alpha * high;
			y[k] = p->y + (row + i) * p->n + first + j;
			to[k] = p->maxima + (row + i) * stride + (first + j) / LINEAR_BLOCK;
			memcpy(y[k], &low, sizeof low);
			memcpy(y[k] + LANES, &high, sizeof high);
			lanes[k] = maxima_of_halves((__m512)low, (__m512)high);
			if (done + k + 1 < all && ++i == rows) {
				i = 0;
				j += LINEAR_BLOCK;
			}
		}
		const bool finite = maxima_of_lanes(lanes, maxima);
		for (int k = 0; k < 4; k++)
			*to[k] = finite ? maxima[k] : maxima_of_block(y[k], LINEAR_BLOCK);
	}
}
#endif

/* y = alpha (sum + b) for the outputs that exist. Not part of a tile: for the size of the code, and so that the last
 * product of an int8 sum never fuses with the bias. */
__attribute__((noinline)) static void tile_store(const product *p, tile_sums sums, int64_t row, int64_t rows,
                                                 int64_t panel, int64_t panels)
{
	const int64_t first = panel * PANEL_WIDTH;
	const int64_t count = kernel_min(panels * PANEL_WIDTH, p->n - first);
#ifdef __AVX512F__
	if (TILE_MAXIMA && p->maxima && count % LINEAR_BLOCK == 0) {
		tile_store_maxima(p, sums, row, rows, first, count / LINEAR_BLOCK);
		return;
	}
#endif
	for (int64_t i = 0; i < rows; i++) {
		float *y = p->y + (row + i) * p->n + first;
		const float *sum = sums[i], *bias = p->bias ? p->bias + first : NULL;
		if (bias) {
#pragma omp simd
			for (int64_t j = 0; j < count; j++)
				y[j] = p->alpha * (sum[j] + bias[j]);
		} else {
#pragma omp simd
			for (int64_t j = 0; j < count; j++)
				y[j] = p->alpha * sum[j];
		}
	}
}

/* Set the first rows and panels of a tile; missing ones repeat the last. */
TILE_INLINE void tile_rows(const product *p, const unsigned char *x[TILE_ROWS], const int R, int64_t row, int64_t rows)
{
	for (int i = 0; i < R; i++)
		x[i] = p->x + (size_t)(row + (i < rows ? i : rows - 1)) * p->row_bytes;
}

TILE_INLINE void tile_panels(const product *p, const unsigned char *w[TILE_PANELS], const int P, int64_t panel,
                             int64_t panels)
{
	for (int j = 0; j < P; j++)
		w[j] = p->panels + (size_t)(panel + (j < panels ? j : panels - 1)) * p->panel_bytes;
}

/* Begin sums; add an input's products to them; hand them on. */
TILE_INLINE void tile_clear(reals sum[TILE_ROWS][TILE_SUMS], const int R, const int P)
{
	for (int i = 0; i < R; i++)
		for (int j = 0; j < P * PANEL_VECTORS; j++)
			sum[i][j] = (reals){0};
}

TILE_INLINE void tile_add(reals sum[TILE_ROWS][TILE_SUMS], const unsigned char *x[TILE_ROWS], int64_t k,
                          const reals weight[TILE_SUMS], const int R, const int P)
{
	for (int i = 0; i < R; i++)
		for (int j = 0; j < P * PANEL_VECTORS; j++)
			sum[i][j] += ((const float *)x[i])[k] * weight[j];
}

TILE_INLINE void tile_finish(const product *p, const reals sum[TILE_ROWS][TILE_SUMS], const int R, const int P,
                             int64_t row, int64_t rows, int64_t panel, int64_t panels)
{
	_Alignas(VECTOR_BYTES) tile_sums out;
	for (int i = 0; i < R; i++)
		for (int j = 0; j < P * PANEL_VECTORS; j++)
			memcpy(out[i] + j * LANES, &sum[i][j], sizeof(reals));
	tile_store(p, out, row, rows, panel, panels);
}

TILE_INLINE void tile_f32(const product *p, const int R, const int P, int64_t row, int64_t rows, int64_t panel,
                          int64_t panels)
{
	const unsigned char *x[TILE_ROWS], *w[TILE_PANELS];
	reals sum[TILE_ROWS][TILE_SUMS], weight[TILE_SUMS];
	tile_rows(p, x, R, row, rows);
	tile_panels(p, w, P, panel, panels);
	tile_clear(sum, R, P);
	for (int64_t k = 0; k < p->k; k++) {
		for (int j = 0; j < P * PANEL_VECTORS; j++)
			weight[j] = load_reals(w[j / PANEL_VECTORS] + k * PANEL_WIDTH * (int64_t)sizeof(float) +
			                       j % PANEL_VECTORS * VECTOR_BYTES);
		tile_add(sum, x, k, weight, R, P);
	}
	tile_finish(p, sum, R, P, row, rows, panel, panels);
}

/* A lane holds two inputs of an output; either becomes a float with zeros below it. */
TILE_INLINE void tile_bf16(const product *p, const int R, const int P, int64_t row, int64_t rows, int64_t panel,
                           int64_t panels)
{
	const unsigned char *x[TILE_ROWS], *w[TILE_PANELS];
	reals sum[TILE_ROWS][TILE_SUMS], weight[TILE_SUMS];
	words pair[TILE_SUMS];
	tile_rows(p, x, R, row, rows);
	tile_panels(p, w, P, panel, panels);
	tile_clear(sum, R, P);
	for (int64_t k = 0; k < p->k; k += PANEL_PAIR) {
		for (int j = 0; j < P * PANEL_VECTORS; j++) {
			pair[j] = load_words(w[j / PANEL_VECTORS] + k * PANEL_WIDTH * (int64_t)sizeof(uint16_t) +
			                     j % PANEL_VECTORS * VECTOR_BYTES);
			weight[j] = as_reals(pair[j] << 16);
		}
		tile_add(sum, x, k, weight, R, P);
		if (k + 1 == p->k)
			break;
		for (int j = 0; j < P * PANEL_VECTORS; j++)
			weight[j] = as_reals(pair[j] & 0xffff0000u);
		tile_add(sum, x, k + 1, weight, R, P);
	}
	tile_finish(p, sum, R, P, row, rows, panel, panels);
}

/* --- int8 ------------------------------------------------------------------------------ */

/* x / s + QUANTISE_SHIFT is rounded to an integer, which is in the low bits. */
#define QUANTISE_SHIFT 0x1.8p23f

#ifdef __AVX512VNNI__

/* Quantised inputs: unsigned bytes. */
typedef uint8_t quantised;

static inline quantised quantised_input(float shifted)
{
	return (uint8_t)(math_bits(shifted) + 128);
}

/* One row by one panel: its only chain of sums would wait for itself, so the inputs are divided among several. Integers
 * have the same sum in any order. */
TILE_INLINE integers panel_int8(const unsigned char *x, const unsigned char *w, int64_t inputs)
{
	enum { CHAINS = 8 };
	integers sum[CHAINS] = {0};
	for (int64_t k = 0; k < inputs; k += CHAINS * PANEL_GROUP)
		for (int c = 0; c < CHAINS; c++) {
			const int64_t at = k + c * PANEL_GROUP;
			int32_t four;
			if (at >= inputs)
				break;
			memcpy(&four, x + at, sizeof four);
			sum[c] = (integers)_mm512_dpbusd_epi32((__m512i)sum[c], _mm512_set1_epi32(four),
			                                       (__m512i)load_words(w + at * PANEL_WIDTH));
		}
	for (int c = 1; c < CHAINS; c++)
		sum[0] += sum[c];
	return sum[0];
}

TILE_INLINE void tile_int8(const product *p, const int R, const int P, int64_t row, int64_t rows, int64_t panel,
                           int64_t panels)
{
	const unsigned char *x[TILE_ROWS], *w[TILE_PANELS];
	integers sum[TILE_ROWS][TILE_PANELS]; /* __m512i has lanes of 64 bits, and would be copied around */
	const bool single = R == 1 && panels == 1;
	tile_rows(p, x, R, row, rows);
	tile_panels(p, w, P, panel, panels);
	for (int i = 0; i < R; i++)
		for (int j = 0; j < P; j++)
			sum[i][j] = (integers){0};
	if (single)
		sum[0][0] = panel_int8(x[0], w[0] + sizeof(panel_header), p->k);
	for (int64_t k = 0; k < p->k && !single; k += PANEL_GROUP) {
		__m512i weight[TILE_PANELS];
		for (int j = 0; j < P; j++)
			weight[j] = (__m512i)load_words(w[j] + sizeof(panel_header) + k * PANEL_WIDTH);
		for (int i = 0; i < R; i++) {
			int32_t four;
			memcpy(&four, x[i] + k, sizeof four);
			for (int j = 0; j < P; j++)
				sum[i][j] = (integers)_mm512_dpbusd_epi32((__m512i)sum[i][j], _mm512_set1_epi32(four),
				                                          weight[j]);
		}
	}
	reals y[TILE_ROWS][TILE_SUMS];
	for (int i = 0; i < R; i++)
		for (int j = 0; j < P; j++) {
			const panel_header *header = (const panel_header *)w[j];
			float s = p->row_scale[row + (i < rows ? i : rows - 1)];
			words exact = (words)sum[i][j] - (load_words(header->sum) << 7);
			y[i][j] = s * load_reals(header->scale) * __builtin_convertvector((integers)exact, reals);
		}
	tile_finish(p, y, R, P, row, rows, panel, panels);
}

#else

/* Without byte instructions the floating-point units are the fastest choice, and they are exact: a product u - 128 by q
 * is at most 127², so 1024 of them sum to less than 2^24. */
enum { INT8_EXACT = 1024 };
typedef float quantised;

static inline quantised quantised_input(float shifted)
{
	return shifted - QUANTISE_SHIFT;
}

TILE_INLINE void tile_int8(const product *p, const int R, const int P, int64_t row, int64_t rows, int64_t panel,
                           int64_t panels)
{
	const unsigned char *x[TILE_ROWS], *w[TILE_PANELS];
	reals sum[TILE_ROWS][TILE_SUMS], weight[TILE_SUMS];
	integers total[TILE_ROWS][TILE_SUMS];
	tile_rows(p, x, R, row, rows);
	tile_panels(p, w, P, panel, panels);
	memset(total, 0, sizeof total);
	for (int64_t first = 0; first < p->k; first += INT8_EXACT) {
		const int64_t last = kernel_min(first + INT8_EXACT, p->k);
		tile_clear(sum, R, P);
		for (int64_t k = first; k < last; k += PANEL_GROUP) {
			for (int b = 0; b < PANEL_GROUP; b++) {
				for (int j = 0; j < P * PANEL_VECTORS; j++) {
					words four = load_words(w[j / PANEL_VECTORS] + sizeof(panel_header) +
					                        k * PANEL_WIDTH + j % PANEL_VECTORS * VECTOR_BYTES);
					integers wide = (integers)(four << (24 - 8 * b)) >> 24;
					weight[j] = __builtin_convertvector(wide, reals);
				}
				tile_add(sum, x, k + b, weight, R, P);
			}
		}
		for (int i = 0; i < R; i++)
			for (int j = 0; j < P * PANEL_VECTORS; j++)
				total[i][j] += __builtin_convertvector(sum[i][j], integers);
	}
	for (int i = 0; i < R; i++)
		for (int j = 0; j < P * PANEL_VECTORS; j++) {
			const panel_header *header = (const panel_header *)w[j / PANEL_VECTORS];
			float s = p->row_scale[row + (i < rows ? i : rows - 1)];
			sum[i][j] = s * load_reals(header->scale + j % PANEL_VECTORS * LANES) *
			            __builtin_convertvector(total[i][j], reals);
		}
	tile_finish(p, sum, R, P, row, rows, panel, panels);
}

#endif

/* --- a block of any size ------------------------------------------------------------------ */

/* Up to R rows by all these panels. */
TILE_INLINE void strip(const product *p, dtype type, const int R, int64_t row, int64_t rows, int64_t panel,
                       int64_t last)
{
	const int P = TILE_SUMS / PANEL_VECTORS / R < TILE_PANELS ? TILE_SUMS / PANEL_VECTORS / R : TILE_PANELS;
	for (; panel < last; panel += P) {
		if (type == DTYPE_PANEL_INT8)
			tile_int8(p, R, P, row, rows, panel, kernel_min(P, last - panel));
		else if (type == DTYPE_PANEL_BF16)
			tile_bf16(p, R, P, row, rows, panel, kernel_min(P, last - panel));
		else
			tile_f32(p, R, P, row, rows, panel, kernel_min(P, last - panel));
	}
}

/* The maxima of rows row … row + rows - 1 in panels of a group, which are still in the caches; where tiles have not
 * stored them, or not of the last block. */
static inline void group_maxima(const product *p, int64_t row, int64_t rows, int64_t panel, int64_t last_panel)
{
	const int64_t first = panel * PANEL_WIDTH, end = kernel_min(last_panel * PANEL_WIDTH, p->n);
	for (int64_t r = row; r < row + rows; r++)
		maxima_of_blocks(p->y + r * p->n + first, end - first,
		                 p->maxima + r * kernel_parts(p->n, LINEAR_BLOCK) + first / LINEAR_BLOCK);
}

/* Multiply rows row … last_row - 1 by panels panel … last_panel - 1, where panel begins a block of outputs. The rows
 * pass over as many panels at a time as the second cache holds. */
TILE_INLINE void block(const product *p, dtype type, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel)
{
	for (int64_t group = panel; group < last_panel; group += TILE_PANELS) {
		const int64_t end = kernel_min(group + TILE_PANELS, last_panel);
		for (int64_t r = row; r < last_row; r += TILE_ROWS) {
			const int64_t rows = kernel_min(TILE_ROWS, last_row - r);
			if (rows == 1)
				strip(p, type, 1, r, rows, group, end);
			else if (rows == 2)
				strip(p, type, 2, r, rows, group, end);
			else if (rows <= 4)
				strip(p, type, TILE_ROWS < 4 ? TILE_ROWS : 4, r, rows, group, end);
			else
				strip(p, type, TILE_ROWS, r, rows, group, end);
		}
		if (p->maxima && !(TILE_MAXIMA && kernel_min(end * PANEL_WIDTH, p->n) % LINEAR_BLOCK == 0))
			group_maxima(p, row, last_row - row, group, end);
	}
}

#endif
