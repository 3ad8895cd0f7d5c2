/* trilinear_explain.c - weights of attention that decays with distance, p_tj = 2^e_tj / Z_t of the tokens j before t
 * within reach, or of all but t, from queries, keys and ln Z. The rest to 1 is the shares of the sink, 1 / Z_t, and of
 * the key before all tokens. It is stored at p_tt, because no token reads itself. */
#include <math.h>
#include <stdlib.h>

#include "engine/model/mixers/explain_rows.h"
#include "engine/model/mixers/mixer.h"

static const char *const rounds[] = {"attention"};

static int trilinear_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const trilinear_options *o = options;
	out[0] = (log_part){.name = "query", .width = o->key_size};
	out[1] = (log_part){.name = "key", .width = o->key_size};
	out[2] = (log_part){.name = "log_normalizer", .width = o->heads};
	return 3;
}

static explain_range trilinear_explain_range(const void *options, int64_t position, int64_t tokens)
{
	const trilinear_options *o = options;
	return o->bidirectional ? (explain_range){0, tokens} : explainer_window(o->reach + 1, position);
}

static status trilinear_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	const trilinear_options *o = s->options;
	const int64_t width = o->key_size / o->heads;
	const explain_range r = trilinear_explain_range(o, position, s->tokens);
	const float *query = s->log + position * s->stride + s->head * width;
	const float *key = s->log + o->key_size + s->head * width;
	const double log_normalizer = (double)s->log[position * s->stride + 2 * o->key_size + s->head];
	double rest = 1;
	for (int64_t j = r.first; j < r.end; j++) {
		if (j == position)
			continue;
		const double d = (double)llabs(position - j);
		const double dot = explain_dot(query, key + j * s->stride, width);
		const double e = o->score_scale * dot - o->slope * d + o->hyper / d;
		rest -= alpha[j - r.first] = exp(e * M_LN2 - log_normalizer);
	}
	alpha[position - r.first] = fmax(rest, 0);
	return STATUS_OK;
}

const explainer trilinear_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = trilinear_explain_parts,
    .range = trilinear_explain_range,
    .row = trilinear_explain_row,
    .pull_tokens = 16384,
};
