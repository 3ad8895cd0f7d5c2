/* program_rows.cuh - rows that each block of a product computes itself, and the state of a layer (program.cuh).
 *
 * The operations and their order are those of normalize.cu, shift.cu, columns.cu, forgetting_stream.cu, activation.cu
 * and glu.cu. Products are spelled as instructions, since here a sum may follow one that is stored there. */
#ifndef CUDA_PROGRAM_ROWS_CUH
#define CUDA_PROGRAM_ROWS_CUH

#include "cuda/activation.cuh"
#include "cuda/forgetting_attention.cuh"
#include "cuda/program.cuh"
#include "engine/tensor/ops/shift_stream.h"

/* Normalise `rows` rows. get(part, column) returns four numbers of a part, counted through all rows, and
 * put(part, column, y) takes them. space: a float per warp. All threads of the block call this. */
template <class G, class P>
static __device__ __forceinline__ void normalise_parts(const rms_norm &o, int rows, float *space, const G &get, const P &put)
{
	const int groups = PROGRAM_THREADS / o.group, all = rows * o.parts;
	const row_place place = row_place_of(o.group);
#pragma unroll 1
	for (int first = 0; first < all; first += groups) {
		const int part = first + place.group;
		const bool mine = place.group < groups && part < all;
		numbers<4> x[NORM_PER] = {};
		float squares = 0.0f;
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * o.group) * 4;
			if (mine && column < o.width)
				x[i] = get(part, column);
			squares = plus_squares(squares, x[i], 0.0f);
		}
		squares = lanes_sum(squares, o.group);
		if (o.group > WARP) {
			const int warp = threadIdx.x / WARP, warps = o.group / WARP;
			__syncthreads(); /* the previous sums have been read */
			if (threadIdx.x % WARP == 0)
				space[warp] = squares;
			__syncthreads();
			if (mine)
				squares = sum_of_warps(space + warp / warps * warps, warps);
		}
		if (!mine)
			continue;
		const float inverse = 1.0f / fmaxf(sqrtf(__fadd_rn(squares, o.eps)), o.floor);
		const float factor = __fmul_rn(o.scale, inverse);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * o.group) * 4;
			if (column >= o.width)
				continue;
			const numbers<4> gain = load<4>(o.gain + part % o.parts * o.width + column);
#pragma unroll
			for (int j = 0; j < 4; j++)
				x[i].at[j] = __fmul_rn(x[i].at[j], __fmul_rn(factor, gain.at[j]));
			put(part, column, x[i]);
		}
	}
}

/* A row's slot. */
static __device__ __forceinline__ float *layer_slot(const forgetting_layer &l, int row)
{
	return l.pool + l.slot[row] * l.slot_floats;
}

static __device__ __forceinline__ bool is_masked(const forgetting_layer &l, int row)
{
	return l.mask && l.mask[row] == 0;
}

/* Norm of a whole row, at `from`. */
template <class P>
static __device__ __forceinline__ void normalise_rows(const rms_norm &o, int rows, const float *from, float *space, const P &put)
{
	normalise_parts(o, rows, space, [&](int row, int column) { return load<4>(from + row * o.width + column); }, put);
}

/* n + w (n of the previous token - n) */
static __device__ __forceinline__ void make_shifted(const forgetting_layer &l, int mixture, float *x, float *space)
{
	const int d = l.before.width;
	normalise_rows(l.before, l.rows, l.before.x, space, [&](int row, int column, numbers<4> n) {
		const numbers<4> w = load<4>(l.mixtures + mixture * d + column);
		numbers<4> other = {};
		if (l.length[row] > 0 && shift_behind(l.position[row], l.segment) > 0)
			other = load<4>(layer_slot(l, row) + l.ring + column);
#pragma unroll
		for (int j = 0; j < 4; j++)
			n.at[j] = __fmaf_rn(w.at[j], __fadd_rn(other.at[j], -n.at[j]), n.at[j]);
		store(x + row * d + column, n);
	});
}

/* Store the weight of the token of `rows` rows in each head. KEEP: and the heads' sums. */
template <bool KEEP>
static __device__ __forceinline__ void weigh_tokens(const forgetting_layer &l, int first, int rows, float *weights)
{
	for (int i = threadIdx.x; i < rows * l.heads; i += PROGRAM_THREADS) {
		const int row = first + i / l.heads, head = i % l.heads, at = row * l.heads + head;
		const bool counts = !is_masked(l, row);
		float *state = layer_slot(l, row) + l.state;
		forgetting_sum s = forgetting_nothing();
		if (l.length[row] > 0 && l.position[row] > 0)
			s = {forgetting_exponent(state[head]), state[l.heads + head], state[2 * l.heads + head], 0.0f};
		const forgetting_terms terms =
		    forgetting_terms_of(counts ? l.a[at] : 0.0f, counts ? log_sigmoid(l.f[at]) : 0.0f, counts);
		forgetting_add(s, terms);
		weights[i] = forgetting_weight(terms, __fadd_rn(s.s, s.rest), s.m);
		if (KEEP && l.length[row] > 0) {
			state[head] = (float)s.m;
			state[l.heads + head] = s.s;
			state[2 * l.heads + head] = s.rest;
		}
	}
	__syncthreads();
}

