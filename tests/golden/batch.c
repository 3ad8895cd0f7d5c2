#include "tests/golden/batch.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/memory.h"

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* A tensor of the batch's shape with every value in 0 … limit-1 (or `exception`), as
 * int32; *out stays NULL when it is absent. */
static status read_tokens(const batch *in, const safetensors_entry *e, const safetensors_entry *ids, int64_t limit,
                          int32_t exception, int32_t **out, error *err)
{
	*out = NULL;
	if (!e)
		return STATUS_OK;
	if (e->rank != 2 || e->dim[0] != in->sequences || e->dim[1] != in->length)
		return error_set(err, STATUS_INVALID, e->name,
		                 "%s must have the shape of %s, [%" PRId64 ", %" PRId64 "]", e->name, ids->name,
		                 in->sequences, in->length);
	*out = memory_new((size_t)e->count, sizeof **out);
	if (!*out)
		return no_memory(err);
	TRY(safetensors_read_i32(e, *out, err));
	for (int64_t i = 0; i < e->count; i++)
		if (((*out)[i] < 0 || (*out)[i] >= limit) && (*out)[i] != exception)
			return error_set(err, STATUS_INVALID, e->name,
			                 "%s[%" PRId64 ", %" PRId64 "] is %" PRId32 ", which is not from 0 to %" PRId64,
			                 e->name, i / in->length, i % in->length, (*out)[i], limit - 1);
	return STATUS_OK;
}

/* From labels as files have them, of position i the token at i: those `ahead` of each position. Without labels the
 * unmasked tokens are their own. */
static void take_labels(batch *in, const int32_t *given, int64_t ahead)
{
	for (int64_t i = 0; i < in->sequences * in->length; i++) {
		const int64_t at = i + ahead;
		int32_t label = BATCH_IGNORED;
		if (i % in->length + ahead < in->length)
			label = given ? given[at] : in->mask && !in->mask[at] ? BATCH_IGNORED : in->ids[at];
		in->labels[i] = label;
	}
}

status batch_read(batch *out, batch_source in, const model_dims *dims, position_policy policy, error *err)
{
	const safetensors_entry *ids = in.ids;
	*out = (batch){0};
	if (ids->rank != 2 || ids->count < 1)
		return error_set(err, STATUS_INVALID, ids->name, "%s must be [sequences, tokens] and not empty",
		                 ids->name);
	out->sequences = ids->dim[0];
	out->length = ids->dim[1];
	if (policy == POSITION_ERROR && out->length > dims->positions)
		return error_set(err, STATUS_INVALID, ids->name,
		                 "%s has %" PRId64 " tokens per sequence, the model has %" PRId64 " positions",
		                 ids->name, out->length, dims->positions);
	int32_t *given = NULL;
	status s = read_tokens(out, ids, ids, dims->inputs, 0, &out->ids, err);
	if (s == STATUS_OK)
		s = read_tokens(out, in.mask, ids, 2, 0, &out->mask, err);
	if (s == STATUS_OK)
		s = read_tokens(out, in.labels, ids, dims->outputs, BATCH_IGNORED, &given, err);
	if (s == STATUS_OK) {
		out->labels = memory_new((size_t)ids->count, sizeof *out->labels);
		if (!out->labels)
			s = no_memory(err);
	}
	if (s == STATUS_OK)
		take_labels(out, given, dims->form->stepwise);
	free(given);
	return s;
}

void batch_free(batch *b)
{
	free(b->ids);
	free(b->mask);
	free(b->labels);
}
