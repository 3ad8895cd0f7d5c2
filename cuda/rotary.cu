/* rotary: a block processes one row at a time. Its threads compute the row's cosines and sines once, in shared memory.
 * Then they rotate the pairs of all heads, 16 bytes of each side of a pair at a time where heads are whole packs. Two
 * tables alternate, so that one barrier a row is enough. The result may overwrite x.
 *
 * Bytes per element, f32 / bf16: 8 / 4. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "engine/tensor/ops/rotary.h"

enum { THREADS = 128 };

struct rotary_arguments {
	const void *x;
	void *y;
	const int32_t *positions; /* NULL: row % n; `first` is added */
	int64_t rows, n, first, segment, memory;
	int heads, h, width;
	double ratio;                       /* base^(-2 / width) */
	float xpos_base, xpos_center, sign; /* sign: the sine's */
	bool inverse_scale;
};

/* ratio^i. */
static __device__ __forceinline__ double power_of(double ratio, int i)
{
	double power = 1.0;
	for (; i; i /= 2, ratio *= ratio)
		if (i % 2)
			power *= ratio;
	return power;
}

/* Cosine and sine of pair i at a position, times xPos's factor. */
static __device__ __forceinline__ float2 turn_of(const rotary_arguments &o, int i, double position)
{
	float2 turn;
	rotary_turn(position * (double)(float)power_of(o.ratio, i), &turn.x, &turn.y);
	turn.y *= o.sign;
	if (o.xpos_base > 0.0f) {
		const double width = o.width, base = (2.0 * i + 0.4 * width) / (1.4 * width);
		const double power = (position - (double)o.xpos_center) / (double)o.xpos_base;
		const float factor = rotary_power((o.inverse_scale ? -power : power) * log2(base));
		turn.x *= factor;
		turn.y *= factor;
	}
	return turn;
}

/* Rotate N pairs whose sides are `apart` channels apart. */
template <class T, int N>
static __device__ __forceinline__ void turn_sides(const T *x, T *y, int apart, const float2 *turn)
{
	numbers<N> a = load<N>(x), b = load<N>(x + apart);
#pragma unroll
	for (int i = 0; i < N; i++) {
		const float from = a.at[i];
		a.at[i] = __fmaf_rn(from, turn[i].x, -__fmul_rn(b.at[i], turn[i].y));
		b.at[i] = __fmaf_rn(b.at[i], turn[i].x, __fmul_rn(from, turn[i].y));
	}
	store(y, a);
	store(y + apart, b);
}

/* Rotate N / 2 interleaved pairs. */
template <class T, int N> static __device__ __forceinline__ void turn_neighbours(const T *x, T *y, const float2 *turn)
{
	numbers<N> a = load<N>(x);
#pragma unroll
	for (int i = 0; i < N; i += 2) {
		const float from = a.at[i], b = a.at[i + 1];
		a.at[i] = __fmaf_rn(from, turn[i / 2].x, -__fmul_rn(b, turn[i / 2].y));
		a.at[i + 1] = __fmaf_rn(b, turn[i / 2].x, __fmul_rn(from, turn[i / 2].y));
	}
	store(y, a);
}

/* Units of a head: first the rotated ones, N pairs or, interleaved, N channels; then N unchanged channels each. */
template <class T, int N, bool INTERLEAVED>
static __global__ void __launch_bounds__(THREADS) rotary_kernel(rotary_arguments o)
{
	const int half = o.width / 2;
	const int turns = INTERLEAVED && N > 1 ? o.width / N : half / N, units = turns + (o.h - o.width) / N;
	int which = 0;
	for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x, which ^= 1) {
		float2 *table = shared_memory<float2>() + which * half;
		const int64_t own = o.first + (o.positions ? o.positions[row] : row % o.n);
		const double position = (double)rotary_place(own, o.segment, o.memory);
		for (int i = threadIdx.x; i < half; i += THREADS)
			table[i] = turn_of(o, i, position);
		__syncthreads();
		for (int i = threadIdx.x; i < o.heads * units; i += THREADS) {
			const int head = i / units, unit = i - head * units;
			const int64_t e = (row * o.heads + head) * o.h;
			const T *x = (const T *)o.x + e;
			T *y = (T *)o.y + e;
			if (unit >= turns) {
				const int column = o.width + (unit - turns) * N;
				store(y + column, load<N>(x + column));
			} else if constexpr (!INTERLEAVED) {
				turn_sides<T, N>(x + unit * N, y + unit * N, half, table + unit * N);
			} else if constexpr (N == 1) {
				turn_sides<T, 1>(x + 2 * unit, y + 2 * unit, 1, table + unit);
			} else {
				turn_neighbours<T, N>(x + unit * N, y + unit * N, table + unit * (N / 2));
			}
		}
	}
}

template <class T, int N> static status run(backend *b, const rotary_arguments &o, bool interleaved)
{
	return cuda_launch(b, interleaved ? rotary_kernel<T, N, true> : rotary_kernel<T, N, false>,
	                   cuda_blocks(b, o.rows, 1), THREADS, 2 * sizeof(float2) * (size_t)(o.width / 2), o);
}

status cuda_rotary(backend *b, const op_call *call)
{
	const rotary_params *p = (const rotary_params *)call->params;
	const shape s = call->in[0].shape, like = cuda_optional(call, 2) ? call->in[2].shape : s;
	rotary_arguments o = {};
	o.x = call->in[0].data;
	o.y = call->out[0].data;
	o.positions = (const int32_t *)cuda_optional(call, 1);
	o.rows = shape_last(s) ? shape_rows(s) : 0;
	o.n = like.dim[like.rank - 2];
	o.first = p->first;
	o.segment = p->segment;
	o.memory = p->memory;
	o.heads = (int)p->heads;
	o.h = (int)(shape_last(s) / p->heads);
	o.width = (int)p->width;
	o.ratio = p->width ? pow((double)p->base, -2.0 / (double)p->width) : 1.0;
	o.xpos_base = p->xpos_base;
	o.xpos_center = p->xpos_center;
	o.sign = p->transposed ? -1.0f : 1.0f;
	o.inverse_scale = p->inverse_scale;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		enum { N = packed<T>::N };
		const int side = p->interleaved ? o.width : o.width / 2;
		if (o.h % N == 0 && side % N == 0)
			return run<T, N>(b, o, p->interleaved);
		return run<T, 1>(b, o, p->interleaved);
	});
}
