/* The recurrent form of linear attention, one token and one head at a time, over the state drawn in
 * engine/tensor/ops/linear_attention.h. */
#include "engine/tensor/ops/linear_attention.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/sequence.h"

/* φ(x) = elu(x) + 1 */
static double linear_stream_feature(float x)
{
	return x > 0 ? (double)x + 1 : exp((double)x);
}

/* S += φ(k) vᵀ, z += φ(k): S [dh, dh], z, k, v [dh] */
static void add_token(float *s, float *z, const float *k, const float *v, int64_t width)
{
	for (int64_t d = 0; d < width; d++) {
		z[d] = (float)((double)z[d] + linear_stream_feature(k[d]));
		for (int64_t m = 0; m < width; m++)
			s[d * width + m] =
			    (float)((double)s[d * width + m] + linear_stream_feature(k[d]) * (double)v[m]);
	}
}

/* y = Sᵀφ(q) / (φ(q)·z + eps); φ(q)·z */
static double linear_stream_attend(const float *s, const float *z, const float *q, int64_t width, double eps, float *y)
{
	double normalizer = 0;
	for (int64_t d = 0; d < width; d++)
		normalizer += linear_stream_feature(q[d]) * (double)z[d];
	for (int64_t m = 0; m < width && y; m++) {
		double sum = 0;
		for (int64_t d = 0; d < width; d++)
			sum += linear_stream_feature(q[d]) * (double)s[d * width + m];
		y[m] = normalizer > 0 ? (float)(sum / (normalizer + eps)) : 0;
	}
	return normalizer;
}

/* Row `row` of the call, of a sequence whose state in this layer is `state`. */
static void linear_stream_read_token(const op_call *call, int64_t row, float *state)
{
	const linear_stream_params *p = call->params;
	const int64_t channels = call->in[0].shape.dim[2], width = channels / p->heads;
	const int32_t *mask = call->n_in > 7 ? call->in[7].data : NULL;
	float *y = call->out[0].data, *normalizer = call->out[1].data;
	for (int64_t h = 0; h < p->heads; h++) {
		const int64_t at = row * channels + h * width;
		float *s = state + linear_sums(width, h), *z = state + linear_normals(width, h);
		if (!mask || mask[row])
			add_token(s, z, (const float *)call->in[1].data + at, (const float *)call->in[2].data + at,
			          width);
		const double sum = linear_stream_attend(s, z, (const float *)call->in[0].data + at, width,
		                                        (double)p->eps, y ? y + at : NULL);
		if (normalizer)
			normalizer[row * p->heads + h] = (float)sum;
	}
}

/* q, k, v [B, N, D], pool [slots, floats], slot, position, length [B], mask? [B, N], start?
 *   -> y [B, N, D], normalizer [B, N, H] */
status reference_linear_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const linear_stream_params *p = call->params;
	const int32_t *slot = call->in[4].data, *position = call->in[5].data, *length = call->in[6].data;
	const int64_t floats = linear_state_floats(call->in[0].shape.dim[2], p->heads);
	for (int i = 0; i < 2; i++)
		if (call->out[i].data)
			memset(call->out[i].data, 0, (size_t)shape_count(call->out[i].shape) * sizeof(float));
	for (int64_t b = 0; b < sequence_count(call, 8); b++) {
		float *state = (float *)call->in[3].data + slot[b] * call->in[3].shape.dim[1] + p->offset;
		if (position[b] == 0 && length[b] > 0)
			memset(state, 0, (size_t)floats * sizeof *state);
		for (int64_t i = 0; i < length[b]; i++)
			linear_stream_read_token(call, sequence_at(call, 8, b).first + i, state);
	}
	return STATUS_OK;
}
