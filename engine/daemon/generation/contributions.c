#include "engine/daemon/generation/contributions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/tokens.h"

static const char *const kinds[] = {
    [EXPLAIN_CONTRAST] = "contrast", [EXPLAIN_LOGIT] = "logit", [EXPLAIN_DIFFERENCE] = "difference"};

static const char *method_of(const json_t *params)
{
	return json_string_value(json_object_get(params, "method"));
}

bool contributions_asked(const json_t *params)
{
	const char *method = method_of(params);
	return !method || strcmp(method, "contributions") == 0;
}

/* --- the target ---------------------------------------------------------------------------- */

static status read_text(int32_t *out, const json_t *text, const char *param, const model_entry *m, error *err)
{
	int32_t *ids = NULL;
	size_t count = 0;
	for (size_t k = 0; k < json_array_size(m->class_names); k++)
		if (json_equal(json_array_get(m->class_names, k), text)) {
			*out = (int32_t)k;
			return STATUS_OK;
		}
	if (m->class_names)
		return error_set(err, STATUS_INVALID, param, "the model has no class of that name");
	TRY(tokenizer_encode(m->tokenizer, json_string_value(text), json_string_length(text), &ids, &count, err));
	if (count == 1)
		*out = ids[0];
	free(ids);
	return count == 1 ? STATUS_OK
	                  : error_set(err, STATUS_INVALID, param, "is %lld tokens, must be one", (long long)count);
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

/* --- the request ------------------------------------------------------------------------------ */

status contributions_read(contributions *c, const json_t *params, const model_entry *m, const int32_t *ids, int64_t n,
                          int64_t position, error *err)
{
	const bool classes = m->dims.head == HEAD_CLASSES, named = method_of(params);
	const json_t *share = json_object_get(params, "share");
	const int64_t tokens = classes ? n : position + 1, most = scheduler_attribution_limit(&m->dims);
	if (position < 0 && named)
		return error_set(err, STATUS_INVALID, "position", "contributions are of one position, not all");
	if (position < 0)
		return STATUS_OK;
	if (tokens > most && named)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld tokens up to the position; contributions of this model are of at most %lld",
		                 (long long)tokens, (long long)most);
	c->share = json_is_number(share) ? (float)json_number_value(share) : 0.5f;
	TRY(read_target(&c->sequence.target, json_object_get(params, "target"), m,
	                !classes && position + 1 < n && ids ? ids[position + 1] : -1, err));
	if (tokens > most)
		return STATUS_OK;
	c->wanted = true;
	c->sequence.count = tokens;
	if (!ids) /* only checked */
		return STATUS_OK;
	c->numbers = memory_new((size_t)tokens, 3 * sizeof *c->numbers);
	c->parts =
	    (explain_parts){.words = c->numbers, .positions = c->numbers + tokens, .biases = c->numbers + 2 * tokens};
	c->sequence.ids = memory_new((size_t)tokens, sizeof *c->sequence.ids);
	if (!c->numbers || !c->sequence.ids)
		return STATUS_NOMEM;
	memcpy(c->sequence.ids, ids, (size_t)tokens * sizeof *ids);
	return STATUS_OK;
}

void contributions_submit(contributions *c, stream *s, model_entry *m, scoring_task *t)
{
	c->sequence.parts = &c->parts;
	t->stream = s;
	t->model = m;
	t->request = (scoring_request){
	    .sequences = &c->sequence, .n_sequences = 1, .attribution = ATTRIBUTION_FROZEN, .share = c->share};
	scoring_task_submit(t);
}

void contributions_fini(contributions *c)
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

static bool is_finite(const contributions *c)
{
	bool finite = isfinite(c->parts.score) && isfinite(c->parts.head);
	for (int64_t i = 0; i < 3 * c->sequence.count; i++)
		finite &= isfinite(c->numbers[i]);
	return finite;
}

json_t *contributions_object(const contributions *c, const model_entry *m, error *err)
{
	const explain_parts *p = &c->parts;
	const int64_t n = c->sequence.count;
	/* Where all positions are pooled, none is the reader. */
	const bool reads = m->dims.head != HEAD_CLASSES || m->dims.pool == POOL_LAST;
	double words = 0, positions = 0, biases = p->head;
	if (!is_finite(c)) {
		error_set(err, STATUS_INVALID, "model", "the model's contributions are not finite");
		return NULL;
	}
	json_t *target = json_pack("{s:s, s:o, s:o, s:f, s:f}", "kind", kinds[c->sequence.target.kind], "token",
	                           output_object(m, p->token), "other", output_object(m, p->other), "logit", p->logit,
	                           "log_probability", p->log_probability);
	json_t *object = json_pack("{s:o, s:f, s:f}", "target", target, "share", (double)c->share, "score", p->score);
	if (!object || !append_parts(object, "tokens", p->words, n, &words) ||
	    !append_parts(object, "positions", p->positions, n, &positions) ||
	    !append_parts(object, "biases", p->biases, n, &biases)) {
		json_decref(object);
		return NULL;
	}
	const double reader = reads ? (double)p->words[n - 1] : 0;
	json_t *sums = json_pack("{s:f, s:f, s:f, s:f, s:f}", "tokens", words - reader, "reader", reader, "positions",
	                         positions, "biases", biases, "rounding", p->score - words - positions - biases);
	if (json_object_set_new(object, "sums", sums) == 0)
		return object;
	json_decref(object);
	return NULL;
}
