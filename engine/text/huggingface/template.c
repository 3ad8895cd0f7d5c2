#include "engine/text/huggingface/template.h"

#include <string.h>

#include "engine/text/huggingface/reading.h"

typedef struct reader {
	text_template *t;
	int32_t size;
} reader;

static status add_id(reader *r, const json_t *id, bool behind, int at, const char *path, error *err)
{
	int32_t *ids = behind ? r->t->behind : r->t->before;
	int *n = behind ? &r->t->n_behind : &r->t->n_before;
	if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->size)
		return reading_blame(err, path, "has a token that is not in the vocabulary");
	if (*n == TEMPLATE_MAX_IDS)
		return reading_refuse(err, path, "adds more than %d tokens", TEMPLATE_MAX_IDS);
	memmove(ids + at + 1, ids + at, (size_t)(*n - at) * sizeof *ids);
	ids[at] = (int32_t)json_integer_value(id);
	++*n;
	return STATUS_OK;
}

/* A processor behind another one wraps what that one has made: what it puts before a text comes first. */
static status read_single(reader *r, const json_t *single, const json_t *specials, const char *path, error *err)
{
	bool behind = false;
	int before = 0;
	for (size_t i = 0; i < json_array_size(single); i++) {
		const json_t *item = json_array_get(single, i);
		const json_t *sequence = json_object_get(item, "Sequence"),
		             *special = json_object_get(item, "SpecialToken");
		if (sequence && behind)
			return reading_refuse(err, path, "has its text twice, which is not supported");
		if (!sequence && !special)
			return reading_blame(err, path, "has an item in \"single\" that is neither text nor token");
		behind |= sequence != NULL;
		if (sequence)
			continue;
		const char *name = json_string_value(json_object_get(special, "id"));
		const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
		if (json_array_size(ids) == 0)
			return reading_blame(err, path, "has no ids for one of its tokens");
		for (size_t k = 0; k < json_array_size(ids); k++)
			TRY(add_id(r, json_array_get(ids, k), behind, behind ? r->t->n_behind : before++, path, err));
	}
	return behind ? STATUS_OK : reading_blame(err, path, "has no text in \"single\"");
}

static status read_roberta(reader *r, const json_t *part, const char *path, error *err)
{
	TRY(reading_keys(part, path,
	                 (const char *const[]){"type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL}, err));
	TRY(add_id(r, json_array_get(json_object_get(part, "cls"), 1), false, 0, path, err));
	return add_id(r, json_array_get(json_object_get(part, "sep"), 1), true, r->t->n_behind, path, err);
}

static status read_step(void *context, const json_t *part, const char *type, const char *path, error *err)
{
	reader *r = context;
	if (strcmp(type, "ByteLevel") == 0) /* concerns offsets alone */
		return reading_keys(
		    part, path, (const char *const[]){"type", "add_prefix_space", "trim_offsets", "use_regex", NULL},
		    err);
	if (strcmp(type, "TemplateProcessing") == 0) {
		TRY(reading_keys(part, path, (const char *const[]){"type", "single", "pair", "special_tokens", NULL},
		                 err));
		return read_single(r, json_object_get(part, "single"), json_object_get(part, "special_tokens"), path,
		                   err);
	}
	if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
		return read_roberta(r, part, path, err);
	return reading_refuse(err, path, "has the type \"%.40s\", which is not supported", type);
}

status template_read(text_template *t, const json_t *part, int32_t size, error *err)
{
	*t = (text_template){0};
	return reading_sequence(part, "post_processor", "processors", read_step, &(reader){t, size}, err);
}
