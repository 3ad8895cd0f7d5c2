/* shift_rows, shift_stream: pieces of rows from other rows, at the speed of memory. */
#include "engine/tensor/ops/shift_stream.h"

#include <assert.h>
#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/tensor/ops/sequence.h"

/* to = from, or zeros where `from` is NULL. */
static inline void shift_put(float *to, const float *from, int64_t count)
{
	if (from)
		memcpy(to, from, (size_t)count * sizeof *to);
	else
		memset(to, 0, (size_t)count * sizeof *to);
}

static void shift_kernel_rows(const op_call *call, int64_t first, int64_t last)
{
	const shift_params *p = call->params;
	const shape s = call->out[0].shape;
	const int32_t *mask = kernel_optional(call, 1);
	const int64_t d = s.dim[2], segments = p->high - p->low + 1, width = d / segments;
	for (int64_t r = first; r < last; r++) {
		const float *x = (const float *)call->in[0].data + r * d;
		float *y = (float *)call->out[0].data + r * d;
		for (int64_t i = 0; i < segments; i++) {
			const int64_t shift = p->low + i, move = p->transposed ? shift : -shift,
			              t = r % s.dim[1] + move;
			const bool seen =
			    t >= 0 && t < s.dim[1] && (!mask || shift == 0 || mask[p->transposed ? r : r + move]);
			shift_put(y + i * width, seen ? x + move * d + i * width : NULL, width);
		}
		shift_put(y + segments * width, x + segments * width, d - segments * width);
	}
}

status KERNEL(shift_rows)(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	return shape_count(s) > 0 ? kernel_for(b, call, shape_rows(s), shape_count(s), shift_kernel_rows) : STATUS_OK;
}

enum { START = 6 /* the input */ };

/* Sequences first … last - 1. The ring is written after all tokens of the call are answered: the call's own rows are
 * read from x, older ones from the ring. */
static void sequences(const op_call *call, int64_t first, int64_t last)
{
	const shift_stream_params *p = call->params;
	const int32_t *mask = kernel_optional(call, 5);
	const float *front = kernel_optional(call, 7); /* rows before token 0 */
	const int64_t rows = front ? shape_rows(call->in[7].shape) : p->stored.count;
	const int64_t d = call->in[0].shape.dim[2], width = d / (p->high - p->low + 1);
	for (int64_t b = first; b < last; b++) {
		const sequence tokens = sequence_at(call, START, b);
		const int64_t slot = ((const int32_t *)call->in[2].data)[b],
		              before = ((const int32_t *)call->in[3].data)[b];
		const int64_t length = ((const int32_t *)call->in[4].data)[b];
		assert(length >= 0 && length <= tokens.room && before >= 0 && slot >= 0 &&
		       slot < call->in[1].shape.dim[0]);
		float *state = (float *)call->in[1].data + slot * call->in[1].shape.dim[1], *ring = state + p->offset;
		if (p->stored.count)
			front = state + p->stored.offset;
		const float *x = (const float *)call->in[0].data + tokens.first * d;
		float *y = call->out[0].data ? (float *)call->out[0].data + tokens.first * d : NULL;
		const int32_t *seen = mask ? mask + tokens.first : NULL;
		for (int64_t i = 0; i < length && y; i++) {
			const int64_t behind = shift_behind(before + i, p->segment);
			shift_put(y + i * d, x + i * d, d);
			for (int64_t k = p->low > 0 ? p->low : 1; k <= p->high; k++) {
				const float *from = NULL;
				if (k > behind + rows)
					from = NULL;
				else if (k <= i)
					from = !seen || seen[i - k] ? x + (i - k) * d : NULL;
				else if (k <= before + i)
					from = ring + shift_row(d, p->high, before + i - k);
				else
					from = front + (rows + before + i - k) * d;
				const int64_t c = (k - p->low) * width;
				shift_put(y + i * d + c, from ? from + c : NULL, width);
			}
		}
		if (y)
			shift_put(y + length * d, NULL, (tokens.room - length) * d);
		for (int64_t i = length < p->high ? 0 : length - p->high; i < length; i++)
			shift_put(ring + shift_row(d, p->high, before + i), !seen || seen[i] ? x + i * d : NULL, d);
	}
}

status KERNEL(shift_stream)(backend *b, const op_call *call)
{
	const int64_t count = sequence_count(call, START), work = shape_count(call->out[0].shape);
	return kernel_for(b, call, count, work, sequences);
}
