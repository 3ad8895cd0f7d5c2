#include "engine/text/huggingface/word_model.h"

#include <string.h>

#include "engine/text/huggingface/reading.h"

status word_model_check(word_model *m, const json_t *json, error *err)
{
	const char *type = "BPE"; /* the oldest files have no type */
	if (json_object_get(json, "type") || !json_object_get(json, "merges"))
		TRY(reading_type(json, "model", &type, err));
	m->type = strcmp(type, "Unigram") == 0     ? WORD_MODEL_UNIGRAM
	          : strcmp(type, "WordPiece") == 0 ? WORD_MODEL_WORDPIECE
	          : strcmp(type, "WordLevel") == 0 ? WORD_MODEL_WORDLEVEL
	                                           : WORD_MODEL_BPE;
	if (m->type == WORD_MODEL_WORDLEVEL)
		return wordlevel_check(json, err);
	if (m->type == WORD_MODEL_UNIGRAM)
		return unigram_check(json, err);
	if (m->type == WORD_MODEL_WORDPIECE)
		return wordpiece_check(json, err);
	if (strcmp(type, "BPE") != 0)
		return reading_refuse(err, "model", "has the type \"%.40s\", which is not supported", type);
	return bpe_check(json, err);
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
	const bool listed = m->type == WORD_MODEL_UNIGRAM;
	*out = listed ? json_object() : json_incref(list);
	status s = listed ? names_of_list(list, *out, err) : STATUS_OK;
	if (s == STATUS_OK)
		return s;
	json_decref(*out);
	*out = NULL;
	return s;
}

status word_model_read(word_model *m, const json_t *json, const vocabulary *names, const bool *special, bool byte_level,
                       error *err)
{
	if (m->type == WORD_MODEL_BPE)
		return bpe_read(&m->bpe, json, names, special, byte_level, err);
	if (m->type == WORD_MODEL_WORDPIECE)
		return wordpiece_read(&m->wordpiece, json, names, special, byte_level, err);
	if (byte_level)
		return reading_refuse(err, "model", "is %s after ByteLevel, which is not supported",
		                      m->type == WORD_MODEL_UNIGRAM ? "Unigram" : "WordLevel");
	if (m->type == WORD_MODEL_WORDLEVEL)
		return wordlevel_read(&m->wordlevel, json, names, special, err);
	return unigram_read(&m->unigram, json, names, special, err);
}

void word_model_fini(word_model *m)
{
	bpe_fini(&m->bpe);
	unigram_fini(&m->unigram);
	wordpiece_fini(&m->wordpiece);
}

int32_t word_model_unknown(const word_model *m)
{
	return m->type == WORD_MODEL_BPE         ? m->bpe.unknown
	       : m->type == WORD_MODEL_UNIGRAM   ? m->unigram.unknown
	       : m->type == WORD_MODEL_WORDPIECE ? m->wordpiece.unknown
	                                         : m->wordlevel.unknown;
}

status word_model_encode(const word_model *m, const char *word, size_t bytes, word_room *r)
{
	return m->type == WORD_MODEL_BPE         ? bpe_encode(&m->bpe, word, bytes, r)
	       : m->type == WORD_MODEL_UNIGRAM   ? unigram_encode(&m->unigram, word, bytes, r)
	       : m->type == WORD_MODEL_WORDPIECE ? wordpiece_encode(&m->wordpiece, word, bytes, r)
	                                         : wordlevel_encode(&m->wordlevel, word, bytes, r);
}

size_t word_model_cut(const word_model *m, const char *word, size_t bytes)
{
	return m->type == WORD_MODEL_BPE ? bpe_cut(&m->bpe, word, bytes) : bytes;
}

bool word_model_cuts_at_mark(const word_model *m)
{
	return m->type == WORD_MODEL_BPE && m->bpe.cut_at_metaspace;
}
