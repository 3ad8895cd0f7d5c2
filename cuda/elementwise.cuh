/* elementwise.cuh - helpers for kernels that pass over memory once: N numbers at a time, dropout, the sums and gates
 * before a layernorm, and the launch of a loop over elements.
 *
 * Products and sums are written as __fmul_rn, __fadd_rn and __fmaf_rn. A compiler may fuse `a * b + c` in one kernel
 * and not in another, but fused kernels (fuse.cu) must give the same bits as the single ones. */
#ifndef CUDA_ELEMENTWISE_CUH
#define CUDA_ELEMENTWISE_CUH

#include <type_traits>

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "engine/base/philox.h"

enum { ELEMENT_THREADS = 256 };

/* Numbers of a 16-byte pack. */
template <class T> struct packed {
	enum { N = 16 / sizeof(T) };
};

/* --- N neighbouring numbers, as floats ------------------------------------------------- */

template <int N> struct numbers {
	float at[N];
};

/* N = 1, 4 or 8. For N > 1, addresses are aligned to N elements or to 16 bytes. */
template <int N> __device__ __forceinline__ numbers<N> load(const float *p)
{
	numbers<N> x;
	if constexpr (N == 1) {
		x.at[0] = *p;
	} else {
#pragma unroll
		for (int i = 0; i < N; i += 4) {
			float4 v = *(const float4 *)(p + i);
			x.at[i] = v.x, x.at[i + 1] = v.y, x.at[i + 2] = v.z, x.at[i + 3] = v.w;
		}
	}
	return x;
}

/* The two bf16 of each word. */
template <int W> __device__ __forceinline__ numbers<2 * W> widened(const unsigned (&word)[W])
{
	numbers<2 * W> x;
#pragma unroll
	for (int i = 0; i < W; i++) {
		x.at[2 * i] = __uint_as_float(word[i] << 16);
		x.at[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
	}
	return x;
}

template <int N> __device__ __forceinline__ numbers<N> load(const bf16 *p)
{
	if constexpr (N == 1) {
		return {{__bfloat162float(*p)}};
	} else if constexpr (N == 4) {
		const uint2 v = *(const uint2 *)p;
		return widened({v.x, v.y});
	} else {
		const uint4 v = *(const uint4 *)p;
		return widened({v.x, v.y, v.z, v.w});
	}
}

template <int N> __device__ __forceinline__ void store(float *p, const numbers<N> &x)
{
	if constexpr (N == 1) {
		*p = x.at[0];
	} else {
#pragma unroll
		for (int i = 0; i < N; i += 4)
			*(float4 *)(p + i) = make_float4(x.at[i], x.at[i + 1], x.at[i + 2], x.at[i + 3]);
	}
}

template <int N> __device__ __forceinline__ void store(bf16 *p, const numbers<N> &x)
{
	if constexpr (N == 1)
		*p = __float2bfloat16_rn(x.at[0]);
	else if constexpr (N == 4)
		*(uint2 *)p = make_uint2(two_bf16(x.at[0], x.at[1]), two_bf16(x.at[2], x.at[3]));
	else
		*(uint4 *)p = make_uint4(two_bf16(x.at[0], x.at[1]), two_bf16(x.at[2], x.at[3]),
		                         two_bf16(x.at[4], x.at[5]), two_bf16(x.at[6], x.at[7]));
}

/* Round x to the values that it has after it was stored as T. */
template <class T, int N> __device__ __forceinline__ numbers<N> rounded(numbers<N> x)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		x.at[i] = round_real<T>(x.at[i]);
	return x;
}

/* --- arithmetic ------------------------------------------------------------------------- */

template <int N> __device__ __forceinline__ numbers<N> sum_of(numbers<N> a, const numbers<N> &b)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		a.at[i] = __fadd_rn(a.at[i], b.at[i]);
	return a;
}

template <int N> __device__ __forceinline__ numbers<N> product_of(numbers<N> a, const numbers<N> &b)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		a.at[i] = __fmul_rn(a.at[i], b.at[i]);
	return a;
}

/* a + b ⊙ c, rounded once. */
template <int N> __device__ __forceinline__ numbers<N> gated(numbers<N> a, const numbers<N> &b, const numbers<N> &c)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		a.at[i] = __fmaf_rn(b.at[i], c.at[i], a.at[i]);
	return a;
}

/* --- dropout ---------------------------------------------------------------------------------- */

/* Dropout: the kept elements of a tensor and their factor. */
struct dropout_site {
	const int32_t *rng;     /* seed low, seed high, step, part */
	uint64_t blocks;        /* Philox blocks of four elements in a part */
	uint32_t stream, least; /* an element is kept if the upper 24 bits of its word are at least `least` */
	float factor;
};

