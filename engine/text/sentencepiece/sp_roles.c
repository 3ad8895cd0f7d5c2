#include "engine/text/sentencepiece/sp_roles.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/tokenizer_kind.h"

enum { MAX_ADDED = 1 << 16, T5_EXTRA_IDS = 100 };

/* --- tokens behind the pieces ------------------------------------------------------------------- */

static status add_token(sp_roles *r, const sp_model *m, int64_t id, const char *name, error *err)
{
	int64_t at = id - m->size;
	if (strlen(name) > TOKEN_MAX_BYTES)
		return error_set(err, STATUS_INVALID, "added_tokens_decoder", "the name of %lld has more than %d bytes",
		                 (long long)id, TOKEN_MAX_BYTES);
	if (at >= MAX_ADDED)
		return error_set(err, STATUS_INVALID, "added_tokens_decoder", "the id %lld is far behind the %d pieces",
		                 (long long)id, (int)m->size);
	if (at >= r->n_added) {
		char **added = realloc(r->added, (size_t)(at + 1) * sizeof *added);
		if (!added)
			return STATUS_NOMEM;
		memset(added + r->n_added, 0, (size_t)(at + 1 - r->n_added) * sizeof *added);
		r->added = added;
		r->n_added = (int32_t)(at + 1);
	}
	free(r->added[at]);
	r->added[at] = strdup(name);
	return r->added[at] ? STATUS_OK : STATUS_NOMEM;
}

/* A token's name: a string, or an object with "content". */
static const char *name_of(const json_t *token)
{
	return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* {"32000": {"content": "<pad>", "special": true}, …}; ids of pieces say nothing new. */
static status read_added(sp_roles *r, const sp_model *m, const json_t *config, error *err)
{
	const char *key;
	json_t *token;
	json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, token)
	{
		char *end;
		long long id = strtoll(key, &end, 10);
		const char *name = name_of(token);
		if (*end || end == key || id < 0 || !name || !name[0])
			return error_set(err, STATUS_INVALID, "added_tokens_decoder",
			                 "\"%.40s\" is not an id with its \"content\"", key);
		if (id < m->size)
			continue;
		if (json_is_false(json_object_get(token, "special")))
			return error_set(err, STATUS_UNSUPPORTED, "added_tokens_decoder",
			                 "the added token \"%.40s\" is not special; that is not supported", name);
		TRY(add_token(r, m, id, name, err));
	}
	return STATUS_OK;
}

/* added_tokens.json: {"<x>": 32000, …}, unless tokenizer_config.json has them. */
static status read_added_file(sp_roles *r, const sp_model *m, const tokenizer *t, error *err)
{
	json_t *file, *id;
	const char *name;
	if (r->n_added > 0)
		return STATUS_OK;
	TRY(tokenizer_file_json(t, "added_tokens.json", &file, err));
	status s = STATUS_OK;
	json_object_foreach(file, name, id)
	{
		if (s != STATUS_OK)
			break;
		if (!json_is_integer(id) || json_integer_value(id) < 0 || !name[0])
			s = error_set(err, STATUS_INVALID, NULL, "added_tokens.json: \"%.40s\" has no id", name);
		else if (json_integer_value(id) >= m->size)
			s = add_token(r, m, json_integer_value(id), name, err);
	}
	json_decref(file);
	return s;
}

static bool is_class(const json_t *config, const char *name)
{
	const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
	return class && strncmp(class, name, strlen(name)) == 0 &&
	       (strcmp(class + strlen(name), "Tokenizer") == 0 || strcmp(class + strlen(name), "TokenizerFast") == 0);
}

/* Number of extra ids: as declared, else as many as are named, else T5's number. */
static int64_t count_extra(const json_t *config)
{
	const json_t *said = json_object_get(config, "extra_ids"),
	             *names = json_object_get(config, "additional_special_tokens");
	size_t i;
	json_t *token;
	int64_t n = 0;
	json_array_foreach(names, i, token)
	{
		const char *name = name_of(token);
		n += name && strncmp(name, "<extra_id_", 10) == 0;
	}
	if (json_is_integer(said))
		return json_integer_value(said);
	return n == 0 && !names && is_class(config, "T5") ? T5_EXTRA_IDS : n;
}

static status add_extra(sp_roles *r, const sp_model *m, const json_t *config, error *err)
{
	int64_t n = count_extra(config);
	if (n < 0 || n > MAX_ADDED)
		return error_set(err, STATUS_INVALID, "extra_ids", "must be from 0 to %d", MAX_ADDED);
	if (r->n_added > 0) /* they are among the added tokens */
		return STATUS_OK;
	for (int64_t i = 0; i < n; i++) {
		char name[32];
		snprintf(name, sizeof name, "<extra_id_%lld>", (long long)(n - 1 - i));
		TRY(add_token(r, m, m->size + i, name, err));
	}
	return STATUS_OK;
}

/* --- roles ---------------------------------------------------------------------------------------- */

/* -1: there is none of that name */
static int32_t sp_roles_find(const sp_roles *r, const sp_model *m, const char *name)
{
	size_t bytes = strlen(name);
	for (int32_t i = 0; i < r->n_added; i++)
		if (r->added[i] && strcmp(r->added[i], name) == 0)
			return m->size + i;
	for (int32_t i = 0; i < m->size; i++)
		if (m->pieces[i].bytes == bytes && memcmp(m->pieces[i].text, name, bytes) == 0)
			return i;
	return -1;
}

