/* Softmax attention over the ring of engine/tensor/ops/softmax_stream.h, one token and one head at a time. */
#include "engine/tensor/ops/softmax_stream.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/sequence.h"

/* What stays the same for one sequence. */
typedef struct stream {
	float *state; /* this layer's floats in the slot */
	int64_t window, channels, heads;
	double scale;
} stream;

/* Put token t into the ring: k, v [D]. */
static void append(const stream *s, int64_t t, bool masked, const float *k, const float *v)
{
	int64_t place = t % s->window;
	memcpy(s->state + softmax_key(s->channels, place), k, (size_t)s->channels * sizeof *k);
	memcpy(s->state + softmax_value(s->channels, s->window, place), v, (size_t)s->channels * sizeof *v);
	s->state[softmax_there(s->channels, s->window, place)] = masked ? 0 : 1;
}

/* scale · q·k of head h and token j, -inf when j was masked */
static double score_of(const stream *s, int64_t h, int64_t j, const float *query)
{
	int64_t place = j % s->window, width = s->channels / s->heads;
	const float *k = s->state + softmax_key(s->channels, place) + h * width;
	double sum = 0;
	if (s->state[softmax_there(s->channels, s->window, place)] == 0)
		return -INFINITY;
	for (int64_t d = 0; d < width; d++)
		sum += (double)query[d] * (double)k[d];
	return s->scale * sum;
}

/* Token t, in the ring already, attends: query, y [dh] of head h; sum [dh] is scratch. */
static void attend(const stream *s, int64_t h, int64_t t, const float *query, double *sum, float *y)
{
	int64_t first = t < s->window ? 0 : t - s->window + 1, width = s->channels / s->heads;
	double top = -INFINITY, z = 0;
	for (int64_t d = 0; d < width; d++)
		sum[d] = 0;
	for (int64_t j = first; j <= t; j++)
		top = fmax(top, score_of(s, h, j, query));
	for (int64_t j = first; j <= t && top > -INFINITY; j++) {
		const float *v = s->state + softmax_value(s->channels, s->window, j % s->window) + h * width;
		double weight = exp(score_of(s, h, j, query) - top);
		z += weight;
		for (int64_t d = 0; d < width && weight > 0; d++)
			sum[d] += weight * (double)v[d];
	}
	for (int64_t d = 0; d < width; d++)
		y[d] = z > 0 ? (float)(sum[d] / z) : 0;
}

/* One token's y in double. */
size_t reference_softmax_stream_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_last(call->in[0].shape) / 3 * sizeof(double);
}

/* qkv [B, N, 3D], pool [slots, floats], slot, position, length [B], mask? [B, N], start? -> y [B, N, D] */
status reference_softmax_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const softmax_stream_params *p = call->params;
	const int32_t *slot = call->in[2].data, *position = call->in[3].data, *length = call->in[4].data;
	const int32_t *mask = call->n_in > 5 ? call->in[5].data : NULL;
	shape in = call->in[0].shape;
	int64_t d = in.dim[2] / 3, width = d / p->heads;
	float *y = call->out[0].data;
	for (int64_t b = 0; b < sequence_count(call, 6); b++) {
		const sequence tokens = sequence_at(call, 6, b);
		float *state = (float *)call->in[1].data + slot[b] * call->in[1].shape.dim[1] + p->offset;
		stream s = {state, p->window, d, p->heads, (double)p->scale};
		for (int64_t i = 0; i < tokens.room; i++) {
			int64_t row = tokens.first + i, t = (int64_t)position[b] + i;
			const float *qkv = (const float *)call->in[0].data + row * 3 * d;
			if (y)
				memset(y + row * d, 0, (size_t)d * sizeof *y);
			if (i >= length[b])
				continue;
			append(&s, t, mask && !mask[row], qkv + d, qkv + 2 * d);
			for (int64_t h = 0; h < p->heads && y; h++)
				attend(&s, h, t, qkv + h * width, call->scratch, y + row * d + h * width);
		}
	}
	return STATUS_OK;
}
