#include "engine/daemon/generation/attributions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/tokens.h"

/* Tokens that all readings of an answer read: minutes. */
enum { ATTRIBUTIONS_MAX_WORK = 1 << 23 };

static const char *const kinds[] = {
    [EXPLAIN_CONTRAST] = "contrast", [EXPLAIN_LOGIT] = "logit", [EXPLAIN_DIFFERENCE] = "difference"};

/* Which numbers of a method are the answer's. */
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

bool attributions_asked(const json_t *params)
{
	return find_method(method_of(params)) < METHODS;
}

/* --- the target ---------------------------------------------------------------------------- */

/* The one token of a text. */
static status read_token(int32_t *out, const json_t *text, const char *param, const model_entry *m, error *err)
{
	int32_t *ids = NULL;
	size_t count = 0;
	TRY(tokenizer_encode(m->tokenizer, json_string_value(text), json_string_length(text), &ids, &count, err));
	if (count == 1)
		*out = ids[0];
	free(ids);
	return count == 1 ? STATUS_OK
	                  : error_set(err, STATUS_INVALID, param, "is %lld tokens, must be one", (long long)count);
}

static status read_text(int32_t *out, const json_t *text, const char *param, const model_entry *m, error *err)
{
	for (size_t k = 0; k < json_array_size(m->class_names); k++)
		if (json_equal(json_array_get(m->class_names, k), text)) {
			*out = (int32_t)k;
			return STATUS_OK;
		}
	if (m->class_names)
		return error_set(err, STATUS_INVALID, param, "the model has no class of that name");
	return read_token(out, text, param, m, err);
}

/* A token's id or text, or a class's number or name; -1 where there is none. */
static status read_output(int32_t *out, const json_t *target, const char *key, const char *param, const model_entry *m,
                          error *err)
{
	const json_t *given = json_object_get(target, key);
	*out = -1;
	if (json_is_string(given))
		return read_text(out, given, param, m, err);
	if (!json_is_integer(given))
		return STATUS_OK;
	if (json_integer_value(given) >= m->dims.outputs)
		return error_set(err, STATUS_INVALID, param, "the model has %lld outputs, counted from 0",
		                 (long long)m->dims.outputs);
	*out = (int32_t)json_integer_value(given);
	return STATUS_OK;
}

static status read_target(explain_target *out, const json_t *target, const model_entry *m, int32_t next, error *err)
{
	const char *kind = json_string_value(json_object_get(target, "kind"));
	for (int i = 0; kind && i < (int)(sizeof kinds / sizeof *kinds); i++)
		if (strcmp(kind, kinds[i]) == 0)
			out->kind = (explain_target_kind)i;
	TRY(read_output(&out->token, target, "token", "target.token", m, err));
	TRY(read_output(&out->other, target, "other", "target.other", m, err));
	if (out->other >= 0 && out->kind != EXPLAIN_DIFFERENCE)
		return error_set(err, STATUS_INVALID, "target.other", "is only of the kind \"difference\"");
	if (out->other >= 0 && out->other == out->token)
		return error_set(err, STATUS_INVALID, "target.other", "must be another one than target.token");
	if (out->token < 0)
		out->token = next;
	return STATUS_OK;
}

/* --- the options --------------------------------------------------------------------------- */

static status refuse_unless(const json_t *params, const char *key, const char *method, const char *wanted, error *err)
{
	if (!json_object_get(params, key) || strcmp(method, wanted) == 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, key, "is only of the method \"%s\"", wanted);
}

static status read_options(attributions *c, const json_t *params, const model_entry *m, error *err)
{
	const json_t *share = json_object_get(params, "share"), *steps = json_object_get(params, "steps");
	const int i = find_method(method_of(params));
	c->method = methods[i].name;
	c->options.method = methods[i].method;
	c->options.share = json_is_number(share) ? (float)json_number_value(share) : 0.5f;
	c->options.steps = json_is_integer(steps) ? (int)json_integer_value(steps) : EXPLAIN_STEPS;
	TRY(refuse_unless(params, "share", c->method, "contributions", err));
	TRY(refuse_unless(params, "steps", c->method, "integrated_gradients", err));
	TRY(refuse_unless(params, "replacement", c->method, "leave_one_out", err));
	const json_t *given = json_object_get(params, "replacement");
	c->options.replacement = json_is_integer(given) ? (int32_t)json_integer_value(given) : -1;
	if (json_is_string(given))
		TRY(read_token(&c->options.replacement, given, "replacement", m, err));
	return c->options.replacement < m->dims.inputs
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, "replacement", "the vocabulary has %lld tokens, counted from 0",
	                       (long long)m->dims.inputs);
}

/* Tokens that are read for n tokens, by all readings. */
static double work_of(const attributions *c, const model_entry *m, int64_t n)
{
	const double tokens = (double)n;
	if (c->options.method == EXPLAIN_INTEGRATED)
		return tokens * (c->options.steps + 2);
	if (c->options.method == EXPLAIN_LEAVE_ONE_OUT)
		return m->dims.causal ? tokens * (tokens + 5) / 2 : tokens * (tokens + 1);
	return tokens;
}

/* --- the request ------------------------------------------------------------------------------ */

