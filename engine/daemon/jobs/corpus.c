#include "engine/daemon/jobs/corpus.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"

static status open_tokenizer(corpus *c, error *err)
{
	status s = c->folder[0] ? tokenizer_open(&c->tokenizer, c->folder, c->vocab, err)
	                        : tokenizer_new(&c->tokenizer, c->spec, err);
	if (s != STATUS_OK) {
		error_prefix(err, "additive.tokenizer");
		return s;
	}
	if (tokenizer_size(c->tokenizer) > c->vocab)
		return error_set(err, STATUS_INVALID, "additive.config.vocab_size",
		                 "the tokenizer has %d ids, the model only %lld", (int)tokenizer_size(c->tokenizer),
		                 (long long)c->vocab);
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

static status cut_whole(const corpus *c, dataset **out, const char *path, const char *name, error *err)
{
	file_map map;
	TRY(blame(file_map_open(&map, path, err), err, name));
	status s = dataset_new(out, c->tokenizer, (const char *)map.data, map.bytes, c->length, err);
	file_map_close(&map);
	return blame(s, err, name);
}

static status cut_in_two(corpus *c, double share, error *err)
{
	file_map map;
	TRY(blame(file_map_open(&map, c->training, err), err, "training_file"));
	status s =
	    dataset_split(&c->train, &c->valid, c->tokenizer, (const char *)map.data, map.bytes, c->length, share, err);
	file_map_close(&map);
	return blame(s, err, "training_file");
}

static status build(corpus *c)
{
	TRY(open_tokenizer(c, &c->error));
	if (c->validation[0]) {
		c->holdout = 0;
		TRY(cut_whole(c, &c->valid, c->validation, "validation_file", &c->error));
	}
	if (c->holdout < 0) {
		error ignored = ERROR_INIT;
		c->holdout = cut_in_two(c, CORPUS_HOLDOUT, &ignored) == STATUS_OK ? CORPUS_HOLDOUT : 0;
		if (c->holdout > 0)
			return STATUS_OK;
	}
	return c->holdout > 0 ? cut_in_two(c, c->holdout, &c->error)
	                      : cut_whole(c, &c->train, c->training, "training_file", &c->error);
}

status corpus_build(corpus *c)
{
	status s = build(c);
	if (s != STATUS_OK)
		error_set(&c->error, s, "training_file", "%s", status_text(s));
	return s;
}

void corpus_fini(corpus *c)
{
	tokenizer_free(c->tokenizer);
	dataset_free(c->train);
	dataset_free(c->valid);
	c->tokenizer = NULL;
	c->train = c->valid = NULL;
}
