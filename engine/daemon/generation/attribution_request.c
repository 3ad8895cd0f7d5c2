#include "engine/daemon/generation/attribution_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/base/memory.h"
#include "engine/daemon/generation/generation.h"
#include "engine/daemon/generation/tokens.h"

/* Maximum tokens read for one answer by all readings; takes minutes. */
enum { ATTRIBUTION_REQUEST_MAX_WORK = 1 << 23 };
/* Maximum tokens of all rows of an answer; of these, maximum tokens with three numbers each in JSON. */
enum { ATTRIBUTION_REQUEST_MAX_TOKENS = 1 << 22, ATTRIBUTION_REQUEST_MAX_NUMBERS = 1 << 19 };

static const char *const kinds[] = {
    [EXPLAIN_CONTRAST] = "contrast", [EXPLAIN_LOGIT] = "logit", [EXPLAIN_DIFFERENCE] = "difference"};

static const char *const baselines[] = {[EXPLAIN_FROM_ZERO] = "zero", [EXPLAIN_FROM_MEAN] = "mean"};

/* Numbers that each method answers. */
static const struct {
	const char *name;
	explain_method method;
	bool attention;
} methods[] = {
    {"contributions", EXPLAIN_CONTRIBUTIONS, false},  {"gradient_x_input", EXPLAIN_GRADIENT, false},
    {"attention_x_gradient", EXPLAIN_GRADIENT, true}, {"integrated_gradients", EXPLAIN_INTEGRATED, false},
    {"leave_one_out", EXPLAIN_LEAVE_ONE_OUT, false},
};
enum { METHODS = sizeof methods / sizeof *methods };

static int find_method(const char *name)
{
	int i = 0;
	while (name && i < METHODS && strcmp(methods[i].name, name) != 0)
		i++;
	return i;
}

static const char *method_of(const json_t *params)
{
	return json_string_value(json_object_get(params, "method"));
}

bool attribution_request_asked(const json_t *params)
{
	return find_method(method_of(params)) < METHODS;
}

/* --- the target ---------------------------------------------------------------------------- */

/* Count the tokens of a text; *first is the id of the first. */
static status count_tokens(size_t *count, int32_t *first, const char *text, size_t bytes, const model_entry *m,
                           error *err)
{
	token_list tokens;
	TRY(tokenizer_encode(m->tokenizer, text, bytes, NULL, &tokens, err));
	*count = tokens.count;
	if (tokens.count > 0)
		*first = tokens.ids[0];
	token_list_fini(&tokens);
	return STATUS_OK;
}

/* Refuse a text of several tokens. If the text with, or without, a leading space is one token, the message suggests
 * it. */
static status refuse_tokens(const char *text, size_t bytes, size_t count, const char *param, const model_entry *m,
                            error *err)
{
	char other[64];
	const bool spaced = bytes > 0 && text[0] == ' ';
	size_t other_count = 0;
	int32_t id;
	if (bytes > 0 && bytes < sizeof other - 1) {
		const int n =
		    snprintf(other, sizeof other, "%s%.*s", spaced ? "" : " ", (int)bytes - spaced, text + spaced);
		TRY(count_tokens(&other_count, &id, other, (size_t)n, m, err));
	}
	if (other_count == 1)
		return error_set(err, STATUS_INVALID, param,
		                 "\"%s\" is %lld tokens, must be one: use \"%s\", which is one token", text,
		                 (long long)count, other);
	return error_set(err, STATUS_INVALID, param, "is %lld tokens, must be one", (long long)count);
}

/* Read a text that must be one token. */
static status attribution_request_read_token(int32_t *out, const json_t *text, const char *param, const model_entry *m,
                                             error *err)
{
	const char *string = json_string_value(text);
	const size_t bytes = json_string_length(text);
	size_t count;
	int32_t first = -1;
	TRY(count_tokens(&count, &first, string, bytes, m, err));
	if (count != 1)
		return refuse_tokens(string, bytes, count, param, m, err);
	*out = first;
	return STATUS_OK;
}

static status attribution_request_read_text(int32_t *out, const json_t *text, const char *param, const model_entry *m,
                                            error *err)
{
	for (size_t k = 0; k < json_array_size(m->class_names); k++)
		if (json_equal(json_array_get(m->class_names, k), text)) {
			*out = (int32_t)k;
			return STATUS_OK;
		}
	if (m->class_names)
		return error_set(err, STATUS_INVALID, param, "the model has no class with this name");
	return attribution_request_read_token(out, text, param, m, err);
}

