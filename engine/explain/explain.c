/* explain.c - rows of α, their mean, and attention rollout.
 *
 * Rollout is y = v Ã_L … Ã_1 for the unit row vector v of the position. From the last layer to the first, v becomes the
 * mean of v and of its products with the selected sites' matrices, which explain_pull computes. Only tokens from
 * explain_rollout_first on take part, as a log of their own: a row with v_i ≠ 0 reads none before them. */
#include "engine/explain/explain.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"

/* --- the log ------------------------------------------------------------------- */

static void add_layer(explain_log *l, const attention_site *at)
{
	log_part parts[EXPLAINER_MAX_PARTS];
	const int64_t n = l->layers++;
	l->explainer = at->explainer;
	l->rounds = at->explainer->n_rounds;
	l->heads = at->heads;
	l->options[n] = at->options;
	l->at[n] = l->floats;
	l->key_at[n] = l->key_floats;
	for (int i = at->explainer->parts(at->options, parts); i-- > 0;)
		*(parts[i].of_source ? &l->key_floats : &l->floats) += parts[i].width;
}

static void init(explain_log *out, const architecture *a, const void *config, attention_place place)
{
	attention_site at;
	*out = (explain_log){.place = place};
	while (out->layers < ARCHITECTURE_MAX_LAYERS && architecture_attention(a, config, place, out->layers, &at) &&
	       at.explainer)
		add_layer(out, &at);
}

void explain_log_init(explain_log *out, const architecture *a, const void *config, const float *data, int64_t tokens)
{
	init(out, a, config, ATTENTION_OF_TOKENS);
	out->data = data;
	out->tokens = tokens;
}

int64_t explain_token_floats(const architecture *a, const void *config)
{
	explain_logs l;
	if (!architecture_explainer(a, config))
		return 0;
	explain_logs_init(&l, a, config, NULL, 1, 0);
	return explain_logs_floats(&l);
}

void explain_logs_init(explain_logs *out, const architecture *a, const void *config, const float *data, int64_t tokens,
                       int64_t sources)
{
	if (architecture_dims(config)->shifted)
		sources = tokens;
	for (int p = 0; p < ATTENTION_PLACES; p++) {
		explain_log *l = &out->at[p];
		init(l, a, config, (attention_place)p);
		l->tokens = p == ATTENTION_OF_SOURCE ? sources : tokens;
		l->sources = p == ATTENTION_TO_SOURCE ? sources : 0;
		if (p != ATTENTION_OF_TOKENS && !sources)
			l->layers = l->tokens = 0;
		l->data = data;
		l->keys = data ? data + l->tokens * l->floats : NULL;
		data = data ? l->keys + l->sources * l->key_floats : NULL;
	}
}

int64_t explain_logs_floats(const explain_logs *l)
{
	int64_t floats = 0;
	for (int p = 0; p < ATTENTION_PLACES; p++)
		floats += l->at[p].tokens * l->at[p].floats + l->at[p].sources * l->at[p].key_floats;
	return floats;
}

static bool are_finite(const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

bool explain_finite(const explain_log *l)
{
	return are_finite(l->data, l->tokens * l->floats) && are_finite(l->keys, l->sources * l->key_floats);
}

status explain_check_length(const architecture *a, const void *config, int64_t tokens, error *err)
{
	int64_t positions = architecture_dims(config)->positions;
	if (tokens < 1)
		return error_set(err, STATUS_INVALID, "input", "'input' must not be empty");
	if (tokens > positions)
		return error_set(err, STATUS_INVALID, "input",
		                 "%lld tokens, must be at most the model's %lld positions", (long long)tokens,
		                 (long long)positions);
	if (tokens > EXPLAIN_MAX_TOKENS)
		return error_set(err, STATUS_INVALID, "input",
		                 "%lld tokens, must be at most %d; a session that explains may be longer",
		                 (long long)tokens, EXPLAIN_MAX_TOKENS);
	const int64_t floats = explain_token_floats(a, config);
	const int64_t most = floats > 0 ? EXPLAIN_MAX_BYTES / (int64_t)sizeof(float) / floats : EXPLAIN_MAX_TOKENS;
	if (tokens > most)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld tokens; with %lld numbers for each, an explanation has at most %lld",
		                 (long long)tokens, (long long)floats, (long long)most);
	return STATUS_OK;
}

/* --- a row ------------------------------------------------------------------------- */

