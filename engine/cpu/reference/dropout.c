#include "engine/base/philox.h"
#include "engine/cpu/reference/reference.h"

/* x […], rng [4] = seed low, seed high, step, part -> y […]: y = x · keep / (1 - p), where element e of all parts
 * is kept when uniform(word e % 4 of philox(seed, stream, step, e / 4)) >= p. */
status reference_dropout(backend *b, const op_call *call)
{
	(void)b;
	const dropout_params *p = call->params;
	const float *x = call->in[0].data;
	const int32_t *rng = call->in[1].data;
	float *y = call->out[0].data;
	uint64_t seed = (uint64_t)(uint32_t)rng[1] << 32 | (uint32_t)rng[0];
	const int64_t n = shape_count(call->out[0].shape);
	const uint64_t blocks = (uint64_t)(uint32_t)rng[3] * (uint64_t)((n + 3) / 4); /* in earlier parts */
	for (int64_t e = 0; e < n; e++) {
		philox_block block = philox(seed, p->stream, (uint32_t)rng[2], blocks + (uint64_t)e / 4);
		bool keep = philox_uniform(block.word[e % 4]) >= p->p;
		y[e] = keep ? (float)((double)x[e] / (1 - (double)p->p)) : 0;
	}
	return STATUS_OK;
}
