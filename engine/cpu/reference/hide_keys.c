#include "engine/tensor/ops/hide_keys.h"
#include "engine/cpu/reference/reference.h"

/* Number of keys of a row that may be hidden and precede key i, by their random words; ties by index. */
static int64_t rank_of(const hide_keys_params *p, const int32_t *rng, const int32_t *mask, int64_t b, int64_t i)
{
	uint32_t word = hide_keys_word(p, rng, b * p->length + i);
	int64_t rank = 0;
	for (int64_t j = p->first; j < p->length; j++) {
		uint32_t other = hide_keys_word(p, rng, b * p->length + j);
		rank += (!mask || mask[j]) && (other < word || (other == word && j < i));
	}
	return rank;
}

/* rng [4], mask? [B, N] -> [B, N]: hidden are the keys from `first` on with the smallest words */
status reference_hide_keys(backend *unused, const op_call *call)
{
	(void)unused;
	const hide_keys_params *p = call->params;
	const int32_t *rng = call->in[0].data, *masks = call->n_in > 1 ? call->in[1].data : NULL;
	int32_t *out = call->out[0].data;
	for (int64_t b = 0; b < p->batch; b++) {
		const int32_t *mask = masks ? masks + b * p->length : NULL;
		int64_t seen = 0;
		for (int64_t i = 0; i < p->length; i++)
			seen += !mask || mask[i];
		for (int64_t i = 0; i < p->length; i++) {
			bool hidden = i >= p->first && rank_of(p, rng, mask, b, i) < hide_keys_count(p, seen);
			out[b * p->length + i] = (!mask || mask[i]) && !hidden;
		}
	}
	return STATUS_OK;
}
