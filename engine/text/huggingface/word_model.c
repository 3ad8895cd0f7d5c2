#include "engine/text/huggingface/word_model.h"

#include <string.h>

#include "engine/text/huggingface/reading.h"
#include "engine/text/space_mark.h"

static const word_kind *const kinds[] = {&bpe_kind, &unigram_kind, &wordpiece_kind, &wordlevel_kind};

status word_model_check(word_model *m, const json_t *json, error *err)
{
	const char *type = bpe_kind.type; /* the oldest files have no type */
	if (json_object_get(json, "type") || !json_object_get(json, "merges"))
		TRY(reading_type(json, "model", &type, err));
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i]->type, type) == 0)
			m->kind = kinds[i];
	return m->kind ? m->kind->check(json, err)
	               : reading_refuse(err, "model", "has the type \"%.40s\", which is not supported", type);
}

/* Unigram's list is [[name, score], …], which is checked: the place of a token is its id. */
static status names_of_list(const json_t *list, json_t *out, error *err)
{
	size_t i;
	json_t *entry;
	json_array_foreach(list, i, entry)
	{
		const char *name = json_string_value(json_array_get(entry, 0));
		if (json_object_get(out, name))
			return reading_blame(err, "model.vocab", "has \"%.40s\" twice", name);
		if (json_object_set_new_nocheck(out, name, json_integer((json_int_t)i)) != 0)
			return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	return STATUS_OK;
}

status word_model_names(const word_model *m, const json_t *json, json_t **out, error *err)
{
	json_t *list = json_object_get(json, "vocab");
	*out = m->kind->scored ? json_object() : json_incref(list);
	status s = m->kind->scored ? names_of_list(list, *out, err) : STATUS_OK;
	if (s == STATUS_OK)
		return s;
	json_decref(*out);
	*out = NULL;
	return s;
}

void word_model_fini(word_model *m)
{
	if (m->kind && m->kind->fini)
		m->kind->fini(m);
}

size_t word_model_cut(const word_model *m, const char *word, size_t bytes)
{
	if (m->kind != &bpe_kind || !m->bpe.cut_at_metaspace)
		return bytes;
	size_t at = 0;
	while (at + SPACE_MARK_BYTES <= bytes && memcmp(word + at, SPACE_MARK, SPACE_MARK_BYTES) == 0)
		at += SPACE_MARK_BYTES;
	const char *found = at < bytes ? memmem(word + at, bytes - at, SPACE_MARK, SPACE_MARK_BYTES) : NULL;
	return found ? (size_t)(found - word) : bytes;
}
