/* explain.c - rows of α, their mean, and attention rollout.
 *
 * A row of α is a softmax over its window. Rollout is y = v Ã_L … Ã_1 for the unit row
 * vector v of the position, and v A for one round and head is
 *
 *   y_j = Σ_{i ∈ V(j)} v_i e^{a_j - M_i},   V(j) = {j … min(N-1, j+k-1)},   M_i = log Σ_{j ∈ W(i)} e^{a_j}
 *
 * Both M and y are sums of e^{m_i} s_i over a window that slides: M over (a_j, 1) looking back, y
 * over (-M_i, v_i) looking ahead. One scan does both, on blocks of k as the model itself does: a window is the
 * end of one block joined to the beginning of the next, so each element takes part in two
 * running sums, whatever k is, and nothing is ever subtracted. An element e^m s is kept as the pair
 * (m, s) with m the running maximum, so every exponent is ≤ 0 (a_j ≤ M_i wherever a_j counts). */
#include "engine/explain/explain.h"

#include <assert.h>
#include <math.h>

#include "engine/base/memory.h"
#include "engine/explain/outputs.h"
#include "engine/model/feed.h"

/* --- where the scores are ------------------------------------------------------ */

static void describe(const model *m, explain_scores *out)
{
	const explainer *e = model_explainer(m);
	const model_dims *d = model_dimensions(m);
	*out = (explain_scores){.layers = d->layers, .rounds = e->n_rounds, .heads = d->heads};
	for (int64_t l = 0; l < d->layers; l++)
		out->window[l] = e->window(model_mixer_options(m, l));
}

void explain_from_log(const model *m, const float *log, int64_t tokens, explain_scores *out)
{
	describe(m, out);
	out->tokens = tokens;
	out->data = log;
}

static float score(const explain_scores *s, int64_t layer, int64_t round, int64_t head, int64_t j)
{
	return s->data[(((j * s->layers + layer) * s->rounds + round) * 2) * s->heads + head];
}

int64_t explain_window_first(const explain_scores *s, int64_t layer, int64_t position)
{
	int64_t k = s->window[layer];
	return k > 0 && position >= k ? position - k + 1 : 0;
}

/* --- a forward's scores ------------------------------------------------------------ */

static bool all_finite(const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

status explain_check_length(const model_dims *d, int64_t n, error *err)
{
	if (n < 1 || n > d->positions)
		return error_set(err, STATUS_INVALID, "input", "%lld tokens, must be 1 to the model's %lld positions",
		                 (long long)n, (long long)d->positions);
	if (n > EXPLAIN_MAX_TOKENS)
		return error_set(err, STATUS_INVALID, "input",
		                 "%lld tokens, must be at most %d; a session that explains may be longer", (long long)n,
		                 EXPLAIN_MAX_TOKENS);
	return STATUS_OK;
}

static status check_input(const model *m, const int32_t *ids, int64_t n, error *err)
{
	const model_dims *d = model_dimensions(m);
	TRY(explain_check_length(d, n, err));
	for (int64_t i = 0; i < n; i++)
		if (ids[i] < 0 || ids[i] >= d->inputs)
			return error_set(err, STATUS_INVALID, "input", "token %d is not in the vocabulary of %lld",
			                 (int)ids[i], (long long)d->inputs);
	return STATUS_OK;
}

status explain_run(const model *m, const int32_t *ids, int64_t n, explain_scores *out, float **data, error *err)
{
	plan *p = NULL;
	outputs *o = NULL;
	float *scores = NULL;
	status s;
	*data = NULL;
	TRY(check_input(m, ids, n, err));
	forward_spec spec = {.batch = 1, .length = n, .explain = true, .logits = LOGITS_NONE};
	int64_t floats = outputs_token_floats(m);
	if ((s = model_plan(&p, m, &spec, NULL, NULL, err)) != STATUS_OK)
		goto fail;
	describe(m, out);
	if ((s = outputs_new(&o, m, p, n)) != STATUS_OK)
		goto fail;
	s = STATUS_NOMEM;
	if (!(scores = memory_new((size_t)n, (size_t)floats * sizeof *scores)))
		goto fail;
	if ((s = feed_write(p, PORT_TOKENS, ids)) != STATUS_OK ||
	    (s = feed_positions(p, model_dimensions(m), POSITION_ERROR, 0)) != STATUS_OK ||
	    (s = plan_run(p)) != STATUS_OK || (s = outputs_read(o, 0, n, scores)) != STATUS_OK)
		goto fail;
	s = STATUS_INVALID;
	if (!all_finite(scores, n * floats)) {
		error_set(err, s, "model", "the model's scores are not finite");
		goto fail;
	}
	outputs_free(o);
	plan_free(p);
	out->tokens = n;
	out->data = *data = scores;
	return STATUS_OK;
fail:
	free(scores);
	outputs_free(o);
	plan_free(p);
	return error_set(err, s, NULL, "the input could not be explained: %s", status_text(s));
}

/* --- a row ------------------------------------------------------------------------- */

void explain_alpha(const explain_scores *s, int64_t layer, int64_t round, int64_t head, int64_t position, float *alpha)
{
	assert(position >= 0 && position < s->tokens);
	int64_t first = explain_window_first(s, layer, position);
	double max = -INFINITY, sum = 0;
	for (int64_t j = first; j <= position; j++)
		max = fmax(max, score(s, layer, round, head, j));
	for (int64_t j = first; j <= position; j++)
		sum += exp(score(s, layer, round, head, j) - max);
	for (int64_t j = first; j <= position; j++)
		alpha[j - first] = (float)(exp(score(s, layer, round, head, j) - max) / sum);
}

/* --- aggregates ------------------------------------------------------------------------ */

static int64_t count(const bool *picked, int64_t n)
{
	int64_t found = 0;
	for (int64_t i = 0; i < n; i++)
		found += picked[i];
	return found;
}

static bool selectable(const explain_scores *s, const explain_selection *pick, int64_t position)
{
	return position >= 0 && position < s->tokens && count(pick->layers, s->layers) > 0 &&
	       count(pick->rounds, s->rounds) > 0 && count(pick->heads, s->heads) > 0;
}

/* Narrow n doubles whose sum is 1 but for rounding; STATUS_INVALID when it is not finite. */
static status deliver(const double *from, int64_t n, float *out)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += from[j];
	for (int64_t j = 0; j < n; j++)
		out[j] = (float)(from[j] / sum);
	return isfinite(sum) ? STATUS_OK : STATUS_INVALID;
}

