#include "engine/text/huggingface/template.h"

#include <string.h>

#include "engine/text/huggingface/reading.h"

typedef struct reader {
	text_template *t;
	int32_t size;
} reader;

/* Add an id to a part of the frame, at a place in it. */
static status add_id(const reader *r, tokenizer_frame *f, const json_t *id, int part, int at, const char *path,
                     error *err)
{
	int32_t *const parts[] = {f->before, f->between, f->behind}, *ids = parts[part];
	int *const counts[] = {&f->n_before, &f->n_between, &f->n_behind}, *n = counts[part];
	if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->size)
		return reading_blame(err, path, "has a token that is not in the vocabulary");
	if (*n == TOKENIZER_FRAME_IDS)
		return reading_refuse(err, path, "adds more than %d tokens", TOKENIZER_FRAME_IDS);
	memmove(ids + at + 1, ids + at, (size_t)(*n - at) * sizeof *ids);
	ids[at] = (int32_t)json_integer_value(id);
	++*n;
	return STATUS_OK;
}

/* "single" or "pair", a list of `texts` texts and tokens. A later processor wraps the result of an earlier one: the
 * tokens that it adds before a text come first. */
static status read_list(const reader *r, tokenizer_frame *f, const json_t *part, const char *key, int texts,
                        const char *path, error *err)
{
	const json_t *list = json_object_get(part, key), *specials = json_object_get(part, "special_tokens");
	static const char *const ids_of[] = {"A", "B"};
	int seen = 0, before = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *item = json_array_get(list, i);
		const json_t *sequence = json_object_get(item, "Sequence"),
		             *special = json_object_get(item, "SpecialToken");
		if (!sequence && !special)
			return reading_blame(err, path, "has an item in \"%s\" that is neither text nor token", key);
		if (sequence) {
			const char *id = json_string_value(json_object_get(sequence, "id"));
			if (seen == texts || (texts > 1 && (!id || strcmp(id, ids_of[seen]) != 0)))
				return reading_refuse(err, path, "has its texts in \"%s\" %s, which is not supported",
				                      key, seen == texts ? "twice" : "in another order");
			seen++;
			continue;
		}
		const char *name = json_string_value(json_object_get(special, "id"));
		const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
		const int where = seen == 0 ? 0 : seen < texts ? 1 : 2;
		if (json_array_size(ids) == 0)
			return reading_blame(err, path, "has no ids for one of its tokens");
		for (size_t k = 0; k < json_array_size(ids); k++) {
			const int at = where == 0 ? before++ : where == 1 ? f->n_between : f->n_behind;
			TRY(add_id(r, f, json_array_get(ids, k), where, at, path, err));
		}
	}
	return seen == texts ? STATUS_OK : reading_blame(err, path, "lacks a text in \"%s\"", key);
}

/* RoBERTa ends the first text of a pair and begins the second with a separator, BERT has one for both. */
static status read_classes(const reader *r, const json_t *part, int separators, const char *path, error *err)
{
	TRY(reading_keys(part, path,
	                 (const char *const[]){"type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL}, err));
	const json_t *begin = json_array_get(json_object_get(part, "cls"), 1),
	             *end = json_array_get(json_object_get(part, "sep"), 1);
	tokenizer_frame *const frames[] = {&r->t->single, &r->t->pair};
	for (int i = 0; i < 2; i++) {
		TRY(add_id(r, frames[i], begin, 0, 0, path, err));
		for (int k = 0; k < separators && i == 1; k++)
			TRY(add_id(r, frames[i], end, 1, frames[i]->n_between, path, err));
		TRY(add_id(r, frames[i], end, 2, frames[i]->n_behind, path, err));
	}
	return STATUS_OK;
}

static status template_read_step(void *context, const json_t *part, const char *type, const char *path, error *err)
{
	reader *r = context;
	if (strcmp(type, "ByteLevel") == 0) /* concerns offsets alone */
		return reading_keys(
		    part, path, (const char *const[]){"type", "add_prefix_space", "trim_offsets", "use_regex", NULL},
		    err);
	if (strcmp(type, "TemplateProcessing") == 0) {
		TRY(reading_keys(part, path, (const char *const[]){"type", "single", "pair", "special_tokens", NULL},
		                 err));
		TRY(read_list(r, &r->t->single, part, "single", 1, path, err));
		return json_array_size(json_object_get(part, "pair")) > 0
		           ? read_list(r, &r->t->pair, part, "pair", 2, path, err)
		           : STATUS_OK;
	}
	if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
		return read_classes(r, part, type[0] == 'R' ? 2 : 1, path, err);
	return reading_refuse(err, path, "has the type \"%.40s\", which is not supported", type);
}

status template_read(text_template *t, const json_t *part, int32_t size, error *err)
{
	*t = (text_template){0};
	return reading_sequence(part, "post_processor", "processors", template_read_step, &(reader){t, size}, err);
}
