/* dropout: y = x / (1 - p) for the elements that a random word keeps, else 0.
 *
 * The words are a function of the element's index (engine/base/philox.h), four elements per block of words. So nothing
 * is stored for the backward, and every backend drops the same elements. philox_uniform(word) >= p is tested with
 * integers: the upper 24 bits of the word are at least ⌈p 2^24⌉. A thread takes 16 bytes: one or two Philox blocks.
 *
 * Bytes per element, f32 / bf16: 8 / 4. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

#include <math.h>

dropout_site dropout_site_of(const op_call *call)
{
	const dropout_params *p = (const dropout_params *)call->params;
	dropout_site s;
	s.rng = (const int32_t *)call->in[1].data;
	s.blocks = (uint64_t)(shape_count(call->out[0].shape) + 3) / 4;
	s.stream = p->stream;
	s.least = (uint32_t)ceil((double)p->p * 0x1p24);
	s.factor = 1.0f / (1.0f - p->p);
	return s;
}

template <class T> struct remainder_of {
	const T *x;
	dropout_site site;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		return dropped<N>(site, e, load<N>(x + e));
	}
};

status cuda_dropout(backend *b, const op_call *call)
{
	return cuda_by_type(call->out[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		remainder_of<T> f = {(const T *)call->in[0].data, dropout_site_of(call)};
		return cuda_elementwise(b, (T *)call->out[0].data, f, shape_count(call->out[0].shape));
	});
}
