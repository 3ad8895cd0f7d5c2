/* The byte tokenizer: three specials, then byte b is id b + 3. It needs no vocabulary
 * file, no training and no unknown token, and every text has exactly one encoding. */
#include "engine/text/tokenizer_kind.h"

#include <string.h>

#include "engine/base/memory.h"

enum { FIRST_BYTE = 3, IDS = FIRST_BYTE + 256 };

static status bytes_open(tokenizer *t, const json_t *spec, const char *folder, error *err)
{
	(void)folder;
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)spec, key, member)
	{
		if (strcmp(key, "type") != 0)
			return error_set(err, STATUS_INVALID, key, "a bytes tokenizer has no option \"%.40s\"", key);
	}
	t->size = IDS;
	t->pad = TOKEN_PAD;
	t->end = TOKEN_END;
	return STATUS_OK;
}

static status bytes_encode(const tokenizer *t, const char *text, size_t bytes, int32_t **ids, size_t *count, error *err)
{
	(void)t;
	*ids = memory_new(bytes, sizeof **ids);
	*count = *ids ? bytes : 0;
	if (!*ids)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for %zu tokens", bytes);
	for (size_t i = 0; i < bytes; i++)
		(*ids)[i] = (unsigned char)text[i] + FIRST_BYTE;
	return STATUS_OK;
}

static size_t bytes_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size)
{
	(void)t;
	if (id < FIRST_BYTE)
		return 0;
	if (size > 0)
		out[0] = (char)(id - FIRST_BYTE);
	return 1;
}

const tokenizer_kind bytes_kind = {
    .name = "bytes",
    .open = bytes_open,
    .encode = bytes_encode,
    .token_bytes = bytes_token_bytes,
};