/* Number of tokens that can be read. */
static int64_t explain_read_tokens(const explain_log *l)
{
	return l->place == ATTENTION_TO_SOURCE ? l->sources : l->tokens;
}

static explain_site site(const explain_log *l, int64_t layer, int64_t round, int64_t head)
{
	return (explain_site){.options = l->options[layer],
	                      .log = l->data + l->at[layer],
	                      .stride = l->floats,
	                      .tokens = explain_read_tokens(l),
	                      .round = round,
	                      .head = head,
	                      .before = l->before,
	                      .keys = l->keys ? l->keys + l->key_at[layer] : NULL,
	                      .key_stride = l->key_floats};
}

explain_range explain_reads(const explain_log *l, int64_t layer, int64_t position)
{
	return l->explainer->range(l->options[layer], position, explain_read_tokens(l));
}

int64_t explain_reach(const explain_log *l, int64_t position)
{
	int64_t end = position + 1;
	for (int64_t layer = 0; layer < l->layers; layer++) {
		explain_range r = explain_reads(l, layer, position);
		end = r.end > end ? r.end : end;
	}
	return end;
}

void explain_scores(const explain_log *l, int64_t layer, int64_t round, int64_t head, int which, double *out)
{
	const explain_site s = site(l, layer, round, head);
	l->explainer->scores(&s, l->tokens, which, out);
}

double explain_half_life(const explain_log *l, int64_t layer, int64_t round, int64_t head, int64_t position)
{
	const explain_site s = site(l, layer, round, head);
	return l->explainer->half_life(&s, position + 1);
}

status explain_alpha(const explain_log *l, int64_t layer, int64_t round, int64_t head, int64_t position, double *alpha)
{
	assert(position >= 0 && position < l->tokens);
	explain_site s = site(l, layer, round, head);
	return l->explainer->row(&s, position, alpha);
}

/* --- aggregates ------------------------------------------------------------------------ */

/* Count the selected ones of n; NULL: all. */
static int64_t count(const bool *picked, int64_t n)
{
	int64_t found = 0;
	for (int64_t i = 0; i < n; i++)
		found += !picked || picked[i];
	return found;
}

static bool selectable(const explain_log *l, const explain_selection *pick, int64_t position)
{
	return position >= 0 && position < l->tokens && count(pick->layers, l->layers) > 0 &&
	       count(pick->rounds, l->rounds) > 0 && count(pick->heads, l->heads) > 0;
}

/* Scale n numbers, whose sum is 1 up to rounding, to sum to 1. STATUS_INVALID: the sum is not finite. */
static status normalise(double *x, int64_t n)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += x[j];
	for (int64_t j = 0; j < n; j++)
		x[j] /= sum;
	return isfinite(sum) && sum > 0 ? STATUS_OK : STATUS_INVALID;
}

status explain_mean(const explain_log *l, const explain_selection *pick, int64_t position, double *out)
{
	if (!selectable(l, pick, position))
		return STATUS_INVALID;
	int64_t n = explain_reach(l, position);
	double *alpha = memory_new((size_t)n, sizeof *alpha);
	status result = alpha ? STATUS_OK : STATUS_NOMEM;
	for (int64_t j = 0; j < n; j++)
		out[j] = 0;
	for (int64_t i = 0; i < l->layers * l->rounds * l->heads && result == STATUS_OK; i++) {
		int64_t layer = i / l->heads / l->rounds, round = i / l->heads % l->rounds, head = i % l->heads;
		if (!pick->layers[layer] || !pick->rounds[round] || !pick->heads[head])
			continue;
		explain_range r = explain_reads(l, layer, position);
		result = explain_alpha(l, layer, round, head, position, alpha);
		for (int64_t j = r.first; j < r.end; j++)
			out[j] += (double)(float)alpha[j - r.first]; /* in the precision of answered rows */
	}
	free(alpha);
	return result == STATUS_OK ? normalise(out, n) : result;
}

/* Compute explain_pull row by row. */
static status pull_rows(const explainer *e, const explain_site *s, const double *v, int64_t n, double *y)
{
	double *alpha = memory_new((size_t)s->tokens, sizeof *alpha);
	status done = alpha ? STATUS_OK : STATUS_NOMEM;
	for (int64_t i = 0; i < n && done == STATUS_OK; i++) {
		explain_range r = e->range(s->options, i, s->tokens);
		if (v[i] == 0)
			continue;
		done = e->row(s, i, alpha);
		for (int64_t j = r.first; j < r.end && j < n && done == STATUS_OK; j++)
			y[j] += v[i] * alpha[j - r.first];
	}
	free(alpha);
	return done;
}

