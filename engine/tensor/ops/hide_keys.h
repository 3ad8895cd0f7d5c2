/* hide_keys.h - the keys that hide_keys hides, for kernels. */
#ifndef ENGINE_TENSOR_OPS_HIDE_KEYS_H
#define ENGINE_TENSOR_OPS_HIDE_KEYS_H

#include "engine/base/philox.h"
#include "engine/tensor/ops.h"

/* The random word of key e = b · length + n of this part. */
DEVICE_FUNCTION uint32_t hide_keys_word(const hide_keys_params *p, const int32_t *rng, int64_t e)
{
	uint64_t seed = (uint64_t)(uint32_t)rng[1] << 32 | (uint32_t)rng[0];
	uint64_t of_all = (uint64_t)(uint32_t)rng[3] * (uint64_t)(p->batch * p->length) + (uint64_t)e;
	return philox(seed, p->stream, (uint32_t)rng[2], of_all / 4).word[of_all % 4];
}

/* Number of keys that are hidden in a row with `seen` unmasked ones. */
DEVICE_FUNCTION int64_t hide_keys_count(const hide_keys_params *p, int64_t seen)
{
	int64_t count = (int64_t)((double)(seen + p->beyond) * p->p);
	return count < seen ? count : seen > 0 ? seen - 1 : 0;
}

#endif
