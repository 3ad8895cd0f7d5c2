/* adamw, sgd: clipping, moments, decay and step in one pass over the arenas. */
#include "engine/cpu/kernels/kernels.h"

#include <math.h>

#include "engine/tensor/panel.h"

enum { COST = 4 };

/* The bf16 copy is the last input. */
static void narrow(const op_call *call, int64_t first, int64_t last)
{
	const float *p = call->in[0].data;
	uint16_t *out = call->in[call->n_in - 1].data;
	for (int64_t i = first; i < last; i++)
		out[i] = panel_bf16(p[i]);
}

static status finish(backend *b, const op_call *call, int copy)
{
	const int64_t n = shape_count(call->in[0].shape);
	return kernel_optional(call, copy) ? kernel_for(b, call, n, n, narrow) : STATUS_OK;
}

status KERNEL(adamw)(backend *b, const op_call *call)
{
	const adamw_params *h = call->params;
	float *p = call->in[0].data, *m = call->in[2].data, *v = call->in[3].data;
	const float *g = call->in[1].data, *hyper = call->in[5].data;
	const float norm2 = *(const float *)call->in[4].data, norm = sqrtf(norm2), lr = hyper[0];
	int64_t n = shape_count(call->in[0].shape);
	if (!isfinite(norm2))
		return finish(b, call, 6);
	const float clip = h->clip > 0.0f && norm > h->clip ? h->clip / (norm + 1e-6f) : 1.0f;
	const float beta1 = h->beta1, beta2 = h->beta2, shrink = 1.0f - lr * h->decay;
	/* The bias corrections in double: 1 - 0.999^t loses digits early on. */
	const float rate = (float)(lr / (1.0 - pow(beta1, hyper[1])));
	const float root = (float)(1.0 / sqrt(1.0 - pow(beta2, hyper[1])));
	/* The order of transformers is the same expression with other constants. */
	const float step = h->transformers ? rate * shrink : rate, eps = h->transformers ? h->eps * root : h->eps;
	const int threads = kernel_threads(b, n * COST);
#pragma omp parallel for simd schedule(simd : static) num_threads(threads)
	for (int64_t i = 0; i < n; i++) {
		float grad = clip * g[i];
		m[i] = beta1 * m[i] + (1.0f - beta1) * grad;
		v[i] = beta2 * v[i] + (1.0f - beta2) * grad * grad;
		p[i] = p[i] * shrink - step * m[i] / (sqrtf(v[i]) * root + eps);
	}
	return finish(b, call, 6);
}

status KERNEL(sgd)(backend *b, const op_call *call)
{
	const sgd_params *h = call->params;
	float *p = call->in[0].data, *m = call->in[2].data;
	const float *g = call->in[1].data;
	const float norm2 = *(const float *)call->in[3].data, norm = sqrtf(norm2),
	            lr = *(const float *)call->in[4].data;
	int64_t n = shape_count(call->in[0].shape);
	if (!isfinite(norm2))
		return finish(b, call, 5);
	const float clip = h->clip > 0.0f && norm > h->clip ? h->clip / (norm + 1e-6f) : 1.0f;
	const float factor = !h->normalize ? clip : norm > 0.0f ? 1.0f / norm : 0.0f;
	const float momentum = h->momentum, shrink = 1.0f - lr * h->decay;
	const int threads = kernel_threads(b, n);
#pragma omp parallel for simd schedule(simd : static) num_threads(threads)
	for (int64_t i = 0; i < n; i++) {
		m[i] = momentum * m[i] + factor * g[i];
		p[i] = p[i] * shrink - lr * m[i];
	}
	return finish(b, call, 5);
}
