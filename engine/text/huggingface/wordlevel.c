#include "engine/text/huggingface/wordlevel.h"

#include <string.h>

#include "engine/text/huggingface/reading.h"

status wordlevel_check(const json_t *model, error *err)
{
	TRY(reading_keys(model, "model", (const char *const[]){"type", "unk_token", "vocab", NULL}, err));
	return json_is_object(json_object_get(model, "vocab"))
	           ? STATUS_OK
	           : reading_blame(err, "model", "needs an object \"vocab\"");
}

status wordlevel_read(wordlevel *w, const json_t *model, const vocabulary *names, const bool *special, error *err)
{
	const char *unknown;
	*w = (wordlevel){.names = names, .special = special};
	TRY(reading_string(model, "model", "unk_token", "<unk>", &unknown, err));
	w->unknown = vocabulary_find(names, unknown, strlen(unknown));
	return w->unknown >= 0 ? STATUS_OK
	                       : reading_blame(err, "model", "has an unk_token that is not in the vocabulary");
}

status wordlevel_encode(const wordlevel *w, const char *word, size_t bytes, word_room *r)
{
	if (bytes >= UINT32_MAX)
		return STATUS_TOO_LARGE;
	TRY(word_room_reserve(r, 1));
	const int32_t id = vocabulary_find(w->names, word, bytes);
	r->count = 0;
	word_room_add(r, id < 0 || w->special[id] ? w->unknown : id, (uint32_t)bytes);
	return STATUS_OK;
}
