/* attention_explain.c - weights of softmax attention, from queries, keys and position biases: p_ij =
 * softmax_j(scale · q_i·k_j + bias[i - j]) over the tokens that i sees. The bias of distance d is stored with token d,
 * and that of d + 1 - N (ahead) with token d of N. If attention needs its matrix, weights do not follow from these.
 * Then the log has each token's row after the softmax and before heads are mixed. Keys are rounded as a cache of bf16
 * does. Memories are excluded in both cases: the result is how the tokens share the weight that they have together. */
#include "engine/model/mixers/attention_private.h"
#include "engine/model/mixers/explain_rows.h"
#include "engine/tensor/ops/stream_window.h"
#include "engine/tensor/panel.h"

static const char *const rounds[] = {"attention"};

static int attention_explain_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const attention_options *o = options;
	int n = 0;
	if (attention_is_fused(o)) { /* query and key of a token, without the value that follows them */
		out[0] = (log_part){.name = "qkv", .width = (o->heads + o->kv_heads) * o->key_width};
		return 1;
	}
	out[n++] = (log_part){.name = "query", .width = o->heads * o->key_width};
	out[n++] = (log_part){.name = "key", .width = o->kv_heads * o->key_width};
	if (o->scoring.biased)
		out[n++] = (log_part){.name = "bias", .width = o->heads};
	if (o->scoring.biased && !o->causal)
		out[n++] = (log_part){.name = "ahead", .width = o->heads};
	return n;
}

/* Return the index of a token's row, where segments have leading rows; return the first token at or after a row. */
static int64_t attention_explain_row_of(const attention_options *o, int64_t token)
{
	return o->reach.front ? token + o->reach.front * (token / (o->reach.segment - o->reach.front) + 1) : token;
}

static int64_t attention_explain_token_at(const attention_options *o, int64_t row)
{
	if (!o->reach.front || row <= 0)
		return row;
	const int64_t in_front = o->reach.front - row % o->reach.segment;
	return row / o->reach.segment * (o->reach.segment - o->reach.front) + (in_front > 0 ? 0 : -in_front);
}

static explain_range attention_explain_range(const void *options, int64_t position, int64_t tokens)
{
	const attention_options *o = options;
	int64_t window = o->causal ? o->reach.capacity : 0;
	if (o->reach.past && (!window || o->reach.past + 1 < window))
		window = o->reach.past + 1;
	explain_range r = explainer_window(0, position);
	const int64_t own = attention_explain_row_of(o, position),
	              first = window && own >= window ? own - window + 1 : 0;
	const int64_t oldest =
	    o->causal && o->reach.segment ? stream_oldest(own, o->reach.capacity, o->reach.segment) : 0;
	r.first = attention_explain_token_at(o, first > oldest ? first : oldest);
	if (!o->causal)
		r.end = tokens;
	return r;
}

/* Bias of query i and key j, tokens of the log; `bias`: that of its token 0. */
static double bias_of(const attention_options *o, const float *bias, const explain_site *s, int64_t i, int64_t j)
{
	if (!o->scoring.biased)
		return 0;
	return (double)(j <= i ? bias[(i - j) * s->stride]
	                       : bias[o->heads + (s->before + s->tokens - 1 - (j - i)) * s->stride]);
}

/* q·k, for the key as the cache holds it. */
static double attention_explain_score(const attention_options *o, const float *query, const float *key)
{
	double sum = 0;
	for (int64_t d = 0; o->reach.bf16 && d < o->key_width; d++)
		sum += (double)query[d] * (double)panel_f32(panel_bf16(key[d]));
	return o->reach.bf16 ? sum : explain_dot(query, key, o->key_width);
}

static status attention_explain_row(const explain_site *s, int64_t position, double *alpha)
{
	const attention_options *o = s->options;
	explain_range r = attention_explain_range(o, position, s->tokens);
	int64_t group = o->heads / o->kv_heads, keys = o->heads * o->key_width;
	const float *query = s->log + position * s->stride + s->head * o->key_width;
	const float *key = s->log + keys + s->head / group * o->key_width;
	const float *bias = s->log - s->before * s->stride + keys + o->kv_heads * o->key_width + s->head;
	for (int64_t j = r.first; j < r.end; j++)
		alpha[j - r.first] = o->scoring.scale * attention_explain_score(o, query, key + j * s->stride) +
		                     bias_of(o, bias, s, position, j);
	explain_softmax(alpha, r.end - r.first);
	return STATUS_OK;
}