/* Read a token's id or text, or a class's number or name; -1: absent. */
static status read_output(int32_t *out, const json_t *target, const char *key, const char *param, const model_entry *m,
                          error *err)
{
	const json_t *given = json_object_get(target, key);
	*out = -1;
	if (json_is_string(given))
		return attribution_request_read_text(out, given, param, m, err);
	if (!json_is_integer(given))
		return STATUS_OK;
	if (json_integer_value(given) >= m->dims.outputs)
		return error_set(err, STATUS_INVALID, param, "the model has %lld outputs, counted from 0",
		                 (long long)m->dims.outputs);
	*out = (int32_t)json_integer_value(given);
	return STATUS_OK;
}

status attribution_request_read_target(explain_target *out, const json_t *target, const model_entry *m, error *err)
{
	const char *kind = json_string_value(json_object_get(target, "kind"));
	for (int i = 0; kind && i < (int)(sizeof kinds / sizeof *kinds); i++)
		if (kinds[i] && strcmp(kind, kinds[i]) == 0)
			out->kind = (explain_target_kind)i;
	TRY(read_output(&out->token, target, "token", "target.token", m, err));
	TRY(read_output(&out->other, target, "other", "target.other", m, err));
	if (out->other >= 0 && out->kind != EXPLAIN_DIFFERENCE)
		return error_set(err, STATUS_INVALID, "target.other", "applies only to the kind \"difference\"");
	if (out->other >= 0 && out->other == out->token)
		return error_set(err, STATUS_INVALID, "target.other", "must differ from target.token");
	return STATUS_OK;
}

status attribution_request_read_replacement(int32_t *out, const json_t *params, const model_entry *m, error *err)
{
	const json_t *given = json_object_get(params, "replacement");
	*out = json_is_integer(given) ? (int32_t)json_integer_value(given) : -1;
	if (json_is_string(given))
		TRY(attribution_request_read_token(out, given, "replacement", m, err));
	if (*out >= m->dims.inputs)
		return error_set(err, STATUS_INVALID, "replacement", "the vocabulary has %lld tokens, counted from 0",
		                 (long long)m->dims.inputs);
	return *out >= 0 || !(m->dims.reads_padding || m->dims.shifted)
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, "replacement",
	                       "this model also reads masked tokens; give a token that replaces them");
}

/* --- the options --------------------------------------------------------------------------- */

static status refuse_unless(const json_t *params, const char *key, const char *method, const char *requested,
                            error *err)
{
	if (!json_object_get(params, key) || strcmp(method, requested) == 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, key, "applies only to the method \"%s\"", requested);
}

status attribution_request_check_keys(const json_t *params, const char *method, error *err)
{
	TRY(refuse_unless(params, "share", method, "contributions", err));
	TRY(refuse_unless(params, "steps", method, "integrated_gradients", err));
	TRY(refuse_unless(params, "baseline", method, "integrated_gradients", err));
	return refuse_unless(params, "replacement", method, "leave_one_out", err);
}

static explain_baseline baseline_of(const json_t *params, const model_entry *m)
{
	const char *name = json_string_value(json_object_get(params, "baseline"));
	const bool mean = name ? strcmp(name, baselines[EXPLAIN_FROM_MEAN]) == 0 : m->dims.scale_free;
	return mean ? EXPLAIN_FROM_MEAN : EXPLAIN_FROM_ZERO;
}

static status attribution_request_read_options(attribution_request *c, const json_t *params, const model_entry *m,
                                               error *err)
{
	const json_t *share = json_object_get(params, "share");
	const int i = find_method(method_of(params));
	c->method = methods[i].name;
	c->options.method = methods[i].method;
	c->options.share = json_is_number(share) ? (float)json_number_value(share) : 0.5f;
	c->options.steps = (int)json_read_integer(params, "steps", EXPLAIN_STEPS);
	c->options.baseline = baseline_of(params, m);
	TRY(attribution_request_check_keys(params, c->method, err));
	if (m->dims.shifted && methods[i].attention)
		return error_set(err, STATUS_INVALID, "method",
		                 "attention in this model's decoder reads rows that hold the token before");
	c->options.replacement = -1;
	return c->options.method == EXPLAIN_LEAVE_ONE_OUT
	           ? attribution_request_read_replacement(&c->options.replacement, params, m, err)
	           : STATUS_OK;
}

