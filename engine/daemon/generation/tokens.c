#include "engine/daemon/generation/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/generation/generation.h"

bool tokens_begin(const json_t *params)
{
	return !json_is_false(json_object_get(params, "add_special_tokens"));
}

/* Surround these tokens with those that the tokenizer puts around a text. */
static status add_frame(token_list *tokens, const tokenizer *t)
{
	const tokenizer_frame f = tokenizer_frame_of(t, false);
	const size_t n = tokens->count, before = (size_t)f.n_before, behind = (size_t)f.n_behind;
	int32_t *ids = memory_new(n + before + behind + 1, sizeof *ids);
	if (!ids) {
		token_list_fini(tokens);
		return STATUS_NOMEM;
	}
	memcpy(ids, f.before, before * sizeof *ids);
	if (n > 0)
		memcpy(ids + before, tokens->ids, n * sizeof *ids);
	memcpy(ids + before + n, f.behind, behind * sizeof *ids);
	free(tokens->ids);
	tokens->ids = ids;
	tokens->count = before + n + behind;
	return STATUS_OK;
}

/* A classifier's text is read unchanged, with an end token only if the head needs it. */
status tokens_of_text(token_list *out, const model_entry *m, const char *text, size_t bytes, bool begin, error *err)
{
	const encode_options how = {.begin = begin && m->dims.form->begins};
	TRY(tokenizer_encode(m->tokenizer, text, bytes, &how, out, err));
	return begin && m->dims.pool == POOL_END ? add_frame(out, m->tokenizer) : STATUS_OK;
}

status tokens_check_bytes(const model_entry *m, size_t bytes, int64_t limit, const char *param, error *err)
{
	const int64_t least = m->tokenizer ? tokenizer_least_tokens(m->tokenizer, bytes) : 0;
	return least <= limit ? STATUS_OK
	                      : error_set(err, STATUS_INVALID, param,
	                                  "a text of %zu bytes has at least %lld tokens, which do not fit: the model "
	                                  "reads at most %lld",
	                                  bytes, (long long)least, (long long)limit);
}

json_t *tokens_pieces(const tokenizer *t, const int32_t *ids, int64_t n)
{
	json_t *pieces = json_array();
	text_stream text = {0};
	json_int_t offset = 0;
	for (int64_t i = 0; pieces && i < n; i++) {
		char characters[TEXT_STREAM_ROOM];
		size_t used = text_stream_token(&text, t, ids[i], i == n - 1, characters);
		json_t *piece =
		    json_pack("{s:i, s:s%, s:I}", "id", (int)ids[i], "text", characters, used, "offset", offset);
		offset += (json_int_t)used;
		if (json_array_append_new(pieces, piece) != 0) {
			json_decref(pieces);
			pieces = NULL;
		}
	}
	return pieces;
}

json_t *tokens_text(const tokenizer *t, const int32_t *ids, int64_t n)
{
	char characters[TEXT_STREAM_ROOM];
	text_stream text = {.started = n > 4};
	size_t used = 0;
	for (int64_t i = n > 4 ? n - 4 : 0; i < n; i++)
		used = text_stream_token(&text, t, ids[i], false, characters);
	return json_stringn(characters, used);
}

json_t *tokens_join(const tokenizer *t, const int32_t *ids, int64_t n, bool whole)
{
	text_stream characters = {0};
	size_t used = 0, capacity = 0;
	char *text = NULL;
	for (int64_t i = 0; i < n; i++) {
		if (!MEMORY_ROOM(text, capacity, used + TEXT_STREAM_ROOM)) {
			free(text);
			return NULL;
		}
		used += text_stream_token(&characters, t, ids[i], whole && i == n - 1, text + used);
	}
	json_t *joined = json_stringn(text ? text : "", used);
	free(text);
	return joined;
}

bool tokens_end_with(const tokenizer *t, const int32_t *ids, int64_t n, const char *text)
{
	size_t left = strlen(text);
	bool any = left > 0;
	while (left > 0 && n-- > 0) {
		char bytes[TOKEN_MAX_BYTES];
		size_t length = tokenizer_token_bytes(t, ids[n], bytes, sizeof bytes);
		size_t same = length < left ? length : left;
		if (memcmp(bytes + length - same, text + left - same, same) != 0)
			return false;
		left -= same;
	}
	return any && left == 0;
}

int64_t tokens_advance(const tokenizer *t, text_stream *text, int32_t id)
{
	char characters[TEXT_STREAM_ROOM];
	return (int64_t)text_stream_token(text, t, id, false, characters);
}

int64_t tokens_place(const tokenizer *t, text_stream *text, int32_t id, int64_t *characters)
{
	char out[TEXT_STREAM_ROOM];
	size_t used = text_stream_token(text, t, id, false, out);
	const int64_t place = *characters + text->n_before;
	for (size_t i = 0; i < used; i++)
		*characters += ((unsigned char)out[i] & 0xc0) != 0x80; /* count first bytes of characters */
	return place;
}

json_t *tokens_name(const tokenizer *t, int32_t id)
{
	char bytes[TOKEN_MAX_BYTES], escaped[sizeof "bytes:" + 4 * TOKEN_MAX_BYTES] = "bytes:";
	size_t n = tokenizer_token_bytes(t, id, bytes, sizeof bytes), used = strlen(escaped);
	if (n == 0) /* a special token; without its name all of them would look the same */
		n = tokenizer_token_name(t, id, bytes, sizeof bytes);
	if (!memchr(bytes, 0, n) && utf8_valid_prefix(bytes, n) == n)
		return json_stringn(bytes, n);
	for (size_t i = 0; i < n; i++)
		used += (size_t)sprintf(escaped + used, "\\x%02x", (unsigned char)bytes[i]);
	return json_stringn(escaped, used);
}

