/* Tables of position biases. */
#include "engine/tensor/ops/position_bias.h"

#include <math.h>
#include <stdlib.h>

#include "engine/cpu/reference/reference.h"

/* -> [count]: the bucket of each distance */
status reference_t5_buckets(backend *unused, const op_call *call)
{
	(void)unused;
	const t5_buckets_params *p = call->params;
	const int64_t side = p->bidirectional ? p->buckets / 2 : p->buckets, exact = side / 2;
	const t5_side s = {side, exact, (float)log((double)p->max_distance / (double)exact)};
	for (int64_t i = 0; i < p->count; i++) {
		const int64_t d = p->first + i, distance = d >= 0 ? d : p->bidirectional ? -d : 0;
		const float ratio = (float)distance / (float)exact;
		const float log_ratio = ratio > 0 ? (float)log((double)ratio) : 0;
		((int32_t *)call->out[0].data)[i] =
		    (int32_t)(t5_bucket(s, distance, log_ratio) + (p->bidirectional && d < 0 ? side : 0));
	}
	return STATUS_OK;
}

/* -> [count, 1]: d, |d| or ± ln(|d| + 1) */
status reference_distances(backend *unused, const op_call *call)
{
	(void)unused;
	const distances_params *p = call->params;
	for (int64_t i = 0; i < p->count; i++) {
		const double d = (double)(p->first + i), size = p->logarithmic ? log(fabs(d) + 1) : fabs(d);
		((float *)call->out[0].data)[i] = (float)(d < 0 && !p->absolute ? -size : size);
	}
	return STATUS_OK;
}

/* log_slopes? [heads] -> [count, heads]: -slope_h |d| */
status reference_alibi(backend *unused, const op_call *call)
{
	(void)unused;
	const alibi_params *p = call->params;
	const float *log_slopes = call->n_in > 0 ? call->in[0].data : NULL;
	for (int64_t e = 0; e < p->count * p->heads; e++) {
		const int64_t head = e % p->heads, d = p->first + e / p->heads;
		const float slope = log_slopes ? (float)exp((double)log_slopes[head])
		                               : (float)exp2(alibi_exponent(p->alibi_heads, head));
		((float *)call->out[0].data)[e] = head < p->alibi_heads ? -slope * (float)llabs(d) : 0;
	}
	return STATUS_OK;
}