status explain_pull(const explainer *e, const explain_site *s, const double *v, int64_t n, double *y)
{
	return e->pull ? e->pull(s, v, n, y) : pull_rows(e, s, v, n, y);
}

/* y += v Σ A over the selected rounds and heads of a layer, for i, j < n. */
static status pull_layer(const explain_log *l, const explain_selection *pick, int64_t layer, const double *v, double *y,
                         int64_t n)
{
	for (int64_t i = 0; i < l->rounds * l->heads; i++) {
		explain_site s = site(l, layer, i / l->heads, i % l->heads);
		if ((!pick->rounds || pick->rounds[s.round]) && (!pick->heads || pick->heads[s.head]))
			TRY(explain_pull(l->explainer, &s, v, n, y));
	}
	return STATUS_OK;
}

static bool can_pull(const explain_log *l, int64_t n)
{
	return l->explainer->pull_tokens == 0 || n <= l->explainer->pull_tokens;
}

status explain_mean_of_all(const explain_log *l, const explain_selection *pick, double *out)
{
	int64_t n = l->tokens;
	if (!selectable(l, pick, n - 1))
		return STATUS_INVALID;
	if (!can_pull(l, n))
		return STATUS_TOO_LARGE;
	double *v = memory_new((size_t)n, sizeof *v);
	status result = v ? STATUS_OK : STATUS_NOMEM;
	for (int64_t j = 0; j < n && v; j++) {
		v[j] = 1;
		out[j] = 0;
	}
	for (int64_t layer = 0; layer < l->layers && result == STATUS_OK; layer++)
		if (pick->layers[layer])
			result = pull_layer(l, pick, layer, v, out, n);
	free(v);
	return result == STATUS_OK ? normalise(out, n) : result;
}

/* v = v (A_l + I) / 2, where A_l is the mean over the selected rounds and heads. y is scratch for n numbers. */
static status rollout_layer(const explain_log *l, const explain_selection *pick, int64_t layer, double *v, double *y,
                            int64_t n)
{
	double matrices = (double)(count(pick->rounds, l->rounds) * count(pick->heads, l->heads));
	for (int64_t j = 0; j < n; j++)
		y[j] = 0;
	TRY(pull_layer(l, pick, layer, v, y, n));
	for (int64_t j = 0; j < n; j++)
		v[j] = (y[j] / matrices + v[j]) / 2;
	return STATUS_OK;
}

int64_t explain_rollout_first(const explain_log *l, const explain_selection *pick, int64_t position)
{
	int64_t first = position;
	for (int64_t layer = l->layers - 1; layer >= 0; layer--)
		if (pick->layers[layer])
			first = explain_reads(l, layer, first).first;
	return first;
}

status explain_rollout(const explain_log *l, const explain_selection *pick, int64_t position, double *out)
{
	if (!selectable(l, pick, position))
		return STATUS_INVALID;
	int64_t reach = explain_reach(l, position), first = explain_rollout_first(l, pick, position);
	int64_t n = reach - first; /* tokens outside this range have no weight */
	if (!can_pull(l, n))
		return STATUS_TOO_LARGE;
	explain_log band = *l;
	band.data += first * l->floats;
	band.tokens -= first;
	band.before += first;
	double *y = memory_new((size_t)n, sizeof *y);
	status result = y ? STATUS_OK : STATUS_NOMEM;
	for (int64_t j = 0; j < reach; j++)
		out[j] = j == position;
	for (int64_t layer = l->layers - 1; layer >= 0 && result == STATUS_OK; layer--)
		if (pick->layers[layer])
			result = rollout_layer(&band, pick, layer, out + first, y, n);
	free(y);
	return result == STATUS_OK ? normalise(out, reach) : result;
}

/* --- over a source ------------------------------------------------------------------------ */

/* out += weight × the sum of the selected rows of a position of the attention to a source. */
static status add_source_rows(const explain_log *l, const explain_selection *pick, int64_t position, double weight,
                              double *scratch, double *out)
{
	for (int64_t i = 0; i < l->layers * l->heads; i++) {
		if (!pick->layers[i / l->heads] || !pick->heads[i % l->heads])
			continue;
		TRY(explain_alpha(l, i / l->heads, 0, i % l->heads, position, scratch));
		for (int64_t j = 0; j < l->sources; j++)
			out[j] += weight * scratch[j];
	}
	return STATUS_OK;
}

