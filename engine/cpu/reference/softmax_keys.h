/* softmax_keys.h - Σ_j e^{s_j} v_j / Σ_j e^{s_j} in double, key after key. */
#ifndef ENGINE_CPU_REFERENCE_SOFTMAX_KEYS_H
#define ENGINE_CPU_REFERENCE_SOFTMAX_KEYS_H

#include <math.h>
#include <stdint.h>

/* sum [width] = Σ e^{s - top} v, total = Σ e^{s - top}, top = max s. */
typedef struct softmax_sum {
	double top, total, *sum;
	int64_t width;
} softmax_sum;

/* Sum over no key; sum [width] is the caller's. */
static inline softmax_sum softmax_sum_of(double *sum, int64_t width)
{
	for (int64_t d = 0; d < width; d++)
		sum[d] = 0;
	return (softmax_sum){.top = -INFINITY, .sum = sum, .width = width};
}

static inline double softmax_dot(const float *a, const float *b, int64_t n)
{
	double sum = 0;
	for (int64_t d = 0; d < n; d++)
		sum += (double)a[d] * (double)b[d];
	return sum;
}

static inline void softmax_sum_add(softmax_sum *s, double score, const float *v)
{
	const double top = fmax(s->top, score), shrink = exp(s->top - top), weight = exp(score - top);
	s->top = top;
	s->total = shrink * s->total + weight;
	for (int64_t d = 0; d < s->width; d++)
		s->sum[d] = shrink * s->sum[d] + weight * (double)v[d];
}

/* y [width], NULL: not requested; zeros where there was no key. log Σ_j e^{s_j}. */
static inline double softmax_sum_end(const softmax_sum *s, float *y)
{
	for (int64_t d = 0; d < s->width && y; d++)
		y[d] = s->total > 0 ? (float)(s->sum[d] / s->total) : 0;
	return s->top + log(s->total);
}

#endif
