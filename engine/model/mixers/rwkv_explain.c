/* rwkv_explain.c - weights of RWKV-4's attention, one head for each channel, from the scores k, the decay f and the
 * bonus u of the log:
 *
 *   p_ii = s_i = σ(u + k_i - l_{i-1}),   p_ij = (1 - s_i) e^{k_j + (i-1-j) f - l_{i-1}} for j < i
 *   l_i = log(e^{l_{i-1} + f} + e^{k_i})
 *
 * A product with p is y_j = s_j v_j + e^{k_j} R_j, where R_j, the sum over readers i > j without e^{k_j}, is
 * R_j = (1 - s_{j+1}) v_{j+1} e^{-l_j} + e^f R_{j+1}. Sums are kept as e^m s with m the largest exponent, so nothing
 * overflows, and l is computed again in double. Both passes are O(N).
 *
 * The bonus counts for the token itself alone, so no score of a token is the same for every reader. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};
enum { SCORE, FORGET, BONUS, PARTS };

static int rwkv_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	static const char *const names[PARTS] = {"score", "forget", "bonus"};
	for (int i = 0; i < PARTS; i++)
		out[i] = (log_part){.name = names[i], .width = ((const rwkv_options *)options)->channels};
	return PARTS;
}

static int64_t rwkv_explain_heads(const void *options)
{
	return ((const rwkv_options *)options)->channels;
}

static explain_range rwkv_explain_range(const void *options, int64_t position, int64_t tokens)
{
	(void)options, (void)tokens;
	return explainer_window(0, position);
}

static double number_of(const explain_site *s, int part, int64_t j)
{
	return (double)s->log[j * s->stride + part * ((const rwkv_options *)s->options)->channels + s->head];
}

static status rwkv_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	double top = alpha[position] = number_of(s, SCORE, position) + number_of(s, BONUS, position);
	double kept = 0, sum = 0;
	for (int64_t j = position - 1; j >= 0; j--) {
		alpha[j] = number_of(s, SCORE, j) + kept;
		top = fmax(top, alpha[j]);
		kept += number_of(s, FORGET, j);
	}
	for (int64_t j = 0; j <= position; j++)
		sum += alpha[j] = exp(alpha[j] - top);
	for (int64_t j = 0; j <= position; j++)
		alpha[j] /= sum;
	return STATUS_OK;
}

static double rwkv_explain_half_life(const explain_site *s, int64_t n)
{
	const double f = n > 0 ? number_of(s, FORGET, 0) : 0;
	return f < 0 ? -log(2) / f : INFINITY;
}

static double share_of(const explain_site *s, int64_t i, double before)
{
	return 1 / (1 + exp(before - number_of(s, BONUS, i) - number_of(s, SCORE, i)));
}

static double sum_in_logs(double a, double b)
{
	const double top = fmax(a, b);
	return top == -INFINITY ? top : top + log(exp(a - top) + exp(b - top));
}

static status rwkv_explain_pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	double *l = memory_new((size_t)n, sizeof *l);
	if (!l)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < n; i++)
		l[i] = sum_in_logs(i ? l[i - 1] + number_of(s, FORGET, i) : -INFINITY, number_of(s, SCORE, i));
	double m = -INFINITY, sum = 0; /* R_j = e^m sum */
	for (int64_t j = n - 1; j >= 0; j--) {
		if (j + 1 < n) {
			const double others = 1 - share_of(s, j + 1, l[j]);
			m += number_of(s, FORGET, j + 1);
			const double top = fmax(m, -l[j]);
			sum = exp(m - top) * sum + exp(-l[j] - top) * others * v[j + 1];
			m = top;
			y[j] += exp(number_of(s, SCORE, j) + m) * sum;
		}
		y[j] += share_of(s, j, j ? l[j - 1] : -INFINITY) * v[j];
	}
	free(l);
	return STATUS_OK;
}

const explainer rwkv_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .heads = rwkv_explain_heads,
    .parts = rwkv_explain_parts,
    .range = rwkv_explain_range,
    .half_life = rwkv_explain_half_life,
    .row = rwkv_explain_row,
    .pull = rwkv_explain_pull,
};
