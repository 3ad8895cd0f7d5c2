/* linear_attention.h - the state of one layer of linear attention, head after head:
 *
 *    | S [dh][dh] | z [dh] |     S[d][m] = Σ_t φ(k_t)[d] v_t[m],   z[d] = Σ_t φ(k_t)[d]
 *
 * over the unmasked tokens so far: D (dh + 1) floats at any length, all zero before position 0. */
#ifndef ENGINE_TENSOR_OPS_LINEAR_ATTENTION_H
#define ENGINE_TENSOR_OPS_LINEAR_ATTENTION_H

#include <stdint.h>

/* Floats of one head, and the offset of head h: S, followed by z. */
static inline int64_t linear_head_floats(int64_t dh)
{
	return dh * (dh + 1);
}

static inline int64_t linear_sums(int64_t dh, int64_t h)
{
	return h * linear_head_floats(dh);
}

static inline int64_t linear_normals(int64_t dh, int64_t h)
{
	return linear_sums(dh, h) + dh * dh;
}

/* Add `count` tokens to the state of a layer: k, v [count, d]. */
void linear_state_of_tokens(const float *k, const float *v, int64_t count, int64_t d, int64_t heads, float *state);

#endif