dropout_site dropout_site_of(const op_call *call);

/* Apply dropout to elements e … e + N - 1, where e is a multiple of N. */
template <int N> __device__ __forceinline__ numbers<N> dropped(const dropout_site &s, int64_t e, numbers<N> x)
{
	const uint32_t low = (uint32_t)__ldg(s.rng), high = (uint32_t)__ldg(s.rng + 1),
	               step = (uint32_t)__ldg(s.rng + 2);
	const uint64_t before = (uint64_t)(uint32_t)__ldg(s.rng + 3) * s.blocks;
#pragma unroll
	for (int i = 0; i < N; i += 4) {
		philox_block random = philox((uint64_t)high << 32 | low, s.stream, step, before + (uint64_t)(e + i) / 4);
		uint32_t *word = random.word;
		if constexpr (N == 1) { /* word e % 4, without taking an address */
			const uint32_t pair[2] = {e & 2 ? word[2] : word[0], e & 2 ? word[3] : word[1]};
			word[0] = e & 1 ? pair[1] : pair[0];
		}
#pragma unroll
		for (int j = 0; j < (N < 4 ? N : 4); j++)
			x.at[i + j] = word[j] >> 8 >= s.least ? __fmul_rn(s.factor, x.at[i + j]) : 0.0f;
	}
	return x;
}

/* --- input of a layernorm, or a result of its own ---------------------------------------------- */

enum front_kind { FRONT_PLAIN, FRONT_ADD, FRONT_GATE };

/* a, a + b, or a + b ⊙ c; with DROP, dropout of b first. */
template <class T, front_kind KIND, bool DROP> struct front {
	const T *a, *b, *c;
	dropout_site site;
	T *left; /* b after dropout; NULL: not stored */

	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		const numbers<N> first = load<N>(a + e);
		if constexpr (KIND == FRONT_PLAIN)
			return first;
		numbers<N> second = load<N>(b + e), third = {};
		if constexpr (KIND == FRONT_GATE)
			third = load<N>(c + e);
		if constexpr (DROP) {
			second = rounded<T>(dropped<N>(site, e, second));
			if (left)
				store(left + e, second);
		}
		return KIND == FRONT_GATE ? gated(first, second, third) : sum_of(first, second);
	}
};

/* --- y[i] = f(i) over n elements ----------------------------------------------------------------- */

template <class T, class F> __global__ void __launch_bounds__(ELEMENT_THREADS) elementwise_kernel(T *y, F f, int64_t n)
{
	enum { N = packed<T>::N };
	for (int64_t i = grid_first() * N; i + N <= n; i += grid_stride() * N)
		store(y + i, f.template at<N>(i));
	const int64_t last = n / N * N + grid_first();
	if (last < n)
		store(y + last, f.template at<1>(last));
}

template <class T, class F> status cuda_elementwise(backend *b, T *y, const F &f, int64_t n)
{
	return cuda_launch(b, elementwise_kernel<T, F>, cuda_blocks(b, n, ELEMENT_THREADS * packed<T>::N),
	                   ELEMENT_THREADS, 0, y, f, n);
}

/* --- f(row, column) for every N columns of every row ----------------------------------------------- */

/* i / n, in 32 bits where that is enough. */
static __device__ __forceinline__ int64_t quotient_of(int64_t i, int64_t n)
{
	return (i | n) >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* units: groups of N columns in a row. */
template <int N, class F>
__global__ void __launch_bounds__(ELEMENT_THREADS) elementwise_rows_kernel(F f, int64_t rows, int64_t units)
{
	for (int64_t i = grid_first(); i < rows * units; i += grid_stride()) {
		const int64_t row = quotient_of(i, units);
		f.template at<N>(row, (i - row * units) * N);
	}
}

/* Call f for rows of `width` columns, N columns at a time. N is a 16-byte pack of T if `packs` is set and `width` is a
 * whole number of packs, else 1. */
template <class T, class F>
status cuda_elementwise_rows(backend *b, const F &f, int64_t rows, int64_t width, bool packs = true)
{
	enum { N = packed<T>::N };
	packs = packs && width % N == 0;
	const int64_t units = packs ? width / N : width;
	return cuda_launch(b, packs ? elementwise_rows_kernel<N, F> : elementwise_rows_kernel<1, F>,
	                   cuda_blocks(b, rows * units, ELEMENT_THREADS), ELEMENT_THREADS, 0, f, rows, units);
}

#endif