/* Number of tokens that all readings read for n tokens, including those of a source. */
static double work_of(const attribution_request *c, const model_entry *m, int64_t n)
{
	const double tokens = (double)n;
	if (c->options.method == EXPLAIN_INTEGRATED)
		return tokens * (c->options.steps + 2);
	if (c->options.method == EXPLAIN_LEAVE_ONE_OUT)
		return m->dims.form->removals(tokens);
	return tokens;
}

/* --- the request ------------------------------------------------------------------------------ */

/* Rows of the span after `after`, at most `limit`. */
static status read_page(attribution_request *c, const json_t *params, error *err)
{
	const json_t *after = json_object_get(params, "after"), *limit = json_object_get(params, "limit");
	const int64_t last = c->first + c->n - 1;
	c->page = json_is_integer(limit);
	if (json_is_integer(after)) {
		const int64_t row = json_integer_value(after);
		if (row < c->first || row >= last)
			return error_set(err, STATUS_INVALID, "after",
			                 "must be a position of the span before its last, %lld to %lld",
			                 (long long)c->first, (long long)last - 1);
		c->first = row + 1;
		c->n = last - row;
	}
	if (c->page && json_integer_value(limit) < c->n)
		c->n = json_integer_value(limit);
	c->more = c->first + c->n - 1 < last;
	return STATUS_OK;
}

/* Read the positions to explain: one row, or those of a span. */
static status attribution_request_read_rows(attribution_request *c, const json_t *params, const model_entry *m,
                                            int64_t n, int64_t position, error *err)
{
	const json_t *span = json_object_get(params, "span");
	c->span = json_is_array(span);
	c->first = position;
	c->n = 1;
	c->top = json_read_integer(params, "top", 0);
	static const char *const of_spans[] = {"top", "after", "limit"};
	for (int i = 0; i < 3 && !c->span; i++)
		if (json_object_get(params, of_spans[i]))
			return error_set(err, STATUS_INVALID, of_spans[i], "applies only to a span");
	if (!c->span)
		return STATUS_OK;
	const int64_t last = json_integer_value(json_array_get(span, 1));
	c->first = json_integer_value(json_array_get(span, 0));
	c->n = last - c->first + 1;
	if (!m->dims.form->many_rows)
		return error_set(err, STATUS_INVALID, "span", "a classifier has one prediction");
	if (json_object_get(params, "position"))
		return error_set(err, STATUS_INVALID, "span", "give a position or a span, not both");
	if (last >= n || c->n < 1)
		return error_set(err, STATUS_INVALID, "span",
		                 "must be a first and a last position of %lld, counted from 0", (long long)n);
	return read_page(c, params, err);
}

/* Number of tokens of a row. */
static int64_t tokens_of(const attribution_request *c, const model_entry *m, int64_t n, int64_t row)
{
	return m->dims.form->context(n, c->first + row);
}

/* Total size of some rows. */
typedef struct extent {
	double work; /* tokens read for them */
	int64_t tokens;
} extent;

static status check_size(const extent *s, const attribution_request *c, error *err)
{
	if (s->work > ATTRIBUTION_REQUEST_MAX_WORK)
		return error_set(err, STATUS_TOO_LARGE, c->span ? "span" : "input",
		                 "%s would read %.0f tokens; at most %d are read for an answer", c->method, s->work,
		                 ATTRIBUTION_REQUEST_MAX_WORK);
	if (s->tokens > ATTRIBUTION_REQUEST_MAX_TOKENS)
		return error_set(
		    err, STATUS_TOO_LARGE, "span",
		    "its rows have %lld tokens in all, and an answer has at most %d; ask for pages with `limit`",
		    (long long)s->tokens, ATTRIBUTION_REQUEST_MAX_TOKENS);
	if (c->span && c->top == 0 && s->tokens > ATTRIBUTION_REQUEST_MAX_NUMBERS)
		return error_set(err, STATUS_TOO_LARGE, "span",
		                 "its rows have %lld tokens in all; give `top` for more than %d, or ask for pages with "
		                 "`limit`",
		                 (long long)s->tokens, ATTRIBUTION_REQUEST_MAX_NUMBERS);
	return STATUS_OK;
}

/* Compute the size of all rows; a page ends before they exceed one answer. */
static extent attribution_request_fit(attribution_request *c, const model_entry *m, const attribution_request_input *in)
{
	extent all = {0}, next = {0};
	for (int64_t i = 0; i < c->n; i++) {
		const int64_t tokens = in->n_source + tokens_of(c, m, in->n, i);
		next.tokens += tokens;
		next.work += work_of(c, m, tokens);
		if (c->page && i > 0 && check_size(&next, c, NULL) != STATUS_OK) {
			c->n = i;
			c->more = true;
			break;
		}
		all = next;
	}
	return all;
}

