/* panel.h - weights packed for sequential reading.
 *
 * A weight W [N, K] (N outputs, K inputs; y = x Wᵀ) is cut into panels of PANEL_WIDTH outputs, ⌈N / PANEL_WIDTH⌉ of
 * them, one after another; outputs past N are zeros. Within a panel the outputs are interleaved, so that a product
 * reads the panel once from its beginning to its end for any number of rows of x:
 *
 *    DTYPE_PANEL_F32    | w[k][j]: K × 16 floats |
 *    DTYPE_PANEL_BF16   | w[k / 2][j][k % 2]: ⌈K / 2⌉ × 32 bfloat16 (upper halves of floats, rounded to nearest even) |
 *    DTYPE_PANEL_INT8   | scale[j]: 16 floats | sum[j]: 16 int32 | q[k / 4][j][k % 4]: ⌈K / 4⌉ × 64 int8 |
 *
 * int8: w[n][k] ≈ scale[n] q[n][k] with scale[n] = max_k |w[n][k]| / 127 (at least the smallest normal float; NaN if a
 * weight is not finite) and q = round(w / scale) in -127 … 127. sum[n] = Σ_k q[n][k], since products use unsigned
 * activations (linear in ops.h). Inputs past K are zeros. Adjacent inputs of an output fill 32 bits, a lane of a
 * vector. A panel's size is a multiple of 64 bytes, so every panel of an aligned tensor is aligned. */
#ifndef ENGINE_TENSOR_PANEL_H
#define ENGINE_TENSOR_PANEL_H

#include <string.h>

#include "engine/tensor/tensor.h"

enum {
	PANEL_WIDTH = 16,
	PANEL_PAIR = 2,  /* adjacent inputs in bf16 */
	PANEL_GROUP = 4, /* and in int8 */
	PANEL_INT8_MAX = 127,
	PANEL_INT8_INPUTS = 1 << 16 /* limit up to which a sum of byte products fits 32 bits */
};

/* Header of an int8 panel. */
typedef struct panel_header {
	float scale[PANEL_WIDTH];
	int32_t sum[PANEL_WIDTH];
} panel_header;

/* Bytes of one panel of K inputs, and of a whole weight (false on overflow). */
size_t panel_stride(dtype type, int64_t k);
bool panel_bytes(dtype type, int64_t n, int64_t k, size_t *out);

/* Host side. Pack w [N, K]; out has panel_bytes bytes. */
void panel_pack(dtype type, const float *w, int64_t n, int64_t k, void *out);
/* Pack weights that are integers from -128 to 127 times `step`: int8 panels hold these integers, and the step as every
 * scale. step 0: as panel_pack. */
void panel_pack_codes(dtype type, const float *w, int64_t n, int64_t k, float step, void *out);
/* Row n of a packed weight as stored: out [K], for int8 the integers q. Returns their factor: the scale, or 1. */
float panel_stored(dtype type, const void *panels, int64_t k, int64_t n, float *out);
/* Row n of a packed weight: out [K]. */
void panel_row(dtype type, const void *panels, int64_t k, int64_t n, float *out);

/* Convert a float to bfloat16 (nearest even; NaN stays NaN, and quiet) and back. Inline, for loops of vectors. */
static inline uint16_t panel_bf16(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
	return (uint16_t)(x == x ? nearest : quiet);
}

static inline float panel_f32(uint16_t x)
{
	const uint32_t bits = (uint32_t)x << 16;
	float out;
	memcpy(&out, &bits, sizeof out);
	return out;
}

#endif