status attributions_read(attributions *c, const json_t *params, const model_entry *m, const int32_t *ids, int64_t n,
                         int64_t position, error *err)
{
	const bool classes = m->dims.head == HEAD_CLASSES, named = method_of(params);
	const int64_t tokens = classes ? n : position + 1, most = scheduler_attribution_limit(&m->dims);
	if (position < 0 && named)
		return error_set(err, STATUS_INVALID, "position", "%s: of one position, not all", method_of(params));
	if (position < 0)
		return STATUS_OK;
	if (tokens > most && named)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld tokens up to the position; attributions of this model are of at most %lld",
		                 (long long)tokens, (long long)most);
	TRY(read_options(c, params, m, err));
	TRY(read_target(&c->sequence.target, json_object_get(params, "target"), m,
	                !classes && position + 1 < n && ids ? ids[position + 1] : -1, err));
	if (tokens > most)
		return STATUS_OK;
	if (work_of(c, m, tokens) > ATTRIBUTIONS_MAX_WORK)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%s would read %.0f tokens for %lld; at most %d are read", c->method,
		                 work_of(c, m, tokens), (long long)tokens, ATTRIBUTIONS_MAX_WORK);
	c->wanted = true;
	c->sequence.count = tokens;
	if (!ids) /* only checked */
		return STATUS_OK;
	c->numbers = memory_new((size_t)tokens, 4 * sizeof *c->numbers);
	c->parts = (explain_parts){.words = c->numbers,
	                           .positions = c->numbers + tokens,
	                           .biases = c->numbers + 2 * tokens,
	                           .attention = c->numbers + 3 * tokens};
	c->sequence.ids = memory_new((size_t)tokens, sizeof *c->sequence.ids);
	if (!c->numbers || !c->sequence.ids)
		return STATUS_NOMEM;
	memcpy(c->sequence.ids, ids, (size_t)tokens * sizeof *ids);
	return STATUS_OK;
}

void attributions_submit(attributions *c, stream *s, model_entry *m, scoring_task *t)
{
	c->sequence.parts = &c->parts;
	t->stream = s;
	t->model = m;
	t->request = (scoring_request){.sequences = &c->sequence, .n_sequences = 1, .explain = c->options};
	scoring_task_submit(t);
}

void attributions_fini(attributions *c)
{
	free(c->sequence.ids);
	free(c->numbers);
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

/* A token, or a class. */
static json_t *output_object(const model_entry *m, int32_t id)
{
	if (id < 0)
		return json_null();
	if (m->class_names)
		return json_pack("{s:i, s:O}", "id", (int)id, "label", json_array_get(m->class_names, (size_t)id));
	return json_pack("{s:i, s:o}", "id", (int)id, "text", tokens_name(m->tokenizer, id));
}

static bool is_finite(const attributions *c)
{
	bool finite = isfinite(c->parts.score) && isfinite(c->parts.head);
	for (int64_t i = 0; i < 4 * c->sequence.count; i++)
		finite &= isfinite(c->numbers[i]);
	return finite;
}

static json_t *target_object(const attributions *c, const model_entry *m)
{
	const explain_parts *p = &c->parts;
	return json_pack("{s:s, s:o, s:o, s:f, s:f}", "kind", kinds[c->sequence.target.kind], "token",
	                 output_object(m, p->token), "other", output_object(m, p->other), "logit", p->logit,
	                 "log_probability", p->log_probability);
}

/* The parts of EXPLAIN_CONTRIBUTIONS. */
static bool add_sums(json_t *object, const attributions *c, const model_entry *m)
{
	const explain_parts *p = &c->parts;
	const int64_t n = c->sequence.count;
	/* Where all positions are pooled, none is the reader. */
	const bool reads = m->dims.head != HEAD_CLASSES || m->dims.pool == POOL_LAST;
	double words = 0, positions = 0, biases = p->head, reader = reads ? (double)p->words[n - 1] : 0;
	if (!append_parts(object, "tokens", p->words, n, &words) ||
	    !append_parts(object, "positions", p->positions, n, &positions) ||
	    !append_parts(object, "biases", p->biases, n, &biases))
		return false;
	json_t *sums = json_pack("{s:f, s:f, s:f, s:f, s:f}", "tokens", words - reader, "reader", reader, "positions",
	                         positions, "biases", biases, "rounding", p->score - words - positions - biases);
	return json_object_set_new(object, "share", json_real((double)c->options.share)) == 0 &&
	       json_object_set_new(object, "sums", sums) == 0;
}

/* The numbers of any other method. */
static bool add_numbers(json_t *object, const attributions *c)
{
	const explain_parts *p = &c->parts;
	double sum = 0;
	if (!append_parts(object, "tokens", methods[find_method(c->method)].attention ? p->attention : p->words,
	                  c->sequence.count, &sum))
		return false;
	bool whole = json_object_set_new(object, "method", json_string(c->method)) == 0;
	if (c->options.method == EXPLAIN_INTEGRATED)
		whole = whole && json_object_set_new(object, "steps", json_integer(c->options.steps)) == 0 &&
		        json_object_set_new(object, "difference", json_real(p->difference)) == 0 &&
		        json_object_set_new(object, "completeness_error", json_real(sum - p->difference)) == 0;
	if (c->options.method == EXPLAIN_LEAVE_ONE_OUT)
		whole = whole &&
		        json_object_set_new(object, "replacement",
		                            c->options.replacement < 0 ? json_null()
		                                                       : json_integer(c->options.replacement)) == 0;
	return whole;
}

const char *attributions_key(const attributions *c)
{
	return c->options.method == EXPLAIN_CONTRIBUTIONS ? "contributions" : "attribution";
}

json_t *attributions_object(const attributions *c, const model_entry *m, error *err)
{
	if (!is_finite(c)) {
		error_set(err, STATUS_INVALID, "model", "the model's numbers are not finite");
		return NULL;
	}
	json_t *object = json_pack("{s:o, s:f}", "target", target_object(c, m), "score", c->parts.score);
	if (object && (c->options.method == EXPLAIN_CONTRIBUTIONS ? add_sums(object, c, m) : add_numbers(object, c)))
		return object;
	json_decref(object);
	return NULL;
}
