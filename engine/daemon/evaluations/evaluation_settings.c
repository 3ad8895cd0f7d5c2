#include "engine/daemon/evaluations/evaluation_settings.h"

#include <string.h>

static const char *const contexts[] = {"carried", "sliding", "blocks"};
enum { CONTEXTS = sizeof contexts / sizeof *contexts, USUAL_LENGTH = 1024 };

static bool find_context(const char *name, evaluation_context *out)
{
	for (int i = 0; name && i < CONTEXTS; i++)
		if (strcmp(contexts[i], name) == 0) {
			*out = (evaluation_context)i;
			return true;
		}
	return false;
}

static void set_windows(evaluation_settings *s)
{
	const bool carried = s->context == EVALUATION_CARRIED;
	s->window = carried ? EVALUATION_UNIT + 1 : s->length;
	s->overlap = carried ? 1 : s->context == EVALUATION_SLIDING ? s->length - s->stride : 0;
}

static status read_length(evaluation_settings *out, const json_t *given, const model_entry *m, error *err)
{
	const model_dims *d = &m->dims;
	if (out->context == EVALUATION_CARRIED)
		return given ? error_set(err, STATUS_INVALID, "length", "a carried context has no length") : STATUS_OK;
	out->length = given ? json_integer_value(given) : d->trained > 1 ? d->trained : USUAL_LENGTH;
	if (!given && out->length > d->positions)
		out->length = d->positions;
	if (!given && out->length > EVALUATION_LENGTH_MAX)
		out->length = EVALUATION_LENGTH_MAX;
	return out->length <= d->positions ? STATUS_OK
	                                   : error_set(err, STATUS_INVALID, "length",
	                                               "the model reads at most %lld tokens", (long long)d->positions);
}

static status read_stride(evaluation_settings *out, const json_t *given, error *err)
{
	if (out->context != EVALUATION_SLIDING)
		return given ? error_set(err, STATUS_INVALID, "stride", "only a sliding context has a stride")
		             : STATUS_OK;
	out->stride = given ? json_integer_value(given) : out->length / 2;
	return out->stride < out->length ? STATUS_OK
	                                 : error_set(err, STATUS_INVALID, "stride",
	                                             "must be less than the length of %lld", (long long)out->length);
}

status evaluation_settings_read(evaluation_settings *out, const json_t *params, const model_entry *m, error *err)
{
	const bool unbounded = m->dims.positions == MODEL_UNBOUNDED;
	const json_t *context = json_object_get(params, "context"), *top = json_object_get(params, "top");
	*out = (evaluation_settings){.context = unbounded ? EVALUATION_CARRIED : EVALUATION_SLIDING,
	                             .reset_at_document = json_is_true(json_object_get(params, "reset_at_document")),
	                             .top = top ? json_integer_value(top) : EVALUATION_TOP_DEFAULT,
	                             .weights = m->weights};
	find_context(json_string_value(context), &out->context);
	if (out->context == EVALUATION_CARRIED && !unbounded)
		return error_set(err, STATUS_INVALID, "context",
		                 "the model reads at most %lld tokens, so a state cannot be carried through a text; "
		                 "use sliding or blocks",
		                 (long long)m->dims.positions);
	TRY(read_length(out, json_object_get(params, "length"), m, err));
	TRY(read_stride(out, json_object_get(params, "stride"), err));
	set_windows(out);
	return STATUS_OK;
}

static json_t *evaluation_settings_number(int64_t n)
{
	return n ? json_integer((json_int_t)n) : json_null();
}

json_t *evaluation_settings_write(const evaluation_settings *s)
{
	return json_pack("{s:s, s:o, s:o, s:b, s:I, s:s}", "context", contexts[s->context], "length",
	                 evaluation_settings_number(s->length), "stride", evaluation_settings_number(s->stride),
	                 "reset_at_document", s->reset_at_document, "top", (json_int_t)s->top, "dtype",
	                 catalog_dtype_name(s->weights));
}

status evaluation_settings_restore(evaluation_settings *out, const json_t *written, error *err)
{
	const char *weights = json_string_value(json_object_get(written, "dtype"));
	*out = (evaluation_settings){.length = json_integer_value(json_object_get(written, "length")),
	                             .stride = json_integer_value(json_object_get(written, "stride")),
	                             .reset_at_document = json_is_true(json_object_get(written, "reset_at_document")),
	                             .top = json_integer_value(json_object_get(written, "top"))};
	if (!find_context(json_string_value(json_object_get(written, "context")), &out->context) || !weights ||
	    !catalog_find_dtype(weights, &out->weights))
		return error_set(err, STATUS_CORRUPT, NULL, "the evaluation's settings are damaged");
	set_windows(out);
	return out->window >= 2 && out->overlap < out->window && out->top <= EVALUATION_TOP_MAX
	           ? STATUS_OK
	           : error_set(err, STATUS_CORRUPT, NULL, "the evaluation's settings are damaged");
}
