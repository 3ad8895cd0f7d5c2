/* cast: between f32 and bf16. A thread takes eight elements at a time. Bytes per element: 6 where the types differ. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

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

status cuda_cast(backend *b, const op_call *call)
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
