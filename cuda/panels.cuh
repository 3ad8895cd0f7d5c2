/* panels.cuh - unpacking weights from panels (engine/tensor/panel.h), one or a few neighbouring inputs at a time. */
#ifndef CUDA_PANELS_CUH
#define CUDA_PANELS_CUH

#include "cuda/device.cuh"

extern "C" {
#include "engine/tensor/panel.h"
}

/* Unpack SIDE inputs of row `row` of a panel, after `group` groups of SIDE. */
template <int SIDE>
static __device__ __forceinline__ void panel_unpack(float out[SIDE], const unsigned char *panel, int64_t group, int row)
{
	const unsigned *words = (const unsigned *)(panel + (SIDE == PANEL_GROUP ? sizeof(panel_header) : 0));
	const unsigned word = words[group * PANEL_WIDTH + row];
	const float scale = SIDE == PANEL_GROUP ? ((const panel_header *)panel)->scale[row] : 1.0f;
#pragma unroll
	for (int i = 0; i < SIDE; i++) {
		if (SIDE == 1)
			out[i] = __uint_as_float(word);
		else if (SIDE == PANEL_PAIR)
			out[i] = __uint_as_float(word >> 16 * i << 16);
		else
			out[i] = (float)(int8_t)(word >> 8 * i) * scale;
	}
}

#endif