static status make_rows(attribution_request *c, const model_entry *m, const attribution_request_input *in,
                        int64_t tokens, const explain_target *target)
{
	const int64_t longest = tokens_of(c, m, in->n, c->n - 1);
	c->numbers = memory_new((size_t)tokens, 4 * sizeof *c->numbers);
	c->ids = memory_new((size_t)(in->n_source + longest), sizeof *c->ids);
	c->sequences = memory_new((size_t)c->n, sizeof *c->sequences);
	c->parts = memory_new((size_t)c->n, sizeof *c->parts);
	c->rows = memory_new((size_t)c->n, sizeof *c->rows);
	if (!c->numbers || !c->ids || !c->sequences || !c->parts || !c->rows)
		return STATUS_NOMEM;
	if (in->n_source > 0)
		memcpy(c->ids, in->source, (size_t)in->n_source * sizeof *c->ids);
	memcpy(c->ids + in->n_source, in->ids, (size_t)longest * sizeof *c->ids);
	float *at = c->numbers;
	for (int64_t i = 0; i < c->n; i++) {
		const int64_t count = tokens_of(c, m, in->n, i), all = in->n_source + count;
		c->rows[i] = (int32_t)(c->first + i);
		c->parts[i] = (explain_parts){
		    .words = at, .positions = at + all, .biases = at + 2 * all, .attention = at + 3 * all};
		c->sequences[i] = (score_sequence){.ids = c->ids + in->n_source,
		                                   .count = count,
		                                   .source = c->ids,
		                                   .n_source = in->n_source,
		                                   .rows = c->rows + i,
		                                   .n_rows = m->dims.form->fills,
		                                   .target = *target,
		                                   .parts = &c->parts[i]};
		if (target->token < 0 && m->dims.form->many_rows && count < in->n)
			c->sequences[i].target.token = in->ids[count];
		at += 4 * all;
	}
	return STATUS_OK;
}

/* Check the longest row of a sequence or of a source. */
static status check_longest(const attribution_request *c, const model_entry *m, const attribution_request_input *in,
                            bool *fits, error *err)
{
	const int64_t longest = tokens_of(c, m, in->n, c->n - 1), most = scheduler_attribution_limit(&m->dims);
	const int64_t most_source = scheduler_attribution_source_limit(&m->dims);
	*fits = longest <= most && in->n_source <= most_source;
	if (longest > most)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld tokens up to the position; attributions of this model are of at most %lld",
		                 (long long)longest, (long long)most);
	return *fits ? STATUS_OK
	             : error_set(err, STATUS_TOO_LARGE, "source",
	                         "%lld tokens; attributions of this model are of sources of at most %lld",
	                         (long long)in->n_source, (long long)most_source);
}

status attribution_request_read(attribution_request *c, const json_t *params, const model_entry *m,
                                const attribution_request_input *in, int64_t position, error *err)
{
	const bool named = method_of(params) || json_object_get(params, "span");
	explain_target target = {0};
	bool fits;
	if (position < 0 && named)
		return error_set(err, STATUS_INVALID, "position",
		                 "these numbers exist for one position or a span, not for all");
	if (position < 0)
		return STATUS_OK;
	TRY(attribution_request_read_rows(c, params, m, in->n, position, err));
	TRY(attribution_request_read_options(c, params, m, err));
	TRY(attribution_request_read_target(&target, json_object_get(params, "target"), m, err));
	const extent all = attribution_request_fit(c, m, in);
	const status length = check_longest(c, m, in, &fits, named ? err : NULL);
	if (!fits)
		return named ? length : STATUS_OK;
	TRY(check_size(&all, c, err));
	c->requested = true;
	return in->ids ? make_rows(c, m, in, all.tokens, &target) : STATUS_OK;
}

void attribution_request_submit(attribution_request *c, stream *s, model_entry *m, score_call *t)
{
	t->stream = s;
	t->fleet = generation_room_of(s)->fleet;
	t->model = m;
	t->request = (score_task_request){.sequences = c->sequences, .n_sequences = c->n, .explain = c->options};
	score_call_submit(t);
}

