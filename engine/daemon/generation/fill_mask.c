/* fill_mask.c - mask_text.h tells how a text contains a mask.
 *
 * Candidates are tokens that have text. Probabilities are exp(z_k - max z) / Σ over all outputs, in double. */
#include "engine/daemon/generation/methods.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/base/memory.h"
#include "engine/daemon/generation/mask_text.h"
#include "engine/daemon/generation/score_request.h"
#include "engine/daemon/generation/tokens.h"
#include "gen/limits.h"

enum {
	FILL_MASK_MAX_BYTES = 8 << 20, /* bytes of texts in one answer: JSON may need 6 bytes for one, and a frame holds
	                                * 64 MiB */
	FILL_MASK_BYTES = 200          /* per candidate, besides its text */
};

static int64_t top_k(const score_request *x)
{
	return json_read_integer(x->params, "top_k", FILL_MASK_TOP_K_DEFAULT);
}

static status fill_mask_begin(score_request *x, error *err)
{
	TRY(catalog_check_fills_masks(x->model, "model", err));
	x->embedding = POOL_NONE;
	x->width = x->model->dims.outputs;
	return STATUS_OK;
}

/* --- tokens: pool thread ---------------------------------------------------------------------- */

/* Find the rows and places of the masks. */
static status find_masks(score_request *x, int64_t i, const mask_name *name, const token_list *tokens)
{
	score_sequence *q = &x->sequences[i];
	int32_t *rows;
	size_t n = 0;
	for (size_t k = 0; k < tokens->count; k++)
		n += mask_text_is_mask(name, tokens, k);
	q->rows = rows = memory_new(n, sizeof *rows);
	x->places[i] = memory_new(n, sizeof *x->places[i]);
	if (!rows || !x->places[i])
		return STATUS_NOMEM;
	for (size_t k = 0; k < tokens->count; k++)
		if (mask_text_is_mask(name, tokens, k)) {
			x->places[i][q->n_rows] = tokens->spans[k];
			rows[q->n_rows++] = (int32_t)k;
		}
	return STATUS_OK;
}

static status fill_mask_check(score_request *x, int64_t i, const mask_name *name, const json_t *input, error *err)
{
	const score_sequence *q = &x->sequences[i];
	const int64_t limit = scheduler_score_limit(&x->model->dims);
	if (q->n_rows == 0)
		return error_set(err, STATUS_INVALID, "input", "there is no mask in the text; it is written %.*s",
		                 (int)name->bytes, name->text);
	if (q->count > limit)
		return error_set(err, STATUS_INVALID, "input", "a text has %lld tokens; the model reads at most %lld",
		                 (long long)q->count, (long long)limit);
	/* One text for each candidate, and one more. */
	x->answer_bytes += (q->n_rows * top_k(x) + 1) * (int64_t)(json_string_length(input) + FILL_MASK_BYTES);
	if (x->answer_bytes > FILL_MASK_MAX_BYTES)
		return error_set(
		    err, STATUS_TOO_LARGE, "input",
		    "%lld masks with %lld candidates each in a text of %zu bytes are too many for one answer",
		    (long long)q->n_rows, (long long)top_k(x), json_string_length(input));
	return STATUS_OK;
}

static status fill_mask_encode(score_request *x, int64_t i, const json_t *input, error *err)
{
	const mask_name name = mask_text_name(x->model);
	const encode_options o = {.begin = tokens_begin(x->params)};
	token_list tokens;
	TRY(mask_text_encode(x->model, &name, json_string_value(input), json_string_length(input), &o, &tokens, err));
	x->sequences[i].ids = tokens.ids;
	x->sequences[i].count = (int64_t)tokens.count;
	status s = find_masks(x, i, &name, &tokens);
	free(tokens.spans);
	return s == STATUS_OK ? fill_mask_check(x, i, &name, input, err) : s;
}

/* --- the answer: pool thread -------------------------------------------------------------------- */

typedef struct candidate {
	int32_t id; /* TOKEN_NONE: no candidate */
	double probability;
} candidate;

static bool fill_mask_is_text(const tokenizer *t, int64_t id)
{
	return id < tokenizer_size(t) && tokenizer_token_bytes(t, (int32_t)id, NULL, 0) > 0;
}

/* Find the k most likely tokens, best first, ties by lower id. */
static void find_candidates(const tokenizer *t, const float *logits, int64_t width, candidate *out, int64_t k)
{
	double most = -INFINITY, sum = 0;
	for (int64_t i = 0; i < k; i++)
		out[i] = (candidate){TOKEN_NONE, -INFINITY};
	for (int64_t id = 0; id < width; id++) {
		const double z = (double)logits[id];
		most = fmax(most, z);
		if (z <= out[k - 1].probability || !fill_mask_is_text(t, id))
			continue;
		int64_t at = k - 1;
		for (; at > 0 && z > out[at - 1].probability; at--)
			out[at] = out[at - 1];
		out[at] = (candidate){(int32_t)id, z};
	}
	for (int64_t id = 0; id < width; id++)
		sum += exp((double)logits[id] - most);
	for (int64_t i = 0; i < k; i++)
		out[i].probability = exp(out[i].probability - most) / sum;
}