status explain_mean(const explain_scores *s, const explain_selection *pick, int64_t position, float *out)
{
	if (!selectable(s, pick, position))
		return STATUS_INVALID;
	double *sum = memory_new((size_t)position + 1, sizeof *sum);
	if (!sum)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < s->layers * s->rounds * s->heads; i++) {
		int64_t l = i / s->heads / s->rounds, r = i / s->heads % s->rounds, h = i % s->heads;
		if (!pick->layers[l] || !pick->rounds[r] || !pick->heads[h])
			continue;
		int64_t first = explain_window_first(s, l, position);
		explain_alpha(s, l, r, h, position, out);
		for (int64_t j = first; j <= position; j++)
			sum[j] += out[j - first];
	}
	status result = deliver(sum, position + 1, out);
	free(sum);
	return result;
}

/* e^m s. */
typedef struct element {
	double m, s;
} element;
static const element nothing = {-INFINITY, 0};

static element join(element a, element b)
{
	if (a.m == -INFINITY)
		return b;
	if (b.m == -INFINITY)
		return a;
	double m = fmax(a.m, b.m);
	return (element){m, exp(a.m - m) * a.s + exp(b.m - m) * b.s};
}

/* out[i] = x[i-k+1] ⊕ … ⊕ x[i] (from x[0] where i < k - 1; k = 0: always). backwards: the mirror image,
 * x[i] ⊕ … ⊕ x[i+k-1]. suffix: scratch of n. Blocks of k: the suffix of the block before, from i-k+1
 * to its end, and the prefix of i's block up to i. */
static void scan(const element *x, element *out, element *suffix, int64_t n, int64_t k, bool backwards)
{
	int64_t step = backwards ? -1 : 1, origin = backwards ? n - 1 : 0;
	element prefix = nothing;
	if (k <= 0 || k > n)
		k = n;
	for (int64_t i = n - 1; i >= 0; i--) {
		bool block_ends = i == n - 1 || (i + 1) % k == 0;
		suffix[i] = join(x[origin + step * i], block_ends ? nothing : suffix[i + 1]);
	}
	for (int64_t i = 0; i < n; i++) {
		prefix = join(i % k == 0 ? nothing : prefix, x[origin + step * i]);
		bool whole_block = (i + 1) % k == 0 || i < k;
		out[origin + step * i] = whole_block ? prefix : join(suffix[i - k + 1], prefix);
	}
}

typedef struct rollout {
	double *v, *y;                /* [n] the row vector, and what becomes of it in a layer */
	element *x, *window, *suffix; /* [n] */
} rollout;

/* y += v A for one layer, round and head. */
static void rollout_head(rollout *o, const explain_scores *s, int64_t l, int64_t r, int64_t h, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		o->x[j] = (element){score(s, l, r, h, j), 1};
	scan(o->x, o->window, o->suffix, n, s->window[l], false);
	for (int64_t i = 0; i < n; i++)
		o->x[i] = (element){-(o->window[i].m + log(o->window[i].s)), o->v[i]};
	scan(o->x, o->window, o->suffix, n, s->window[l], true);
	for (int64_t j = 0; j < n; j++)
		o->y[j] += exp(score(s, l, r, h, j) + o->window[j].m) * o->window[j].s;
}

/* v = v (A_l + I) / 2, A_l the mean over the chosen rounds and heads. */
static void rollout_layer(rollout *o, const explain_scores *s, const explain_selection *pick, int64_t l, int64_t n)
{
	double matrices = (double)(count(pick->rounds, s->rounds) * count(pick->heads, s->heads));
	for (int64_t j = 0; j < n; j++)
		o->y[j] = 0;
	for (int64_t r = 0; r < s->rounds; r++)
		for (int64_t h = 0; h < s->heads; h++)
			if (pick->rounds[r] && pick->heads[h])
				rollout_head(o, s, l, r, h, n);
	for (int64_t j = 0; j < n; j++)
		o->v[j] = (o->y[j] / matrices + o->v[j]) / 2;
}

status explain_rollout(const explain_scores *s, const explain_selection *pick, int64_t position, float *out)
{
	if (!selectable(s, pick, position))
		return STATUS_INVALID;
	size_t n = (size_t)position + 1; /* nothing after the position counts */
	rollout o = {memory_new(n, sizeof *o.v), memory_new(n, sizeof *o.y), memory_new(n, sizeof *o.x),
	             memory_new(n, sizeof *o.window), memory_new(n, sizeof *o.suffix)};
	status result = STATUS_NOMEM;
	if (o.v && o.y && o.x && o.window && o.suffix) {
		o.v[position] = 1;
		for (int64_t l = s->layers - 1; l >= 0; l--)
			if (pick->layers[l])
				rollout_layer(&o, s, pick, l, position + 1);
		result = deliver(o.v, position + 1, out);
	}
	free(o.v);
	free(o.y);
	free(o.x);
	free(o.window);
	free(o.suffix);
	return result;
}