void attribution_request_fini(attribution_request *c)
{
	free(c->sequences);
	free(c->parts);
	free(c->numbers);
	free(c->ids);
	free(c->rows);
	*c = (attribution_request){0};
}

/* --- the answer ---------------------------------------------------------------------------------- */

static bool append_parts(json_t *object, const char *key, const float *values, int64_t n, double *sum)
{
	json_t *array = json_array();
	bool whole = array != NULL;
	for (int64_t j = 0; whole && j < n; j++) {
		*sum += (double)values[j];
		whole = json_array_append_new(array, json_real((double)values[j])) == 0;
	}
	return json_object_set_new(object, key, array) == 0 && whole;
}

json_t *attribution_request_output(const model_entry *m, int32_t id)
{
	if (id < 0)
		return json_null();
	if (m->class_names)
		return json_pack("{s:i, s:O}", "id", (int)id, "label", json_array_get(m->class_names, (size_t)id));
	return json_pack("{s:i, s:o}", "id", (int)id, "text", tokens_name(m->tokenizer, id));
}

static bool are_finite(const attribution_request *c)
{
	bool finite = true;
	for (int64_t i = 0; i < c->n; i++) {
		const explain_parts *p = &c->parts[i];
		finite &= isfinite(p->score) && isfinite(p->head);
		for (int64_t k = 0; k < 4 * (c->sequences[i].n_source + c->sequences[i].count); k++)
			finite &= isfinite(p->words[k]); /* start of the four arrays */
	}
	return finite;
}

static json_t *target_object(const score_sequence *q, const model_entry *m)
{
	const explain_parts *p = q->parts;
	return json_pack("{s:s, s:b, s:o, s:o, s:f, s:f}", "kind", kinds[p->kind], "automatic",
	                 q->target.kind == EXPLAIN_USUAL, "token", attribution_request_output(m, p->token), "other",
	                 attribution_request_output(m, p->other), "logit", p->logit, "log_probability",
	                 p->log_probability);
}

/* Append the `top` tokens with the largest absolute numbers, largest first: [[index, number]…]. */
static bool append_top(json_t *object, const float *values, int64_t n, int64_t top, double *sum)
{
	json_t *array = json_array();
	bool whole = array != NULL;
	for (int64_t j = 0; j < n; j++)
		*sum += (double)values[j];
	float bound = INFINITY;
	int64_t from = -1; /* ties keep the order of tokens */
	for (int64_t k = 0; whole && k < top && k < n; k++) {
		int64_t best = -1;
		for (int64_t j = 0; j < n; j++) {
			const float size = fabsf(values[j]);
			const bool left = size < bound || (size == bound && j > from);
			if (left && (best < 0 || size > fabsf(values[best])))
				best = j;
		}
		bound = fabsf(values[best]);
		from = best;
		whole = json_array_append_new(array, json_pack("[I, f]", (json_int_t)best, (double)values[best])) == 0;
	}
	return json_object_set_new(object, "top", array) == 0 && whole;
}

/* Append the three kinds of parts of n tokens from `first` on, and add each to its sum. */
static bool add_kinds(json_t *object, const attribution_request *c, const explain_parts *p, int64_t first, int64_t n,
                      double *sums[3])
{
	for (int64_t j = first; j < first + n && c->top; j++) {
		*sums[1] += (double)p->positions[j];
		*sums[2] += (double)p->biases[j];
	}
	return c->top ? append_top(object, p->words + first, n, c->top, sums[0])
	              : append_parts(object, "tokens", p->words + first, n, sums[0]) &&
	                    append_parts(object, "positions", p->positions + first, n, sums[1]) &&
	                    append_parts(object, "biases", p->biases + first, n, sums[2]);
}

/* Append the parts of EXPLAIN_CONTRIBUTIONS. */
static bool attribution_request_add_sums(json_t *object, const attribution_request *c, const score_sequence *q,
                                         const model_entry *m)
{
	const explain_parts *p = q->parts;
	const int64_t n = q->count, s = q->n_source, row = q->n_rows ? q->rows[0] : n - 1;
	/* If all positions are pooled, there is no reader. */
	const bool reads = m->dims.form->many_rows || m->dims.pool == POOL_LAST;
	double words = 0, positions = 0, biases = p->head, reader = reads ? (double)p->words[s + row] : 0, source = 0;
	bool whole = add_kinds(object, c, p, s, n, (double *[]){&words, &positions, &biases});
	if (s > 0) {
		json_t *of_source = json_object();
		whole = whole && of_source && add_kinds(of_source, c, p, 0, s, (double *[]){&source, &source, &source});
		whole = json_object_set_new(object, "source", of_source) == 0 && whole;
	}
	json_t *sums =
	    json_pack("{s:f, s:f, s:f, s:f, s:f}", "tokens", words - reader, "reader", reader, "positions", positions,
	              "biases", biases, "rounding", p->score - words - positions - biases - source);
	if (s > 0)
		whole = whole && json_object_set_new(sums, "source", json_real(source)) == 0;
	return json_object_set_new(object, "sums", sums) == 0 && whole;
}

