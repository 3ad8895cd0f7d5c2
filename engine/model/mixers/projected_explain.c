/* projected_explain.c - weights of softmax attention with four projections, p_ij = softmax_j(scale · q_i·k_j), from
 * queries and keys: of a sequence to itself (causal or whole), and to a source.
 *
 * A product with p takes its rows one by one: O(N² dh). Its time is why N is limited. */
#include <math.h>

#include "engine/model/mixers/explain_rows.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};

static int projected_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const int64_t width = ((const projected_options *)options)->hidden;
	out[0] = (log_part){.name = "query", .width = width};
	out[1] = (log_part){.name = "key", .width = width};
	return 2;
}

static int source_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const int n = projected_explain_parts(options, out);
	out[1].of_source = true;
	return n;
}

static explain_range projected_explain_range(const void *options, int64_t position, int64_t tokens)
{
	return (explain_range){0, ((const projected_options *)options)->causal ? position + 1 : tokens};
}

/* Row over the keys from key 0 on, `stride` floats apart. */
static status row_over(const explain_site *s, const float *keys, int64_t stride, int64_t position, double *alpha)
{
	const projected_options *o = s->options;
	const int64_t width = o->hidden / o->heads, first = s->head * width;
	const int64_t n = projected_explain_range(o, position, s->tokens).end;
	const float *query = s->log + position * s->stride + first;
	for (int64_t j = 0; j < n; j++)
		alpha[j] = explain_dot(query, keys + j * stride + first, width) / sqrt((double)width);
	explain_softmax(alpha, n);
	return STATUS_OK;
}

static status projected_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	return row_over(s, s->log + ((const projected_options *)s->options)->hidden, s->stride, position, alpha);
}

static status source_row(const explain_site *s, int64_t position, double *alpha)
{
	return row_over(s, s->keys, s->key_stride, position, alpha);
}

const explainer projected_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = projected_explain_parts,
    .range = projected_explain_range,
    .row = projected_explain_row,
    .pull_tokens = 4096,
};

const explainer projected_source_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = source_parts,
    .range = projected_explain_range,
    .row = source_row,
};
