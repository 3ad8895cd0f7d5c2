#include "engine/daemon/generation/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/requests/engine.h"

/* A token's bytes; longer ones (no tokenizer has any) are cut. */
enum { TOKEN_BYTES = 256 };

static size_t token_bytes(const tokenizer *t, int32_t id, char out[TOKEN_BYTES])
{
	size_t n = tokenizer_token_bytes(t, id, out, TOKEN_BYTES);
	return n < TOKEN_BYTES ? n : TOKEN_BYTES;
}

json_t *tokens_pieces(const tokenizer *t, const int32_t *ids, int64_t n)
{
	json_t *pieces = json_array();
	text_stream text = {0};
	json_int_t offset = 0;
	for (int64_t i = 0; pieces && i < n; i++) {
		char bytes[TOKEN_BYTES], characters[3 * (TOKEN_BYTES + 3)];
		size_t length = token_bytes(t, ids[i], bytes);
		size_t used = text_stream_push(&text, bytes, length, i == n - 1, characters);
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
	char bytes[TOKEN_BYTES], characters[3 * (TOKEN_BYTES + 3)];
	text_stream text = {0};
	size_t used = 0;
	for (int64_t i = n > 4 ? n - 4 : 0; i < n; i++)
		used = text_stream_push(&text, bytes, token_bytes(t, ids[i], bytes), false, characters);
	return json_stringn(characters, used);
}

int64_t tokens_advance(const tokenizer *t, text_stream *text, int32_t id)
{
	char bytes[TOKEN_BYTES], characters[3 * (TOKEN_BYTES + 3)];
	return (int64_t)text_stream_push(text, bytes, token_bytes(t, id, bytes), false, characters);
}

int64_t tokens_advance_characters(const tokenizer *t, text_stream *text, int32_t id)
{
	char bytes[TOKEN_BYTES], characters[3 * (TOKEN_BYTES + 3)];
	size_t used = text_stream_push(text, bytes, token_bytes(t, id, bytes), false, characters);
	int64_t n = 0;
	for (size_t i = 0; i < used; i++)
		n += ((unsigned char)characters[i] & 0xc0) != 0x80; /* the first byte of each */
	return n;
}

json_t *tokens_name(const tokenizer *t, int32_t id)
{
	char bytes[TOKEN_BYTES], escaped[sizeof "bytes:" + 4 * TOKEN_BYTES] = "bytes:";
	size_t n = token_bytes(t, id, bytes), used = strlen(escaped);
	json_t *name = memchr(bytes, 0, n) ? NULL : json_stringn(bytes, n); /* NULL: not UTF-8 */
	if (name)
		return name;
	for (size_t i = 0; i < n; i++)
		used += (size_t)sprintf(escaped + used, "\\x%02x", (unsigned char)bytes[i]);
	return json_stringn(escaped, used);
}

/* --- the methods ---------------------------------------------------------------- */

/* A request on its way over the pool. */
typedef struct tokens_request {
	model_entry *model;
	const json_t *params; /* the stream's */
} tokens_request;

static void release(void *context)
{
	tokens_request *r = context;
	catalog_release(r->model);
	free(r);
}

static json_t *make_tokens(void *context, error *err)
{
	const tokens_request *r = context;
	const json_t *text = json_object_get(r->params, "text");
	int32_t *ids;
	size_t count;
	if (tokenizer_encode(r->model->tokenizer, json_string_value(text), json_string_length(text), &ids, &count,
	                     err) != STATUS_OK)
		return NULL;
	json_t *numbers = json_array();
	for (size_t i = 0; numbers && i < count; i++)
		json_array_append_new(numbers, json_integer(ids[i]));
	json_t *pieces = tokens_pieces(r->model->tokenizer, ids, (int64_t)count);
	free(ids);
	return json_pack("{s:s, s:o, s:o, s:I}", "model", r->model->id, "tokens", numbers, "pieces", pieces, "count",
	                 (json_int_t)count);
}

static status check_tokens(const json_t *tokens, int64_t vocab, error *err)
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
	size_t n = json_array_size(tokens), used = 0, capacity = 0;
	text_stream characters = {0};
	char *text = NULL;
	if (check_tokens(tokens, r->model->dims.inputs, err) != STATUS_OK)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		char bytes[TOKEN_BYTES];
		size_t length =
		    token_bytes(r->model->tokenizer, (int32_t)json_integer_value(json_array_get(tokens, i)), bytes);
		if (capacity - used < 3 * (TOKEN_BYTES + 3)) {
			capacity = 2 * capacity + 4 * (TOKEN_BYTES + 3);
			char *more = realloc(text, capacity);
			if (!more) {
				free(text);
				return NULL;
			}
			text = more;
		}
		used += text_stream_push(&characters, bytes, length, i == n - 1, text + used);
	}
	json_t *answer = json_pack("{s:s, s:s%}", "model", r->model->id, "text", text ? text : "", used);
	free(text);
	return answer;
}

static void begin(stream *s, json_t *(*make)(void *context, error *err))
{
	error err = ERROR_INIT;
	tokens_request *r = memory_new(1, sizeof *r);
	status result = r ? catalog_open(s->engine->catalog, json_string_value(json_object_get(s->params, "model")),
	                                 &r->model, &err)
	                  : STATUS_NOMEM;
	if (result != STATUS_OK) {
		free(r);
		error_set(&err, result, NULL, "%s", status_text(result));
		stream_error(s, &err, NULL);
		return;
	}
	r->params = s->params;
	background_answer(s, &(background_work){make, release, r});
}

void tokens_encode(stream *s)
{
	begin(s, make_tokens);
}

void tokens_decode(stream *s)
{
	begin(s, make_text);
}
