#include "engine/daemon/generation/methods.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/score_request.h"
#include "engine/daemon/generation/tokens.h"

/* Maximum numbers in one answer: each takes up to 16 bytes of JSON, or 16/3 of base64, and a frame holds 64 MiB. */
enum { EMBEDDINGS_MAX_NUMBERS = 3 << 20, EMBEDDINGS_MAX_BASE64 = 10 << 20 };

static bool has_word(const score_request *x, const char *key, const char *word)
{
	const char *given = json_string_value(json_object_get(x->params, key));
	return given && strcmp(given, word) == 0;
}

static bool wants_base64(const score_request *x)
{
	return has_word(x, "encoding_format", "base64");
}

static status embeddings_begin(score_request *x, error *err)
{
	const json_t *dimensions = json_object_get(x->params, "dimensions");
	int64_t most = wants_base64(x) ? EMBEDDINGS_MAX_BASE64 : EMBEDDINGS_MAX_NUMBERS;
	x->embedding = has_word(x, "pooling", "last") ? POOL_LAST : POOL_MEAN;
	x->width = x->model->dims.hidden;
	if (json_is_integer(dimensions) && json_integer_value(dimensions) != x->width)
		return error_set(err, STATUS_INVALID, "dimensions", "the model's vectors have %lld numbers",
		                 (long long)x->width);
	if (x->n > most / x->width)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld vectors of %lld numbers are too many for one answer", (long long)x->n,
		                 (long long)x->width);
	return STATUS_OK;
}

/* --- tokens: pool thread -------------------------------------------------------------------- */

static status embeddings_read_tokens(const model_entry *c, const json_t *tokens, score_sequence *out, error *err)
{
	size_t n = json_array_size(tokens);
	out->ids = memory_new(n, sizeof *out->ids);
	if (!out->ids)
		return STATUS_NOMEM;
	out->count = (int64_t)n;
	for (size_t i = 0; i < n; i++) {
		json_int_t id = json_integer_value(json_array_get(tokens, i));
		if (id >= c->dims.inputs)
			return error_set(err, STATUS_INVALID, "input", "token %lld is not in the vocabulary of %lld",
			                 (long long)id, (long long)c->dims.inputs);
		out->ids[i] = (int32_t)id;
	}
	return STATUS_OK;
}

/* A classifier was trained on texts that end as in training; another model reads a text like its prompts. */
static status embeddings_read_text(const score_request *x, const json_t *text, score_sequence *out, error *err)
{
	token_list tokens;
	bool cut;
	if (x->model->dims.form->head == HEAD_CLASSES) {
		TRY(score_request_encode_sequence(x, text, NULL, scheduler_score_limit(&x->model->dims), out, &cut,
		                                  err));
		return cut ? error_set(err, STATUS_INVALID, "input", "a text has more than %lld tokens",
		                       (long long)scheduler_score_limit(&x->model->dims))
		           : STATUS_OK;
	}
	TRY(tokens_check_bytes(x->model, json_string_length(text), scheduler_score_limit(&x->model->dims), "input",
	                       err));
	TRY(tokens_of_text(&tokens, x->model, json_string_value(text), json_string_length(text),
	                   tokens_begin(x->params), err));
	out->ids = tokens.ids;
	out->count = (int64_t)tokens.count;
	return STATUS_OK;
}

static status embeddings_encode(score_request *x, int64_t i, const json_t *input, error *err)
{
	score_sequence *out = &x->sequences[i];
	int64_t limit = scheduler_score_limit(&x->model->dims);
	TRY(json_is_string(input) ? embeddings_read_text(x, input, out, err)
	                          : embeddings_read_tokens(x->model, input, out, err));
	if (out->count > limit)
		return error_set(err, STATUS_INVALID, "input", "an input has %lld tokens; the model reads at most %lld",
		                 (long long)out->count, (long long)limit);
	return STATUS_OK;
}

/* --- the answer: pool thread ------------------------------------------------------------------ */

static json_t *as_numbers(const float *x, int64_t n)
{
	json_t *array = json_array();
	bool whole = array;
	for (int64_t i = 0; whole && i < n; i++)
		whole = json_array_append_new(array, json_real((double)x[i])) == 0;
	if (whole)
		return array;
	json_decref(array);
	return NULL;
}

/* RFC 4648, of the floats' bytes in little-endian order. */
static json_t *as_base64(const float *x, int64_t n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t bytes = (size_t)n * 4, used = 0;
	char *text = memory_new(bytes / 3 + 1, 4);
	for (size_t i = 0; text && i < bytes; i += 3) {
		uint32_t group = 0;
		for (size_t k = i; k < i + 3; k++) {
			uint32_t word = 0;
			if (k < bytes)
				memcpy(&word, &x[k / 4], sizeof word);
			group = group << 8 | (word >> 8 * (k % 4) & 255);
		}
		for (size_t k = 0; k < 4; k++)
			text[used++] = i + k <= bytes ? digits[group >> (18 - 6 * k) & 63] : '=';
	}
	json_t *string = text ? json_stringn(text, used) : NULL;
	free(text);
	return string;
}

static json_t *embeddings_answer(const score_request *x, error *err)
{
	json_t *data = json_array();
	bool whole = data, base64 = wants_base64(x);
	(void)err;
	for (int64_t i = 0; whole && i < x->n; i++) {
		const float *row = x->numbers + i * x->width;
		json_t *vector = base64 ? as_base64(row, x->width) : as_numbers(row, x->width);
		whole = json_array_append_new(data, json_pack("{s:s, s:I, s:o}", "object", "embedding", "index",
		                                              (json_int_t)i, "embedding", vector)) == 0;
	}
	if (!whole) {
		json_decref(data);
		return NULL;
	}
	return json_pack("{s:s, s:o, s:s, s:s, s:o}", "object", "list", "data", data, "model", x->model->id, "pooling",
	                 x->embedding == POOL_LAST ? "last" : "mean", "usage", score_request_usage(x));
}

void embeddings_create(stream *s)
{
	static const score_request_kind kind = {embeddings_begin, embeddings_encode, embeddings_answer};
	score_request_create(s, &kind);
}
