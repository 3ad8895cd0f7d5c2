#include "engine/text/sequence.h"

#include <stdlib.h>
#include <string.h>

/* Keep of two texts of n[0] and n[1] tokens what fits into `room`. */
static void shorten(size_t n[2], size_t room)
{
	size_t half = room / 2;
	if (n[0] + n[1] <= room)
		return;
	if (n[1] <= half)
		n[0] = room - n[1];
	else if (n[0] <= room - half)
		n[1] = room - n[0];
	else
		n[0] = room - half, n[1] = half;
}

static int32_t *sequence_put(int32_t *at, const int32_t *ids, size_t n)
{
	if (n > 0)
		memcpy(at, ids, n * sizeof *ids);
	return at + n;
}

status sequence_encode(const tokenizer *t, const char *text, size_t bytes, const char *second, size_t second_bytes,
                       int64_t length, int32_t *ids, int64_t *count, error *err)
{
	token_list tokens[2] = {{0}, {0}};
	const tokenizer_frame f = tokenizer_frame_of(t, second);
	const int64_t around = f.n_before + f.n_between + f.n_behind;
	*count = 0;
	if (around >= length)
		return error_set(err, STATUS_INVALID, "sequence_length",
		                 "%d tokens stand around the texts, so there must be room for more", (int)around);
	status s = tokenizer_encode(t, text, bytes, NULL, &tokens[0], err);
	if (s == STATUS_OK && second)
		s = tokenizer_encode(t, second, second_bytes, NULL, &tokens[1], err);
	if (s == STATUS_OK) {
		size_t n[2] = {tokens[0].count, tokens[1].count};
		shorten(n, (size_t)(length - around));
		int32_t *at = sequence_put(ids, f.before, (size_t)f.n_before);
		at = sequence_put(at, tokens[0].ids, n[0]);
		at = sequence_put(at, f.between, (size_t)f.n_between);
		at = sequence_put(at, tokens[1].ids, n[1]);
		*count = sequence_put(at, f.behind, (size_t)f.n_behind) - ids;
	}
	token_list_fini(&tokens[0]);
	token_list_fini(&tokens[1]);
	return s;
}

/* tokens: those of a text and then special ones, the last `suffix` of which are always kept. */
static void sequence_take(const token_list *tokens, size_t suffix, int64_t length, int32_t *ids, int64_t *count)
{
	size_t kept = tokens->count <= (size_t)length ? tokens->count : (size_t)length;
	*count = (int64_t)kept;
	if (kept > suffix)
		memcpy(ids, tokens->ids, (kept - suffix) * sizeof *ids);
	if (suffix > 0)
		memcpy(ids + kept - suffix, tokens->ids + tokens->count - suffix, suffix * sizeof *ids);
}

status sequence_encode_source(const tokenizer *t, const char *text, size_t bytes, int64_t length, int32_t *ids,
                              int64_t *count, error *err)
{
	token_list tokens = {0}, behind = {0};
	*count = 0;
	status s = tokenizer_encode(t, text, bytes, &(encode_options){.begin = true, .end = true}, &tokens, err);
	if (s == STATUS_OK && tokens.count > (size_t)length)
		s = tokenizer_encode(t, "", 0, &(encode_options){.end = true}, &behind, err);
	if (s == STATUS_OK && behind.count > (size_t)length)
		s = error_set(err, STATUS_INVALID, "source_length", "must be at least %zu", behind.count);
	if (s == STATUS_OK)
		sequence_take(&tokens, behind.count, length, ids, count);
	token_list_fini(&tokens);
	token_list_fini(&behind);
	return s;
}

status sequence_encode_target(const tokenizer *t, const char *text, size_t bytes, int64_t length, int32_t *ids,
                              int64_t *count, error *err)
{
	token_list tokens = {0};
	*count = 0;
	TRY(tokenizer_encode(t, text, bytes, NULL, &tokens, err));
	sequence_take(&tokens, 0, length - 1, ids, count);
	ids[(*count)++] = tokenizer_end(t);
	token_list_fini(&tokens);
	return STATUS_OK;
}
