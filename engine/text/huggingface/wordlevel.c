/* The model "WordLevel": a word is its token, or the unknown one. Immutable, thread-safe. */
#include <string.h>

#include "engine/text/huggingface/reading.h"
#include "engine/text/huggingface/word_model.h"

static status wordlevel_check(const json_t *model, error *err)
{
	TRY(reading_keys(model, "model", (const char *const[]){"type", "unk_token", "vocab", NULL}, err));
	return json_is_object(json_object_get(model, "vocab"))
	           ? STATUS_OK
	           : reading_blame(err, "model", "needs an object \"vocab\"");
}

static status wordlevel_read(word_model *m, const json_t *model, const vocabulary *names, const bool *special,
                             bool byte_level, error *err)
{
	wordlevel *w = &m->wordlevel;
	const char *unknown;
	if (byte_level)
		return reading_refuse(err, "model", "is WordLevel after ByteLevel, which is not supported");
	*w = (wordlevel){.names = names, .special = special};
	TRY(reading_string(model, "model", "unk_token", "<unk>", &unknown, err));
	m->unknown = w->unknown = vocabulary_find(names, unknown, strlen(unknown));
	return w->unknown >= 0 ? STATUS_OK
	                       : reading_blame(err, "model", "has an unk_token that is not in the vocabulary");
}

static status wordlevel_encode(const word_model *m, const char *word, size_t bytes, word_room *r)
{
	const wordlevel *w = &m->wordlevel;
	if (bytes >= UINT32_MAX)
		return STATUS_TOO_LARGE;
	TRY(word_room_reserve(r, 1));
	const int32_t id = vocabulary_find(w->names, word, bytes);
	r->count = 0;
	word_room_add(r, id < 0 || w->special[id] ? w->unknown : id, (uint32_t)bytes);
	return STATUS_OK;
}

const word_kind wordlevel_kind = {
    .type = "WordLevel", .check = wordlevel_check, .read = wordlevel_read, .encode = wordlevel_encode};
