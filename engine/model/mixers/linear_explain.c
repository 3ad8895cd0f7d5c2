/* linear_explain.c - weights of linear attention, p_ij = φ(q_i)·φ(k_j) / n_i, from queries and keys. n_i is the sum of
 * the numerators over the tokens that i reads.
 *
 * A product with p is y_j = φ(k_j)·Σ_i (v_i / n_i) φ(q_i), over all i or (causal) those from j on; n_i = φ(q_i)·Σ_j
 * φ(k_j), over all j or those up to i. Both are running sums: O(N dh). A token whose weights are all zero in double
 * reads nothing. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};

static int linear_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const linear_options *o = options;
	out[0] = (log_part){.name = "query", .width = o->hidden};
	out[1] = (log_part){.name = "key", .width = o->hidden};
	return 2;
}

static int64_t linear_explain_heads(const void *options)
{
	return ((const linear_options *)options)->heads;
}

static explain_range linear_explain_range(const void *options, int64_t position, int64_t tokens)
{
	return (explain_range){0, ((const linear_options *)options)->causal ? position + 1 : tokens};
}

/* φ(x) = elu(x) + 1 */
static double linear_explain_feature(float x)
{
	return x > 0 ? (double)x + 1 : exp((double)x);
}

static int64_t width_of(const explain_site *s)
{
	const linear_options *o = s->options;
	return o->hidden / o->heads;
}

static const float *query(const explain_site *s, int64_t i)
{
	return s->log + i * s->stride + s->head * width_of(s);
}

static const float *key(const explain_site *s, int64_t j)
{
	return query(s, j) + ((const linear_options *)s->options)->hidden;
}

/* sum += a φ(x) */
static void linear_explain_add(double *sum, const float *x, double a, int64_t width)
{
	for (int64_t d = 0; d < width; d++)
		sum[d] += a * linear_explain_feature(x[d]);
}

/* φ(x)·sum */
static double dot_product(const float *x, const double *sum, int64_t width)
{
	double result = 0;
	for (int64_t d = 0; d < width; d++)
		result += linear_explain_feature(x[d]) * sum[d];
	return result;
}

static status linear_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	int64_t width = width_of(s);
	explain_range r = linear_explain_range(s->options, position, s->tokens);
	double sum = 0, *features = memory_new((size_t)width, sizeof *features);
	if (!features)
		return STATUS_NOMEM;
	linear_explain_add(features, query(s, position), 1, width);
	for (int64_t j = r.first; j < r.end; j++)
		sum += alpha[j - r.first] = dot_product(key(s, j), features, width);
	for (int64_t j = 0; j < r.end - r.first && sum > 0; j++)
		alpha[j] /= sum;
	free(features);
	return STATUS_OK;
}

static status pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	bool causal = ((const linear_options *)s->options)->causal;
	int64_t width = width_of(s);
	double *share = memory_new((size_t)n + 2 * (size_t)width, sizeof *share); /* v_i / n_i */
	if (!share)
		return STATUS_NOMEM;
	double *keys = share + n, *queries = keys + width;
	for (int64_t j = 0; j < n && !causal; j++)
		linear_explain_add(keys, key(s, j), 1, width);
	for (int64_t i = 0; i < n; i++) {
		if (causal)
			linear_explain_add(keys, key(s, i), 1, width);
		double sum = dot_product(query(s, i), keys, width);
		share[i] = sum > 0 ? v[i] / sum : 0;
	}
	for (int64_t i = 0; i < n && !causal; i++)
		linear_explain_add(queries, query(s, i), share[i], width);
	for (int64_t j = n - 1; j >= 0; j--) {
		if (causal)
			linear_explain_add(queries, query(s, j), share[j], width);
		y[j] += dot_product(key(s, j), queries, width);
	}
	free(share);
	return STATUS_OK;
}

const explainer linear_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = linear_explain_parts,
    .heads = linear_explain_heads,
    .range = linear_explain_range,
    .row = linear_explain_row,
    .pull = pull,
};
