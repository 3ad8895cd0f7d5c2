/* cast: between f32 and bf16, and from panels (panel.h) to f32.
 *
 * f32, bf16: a thread takes eight elements at a time. Bytes per element: 6 where the types differ.
 *
 * Panels: a block takes a tile of TILE words of each of a panel's rows, one after another as they lie, turns it round
 * in shared memory, and writes a part of each row. Bytes per element: 4, and those of the packed weight. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/panels.cuh"

/* Eight at a time: 16 bytes of the narrower type. */
template <class From, class To>
__global__ void __launch_bounds__(ELEMENT_THREADS) cast_kernel(To *y, const From *x, int64_t n)
{
	enum { N = 8 };
	for (int64_t i = grid_first() * N; i + N <= n; i += grid_stride() * N)
		store(y + i, load<N>(x + i));
	const int64_t last = n / N * N + grid_first();
	if (last < n)
		store(y + last, load<1>(x + last));
}

static status cast_reals(backend *b, const op_call *call)
{
	const int64_t n = shape_count(call->out[0].shape);
	return cuda_by_type(call->in[0].type, [&](auto *from) {
		return cuda_by_type(call->out[0].type, [&](auto *to) {
			typedef std::remove_pointer_t<decltype(from)> From;
			typedef std::remove_pointer_t<decltype(to)> To;
			return cuda_launch(b, cast_kernel<From, To>, cuda_blocks(b, n, ELEMENT_THREADS * 8),
			                   ELEMENT_THREADS, 0, (To *)call->out[0].data, (const From *)call->in[0].data,
			                   n);
		});
	});
}

enum { TILE = 32 }; /* words of a row, of SIDE inputs each */

/* A tile's inputs of one row in shared memory; one more, so that rows begin in different banks. */
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

template <int SIDE> static status cast_panels(backend *b, const op_call *call)
{
	const tensor *x = &call->in[0];
	const int64_t rows = shape_rows(x->shape), width = shape_last(x->shape);
	const int64_t each = PANEL_WIDTH * (int64_t)unpacked<SIDE>::WIDTH;
	return cuda_launch(b, unpack_kernel<SIDE>, cuda_blocks(b, (rows + PANEL_WIDTH - 1) * width, each),
	                   ELEMENT_THREADS, unpacked<SIDE>::BYTES, (float *)call->out[0].data,
	                   (const unsigned char *)x->data, rows, width, (int64_t)panel_stride(x->type, width));
}

status cuda_cast(backend *b, const op_call *call)
{
	switch (call->in[0].type) {
	case DTYPE_PANEL_F32:
		return cast_panels<1>(b, call);
	case DTYPE_PANEL_BF16:
		return cast_panels<PANEL_PAIR>(b, call);
	case DTYPE_PANEL_INT8:
		return cast_panels<PANEL_GROUP>(b, call);
	default:
		return cast_reals(b, call);
	}
}
