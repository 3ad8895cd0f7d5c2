/* A packed weight (panel.h) as f32. A block takes a tile of TILE words of each of a panel's rows, in memory order. It
 * transposes the tile in shared memory and writes a part of each row. Bytes per element: 4, and those of the packed
 * weight. */
#include "cuda/elementwise.cuh"
#include "cuda/linear_panels.h"
#include "cuda/panels.cuh"

enum { TILE = 32 }; /* words of a row, of SIDE inputs each */

/* A tile's inputs of one row in shared memory, with a pitch of one more, so that rows begin in different banks. */
template <int SIDE> struct unpacked {
	enum { WIDTH = TILE * SIDE, PITCH = WIDTH + 1, BYTES = PANEL_WIDTH * PITCH * (int)sizeof(float) };
};

template <int SIDE>
static __global__ void __launch_bounds__(ELEMENT_THREADS)
    unpack_kernel(float *y, const unsigned char *panels, int64_t rows, int64_t width, int64_t stride)
{
	enum { WIDTH = unpacked<SIDE>::WIDTH, PITCH = unpacked<SIDE>::PITCH };
	float *space = shared_memory<float>();
	const int64_t across = (width + WIDTH - 1) / WIDTH, tiles = (rows + PANEL_WIDTH - 1) / PANEL_WIDTH * across;
	for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		const int64_t panel = tile / across, first = tile % across * WIDTH;
		for (int i = threadIdx.x; i < TILE * PANEL_WIDTH; i += ELEMENT_THREADS) {
			const int word = i / PANEL_WIDTH, row = i % PANEL_WIDTH;
			float w[SIDE] = {};
			if (first + word * SIDE < width)
				panel_unpack<SIDE>(w, panels + panel * stride, first / SIDE + word, row);
#pragma unroll
			for (int k = 0; k < SIDE; k++)
				space[row * PITCH + word * SIDE + k] = w[k];
		}
		__syncthreads();
		for (int i = threadIdx.x; i < PANEL_WIDTH * WIDTH; i += ELEMENT_THREADS) {
			const int64_t row = panel * PANEL_WIDTH + i / WIDTH, column = first + i % WIDTH;
			if (row < rows && column < width)
				y[row * width + column] = space[i / WIDTH * PITCH + i % WIDTH];
		}
		__syncthreads();
	}
}

template <int SIDE> static status unpack(backend *b, const tensor *x, float *y)
{
	const int64_t rows = shape_rows(x->shape), width = shape_last(x->shape);
	const int64_t each = PANEL_WIDTH * (int64_t)unpacked<SIDE>::WIDTH;
	return cuda_launch(b, unpack_kernel<SIDE>, cuda_blocks(b, (rows + PANEL_WIDTH - 1) * width, each),
	                   ELEMENT_THREADS, unpacked<SIDE>::BYTES, y, (const unsigned char *)x->data, rows, width,
	                   (int64_t)panel_stride(x->type, width));
}

status cuda_unpack(backend *b, const tensor *panels, float *out)
{
	if (panels->type == DTYPE_PANEL_F32)
		return unpack<1>(b, panels, out);
	return panels->type == DTYPE_PANEL_BF16 ? unpack<PANEL_PAIR>(b, panels, out)
	                                        : unpack<PANEL_GROUP>(b, panels, out);
}
