/* The list of types, and what all of them share: tokenizer.json and the check against
 * a model's vocabulary. */
#include "engine/text/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/text/tokenizer_kind.h"

enum { SPEC_MAX_BYTES = 64 << 20 };

static const tokenizer_kind *const kinds[] = {&bytes_kind};

static const tokenizer_kind *find_kind(const char *name)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (strcmp(kinds[i]->name, name) == 0)
			return kinds[i];
	return NULL;
}

static status open_kind(tokenizer **out, const tokenizer_kind *kind, const json_t *spec, const char *folder, error *err)
{
	*out = NULL;
	tokenizer *t = memory_new(1, sizeof *t);
	if (!t)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	t->kind = kind;
	status s = kind->open(t, spec, folder, err);
	if (s != STATUS_OK) {
		tokenizer_free(t);
		return s;
	}
	*out = t;
	return STATUS_OK;
}

static status open_spec(tokenizer **out, const json_t *spec, const char *folder, error *err)
{
	*out = NULL;
	if (!spec)
		return open_kind(out, &bytes_kind, NULL, folder, err);
	const char *name = json_string_value(json_object_get(spec, "type"));
	if (!name)
		return error_set(err, STATUS_INVALID, "type", "a tokenizer is an object with a string \"type\"");
	const tokenizer_kind *kind = find_kind(name);
	if (!kind)
		return error_set(err, STATUS_UNSUPPORTED, "type", "there is no tokenizer of type \"%.40s\"", name);
	return open_kind(out, kind, spec, folder, err);
}

status tokenizer_new(tokenizer **out, const json_t *spec, error *err)
{
	return open_spec(out, spec, NULL, err);
}

static status parse_spec(json_t **spec, const char *text, size_t bytes, error *err)
{
	json_error_t where;
	*spec = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (*spec)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, NULL, "tokenizer.json, line %d: %s", where.line, where.text);
}

/* The parsed tokenizer.json of a folder; *spec is NULL when there is none. */
static status read_spec(json_t **spec, const char *folder, error *err)
{
	manifest *about;
	char *text;
	size_t bytes;
	error why = ERROR_INIT;
	*spec = NULL;
	TRY(manifest_open_folder(&about, folder, err));
	status s = manifest_read(about, folder, "tokenizer.json", SPEC_MAX_BYTES, &text, &bytes, &why);
	manifest_free(about);
	if (s == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", error_message(&why));
	s = parse_spec(spec, text, bytes, err);
	free(text);
	return s;
}

status tokenizer_open(tokenizer **out, const char *folder, int64_t vocab, error *err)
{
	*out = NULL;
	json_t *spec;
	TRY(read_spec(&spec, folder, err));
	status s = open_spec(out, spec, folder, err);
	json_decref(spec);
	TRY(s);
	if ((*out)->size > vocab) {
		s = error_set(err, STATUS_INVALID, "vocab_size", "the %s tokenizer has %d ids, the model only %lld",
		              (*out)->kind->name, (int)(*out)->size, (long long)vocab);
		tokenizer_free(*out);
		*out = NULL;
	}
	return s;
}

status tokenizer_save(const tokenizer *t, const char *folder, error *err)
{
	char path[PATH_MAX];
	if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", folder) >= sizeof path)
		return error_set(err, STATUS_INVALID, NULL, "path too long");
	status s = STATUS_OK;
	char *text = NULL;
	json_t *spec = json_pack("{s:s}", "type", t->kind->name);
	if (spec && t->kind->save)
		s = t->kind->save(t, spec, folder, err);
	if (spec && s == STATUS_OK)
		text = json_text(spec, JSON_INDENT(2));
	if (text)
		s = file_write(path, &(file_part){text, strlen(text)}, 1, err);
	else if (s == STATUS_OK)
		s = error_set(err, STATUS_NOMEM, NULL, "out of memory");
	free(text);
	json_decref(spec);
	return s;
}

void tokenizer_free(tokenizer *t)
{
	if (t && t->kind->close)
		t->kind->close(t);
	free(t);
}

const char *tokenizer_type(const tokenizer *t)
{
	return t->kind->name;
}

int32_t tokenizer_size(const tokenizer *t)
{
	return t->size;
}

int32_t tokenizer_pad(const tokenizer *t)
{
	return t->pad;
}

int32_t tokenizer_end(const tokenizer *t)
{
	return t->end;
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, int32_t **ids, size_t *count, error *err)
{
	*ids = NULL;
	*count = 0;
	return t->kind->encode(t, text, bytes, ids, count, err);
}

size_t tokenizer_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size)
{
	return id >= 0 && id < t->size ? t->kind->token_bytes(t, id, out, size) : 0;
}