/* --- the methods ---------------------------------------------------------------- */

/* A request in progress on the pool. */
typedef struct tokens_request {
	model_entry *model;
	const json_t *params; /* the stream's */
} tokens_request;

static void tokens_release(void *context)
{
	tokens_request *r = context;
	catalog_release(r->model);
	free(r);
}

/* A token's name in the vocabulary. */
static json_t *vocabulary_name(const tokenizer *t, int32_t id)
{
	char name[TOKEN_MAX_BYTES];
	size_t n = tokenizer_token_name(t, id, name, sizeof name);
	json_t *text = n > 0 ? json_stringn(name, n) : NULL;
	return text ? text : tokens_name(t, id);
}

/* Add the offsets and characters that encoding gives for each piece. */
static bool add_places(json_t *pieces, const tokenizer *t, const token_list *tokens)
{
	bool whole = true;
	for (size_t i = 0; i < tokens->count; i++) {
		json_t *piece = json_array_get(pieces, i);
		byte_range span = tokens->spans[i];
		whole &= json_object_set_new(piece, "piece", vocabulary_name(t, tokens->ids[i])) == 0 &&
		         json_object_set_new(piece, "start", json_integer((json_int_t)span.first)) == 0 &&
		         json_object_set_new(piece, "end", json_integer((json_int_t)(span.first + span.bytes))) == 0;
	}
	return whole;
}

/* Return the text, under either of its keys; NULL: absent. */
static const json_t *tokens_text_of(const json_t *params)
{
	const json_t *text = json_object_get(params, "text");
	return text ? text : json_object_get(params, "input");
}

static json_t *make_tokens(void *context, error *err)
{
	const tokens_request *r = context;
	const json_t *text = tokens_text_of(r->params);
	byte_range all = {0, json_string_length(text)};
	const bool wrap = json_is_true(json_object_get(r->params, "add_special_tokens"));
	encode_options o = {.trusted = &all,
	                    .n_trusted = json_is_true(json_object_get(r->params, "allow_special")),
	                    .begin = wrap,
	                    .end = wrap,
	                    .spans = true};
	token_list tokens;
	if (tokenizer_encode(r->model->tokenizer, json_string_value(text), all.bytes, &o, &tokens, err) != STATUS_OK)
		return NULL;
	const size_t count = tokens.count;
	json_t *numbers = json_array();
	for (size_t i = 0; numbers && i < count; i++)
		json_array_append_new(numbers, json_integer(tokens.ids[i]));
	json_t *pieces = tokens_pieces(r->model->tokenizer, tokens.ids, (int64_t)count);
	if (pieces && !add_places(pieces, r->model->tokenizer, &tokens)) {
		json_decref(pieces);
		pieces = NULL;
	}
	token_list_fini(&tokens);
	return json_pack("{s:s, s:o, s:o, s:I}", "model", r->model->id, "tokens", numbers, "pieces", pieces, "count",
	                 (json_int_t)count);
}

static status tokens_check_tokens(const json_t *tokens, int64_t vocab, error *err)
{
	for (size_t i = 0; i < json_array_size(tokens); i++)
		if (json_integer_value(json_array_get(tokens, i)) >= vocab)
			return error_set(err, STATUS_INVALID, "tokens", "tokens[%zu] is not in the vocabulary of %lld",
			                 i, (long long)vocab);
	return STATUS_OK;
}

static json_t *make_text(void *context, error *err)
{
	const tokens_request *r = context;
	const json_t *tokens = json_object_get(r->params, "tokens");
	size_t n = json_array_size(tokens);
	if (tokens_check_tokens(tokens, r->model->dims.inputs, err) != STATUS_OK)
		return NULL;
	int32_t *ids = memory_new(n, sizeof *ids);
	for (size_t i = 0; ids && i < n; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
	json_t *text = ids ? tokens_join(r->model->tokenizer, ids, (int64_t)n, true) : NULL;
	free(ids);
	return text ? json_pack("{s:s, s:o}", "model", r->model->id, "text", text) : NULL;
}

static void tokens_begin_request(stream *s, json_t *(*make)(void *context, error *err))
{
	error err = ERROR_INIT;
	tokens_request *r = memory_new(1, sizeof *r);
	status result = r ? catalog_open(generation_room_of(s)->catalog,
	                                 json_string_value(json_object_get(s->params, "model")), &r->model, &err)
	                  : STATUS_NOMEM;
	if (result != STATUS_OK) {
		free(r);
		error_set(&err, result, NULL, "%s", status_text(result));
		stream_error(s, &err, NULL);
		return;
	}
	r->params = s->params;
	background_answer(s, &(background_work){make, tokens_release, r});
}

void tokens_encode(stream *s)
{
	if (!tokens_text_of(s->params))
		stream_refuse(s, STATUS_INVALID, "missing_parameter", "text", "'text' or 'input' is required");
	else if (json_object_get(s->params, "text") && json_object_get(s->params, "input"))
		stream_refuse(s, STATUS_INVALID, "invalid_value", "input", "give 'text' or 'input', not both");
	else
		tokens_begin_request(s, make_tokens);
}

void tokens_decode(stream *s)
{
	tokens_begin_request(s, make_text);
}
