/* forgetting_explain.c - weights of additive attention that forgets, from the scores and rates of the log:
 *
 *   p_ij = e^{a_j + f_{j+1} + … + f_i - l_i},   l_i = log(e^{l_{i-1} + f_i} + e^{a_i})
 *
 * A product with p is y_j = e^{a_j} R_j,  R_j = Σ_{i ≥ j} v_i e^{f_{j+1} + … + f_i - l_i} = v_j e^{-l_j} + e^{f_{j+1}}
 * R_{j+1}. Sums are kept as e^m s with m the largest exponent, so nothing overflows, and l is computed again in double.
 * Both passes are O(N).
 *
 * With D_t = f_1 + … + f_t the weight is e^{b_j - M_i}, b_j = a_j - D_j, M_i = l_i - D_i: b_j is the importance of token
 * j for every reader. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};

static int forgetting_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	static const char *const names[] = {"score", "forget", "log_normalizer"};
	const forgetting_options *o = options;
	for (int i = 0; i < 3; i++)
		out[i] = (log_part){.name = names[i], .width = o->heads};
	return 3;
}

static explain_range forgetting_explain_range(const void *options, int64_t position, int64_t tokens)
{
	(void)options, (void)tokens;
	return explainer_window(0, position);
}

static double score_of(const explain_site *s, int64_t j)
{
	return (double)s->log[j * s->stride + s->head];
}

static double rate_of(const explain_site *s, int64_t j)
{
	return (double)s->log[j * s->stride + ((const forgetting_options *)s->options)->heads + s->head];
}

static status forgetting_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	double top = -INFINITY, kept = 0, sum = 0;
	for (int64_t j = position; j >= 0; j--) {
		alpha[j] = score_of(s, j) + kept;
		top = fmax(top, alpha[j]);
		kept += rate_of(s, j);
	}
	for (int64_t j = 0; j <= position; j++)
		sum += alpha[j] = exp(alpha[j] - top);
	for (int64_t j = 0; j <= position; j++)
		alpha[j] /= sum;
	return STATUS_OK;
}

static double log_of_sum(double a, double b)
{
	const double top = fmax(a, b);
	return top == -INFINITY ? top : top + log(exp(a - top) + exp(b - top));
}

static void forgetting_explain_scores(const explain_site *s, int64_t n, int which, double *out)
{
	double forgotten = 0, m = -INFINITY; /* D, M */
	for (int64_t j = 0; j < n; j++) {
		forgotten += j ? rate_of(s, j) : 0;
		out[j] = score_of(s, j) - forgotten;
		m = log_of_sum(m, out[j]);
		if (which)
			out[j] = m;
	}
}

static double forgetting_explain_half_life(const explain_site *s, int64_t n)
{
	double sum = 0;
	for (int64_t j = 1; j < n; j++)
		sum -= rate_of(s, j);
	return sum > 0 ? log(2) * (double)(n - 1) / sum : INFINITY;
}

static status forgetting_explain_pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	double *l = memory_new((size_t)n, sizeof *l);
	if (!l)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < n; i++)
		l[i] = log_of_sum(i ? l[i - 1] + rate_of(s, i) : -INFINITY, score_of(s, i));
	double m = -INFINITY, sum = 0; /* R_j = e^m sum */
	for (int64_t j = n - 1; j >= 0; j--) {
		m += j + 1 < n ? rate_of(s, j + 1) : 0;
		const double top = fmax(m, -l[j]);
		sum = exp(m - top) * sum + exp(-l[j] - top) * v[j];
		m = top;
		y[j] += exp(score_of(s, j) + m) * sum;
	}
	free(l);
	return STATUS_OK;
}

const explainer forgetting_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = forgetting_explain_parts,
    .range = forgetting_explain_range,
    .scores = forgetting_explain_scores,
    .half_life = forgetting_explain_half_life,
    .row = forgetting_explain_row,
    .pull = forgetting_explain_pull,
};
