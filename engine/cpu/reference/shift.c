#include "engine/tensor/ops/shift_stream.h"

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/sequence.h"

/* The shift of channel c of C: segment i = c / (C / segments) has low + i; what is left over has none. */
static int64_t shift_of(int64_t low, int64_t high, int64_t channels, int64_t c)
{
	const int64_t segments = high - low + 1, i = c / (channels / segments);
	return i < segments ? low + i : 0;
}

/* x [B, N, C], mask? [B, N], like? -> y[t, c] = x[t - shift, c], where that row is and, for a shift, is unmasked; else
 * 0. transposed: y[t, c] = x[t + shift, c], 0 where row t is masked */
status reference_shift_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const shift_params *p = call->params;
	const shape s = call->out[0].shape;
	const int32_t *mask = call->n_in > 1 ? call->in[1].data : NULL;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t k = 0; k < shape_count(s); k++) {
		const int64_t c = k % s.dim[2], row = k / s.dim[2], t = row % s.dim[1];
		const int64_t shift = shift_of(p->low, p->high, s.dim[2], c), move = p->transposed ? shift : -shift;
		const bool inside = t + move >= 0 && t + move < s.dim[1];
		const bool seen = !mask || shift == 0 || (inside && mask[p->transposed ? row : row + move]);
		y[k] = inside && seen ? x[k + move * s.dim[2]] : 0;
	}
	return STATUS_OK;
}

/* x [B, N, C], pool [slots, floats], slot, position, length [B], mask? [B, N], start? -> y [B, N, C]; the row of token
 * t is at place t mod high of the ring [high, C], zeros if it was masked */
status reference_shift_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const shift_stream_params *p = call->params;
	const int32_t *slot = call->in[2].data, *position = call->in[3].data, *length = call->in[4].data;
	const int32_t *mask = call->n_in > 5 ? call->in[5].data : NULL;
	const float *before = call->n_in > 7 ? call->in[7].data : NULL;
	const int64_t rows = before ? shape_rows(call->in[7].shape) : p->stored.count; /* before token 0 */
	const shape in = call->in[0].shape, pool = call->in[1].shape;
	const float *from = call->in[0].data;
	float *state = call->in[1].data, *y = call->out[0].data;
	const int64_t sequences = call->in[2].shape.dim[0], d = in.dim[2];
	for (int64_t b = 0; b < sequences; b++) {
		const sequence tokens = sequence_at(call, 6, b);
		float *ring = state + slot[b] * pool.dim[1] + p->offset;
		if (p->stored.count)
			before = state + slot[b] * pool.dim[1] + p->stored.offset;
		for (int64_t i = 0; i < tokens.room; i++) {
			const int64_t row = tokens.first + i, t = (int64_t)position[b] + i;
			const int64_t behind = shift_behind(t, p->segment);
			const float *x = from + row * d;
			for (int64_t c = 0; c < d && y; c++) {
				const int64_t shift = shift_of(p->low, p->high, d, c);
				const float moved = shift == 0              ? x[c]
				                    : behind + rows < shift ? 0
				                    : t < shift             ? before[(rows + t - shift) * d + c]
				                                : ring[shift_row(d, p->high, t - shift) + c];
				y[row * d + c] = i < length[b] ? moved : 0;
			}
			for (int64_t c = 0; c < d && p->high > 0 && i < length[b]; c++)
				ring[shift_row(d, p->high, t) + c] = !mask || mask[row] ? x[c] : 0;
		}
	}
	return STATUS_OK;
}