static int64_t attention_explain_heads(const void *options)
{
	return ((const attention_options *)options)->heads;
}

const explainer attention_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .heads = attention_explain_heads,
    .parts = attention_explain_parts,
    .range = attention_explain_range,
    .row = attention_explain_row,
    .pull_tokens = 4096,
};

/* --- with the matrix ------------------------------------------------------------------------------------------ */

/* Columns of a weight row of op_stream_scores; the query's own token is in the last one. */
static int64_t columns(const attention_options *o)
{
	return (o->reach.front ? 0 : o->memories.tokens) + o->memories.count + o->reach.capacity;
}

static void attention_explain_share(double *alpha, int64_t n)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += alpha[j];
	for (int64_t j = 0; j < n && sum > 0; j++)
		alpha[j] /= sum;
}

static int stepped_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const attention_options *o = options;
	out[0] = (log_part){.name = "weights", .width = o->heads * columns(o)};
	return 1;
}

static status stepped_row(const explain_site *s, int64_t position, double *alpha)
{
	const attention_options *o = s->options;
	const explain_range r = attention_explain_range(o, position, s->tokens);
	const float *own = s->log + position * s->stride + (s->head + 1) * columns(o) - 1;
	for (int64_t j = r.first; j < r.end; j++)
		alpha[j - r.first] =
		    (double)own[attention_explain_row_of(o, j) - attention_explain_row_of(o, position)];
	attention_explain_share(alpha, r.end - r.first);
	return STATUS_OK;
}

/* Weights of the parallel form: the first column is the first token. */
static int whole_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const attention_options *o = options;
	out[0] = (log_part){.name = "weights",
	                    .width = o->heads * o->reach.capacity,
	                    .heads = o->heads,
	                    .skipped = o->memories.tokens + o->memories.count};
	return 1;
}

static status whole_row(const explain_site *s, int64_t position, double *alpha)
{
	const attention_options *o = s->options;
	const explain_range r =
	    o->cross ? (explain_range){0, s->tokens} : attention_explain_range(o, position, s->tokens);
	const float *first = s->log + position * s->stride + s->head * o->reach.capacity + s->before;
	for (int64_t j = r.first; j < r.end; j++)
		alpha[j - r.first] = (double)first[j];
	attention_explain_share(alpha, r.end - r.first);
	return STATUS_OK;
}

const explainer attention_stepped_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .recurrent = true,
    .parts = stepped_parts,
    .range = attention_explain_range,
    .row = stepped_row,
    .pull_tokens = 4096,
};

const explainer attention_whole_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = whole_parts,
    .range = attention_explain_range,
    .row = whole_row,
    .pull_tokens = 4096,
};

/* --- to a source ---------------------------------------------------------------------------------------------- */

static int source_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const attention_options *o = options;
	out[0] = (log_part){.name = "query", .width = o->heads * o->key_width};
	out[1] = (log_part){.name = "key", .width = o->kv_heads * o->key_width, .of_source = true};
	return 2;
}

static explain_range source_range(const void *options, int64_t position, int64_t tokens)
{
	(void)options;
	(void)position;
	return (explain_range){0, tokens};
}

static status source_row(const explain_site *s, int64_t position, double *alpha)
{
	const attention_options *o = s->options;
	const int64_t group = o->heads / o->kv_heads;
	const float *query = s->log + position * s->stride + s->head * o->key_width;
	const float *key = s->keys + s->head / group * o->key_width;
	for (int64_t j = 0; j < s->tokens; j++)
		alpha[j] = o->scoring.scale * explain_dot(query, key + j * s->key_stride, o->key_width);
	explain_softmax(alpha, s->tokens);
	return STATUS_OK;
}

const explainer attention_source_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = source_parts,
    .range = source_range,
    .row = source_row,
};

const explainer attention_source_whole_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = whole_parts,
    .range = source_range,
    .row = whole_row,
};