/* Append a token's text at `used`; the space at the start of a word is not doubled. */
static size_t put_token(char *out, size_t used, const tokenizer *t, int32_t id)
{
	const size_t n = tokenizer_token_bytes(t, id, out + used, TOKEN_MAX_BYTES);
	if (n < 2 || out[used] != ' ' || out[used + 1] == ' ' || (used > 0 && out[used - 1] != ' '))
		return used + n;
	memmove(out + used, out + used + 1, n - 1);
	return used + n - 1;
}

/* A text whose masks are being filled. */
typedef struct filling {
	const score_request *x;
	const json_t *input;
	const byte_range *places; /* [n] */
	int64_t n, k;
	candidate *candidates; /* [n][k] */
	int32_t *chosen;       /* [n]; TOKEN_NONE: the mask is kept */
} filling;

/* Return the text with the chosen tokens. */
static json_t *fill_in(const filling *f)
{
	const tokenizer *t = f->x->model->tokenizer;
	const char *text = json_string_value(f->input);
	const size_t bytes = json_string_length(f->input);
	size_t room = bytes, used = 0, at = 0;
	for (int64_t m = 0; m < f->n; m++)
		room += f->chosen[m] == TOKEN_NONE ? 0 : TOKEN_MAX_BYTES;
	char *raw = memory_new(room, 1), *whole = memory_new(room + 3, 3);
	json_t *string = NULL;
	for (int64_t m = 0; raw && m < f->n; m++) {
		if (f->chosen[m] == TOKEN_NONE)
			continue;
		memcpy(raw + used, text + at, f->places[m].first - at);
		used = put_token(raw, used + f->places[m].first - at, t, f->chosen[m]);
		at = f->places[m].first + f->places[m].bytes;
	}
	if (raw && whole) {
		text_stream repaired = {0}; /* a token may be part of a character */
		memcpy(raw + used, text + at, bytes - at);
		string = json_stringn(whole, text_stream_push(&repaired, raw, used + bytes - at, true, whole));
	}
	free(raw);
	free(whole);
	return string;
}

/* Return the candidates of a mask, each with the text in which only this mask is filled. */
static json_t *candidates_array(const filling *f, int64_t mask)
{
	const tokenizer *t = f->x->model->tokenizer;
	const candidate *own = f->candidates + mask * f->k;
	json_t *array = json_array();
	bool whole = array;
	for (int64_t c = 0; whole && c < f->k && own[c].id != TOKEN_NONE; c++) {
		f->chosen[mask] = own[c].id;
		whole =
		    json_array_append_new(array, json_pack("{s:o, s:i, s:f, s:o}", "token", tokens_name(t, own[c].id),
		                                           "id", (int)own[c].id, "probability", own[c].probability,
		                                           "text", fill_in(f))) == 0;
	}
	f->chosen[mask] = TOKEN_NONE;
	if (whole)
		return array;
	json_decref(array);
	return NULL;
}

/* numbers: the rows of logits of the text's masks. */
static json_t *item_object(const filling *f, int64_t i, const float *numbers)
{
	const int64_t width = f->x->width;
	json_t *masks = json_array();
	bool whole = masks;
	for (int64_t m = 0; m < f->n; m++) {
		find_candidates(f->x->model->tokenizer, numbers + m * width, width, f->candidates + m * f->k, f->k);
		f->chosen[m] = TOKEN_NONE;
	}
	for (int64_t m = 0; whole && m < f->n; m++)
		whole = json_array_append_new(masks, json_pack("{s:I, s:I, s:o}", "position",
		                                               (json_int_t)f->x->sequences[i].rows[m], "offset",
		                                               (json_int_t)f->places[m].first, "candidates",
		                                               candidates_array(f, m))) == 0;
	for (int64_t m = 0; m < f->n; m++)
		f->chosen[m] = f->candidates[m * f->k].id;
	if (whole)
		return json_pack("{s:I, s:o, s:o}", "index", (json_int_t)i, "text", fill_in(f), "masks", masks);
	json_decref(masks);
	return NULL;
}

static json_t *fill_input(const score_request *x, int64_t i, const float *numbers)
{
	const json_t *input = json_object_get(x->params, "input");
	filling f = {.x = x,
	             .input = x->list ? json_array_get(input, (size_t)i) : input,
	             .places = x->places[i],
	             .n = x->sequences[i].n_rows,
	             .k = top_k(x)};
	f.candidates = memory_new((size_t)(f.n * f.k), sizeof *f.candidates);
	f.chosen = memory_new((size_t)f.n, sizeof *f.chosen);
	json_t *item = f.candidates && f.chosen ? item_object(&f, i, numbers) : NULL;
	free(f.candidates);
	free(f.chosen);
	return item;
}

static json_t *fill_mask_answer(const score_request *x, error *err)
{
	const float *numbers = x->numbers;
	json_t *data = json_array();
	bool whole = data;
	(void)err;
	for (int64_t i = 0; whole && i < x->n; i++) {
		whole = json_array_append_new(data, fill_input(x, i, numbers)) == 0;
		numbers += x->sequences[i].n_rows * x->width;
	}
	if (whole)
		return json_pack("{s:s, s:s, s:o, s:o}", "object", "list", "model", x->model->id, "data", data, "usage",
		                 score_request_usage(x));
	json_decref(data);
	return NULL;
}

void fill_mask_create(stream *s)
{
	static const score_request_kind kind = {fill_mask_begin, fill_mask_encode, fill_mask_answer};
	score_request_create(s, &kind);
}
