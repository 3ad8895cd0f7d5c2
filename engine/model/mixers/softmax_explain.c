/* Weights of softmax attention, p_ij = softmax_j(scale · q_i·k_j) over the last `window` tokens, from queries and keys.
 *
 * A product with p takes its rows one by one: O(N · window · dh), whose time is why it has a bound on N. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};

/* Query and key of a token, without the value that lies behind them. */
static int parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	out[0] = (log_part){"qkv", 2 * ((const softmax_options *)options)->hidden};
	return 1;
}

static explain_range range(const void *options, int64_t position, int64_t tokens)
{
	(void)tokens;
	return explainer_window(((const softmax_options *)options)->window, position);
}

/* Eight sums side by side, which a compiler can keep in vectors. */
static double dot(const float *a, const float *b, int64_t n)
{
	double sums[8] = {0}, sum = 0;
	int64_t d = 0;
	for (; d + 8 <= n; d += 8)
		for (int i = 0; i < 8; i++)
			sums[i] += (double)a[d + i] * (double)b[d + i];
	for (; d < n; d++)
		sum += (double)a[d] * (double)b[d];
	for (int i = 0; i < 8; i++)
		sum += sums[i];
	return sum;
}

static status row(const explain_site *s, int64_t position, double *alpha)
{
	const softmax_options *o = s->options;
	int64_t width = o->hidden / o->heads;
	explain_range r = range(o, position, s->tokens);
	const float *head = s->log + s->head * width, *query = head + position * s->stride, *key = head + o->hidden;
	double max = -INFINITY, sum = 0;
	for (int64_t j = r.first; j < r.end; j++) {
		alpha[j - r.first] = o->scale * dot(query, key + j * s->stride, width);
		max = fmax(max, alpha[j - r.first]);
	}
	for (int64_t j = 0; j < r.end - r.first; j++)
		sum += alpha[j] = exp(alpha[j] - max);
	for (int64_t j = 0; j < r.end - r.first; j++)
		alpha[j] /= sum;
	return STATUS_OK;
}

static status pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	double *alpha = memory_new((size_t)n, sizeof *alpha);
	if (!alpha)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < n; i++) {
		explain_range r = range(s->options, i, s->tokens);
		if (v[i] == 0)
			continue;
		row(s, i, alpha);
		for (int64_t j = r.first; j < r.end; j++)
			y[j] += v[i] * alpha[j - r.first];
	}
	free(alpha);
	return STATUS_OK;
}

const explainer softmax_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = parts,
    .range = range,
    .row = row,
    .pull = pull,
    .pull_tokens = 4096,
};
