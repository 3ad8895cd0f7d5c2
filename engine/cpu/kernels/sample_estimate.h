/* sample_estimate.h - the token of a row by float arithmetic, where that is certain.
 *
 * Integer weights take several times as long as e^-t in floats. Nearly every draw has the same outcome with both,
 * because the deciding sum is far from the token's bounds. So masses are estimated with a bound on their error. If a
 * comparison is closer than the bound, the answer is "unknown" and the caller weighs exactly. Both ways give the
 * token of the definition.
 *
 * The error. t is the definition's t: the quotient is the correctly rounded one (below). math_exp(-t) is the weight
 * within 8.5e-8 relatively and 2^-40 absolutely: checked for every float from 0 to 31. A sum of four of them,
 * added in pairs, is within 2 · 2^-24; everything else is in double. Together below 2^-22 of a sum and 2^-40 for each
 * token.
 *
 * Masses are in units of the largest logit's weight. */
#ifndef ENGINE_CPU_KERNELS_SAMPLE_ESTIMATE_H
#define ENGINE_CPU_KERNELS_SAMPLE_ESTIMATE_H

#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/sample_list.h"

/* Maximum error of the estimate of any sum over a row of n tokens with this mass. */
static inline double sample_slack(double mass, int64_t n)
{
	return 0x1p-22 * mass + 0x1p-39 * (double)(n + 2);
}

/* Temperatures for which no step of sample_quotient overflows or underflows where it matters. */
static inline bool sample_estimable(float temperature)
{
	return temperature >= 0x1p-20f && temperature <= 0x1p20f;
}

/* Return distance / temperature, rounded as IEEE 754 does; if the quotient is outside 0 … SAMPLE_FAR, so is the
 * result. With a fused multiply-add by way of the reciprocal: after one correction the quotient is within an ulp, and
 * from there another one rounds correctly (Markstein 1990). It takes a quarter of a division. */
static inline __attribute__((always_inline)) float sample_quotient(float distance, float temperature, float reciprocal)
{
#ifdef FP_FAST_FMAF
	float q = distance * reciprocal;
	q = fmaf(fmaf(-q, temperature, distance), reciprocal, q);
	return fmaf(fmaf(-q, temperature, distance), reciprocal, q);
#else
	(void)reciprocal;
	return distance / temperature;
#endif
}

/* estimate[i] = e^-t of all n logits; 0 where they are too far or not finite. */
static inline void sample_estimates(const sample_list *l, float max, float temperature, float *estimate)
{
	const float reciprocal = 1 / temperature, *x = l->x;
	const int64_t n = l->n;
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		const float t = sample_quotient(max - x[i], temperature, reciprocal);
		estimate[i] = ((t >= 0) & (t < SAMPLE_FAR)) ? math_exp_near(-t) : 0;
	}
}

/* The mass of the n tokens whose logits are at least `bound`. */
static inline double sample_mass_from(const float *x, const float *estimate, int64_t n, float bound)
{
	double sum[SAMPLE_LANES] = {0}, mass = 0;
	int64_t i = 0;
	for (; i + 4 * SAMPLE_LANES <= n; i += 4 * SAMPLE_LANES) {
		float part[4 * SAMPLE_LANES];
#pragma omp simd
		for (int l = 0; l < 4 * SAMPLE_LANES; l++) {
			const float e = estimate[i + l]; /* read in any case, so that a comparison makes a mask */
			part[l] = x[i + l] >= bound ? e : 0;
		}
#pragma omp simd
		for (int l = 0; l < SAMPLE_LANES; l++)
			sum[l] += (double)((part[l] + part[l + SAMPLE_LANES]) +
			                   (part[l + 2 * SAMPLE_LANES] + part[l + 3 * SAMPLE_LANES]));
	}
	for (; i < n; i++)
		mass += x[i] >= bound ? (double)estimate[i] : 0;
#pragma omp simd reduction(+ : mass)
	for (int l = 0; l < SAMPLE_LANES; l++)
		mass += sum[l];
	return mass;
}

/* State of a search for the logit at which the mass of all larger logits passes a goal. No token before it reaches
 * `requested`; a token that reaches `enough` is at or after it. */
typedef struct sample_search {
	double requested, enough;
	float low, high;     /* it is in low <= x < high; high is infinite at first */
	double below, above; /* masses from low on and from high on */
} sample_search;