static bool source_selectable(const explain_logs *logs, const explain_selection *pick, int64_t position)
{
	const explain_log *l = &logs->at[ATTENTION_TO_SOURCE];
	return selectable(&logs->at[ATTENTION_OF_TOKENS], pick, position) && count(pick->layers, l->layers) > 0;
}

status explain_source_mean(const explain_logs *logs, const explain_selection *pick, int64_t position, double *out)
{
	const explain_log *l = &logs->at[ATTENTION_TO_SOURCE];
	if (!source_selectable(logs, pick, position))
		return STATUS_INVALID;
	double *scratch = memory_new((size_t)l->sources, sizeof *scratch);
	for (int64_t j = 0; j < l->sources; j++)
		out[j] = 0;
	status s = scratch ? add_source_rows(l, pick, position, 1, scratch, out) : STATUS_NOMEM;
	free(scratch);
	return s == STATUS_OK ? normalise(out, l->sources) : s;
}

/* out = out Ẽ_n … Ẽ_1 over all layers and heads. y is scratch. */
static status roll_encoder(const explain_log *l, double *y, double *out)
{
	static const explain_selection all = {0};
	for (int64_t layer = l->layers - 1; layer >= 0; layer--)
		TRY(rollout_layer(l, &all, layer, out, y, l->tokens));
	return STATUS_OK;
}

status explain_source_rollout(const explain_logs *logs, const explain_selection *pick, int64_t position, double *out)
{
	const explain_log *tokens = &logs->at[ATTENTION_OF_TOKENS], *encoder = &logs->at[ATTENTION_OF_SOURCE];
	const explain_log *l = &logs->at[ATTENTION_TO_SOURCE];
	if (!source_selectable(logs, pick, position))
		return STATUS_INVALID;
	if (encoder->layers > 0 && !can_pull(encoder, encoder->tokens))
		return STATUS_TOO_LARGE;
	double *row = memory_new((size_t)tokens->tokens, sizeof *row);
	double *scratch = memory_new((size_t)l->sources, sizeof *scratch);
	status s = row && scratch ? explain_rollout(tokens, pick, position, row) : STATUS_NOMEM;
	const int64_t reach = explain_reach(tokens, position);
	for (int64_t j = 0; j < l->sources; j++)
		out[j] = 0;
	for (int64_t i = 0; i < reach && s == STATUS_OK; i++)
		s = add_source_rows(l, pick, i, row[i], scratch, out);
	if (s == STATUS_OK)
		s = roll_encoder(encoder, scratch, out);
	free(row);
	free(scratch);
	return s == STATUS_OK ? normalise(out, l->sources) : s;
}

/* --- over tokens that are read twice ------------------------------------------------------------ */

/* The decoder has no row for the last token, and its row 0 holds no token. */
status explain_twice(const explain_logs *logs, const explain_selection *pick, int64_t position, bool rollout,
                     double *out)
{
	const explain_log *text = &logs->at[ATTENTION_OF_TOKENS];
	const int64_t n = logs->at[ATTENTION_TO_SOURCE].sources;
	double *rows = memory_new((size_t)n, sizeof *rows);
	status s =
	    rows ? (rollout ? explain_source_rollout : explain_source_mean)(logs, pick, position, out) : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = (rollout ? explain_rollout : explain_mean)(text, pick, position, rows);
	for (int64_t j = 1; j < n && s == STATUS_OK; j++)
		out[j - 1] += rows[j];
	free(rows);
	return s == STATUS_OK ? normalise(out, n) : s;
}

status explain_prediction_weights(const explain_logs *logs, const model_dims *d, const explain_selection *pick,
                                  int64_t position, bool rollout, double *source, double *out)
{
	const explain_log *text = &logs->at[ATTENTION_OF_TOKENS];
	if (d->shifted)
		return explain_twice(logs, pick, position, rollout, out);
	if (logs->at[ATTENTION_TO_SOURCE].sources > 0)
		TRY((rollout ? explain_source_rollout : explain_source_mean)(logs, pick, position, source));
	if (rollout)
		return explain_rollout(text, pick, position, out);
	return d->pool == POOL_MEAN ? explain_mean_of_all(text, pick, out) : explain_mean(text, pick, position, out);
}
