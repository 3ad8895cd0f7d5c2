/* t5_buckets, distances, alibi: tables of some thousand numbers, computed once per run. Logarithms are taken in double
 * and rounded once, so that every backend finds the same buckets. */
#include "engine/tensor/ops/position_bias.h"

#include <stdlib.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

enum { LOG_COST = 30 };

static void buckets(const op_call *call, int64_t first, int64_t last)
{
	const t5_buckets_params *p = call->params;
	const int64_t side = p->bidirectional ? p->buckets / 2 : p->buckets, exact = side / 2;
	const t5_side s = {side, exact, (float)log((double)p->max_distance / (double)exact)};
	int32_t *to = call->out[0].data;
	for (int64_t i = first; i < last; i++) {
		const int64_t d = p->first + i, distance = d >= 0 ? d : p->bidirectional ? -d : 0;
		const float ratio = (float)distance / (float)exact;
		const float log_ratio = ratio >= 1.0f ? (float)log((double)ratio) : 0.0f;
		to[i] = (int32_t)(t5_bucket(s, distance, log_ratio) + (p->bidirectional && d < 0 ? side : 0));
	}
}

status KERNEL(t5_buckets)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, LOG_COST, buckets);
}

static void signed_distances(const op_call *call, int64_t first, int64_t last)
{
	const distances_params *p = call->params;
	float *to = call->out[0].data;
	for (int64_t i = first; i < last; i++) {
		const double d = (double)(p->first + i), size = p->logarithmic ? log(fabs(d) + 1.0) : fabs(d);
		to[i] = (float)(d < 0.0 && !p->absolute ? -size : size);
	}
}

status KERNEL(distances)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, LOG_COST, signed_distances);
}

static void slopes(const op_call *call, int64_t first, int64_t last)
{
	const alibi_params *p = call->params;
	const float *log_slopes = kernel_optional(call, 0);
	float *slope = call->scratch;
	for (int64_t h = first; h < last; h++)
		slope[h] = log_slopes ? math_exp(log_slopes[h]) : (float)exp2(alibi_exponent(p->alibi_heads, h));
	for (int64_t h = p->alibi_heads; h < last; h++)
		slope[h] = 0.0f;
}

static void products(const op_call *call, int64_t first, int64_t last)
{
	const alibi_params *p = call->params;
	const float *slope = call->scratch;
	float *to = call->out[0].data;
	for (int64_t t = first; t < last; t++) {
		const float size = (float)llabs(p->first + t);
#pragma omp simd
		for (int64_t h = 0; h < p->heads; h++)
			to[t * p->heads + h] = -slope[h] * size;
	}
}

size_t KERNEL(alibi_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)((const alibi_params *)call->params)->heads * sizeof(float);
}

status KERNEL(alibi)(backend *b, const op_call *call)
{
	const alibi_params *p = call->params;
	slopes(call, 0, p->heads);
	return kernel_for(b, call, p->count, p->count * p->heads, products);
}