/* Move a bound of the search to `bound`, from which on the mass is `found`; unless that is between requested and
 * enough. */
static inline void sample_search_move(sample_search *s, float bound, double found)
{
	if (found < s->requested && bound < s->high) {
		s->high = bound;
		s->above = found;
	} else if (found >= s->enough && bound > s->low) {
		s->low = bound;
		s->below = found;
	}
}

/* Narrow a search to a few tokens, among the n tokens that remain. */
static inline void sample_search_halve(sample_search *s, const float *x, const float *estimate, int64_t n, float max)
{
	enum { ROUNDS = 10 };
	const double before = s->above; /* mass that these tokens lack */
	for (int round = 0; round < ROUNDS; round++) {
		const float bound = 0.5f * s->low + 0.5f * (s->high < max ? s->high : max);
		sample_search_move(s, bound, before + sample_mass_from(x, estimate, n, bound));
	}
}

/* Take the first of every `stride` blocks of LANES tokens; return the number of tokens. */
static inline int64_t sample_thin(const float *x, const float *estimate, int64_t n, int64_t stride, float *to_x,
                                  float *to_estimate)
{
	int64_t thin = 0;
	for (int64_t i = 0; i + SAMPLE_LANES <= n; i += stride * SAMPLE_LANES, thin += SAMPLE_LANES) {
		memcpy(to_x + thin, x + i, SAMPLE_LANES * sizeof *x);
		memcpy(to_estimate + thin, estimate + i, SAMPLE_LANES * sizeof *x);
	}
	return thin;
}

/* Narrow the search among all of l: estimate from some of the tokens, test both sides of the estimate, and continue
 * among those between. Returns the number left, listed in m->listed and m->id. */
static inline int64_t sample_search_all(sample_search *s, const sample_list *l, const sample_memory *m, float max)
{
	enum { SOME = 512, NEAR = 32 };
	float *estimate = (float *)m->weight; /* for the listed tokens */
	const float near = (max - s->low) / NEAR;
	if (l->n > 4 * SOME) {
		const int64_t thin = sample_thin(l->x, m->estimate, l->n, l->n / SAMPLE_LANES / (SOME / SAMPLE_LANES),
		                                 m->listed, estimate);
		sample_search guess = *s;
		guess.requested = guess.enough =
		    s->requested / s->below * sample_mass_from(m->listed, estimate, thin, -INFINITY);
		sample_search_halve(&guess, m->listed, estimate, thin, max);
		for (int side = -1; side <= 1; side += 2) {
			const float bound = guess.low + (float)side * near;
			sample_search_move(s, bound, sample_mass_from(l->x, m->estimate, l->n, bound));
		}
	}
	int64_t n = sample_collect(l->x, 0, l->n, s->low, s->high, m->listed, m->id, 0);
	for (int64_t i = 0; i < n; i++)
		estimate[i] = m->estimate[m->id[i]];
	sample_search_halve(s, m->listed, estimate, n, max);
	return sample_narrow(n, s->low, s->high, m);
}

/* The first tokens by rank: those before `last` at the logit `bound`, and all larger ones. */
typedef struct sample_front {
	float bound;
	int32_t last;
} sample_front;

/* Find the cut of top-p, in a row of this mass, within the bracket, whose few tokens are weighed exactly. False:
 * unknown. */
static inline bool sample_front_of(const sample_list *l, const sample_memory *m, float max, const sample_setting *s,
                                   double mass, sample_bracket *b, sample_front *out)
{
	const double slack = sample_slack(mass, l->n);
	const double requested = ceil((double)s->top_p * 0x1p24) * 0x1p-24 * mass - 2 * slack;
	if (!(requested > 0))
		return false;
	const float *x = l->x;
	float least = max;
#pragma omp simd reduction(min : least)
	for (int64_t i = 0; i < l->n; i++)
		least = ((x[i] < least) & (x[i] >= -FLT_MAX)) ? x[i] : least;
	const double far = max - (SAMPLE_FAR + 1) * (double)s->temperature;
	sample_search search = {.requested = requested,
	                        .enough = requested + 4 * slack,
	                        .low = least > far ? least : (float)far,
	                        .high = INFINITY,
	                        .below = mass};
	const int64_t n = sample_search_all(&search, l, m, max);
	*b = (sample_bracket){search.low, search.high};
	sample_weigh(m->listed, n, max, s->temperature, m->weight);
	const uint64_t missing = (uint64_t)((requested - search.above) * 0x1p39);
	uint64_t reached;
	const int64_t last = sample_find_cut(m->listed, m->weight, n, *b, missing, &reached);
	if (last < 0 || (double)reached < (double)missing + 4 * slack * 0x1p39)
		return false;
	*out = (sample_front){m->listed[last], m->id[last]};
	return true;
}

