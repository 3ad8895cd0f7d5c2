#include "engine/daemon/jobs/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/text/labelled.h"

static status open_tokenizer(corpus *c, error *err)
{
	status s = c->folder[0] ? tokenizer_open(&c->texts.tokenizer, c->folder, c->vocab, err)
	                        : tokenizer_new(&c->texts.tokenizer, c->spec, err);
	if (s != STATUS_OK) {
		error_prefix(err, "additive.tokenizer");
		return s;
	}
	if (tokenizer_size(c->texts.tokenizer) > c->vocab)
		return error_set(err, STATUS_INVALID, "additive.config.vocab_size",
		                 "the tokenizer has %d ids, the model only %lld",
		                 (int)tokenizer_size(c->texts.tokenizer), (long long)c->vocab);
	return STATUS_OK;
}

/* A dataset's complaint is about the file, unless it is about how it is cut. */
static status blame(status s, error *err, const char *file)
{
	if (s != STATUS_OK)
		snprintf(err->param, sizeof err->param, "%s",
		         strcmp(err->param, "sequence_length") == 0 ? "additive.sequence_length" : file);
	return s;
}

/* The names of the classes, NULL-terminated, to be freed; NULL: not given, or (STATUS_NOMEM) out of memory. */
static status list_classes(const corpus *c, const char ***out)
{
	size_t n = json_array_size(c->classes);
	*out = c->classes ? memory_new(n + 1, sizeof **out) : NULL;
	for (size_t i = 0; *out && i < n; i++)
		(*out)[i] = json_string_value(json_array_get(c->classes, i));
	return c->classes && !*out ? STATUS_NOMEM : STATUS_OK;
}

static status read_whole(const corpus *c, const file_map *map, const char *const *classes, dataset **out, error *err)
{
	const char *text = (const char *)map->data;
	return c->records == RECORD_LABELLED
	           ? labelled_new(out, c->texts.tokenizer, text, map->bytes, c->length, classes, err)
	           : dataset_new(out, c->texts.tokenizer, text, map->bytes, c->length, err);
}

static status read_in_two(corpus *c, const file_map *map, const char *const *classes, double share, error *err)
{
	const char *text = (const char *)map->data;
	return c->records == RECORD_LABELLED ? labelled_split(&c->texts.train, &c->texts.valid, c->texts.tokenizer,
	                                                      text, map->bytes, c->length, classes, share, err)
	                                     : dataset_split(&c->texts.train, &c->texts.valid, c->texts.tokenizer, text,
	                                                     map->bytes, c->length, share, err);
}

static status cut_whole(const corpus *c, dataset **out, const char *path, const char *const *classes, const char *name,
                        error *err)
{
	file_map map;
	TRY(blame(file_map_open(&map, path, err), err, name));
	status s = read_whole(c, &map, classes, out, err);
	file_map_close(&map);
	return blame(s, err, name);
}

static status cut_in_two(corpus *c, const char *const *classes, double share, error *err)
{
	file_map map;
	TRY(blame(file_map_open(&map, c->training, err), err, "training_file"));
	status s = read_in_two(c, &map, classes, share, err);
	file_map_close(&map);
	return blame(s, err, "training_file");
}

static status build_training(corpus *c, const char *const *classes)
{
	if (c->holdout < 0) {
		error ignored = ERROR_INIT;
		c->holdout = cut_in_two(c, classes, CORPUS_HOLDOUT, &ignored) == STATUS_OK ? CORPUS_HOLDOUT : 0;
		if (c->holdout > 0)
			return STATUS_OK;
	}
	return c->holdout > 0 ? cut_in_two(c, classes, c->holdout, &c->error)
	                      : cut_whole(c, &c->texts.train, c->training, classes, "training_file", &c->error);
}

static status build(corpus *c)
{
	const char **classes;
	TRY(open_tokenizer(c, &c->error));
	TRY(list_classes(c, &classes));
	if (c->validation[0])
		c->holdout = 0;
	status s = build_training(c, classes);
	if (s == STATUS_OK && c->validation[0])
		s = cut_whole(c, &c->texts.valid, c->validation,
		              c->records == RECORD_LABELLED ? labelled_classes(c->texts.train) : NULL,
		              "validation_file", &c->error);
	free(classes);
	return s;
}

status corpus_build(corpus *c)
{
	status s = c->texts.train ? STATUS_OK : build(c);
	if (s != STATUS_OK)
		error_set(&c->error, s, "training_file", "%s", status_text(s));
	return s;
}

int64_t corpus_tokens(const corpus_texts *t)
{
	return (t->train ? dataset_tokens(t->train) : 0) + (t->valid ? dataset_tokens(t->valid) : 0);
}

void corpus_free(corpus_texts *t)
{
	tokenizer_free(t->tokenizer);
	dataset_free(t->train);
	dataset_free(t->valid);
	*t = (corpus_texts){0};
}
