/* Weights of softmax attention with options, from queries, keys and position biases:
 *   p_ij = softmax_j(scale · q_i·k_j + bias[i - j]) over the tokens that i sees
 * The bias of distance d is kept with token d. Attention with its matrix has weights that do not follow from these:
 * there the row of each token is kept as the recurrent form makes it, behind the softmax and before heads are mixed.
 * Memories are left out of both: what is given is how the tokens share what they have together. */
#include "engine/model/mixers/explain_rows.h"
#include "engine/model/mixers/mixer.h"
#include "engine/tensor/ops/stream_window.h"

static const char *const rounds[] = {"attention"};

static int parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const attention_options *o = options;
	int n = 0;
	out[n++] = (log_part){"query", o->heads * o->key_width};
	out[n++] = (log_part){"key", o->kv_heads * o->key_width};
	if (o->biased)
		out[n++] = (log_part){"bias", o->heads};
	return n;
}

static explain_range range(const void *options, int64_t position, int64_t tokens)
{
	const attention_options *o = options;
	int64_t window = o->causal ? o->capacity : 0;
	if (o->past && (!window || o->past + 1 < window))
		window = o->past + 1;
	explain_range r = explainer_window(window, position);
	const int64_t oldest = o->segment ? stream_oldest(position, o->capacity, o->segment) : 0;
	r.first = r.first > oldest ? r.first : oldest;
	if (!o->causal)
		r.end = tokens;
	return r;
}

static status row(const explain_site *s, int64_t position, double *alpha)
{
	const attention_options *o = s->options;
	explain_range r = range(o, position, s->tokens);
	int64_t group = o->heads / o->kv_heads, keys = o->heads * o->key_width;
	const float *query = s->log + position * s->stride + s->head * o->key_width;
	const float *key = s->log + keys + s->head / group * o->key_width;
	const float *bias = s->log + keys + o->kv_heads * o->key_width + s->head;
	for (int64_t j = r.first; j < r.end; j++) {
		double a = o->scale * explain_dot(query, key + j * s->stride, o->key_width);
		alpha[j - r.first] = a + (o->biased ? (double)bias[(position - j) * s->stride] : 0);
	}
	explain_softmax(alpha, r.end - r.first);
	return STATUS_OK;
}

static status pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	return explain_pull_rows(&attention_explainer, s, v, n, y);
}

const explainer attention_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .parts = parts,
    .range = range,
    .row = row,
    .pull = pull,
    .pull_tokens = 4096,
};

/* --- with the matrix ------------------------------------------------------------------------------------------ */

/* Of a row of weights (op_stream_scores): the query's own token is in the last one. */
static int64_t columns(const attention_options *o)
{
	return o->memory_tokens + o->memories + o->capacity;
}

static int matrix_parts(const void *options, log_part out[EXPLAINER_MAX_PARTS])
{
	const attention_options *o = options;
	out[0] = (log_part){"weights", o->heads * columns(o)};
	return 1;
}

static status matrix_row(const explain_site *s, int64_t position, double *alpha)
{
	const attention_options *o = s->options;
	const explain_range r = range(o, position, s->tokens);
	const float *own = s->log + position * s->stride + (s->head + 1) * columns(o) - 1;
	double sum = 0;
	for (int64_t j = r.first; j < r.end; j++)
		sum += alpha[j - r.first] = (double)own[j - position];
	for (int64_t j = r.first; j < r.end && sum > 0; j++)
		alpha[j - r.first] /= sum;
	return STATUS_OK;
}

static status matrix_pull(const explain_site *s, const double *v, int64_t n, double *y)
{
	return explain_pull_rows(&attention_matrix_explainer, s, v, n, y);
}

const explainer attention_matrix_explainer = {
    .rounds = rounds,
    .n_rounds = 1,
    .recurrent = true,
    .parts = matrix_parts,
    .range = range,
    .row = matrix_row,
    .pull = matrix_pull,
    .pull_tokens = 4096,
};