static bool add_values(json_t *object, const attribution_request *c, const float *values, int64_t n, double *sum)
{
	return c->top ? append_top(object, values, n, c->top, sum) : append_parts(object, "tokens", values, n, sum);
}

/* Append the numbers of any other method. */
static bool add_numbers(json_t *object, const attribution_request *c, const score_sequence *q)
{
	const explain_parts *p = q->parts;
	const float *values = methods[find_method(c->method)].attention ? p->attention : p->words;
	double sum = 0;
	bool whole = add_values(object, c, values + q->n_source, q->count, &sum);
	if (q->n_source > 0) {
		json_t *source = json_object();
		whole = whole && source && add_values(source, c, values, q->n_source, &sum);
		whole = json_object_set_new(object, "source", source) == 0 && whole;
	}
	if (c->options.method == EXPLAIN_INTEGRATED)
		whole = whole && json_object_set_new(object, "difference", json_real(p->difference)) == 0 &&
		        json_object_set_new(object, "completeness_error", json_real(sum - p->difference)) == 0;
	return whole;
}

/* Append what all rows share. */
static bool add_options(json_t *object, const attribution_request *c)
{
	if (c->options.method == EXPLAIN_CONTRIBUTIONS)
		return json_object_set_new(object, "share", json_real((double)c->options.share)) == 0;
	bool whole = json_object_set_new(object, "method", json_string(c->method)) == 0;
	if (c->options.method == EXPLAIN_INTEGRATED)
		whole = whole && json_object_set_new(object, "steps", json_integer(c->options.steps)) == 0 &&
		        json_object_set_new(object, "baseline", json_string(baselines[c->options.baseline])) == 0;
	if (c->options.method == EXPLAIN_LEAVE_ONE_OUT)
		whole = whole &&
		        json_object_set_new(object, "replacement",
		                            c->options.replacement < 0 ? json_null()
		                                                       : json_integer(c->options.replacement)) == 0;
	return whole;
}

static bool attribution_request_add_row(json_t *object, const attribution_request *c, int64_t i, const model_entry *m)
{
	const score_sequence *q = &c->sequences[i];
	return json_object_set_new(object, "target", target_object(q, m)) == 0 &&
	       json_object_set_new(object, "score", json_real(q->parts->score)) == 0 &&
	       (c->options.method == EXPLAIN_CONTRIBUTIONS ? attribution_request_add_sums(object, c, q, m)
	                                                   : add_numbers(object, c, q));
}

static json_t *rows_of(const attribution_request *c, const model_entry *m)
{
	json_t *rows = json_array();
	bool whole = rows != NULL;
	for (int64_t i = 0; whole && i < c->n; i++) {
		json_t *row = json_pack("{s:I}", "position", (json_int_t)(c->first + i));
		whole = row && attribution_request_add_row(row, c, i, m);
		whole = json_array_append_new(rows, row) == 0 && whole;
	}
	if (whole)
		return rows;
	json_decref(rows);
	return NULL;
}

const char *attribution_request_key(const attribution_request *c)
{
	if (c->span)
		return "span";
	return c->options.method == EXPLAIN_CONTRIBUTIONS ? "contributions" : "attribution";
}

json_t *attribution_request_object(const attribution_request *c, const model_entry *m, error *err)
{
	if (!are_finite(c)) {
		error_set(err, STATUS_INVALID, "model", "the model's numbers are not finite");
		return NULL;
	}
	json_t *object = json_object();
	bool whole = object && add_options(object, c);
	if (c->span)
		whole = whole && json_object_set_new(object, "method", json_string(c->method)) == 0 &&
		        json_object_set_new(object, "has_more", json_boolean(c->more)) == 0 &&
		        json_object_set_new(object, "rows", rows_of(c, m)) == 0;
	else
		whole = whole && attribution_request_add_row(object, c, 0, m);
	if (whole)
		return object;
	json_decref(object);
	return NULL;
}
