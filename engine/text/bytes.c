/* The byte tokenizer: three specials, then byte b is id b + 3. It needs no vocabulary
 * file, no training and no unknown token, and every text has exactly one encoding. */
#include "engine/text/tokenizer_kind.h"

#include <string.h>

#include "engine/base/memory.h"

enum { PAD, END, UNKNOWN, FIRST_BYTE, IDS = FIRST_BYTE + 256 };

static status bytes_open(tokenizer *t, const json_t *json, error *err)
{
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)json, key, member)
	{
		if (strcmp(key, "type") != 0)
			return error_set(err, STATUS_INVALID, key, "a bytes tokenizer has no option \"%.40s\"", key);
	}
	t->size = IDS;
	t->pad = PAD;
	t->end = END;
	t->unknown = UNKNOWN;
	t->longest = 1;
	return STATUS_OK;
}

static status bytes_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                           error *err)
{
	(void)t;
	out->ids = memory_new(bytes, sizeof *out->ids);
	out->spans = o->spans ? memory_new(bytes, sizeof *out->spans) : NULL;
	if (!out->ids || (o->spans && !out->spans))
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for %zu tokens", bytes);
	for (size_t i = 0; i < bytes; i++)
		out->ids[i] = (unsigned char)text[i] + FIRST_BYTE;
	for (size_t i = 0; i < bytes && o->spans; i++)
		out->spans[i] = (byte_range){i, 1};
	out->count = bytes;
	return STATUS_OK;
}

static size_t bytes_token_bytes(const tokenizer *t, int32_t id, bool first, char *out, size_t size)
{
	(void)t;
	(void)first;
	if (id < FIRST_BYTE)
		return 0;
	if (size > 0)
		out[0] = (char)(id - FIRST_BYTE);
	return 1;
}

static size_t bytes_cut(const tokenizer *t, const char *text, size_t bytes)
{
	(void)t, (void)text;
	return bytes;
}

const tokenizer_kind bytes_kind = {
    .name = "bytes",
    .open = bytes_open,
    .encode = bytes_encode,
    .token_bytes = bytes_token_bytes,
    .cut = bytes_cut,
};