static status read_role(const sp_roles *r, const sp_model *m, const json_t *config, const json_t *map, const char *key,
                        int32_t *id, error *err)
{
	const char *name = name_of(json_object_get(config, key));
	if (!name)
		name = name_of(json_object_get(map, key));
	if (!name)
		return STATUS_OK;
	*id = sp_roles_find(r, m, name);
	return *id >= 0 ? STATUS_OK
	                : error_set(err, STATUS_INVALID, key, "there is no token \"%.40s\" to be the %s", name, key);
}

/* The token that is named, or else a well-known name; only one that no plain text gives can be it. */
static int32_t find_mask(const sp_roles *r, const sp_model *m, const json_t *config, const json_t *map)
{
	const char *said = name_of(json_object_get(config, "mask_token"));
	const char *const names[] = {said ? said : name_of(json_object_get(map, "mask_token")), "[MASK]", "<mask>"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		int32_t id = names[i] ? sp_roles_find(r, m, names[i]) : -1;
		if (id >= m->size || (id >= 0 && m->pieces[id].type == SP_CONTROL))
			return id;
	}
	return -1;
}

static bool flag(const json_t *config, const char *key, bool usual)
{
	const json_t *value = json_object_get(config, key);
	return json_is_boolean(value) ? json_is_true(value) : usual;
}

/* Classes that give the pieces other ids than the model does. Without a class the type of model tells. */
static status check_class(const json_t *config, const char *model_type, error *err)
{
	static const char *const types[] = {"xlm-roberta", "xlm-roberta-xl", "camembert",      "mbart",
	                                    "xglm",        "plbart",         "pegasus",        "marian",
	                                    "m2m_100",     "nllb-moe",       "speech_to_text", "deberta-v2"};
	for (size_t i = 0; i < sizeof types / sizeof *types && !json_object_get(config, "tokenizer_class"); i++)
		if (strcmp(types[i], model_type) == 0)
			return error_set(
			    err, STATUS_UNSUPPORTED, "tokenizer",
			    "models of the type %s give the pieces of their SentencePiece model other ids; "
			    "give a tokenizer.json instead",
			    model_type);
	static const char *const moved[] = {"XLMRoberta", "Camembert",   "MBart",    "MBart50", "Nllb",
	                                    "XGLM",       "PLBart",      "Barthez",  "Pegasus", "Marian",
	                                    "M2M100",     "Speech2Text", "DebertaV2"};
	for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
		if (is_class(config, moved[i]))
			return error_set(err, STATUS_UNSUPPORTED, "tokenizer_class",
			                 "%sTokenizer gives the pieces of its SentencePiece model other ids; "
			                 "give a tokenizer.json instead",
			                 moved[i]);
	return STATUS_OK;
}

static status index_specials(sp_roles *r, const sp_model *m, error *err)
{
	trie_string *names = memory_new((size_t)(m->size + r->n_added), sizeof *names);
	size_t n = 0, same;
	if (!names)
		return STATUS_NOMEM;
	for (int32_t i = 0; i < m->size; i++)
		if (m->pieces[i].type == SP_CONTROL)
			names[n++] = (trie_string){m->pieces[i].text, m->pieces[i].bytes, i, 0};
	for (int32_t i = 0; i < r->n_added; i++)
		if (r->added[i])
			names[n++] = (trie_string){r->added[i], (uint32_t)strlen(r->added[i]), m->size + i, 0};
	status s = trie_build(&r->specials, names, n, &same);
	if (s == STATUS_CONFLICT)
		s = error_set(err, STATUS_INVALID, "added_tokens_decoder", "the tokens %d and %d have the same name",
		              (int)names[same - 1].value, (int)names[same].value);
	free(names);
	return s;
}

static status read_all(sp_roles *r, const sp_model *m, const tokenizer *t, const json_t *config, const json_t *map,
                       error *err)
{
	TRY(check_class(config, t->model_type, err));
	TRY(read_added(r, m, config, err));
	TRY(read_added_file(r, m, t, err));
	TRY(add_extra(r, m, config, err));
	TRY(read_role(r, m, config, map, "bos_token", &r->begin, err));
	TRY(read_role(r, m, config, map, "eos_token", &r->end, err));
	TRY(read_role(r, m, config, map, "unk_token", &r->unknown, err));
	TRY(read_role(r, m, config, map, "pad_token", &r->pad, err));
	r->mask = find_mask(r, m, config, map);
	r->wraps_begin = flag(config, "add_bos_token", is_class(config, "Llama") || is_class(config, "Gemma"));
	r->wraps_end = flag(config, "add_eos_token", is_class(config, "T5"));
	return index_specials(r, m, err);
}

status sp_roles_read(sp_roles *r, const sp_model *m, const tokenizer *t, error *err)
{
	json_t *config, *map = NULL;
	*r = (sp_roles){.begin = m->begin, .end = m->end, .pad = m->pad, .unknown = m->unknown};
	TRY(tokenizer_file_json(t, "tokenizer_config.json", &config, err));
	status s = tokenizer_file_json(t, "special_tokens_map.json", &map, err);
	if (s == STATUS_OK)
		s = read_all(r, m, t, config, map, err);
	json_decref(map);
	json_decref(config);
	return s;
}

void sp_roles_fini(sp_roles *r)
{
	for (int32_t i = 0; i < r->n_added; i++)
		free(r->added[i]);
	free(r->added);
	trie_fini(&r->specials);
	*r = (sp_roles){0};
}