/* Four channels of what a row's head has pooled, with the token. */
static __device__ __forceinline__ numbers<4> pooled_of(const forgetting_layer &l, int row, int channel, float weight)
{
	numbers<4> g = {};
	if (l.length[row] <= 0)
		return g;
	if (l.position[row] > 0)
		g = load<4>(layer_slot(l, row) + l.state + 3 * l.heads + channel);
	const numbers<4> v = load<4>(l.v + row * l.before.width + channel);
#pragma unroll
	for (int j = 0; j < 4; j++)
		g.at[j] = forgetting_add_value(g.at[j], weight, v.at[j]);
	return g;
}

/* norm(pooled) ⊙ SiLU(gate) */
static __device__ __forceinline__ void make_round(const forgetting_layer &l, float *x, float *space)
{
	const int width = l.pooled.width;
	float *weights = space + PROGRAM_WARPS;
	weigh_tokens<false>(l, 0, l.rows, weights);
	normalise_parts(
	    l.pooled, l.rows, space,
	    [&](int part, int column) {
		    return pooled_of(l, part / l.heads, part % l.heads * width + column, weights[part]);
	    },
	    [&](int part, int column, numbers<4> y) {
		    const numbers<4> gate = load<4>(l.gate + part * width + column);
#pragma unroll
		    for (int j = 0; j < 4; j++)
			    y.at[j] = __fmul_rn(y.at[j], activation_value<ACTIVATION_SILU>(gate.at[j]));
		    store(x + part * width + column, y);
	    });
}

static __device__ __forceinline__ void make_glu(const forgetting_layer &l, float *x)
{
	const int width = l.inner_width, packs = width / 4;
	const int at_gate = l.gate_first ? 0 : width, at_value = width - at_gate;
	for (int i = threadIdx.x; i < l.rows * packs; i += PROGRAM_THREADS) {
		const int row = i / packs, column = i % packs * 4;
		const float *from = l.inner + row * 2 * width + column;
		numbers<4> y = load<4>(from + at_value);
		const numbers<4> gate = load<4>(from + at_gate);
#pragma unroll
		for (int j = 0; j < 4; j++)
			y.at[j] = __fmul_rn(y.at[j], activation_value<ACTIVATION_SILU>(gate.at[j]));
		store(x + row * width + column, y);
	}
}

/* Floats that the functions above need besides x. */
static inline __device__ __host__ int rows_space(int rows, int heads)
{
	return PROGRAM_WARPS + rows * heads;
}

static __device__ __forceinline__ void make_rows(const forgetting_layer &l, program_source source, int mixture, float *x,
                                                 float *space)
{
	if (source == SOURCE_SHIFT)
		make_shifted(l, mixture, x, space);
	else if (source == SOURCE_ROUND)
		make_round(l, x, space);
	else if (source == SOURCE_NORM)
		normalise_rows(l.after, l.rows, l.after.x, space, [&](int row, int column, numbers<4> y) {
			store(x + row * l.after.width + column, y);
		});
	else
		make_glu(l, x);
}

/* Write a row's state: the norm of h, the heads' sums, and what they have pooled. */
static __device__ __forceinline__ void keep_row(const forgetting_layer &l, int row, float *space)
{
	const int d = l.before.width;
	float *weights = space + PROGRAM_WARPS, *slot = layer_slot(l, row);
	if (l.length[row] <= 0)
		return;
	normalise_rows(l.before, 1, l.before.x + row * d, space, [&](int, int column, numbers<4> n) {
		store(slot + l.ring + column, is_masked(l, row) ? numbers<4>{} : n);
	});
	/* Four channels are read and written by one thread. */
	weigh_tokens<true>(l, row, 1, weights);
	for (int channel = threadIdx.x * 4; channel < d; channel += PROGRAM_THREADS * 4)
		store(slot + l.state + 3 * l.heads + channel, pooled_of(l, row, channel, weights[channel / l.pooled.width]));
	__syncthreads(); /* shared memory is free again */
}

#endif
