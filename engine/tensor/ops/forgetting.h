/* forgetting.h - the running sum of attention that forgets: its form and bounds, for all backends.
 *
 * A head's sum is S = (s + rest) 2^m, with s near 1 and m an integer, so the sequential part of a token has neither an
 * exponential nor a logarithm. A token's terms do not depend on S:
 *
 *   e^f = 2^n (1 + less),  e^a = 2^k more       n, k integers, |less| < 0.42, more from 0.7 to 1.42
 *
 * S := S e^f + e^a is then
 *
 *   over  = m + n - k                            how far the old sum is above the token, in bits
 *   kept  = s 2^min(over, 0),  rest 2^min(over, 0) (1 + less) + more 2^-max(over, 0) + less kept = added
 *   s'    = kept + added,  rest' = what that addition's rounding has left
 *   m'    = k + max(over, 0), at least FORGETTING_FLOOR
 *
 * and all three are scaled by 2^-e, e = max(exponent of s + min(over, 0), -max(over, 0)): the exponent of the larger of
 * kept and 2^-max(over, 0). So s stays from 0.7 to 4.3. The scale follows from numbers that are known before the sum,
 * which takes it off the critical path. Scaling by a power of two is exact. With rest, a
 * million equal tokens have as exact a sum as ten; without it, roundings add up to 1 part in 100.
 *
 * The weight of the token is more 2^{k - m} / (s + rest), and l = m ln 2 + log(s + rest). */
#ifndef ENGINE_TENSOR_OPS_FORGETTING_H
#define ENGINE_TENSOR_OPS_FORGETTING_H

#include <math.h>
#include <stdint.h>

/* A score above or below this counts as this: an f32 there has no fraction. m is therefore exact as an f32. */
#define FORGETTING_MOST_SCORE 0x1p23f
/* A lower f counts as this: it forgets everything. */
#define FORGETTING_MOST_RATE 0x1p26f

enum {
	FORGETTING_FLOOR = -(1 << 24),  /* lowest m, that of the empty sum, whose s is 1 and whose l is -inf */
	FORGETTING_HIDDEN = -(1 << 30), /* k of a score of -inf, with more = 0; below every sum, so that s is kept */
	FORGETTING_FAR = 64             /* a term that is further below the other one counts as 2^-64 of it */
};

#ifdef __CUDACC__
#define FORGETTING_INLINE static __host__ __device__ __forceinline__
#else
#define FORGETTING_INLINE static inline
#endif

/* The score that a counts as. NaN stays NaN. */
FORGETTING_INLINE float forgetting_bounded(float a)
{
	const float low = a < -FORGETTING_MOST_SCORE ? -FORGETTING_MOST_SCORE : a;
	return low > FORGETTING_MOST_SCORE ? FORGETTING_MOST_SCORE : low;
}

/* The rate that f counts as; NaN stays NaN. */
FORGETTING_INLINE float forgetting_bounded_rate(float f)
{
	return f < -FORGETTING_MOST_RATE ? -FORGETTING_MOST_RATE : f;
}

/* Store the sum e^l: m, s and rest, `stride` floats apart. */
static inline void forgetting_sum_of_log(double l, float *to, int64_t stride)
{
	const double ln2 = 0.6931471805599453, m = l == -INFINITY ? (double)FORGETTING_FLOOR : floor(l / ln2);
	const double s = l == -INFINITY ? 1 : exp(l - m * ln2);
	to[0] = (float)m;
	to[stride] = (float)s;
	to[2 * stride] = (float)(s - (double)to[stride]);
}

/* m from a state, whose numbers may be forged. */
FORGETTING_INLINE int32_t forgetting_exponent(float m)
{
	return m > -0x1p25f && m < 0x1p25f ? (int32_t)m : (int32_t)FORGETTING_FLOOR;
}

/* Return the logarithm of a sum that is stored so. */
static inline double forgetting_log_of_sum(const float *from, int64_t stride)
{
	const int32_t m = forgetting_exponent(from[0]);
	return m > FORGETTING_FLOOR ? m * 0.6931471805599453 + log((double)from[stride] + (double)from[2 * stride])
	                            : -INFINITY;
}

#endif
