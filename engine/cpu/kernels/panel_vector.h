/* panel_vector.h - packed weights (panel.h) in vector registers: types, loads, and the transpose of a square. */
#ifndef ENGINE_CPU_KERNELS_PANEL_VECTOR_H
#define ENGINE_CPU_KERNELS_PANEL_VECTOR_H

#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/tensor/panel.h"

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, VECTOR_REGISTERS = 32 };
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32, VECTOR_REGISTERS = 16 };
#elif defined(__aarch64__)
enum { VECTOR_BYTES = 16, VECTOR_REGISTERS = 32 };
#else
enum { VECTOR_BYTES = 16, VECTOR_REGISTERS = 16 };
#endif

enum { LANES = VECTOR_BYTES / sizeof(float), PANEL_VECTORS = PANEL_WIDTH / LANES };

typedef float reals __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t integers __attribute__((vector_size(VECTOR_BYTES)));

#define TILE_INLINE static inline __attribute__((always_inline))

TILE_INLINE reals load_reals(const void *from)
{
	reals v;
	memcpy(&v, from, sizeof v);
	return v;
}

/* Reinterpret a lane's 32 bits as a float. */
TILE_INLINE reals as_reals(words bits)
{
	reals v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

TILE_INLINE words load_words(const void *from)
{
	words v;
	memcpy(&v, from, sizeof v);
	return v;
}

/* Input k of the outputs v · LANES … of a panel. */
TILE_INLINE reals panel_vector(dtype type, const unsigned char *panel, int64_t k, int v)
{
	const int64_t bytes = PANEL_WIDTH * (int64_t)sizeof(float), at = v * VECTOR_BYTES;
	if (type == DTYPE_PANEL_F32)
		return load_reals(panel + k * bytes + at);
	if (type == DTYPE_PANEL_BF16) {
		const words pair = load_words(panel + k / PANEL_PAIR * bytes + at);
		return as_reals(k % PANEL_PAIR ? pair & 0xffff0000u : pair << 16);
	}
	const words four = load_words(panel + sizeof(panel_header) + k / PANEL_GROUP * bytes + at);
	const integers q = (integers)(four << (24 - 8 * (uint32_t)(k % PANEL_GROUP))) >> 24;
	return __builtin_convertvector(q, reals) * load_reals(((const panel_header *)panel)->scale + v * LANES);
}

/* The lanes of two vectors in turn: those of their first halves, and of their second. */
#if defined(__AVX512F__)
#define PANEL_ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define PANEL_ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined(__AVX2__)
#define PANEL_ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define PANEL_ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define PANEL_ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define PANEL_ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Transpose a square of lanes. Each step interleaves the rows of the two halves, which moves one bit of the row number
 * to the lane number. After as many steps as bits the two are exchanged. */
TILE_INLINE void panel_transpose(reals v[LANES])
{
	for (int step = 1; step < LANES; step *= 2) {
		reals from[LANES];
		memcpy(from, v, sizeof from);
		for (int i = 0; i < LANES / 2; i++) {
			v[2 * i] = PANEL_ZIP_LOW(from[i], from[i + LANES / 2]);
			v[2 * i + 1] = PANEL_ZIP_HIGH(from[i], from[i + LANES / 2]);
		}
	}
}

#endif
