/* Dilated attention over the ring of engine/tensor/ops/dilated.h, one token and one head at a time. */
#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/dilated.h"
#include "engine/tensor/ops/sequence.h"

enum { START = 8 }; /* the input */

/* Data that is constant for one sequence. */
typedef struct stream {
	const dilated_stream_params *p;
	float *state; /* this layer's floats in the slot */
	int64_t window, channels, width;
} stream;

/* Put token t into the ring: k, v [D]. */
static void dilated_stream_append(const stream *s, int64_t t, bool masked, const float *k, const float *v)
{
	const int64_t place = t % s->window;
	memcpy(s->state + dilated_key(s->channels, place), k, (size_t)s->channels * sizeof *k);
	memcpy(s->state + dilated_value(s->channels, s->window, place), v, (size_t)s->channels * sizeof *v);
	s->state[dilated_there(s->channels, s->window, place)] = masked ? 0 : 1;
}

/* scale · q·k of head h and token j, -inf when j was masked */
static double dilated_stream_score_of(const stream *s, int64_t h, int64_t j, const float *query)
{
	const int64_t place = j % s->window;
	const float *k = s->state + dilated_key(s->channels, place) + h * s->width;
	double sum = 0;
	if (s->state[dilated_there(s->channels, s->window, place)] == 0)
		return -INFINITY;
	for (int64_t d = 0; d < s->width; d++)
		sum += (double)query[d] * (double)k[d];
	return (double)s->p->scale * sum;
}

/* The first token that t reads in branch i; past t where the head does not keep t. */
static int64_t first_key(const stream *s, int64_t h, int64_t i, int64_t t)
{
	const dilated_pattern *p = &s->p->pattern;
	const int64_t start = t / p->segment[i] * p->segment[i], first = dilated_first(p, i, s->p->heads, h);
	return (t - start) % p->dilation[i] == first ? start + first : t + 1;
}

/* Token t, in the ring already, attends: the sums of all branches over the sum of all their denominators. query, y [dh]
 * of head h; sum [dh] is scratch. */
static void reference_dilated_stream_attend(const stream *s, int64_t h, int64_t t, const float *query, double *sum,
                                            float *y)
{
	const dilated_pattern *p = &s->p->pattern;
	double top = -INFINITY, z = 0;
	for (int64_t d = 0; d < s->width; d++)
		sum[d] = 0;
	for (int64_t i = 0; i < p->branches; i++)
		for (int64_t j = first_key(s, h, i, t); j <= t; j += p->dilation[i])
			top = fmax(top, dilated_stream_score_of(s, h, j, query));
	for (int64_t i = 0; i < p->branches && top > -INFINITY; i++) {
		for (int64_t j = first_key(s, h, i, t); j <= t; j += p->dilation[i]) {
			const float *v = s->state + dilated_value(s->channels, s->window, j % s->window) + h * s->width;
			const double e = exp(dilated_stream_score_of(s, h, j, query) - top);
			z += e;
			for (int64_t d = 0; d < s->width && e > 0; d++)
				sum[d] += e * (double)v[d];
		}
	}
	for (int64_t d = 0; d < s->width; d++)
		y[d] = z > 0 ? (float)(sum[d] / z) : 0;
}

size_t reference_dilated_stream_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_last(call->in[0].shape) * sizeof(double);
}

/* q, k, v [B, N, D], pool, slot, position, length [B], mask? [B, N], start? -> y [B, N, D] */
status reference_dilated_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const dilated_stream_params *p = call->params;
	const int64_t d = shape_last(call->in[0].shape), slot_floats = call->in[3].shape.dim[1];
	const int32_t *slot = call->in[4].data, *position = call->in[5].data, *length = call->in[6].data;
	const int32_t *mask = call->n_in > 7 ? call->in[7].data : NULL;
	const float *q = call->in[0].data, *k = call->in[1].data, *v = call->in[2].data;
	float *y = call->out[0].data;
	for (int64_t b = 0; b < sequence_count(call, START); b++) {
		const sequence tokens = sequence_at(call, START, b);
		const stream s = {.p = p,
		                  .state = (float *)call->in[3].data + slot[b] * slot_floats + p->offset,
		                  .window = dilated_window(&p->pattern),
		                  .channels = d,
		                  .width = d / p->heads};
		if (y)
			memset(y + tokens.first * d, 0, (size_t)(tokens.room * d) * sizeof *y);
		for (int64_t i = 0; i < length[b]; i++) {
			const int64_t row = tokens.first + i, t = position[b] + i;
			dilated_stream_append(&s, t, mask && !mask[row], k + row * d, v + row * d);
			for (int64_t h = 0; h < p->heads && y; h++)
				reference_dilated_stream_attend(&s, h, t, q + row * d + h * s.width, call->scratch,
				                                y + row * d + h * s.width);
		}
	}
	return STATUS_OK;
}
