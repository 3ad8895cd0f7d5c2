/* hide_keys: the largest hidden word is found bit by bit from the highest down, counting the words below a bound each
 * time. That is 32 sweeps over a row for any number of hidden keys. */
#include "engine/tensor/ops/hide_keys.h"
#include "engine/cpu/kernels/kernels.h"

size_t KERNEL(hide_keys_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_count(call->out[0].shape) * sizeof(uint32_t);
}

/* Return the number of keys from `first` on that may be hidden and have a word below `bound`. */
static int64_t below(const hide_keys_params *p, const uint32_t *word, const int32_t *mask, uint32_t bound)
{
	int64_t n = 0;
#pragma omp simd reduction(+ : n)
	for (int64_t i = p->first; i < p->length; i++)
		n += (!mask || mask[i]) & (word[i] < bound);
	return n;
}

static void hide(const hide_keys_params *p, const int32_t *rng, const int32_t *mask, int64_t b, uint32_t *word,
                 int32_t *out)
{
	int64_t seen = 0;
	for (int64_t i = 0; i < p->length; i++) {
		word[i] = hide_keys_word(p, rng, b * p->length + i);
		out[i] = !mask || mask[i];
		seen += out[i];
	}
	int64_t count = hide_keys_count(p, seen);
	if (!count)
		return;
	uint32_t last = 0;
	for (int bit = 31; bit >= 0; bit--) {
		uint32_t bound = last | (uint32_t)1 << bit;
		if (below(p, word, mask, bound) < count)
			last = bound;
	}
	int64_t equal = count - below(p, word, mask, last);
	for (int64_t i = p->first; i < p->length; i++)
		if (out[i] && (word[i] < last || (word[i] == last && equal-- > 0)))
			out[i] = 0;
}

status KERNEL(hide_keys)(backend *b, const op_call *call)
{
	const hide_keys_params *p = call->params;
	const int32_t *rng = call->in[0].data, *masks = call->n_in > 1 ? call->in[1].data : NULL;
	uint32_t *word = call->scratch;
	int32_t *out = call->out[0].data;
	const int threads = kernel_threads(b, p->batch * p->length * 64);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t row = 0; row < p->batch; row++) {
		int64_t at = row * p->length;
		hide(p, rng, masks ? masks + at : NULL, row, word + at, out + at);
	}
	return STATUS_OK;
}