/* Keep only the estimates of tokens within the front. */
static inline void sample_keep(const sample_list *l, float *estimate, sample_front front)
{
	const float *x = l->x, bound = front.bound;
	const int32_t n = (int32_t)l->n, last = front.last;
#pragma omp simd
	for (int32_t i = 0; i < n; i++) {
		const float e = estimate[i];
		estimate[i] = ((x[i] > bound) | ((x[i] == bound) & (i <= last))) ? e : 0;
	}
}

/* Keep only the estimates that min-p and top-a accept at this mass. False: unknown, because a logit is too near to the
 * limit. A mass that is off by a share moves top-a's limit by |power - 1| times the share. */
static inline bool sample_keep_likely(const sample_list *l, float *estimate, float max, const sample_setting *s,
                                      double mass)
{
	double share = s->min_p, margin = 1e-5;
	if (s->top_a > 0) {
		const double power = (double)s->top_a_power - 1;
		share = fmax(share, (double)s->top_a * pow(mass, -power));
		margin += fabs(power) * 2 * sample_slack(mass, l->n) / mass;
	}
	if (!(share >= 0x1p-32))
		return false;
	margin += 0x1p-38 / share; /* weights and their limit are whole numbers */
	const double limit = -log(share), scale = s->temperature;
	const float in = nextafterf((float)(max - scale * (limit - margin)), INFINITY), *x = l->x;
	const float out = nextafterf((float)(max - scale * (limit + margin)), -INFINITY);
	const int64_t n = l->n;
	int near = 0;
	if (!(in < max))
		return false;
#pragma omp simd reduction(| : near)
	for (int64_t i = 0; i < n; i++) {
		const float e = estimate[i];
		near |= (x[i] >= out) & (x[i] < in);
		estimate[i] = x[i] >= in ? e : 0;
	}
	return !near;
}

/* The token at which the sum of estimates exceeds the target; -1: unknown, because a sum is too near to it. */
static inline int32_t sample_estimated_draw(const sample_list *l, const float *estimate, double target, double slack)
{
	double sum = 0;
	int64_t i = 0;
	for (int64_t step = 2048; step >= 2 * SAMPLE_LANES; step /= 8)
		while (i + step <= l->n) {
			const double more = sample_mass_from(l->x + i, estimate + i, step, -INFINITY);
			if (sum + more > target)
				break;
			sum += more;
			i += step;
		}
	for (; i < l->n && sum + (double)estimate[i] <= target; i++)
		sum += (double)estimate[i];
	if (i == l->n || sum + slack > target || sum + (double)estimate[i] - slack <= target)
		return -1;
	return (int32_t)i;
}

/* Return the index of the token of a row without top-k; -1: unknown, but the bracket of top-p's cut is set. */
static inline int32_t sample_estimated(const sample_list *l, const sample_memory *m, float max, const sample_setting *s,
                                       sample_bracket *b)
{
	if (!sample_estimable(s->temperature))
		return -1;
	sample_estimates(l, max, s->temperature, m->estimate);
	double mass = sample_mass_from(l->x, m->estimate, l->n, -INFINITY);
	const bool front_only = s->top_p < 1;
	const bool likely_only = s->min_p > 0 || s->top_a > 0;
	if (front_only) {
		sample_front front;
		if (!sample_front_of(l, m, max, s, mass, b, &front))
			return -1;
		sample_keep(l, m->estimate, front);
	}
	if (front_only && (s->top_a > 0 || !likely_only))
		mass = sample_mass_from(l->x, m->estimate, l->n, -INFINITY);
	if (likely_only) {
		if (!sample_keep_likely(l, m->estimate, max, s, mass))
			return -1;
		mass = sample_mass_from(l->x, m->estimate, l->n, -INFINITY);
	}
	const double target = sample_random(s) * 0x1p-24 * mass;
	return sample_estimated_draw(l, m->estimate, target, 2 * sample_slack(mass, l->n));
}

#endif
