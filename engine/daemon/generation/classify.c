/* Probabilities are exp(z_k - max z) / Σ, in double. */
#include "engine/daemon/generation/methods.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/explain_request.h"
#include "engine/daemon/generation/score_request.h"
#include "engine/text/sequence.h"

/* Maximum JSON of one answer; a frame holds 64 MiB. */
enum { CLASSIFY_MAX_BYTES = 48 << 20, CLASSIFY_BYTES = 48 /* per probability, besides its name */ };

static int64_t answer_bytes(const model_entry *c)
{
	int64_t bytes = 0;
	for (size_t k = 0; k < json_array_size(c->class_names); k++)
		bytes += CLASSIFY_BYTES + (int64_t)json_string_length(json_array_get(c->class_names, k));
	return bytes;
}

/* Maximum tokens of an input: as in training, limited by the model. */
static int64_t length_of(const model_entry *c)
{
	int64_t limit = scheduler_score_limit(&c->dims);
	return c->dims.trained < limit ? c->dims.trained : limit;
}

static status classify_begin(score_request *x, error *err)
{
	const model_entry *c = x->model;
	TRY(catalog_check_classifies(c, "model", err));
	x->explains = json_is_true(json_object_get(x->params, "explain"));
	if (x->explains)
		TRY(catalog_check_explains(c, false, "explain", err));
	x->embedding = POOL_NONE;
	x->width = c->dims.outputs;
	if (length_of(c) < SEQUENCE_MIN_LENGTH)
		return error_set(err, STATUS_INVALID, "model", "the model reads fewer than %d tokens",
		                 SEQUENCE_MIN_LENGTH);
	if (x->n > CLASSIFY_MAX_BYTES / answer_bytes(c))
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld inputs with %lld classes are too many for one answer", (long long)x->n,
		                 (long long)x->width);
	return STATUS_OK;
}

static status classify_encode(score_request *x, int64_t i, const json_t *input, error *err)
{
	bool object = json_is_object(input);
	return score_request_encode_sequence(x, object ? json_object_get(input, "text") : input,
	                                     object ? json_object_get(input, "text_pair") : NULL, length_of(x->model),
	                                     &x->sequences[i], &x->truncated[i], err);
}

typedef struct class_probability {
	int64_t number;
	double probability;
} class_probability;

static int likelier_first(const void *a, const void *b)
{
	const class_probability *x = a, *y = b;
	if (x->probability != y->probability)
		return x->probability < y->probability ? 1 : -1;
	return (x->number > y->number) - (x->number < y->number);
}

static void find_probabilities(const float *logits, int64_t n, class_probability *out)
{
	double most = -INFINITY, sum = 0;
	for (int64_t k = 0; k < n; k++)
		most = fmax(most, (double)logits[k]);
	for (int64_t k = 0; k < n; k++) {
		out[k] = (class_probability){k, exp((double)logits[k] - most)};
		sum += out[k].probability;
	}
	for (int64_t k = 0; k < n; k++)
		out[k].probability /= sum;
	qsort(out, (size_t)n, sizeof *out, likelier_first);
}

static json_t *label_object(const model_entry *c, const class_probability *p)
{
	return json_pack("{s:O, s:f}", "label", json_array_get(c->class_names, (size_t)p->number), "probability",
	                 p->probability);
}

/* Add the explanation of the classes, if requested. */
static bool add_explanation(json_t *item, const score_request *x, int64_t i, error *err)
{
	const score_sequence *q = &x->sequences[i];
	return !x->explains ||
	       json_object_set_new(item, "explanation",
	                           explain_request_classified(x->model, q->ids, q->count, q->log, err)) == 0;
}

static json_t *item_object(const score_request *x, int64_t i, class_probability *found, error *err)
{
	json_t *labels = json_array(), *item = NULL;
	bool whole = labels;
	find_probabilities(x->numbers + i * x->width, x->width, found);
	for (int64_t k = 0; whole && k < x->width; k++)
		whole = json_array_append_new(labels, label_object(x->model, &found[k])) == 0;
	if (whole)
		item = label_object(x->model, &found[0]);
	whole = item && json_object_set_new(item, "index", json_integer(i)) == 0 &&
	        json_object_set(item, "labels", labels) == 0 &&
	        json_object_set_new(item, "truncated", json_boolean(x->truncated[i])) == 0 &&
	        add_explanation(item, x, i, err);
	json_decref(labels);
	if (whole)
		return item;
	json_decref(item);
	return NULL;
}

static json_t *classify_answer(const score_request *x, error *err)
{
	class_probability *found = memory_new((size_t)x->width, sizeof *found);
	json_t *data = json_array();
	bool whole = found && data;
	for (int64_t i = 0; whole && i < x->n; i++)
		whole = json_array_append_new(data, item_object(x, i, found, err)) == 0;
	free(found);
	if (!whole) {
		json_decref(data);
		return NULL;
	}
	return json_pack("{s:s, s:s, s:o, s:o}", "object", "list", "model", x->model->id, "data", data, "usage",
	                 score_request_usage(x));
}

void classify_create(stream *s)
{
	static const score_request_kind kind = {classify_begin, classify_encode, classify_answer};
	score_request_create(s, &kind);
}
