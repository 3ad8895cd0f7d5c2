/* softmax_explain.c - weights of softmax attention, p_ij = softmax_j(scale · q_i·k_j) over the last `window` tokens,
 * from queries and keys.
 *
 * A product with p takes its rows one by one: O(N · window · dh). Its time is why N is limited. */
#include "engine/model/mixers/explain_rows.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};

/* Query and key of a token, without the value that follows them. */
static int softmax_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	out[0] = (log_part){.name = "qkv", .width = 2 * ((const softmax_options *)options)->hidden};
	return 1;
}

static explain_range softmax_explain_range(const void *options, int64_t position, int64_t tokens)
{
	(void)tokens;
	return explainer_window(((const softmax_options *)options)->window, position);
}

static status softmax_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	const softmax_options *o = s->options;
	int64_t width = o->hidden / o->heads;
	explain_range r = softmax_explain_range(o, position, s->tokens);
	const float *head = s->log + s->head * width, *query = head + position * s->stride, *key = head + o->hidden;
	for (int64_t j = r.first; j < r.end; j++)
		alpha[j - r.first] = o->scale * explain_dot(query, key + j * s->stride, width);
	explain_softmax(alpha, r.end - r.first);
	return STATUS_OK;
}

const explainer softmax_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = softmax_explain_parts,
    .range = softmax_explain_range,
    .row = softmax_explain_row,
    .pull_tokens = 4096,
};
