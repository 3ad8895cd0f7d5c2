#include "tests/unit/support/datasets.h"

static status blocks_from_memory(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                                 const dataset_options *o, error *err)
{
	byte_source *source;
	token_cache *tokens;
	*train = NULL;
	TRY(byte_source_memory(&source, text, bytes, err));
	TRY(corpus_tokens_build(&tokens, source, t, &(corpus_tokens_options){.threads = 1}, err));
	status s = dataset_make(train, valid, t, &(dataset_text){tokens, 1}, 1, o, err);
	token_cache_free(tokens);
	return s;
}

status dataset_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err)
{
	return blocks_from_memory(out, NULL, t, text, bytes, &(dataset_options){.length = length}, err);
}

status dataset_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                     int64_t length, double fraction, error *err)
{
	*valid = NULL;
	return blocks_from_memory(train, valid, t, text, bytes,
	                          &(dataset_options){.length = length, .held_back = fraction}, err);
}

static status labelled_from_memory(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                                   int64_t length, const char *const *classes, double fraction, error *err)
{
	byte_source *source;
	labelled_text x;
	*train = NULL;
	TRY(byte_source_memory(&source, text, bytes, err));
	TRY(labelled_text_build(&x, source, t, length, classes, &(corpus_tokens_options){0}, err));
	status s = labelled_make(train, valid, t, &x, length, fraction, err);
	labelled_text_close(&x);
	return s;
}

status labelled_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length,
                    const char *const *classes, error *err)
{
	return labelled_from_memory(out, NULL, t, text, bytes, length, classes, 0, err);
}

status labelled_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                      int64_t length, double fraction, error *err)
{
	*valid = NULL;
	return labelled_from_memory(train, valid, t, text, bytes, length, NULL, fraction, err);
}

status pairs_new(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                 pair_lengths lengths, double fraction, error *err)
{
	byte_source *source;
	record_text x;
	*train = NULL;
	if (valid)
		*valid = NULL;
	TRY(byte_source_memory(&source, text, bytes, err));
	TRY(pairs_build(&x, source, t, lengths, &(corpus_tokens_options){0}, err));
	status s = pairs_make(train, valid, t, &x, lengths, fraction, err);
	record_text_close(&x);
	return s;
}

status preferences_new(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                       int64_t length, double fraction, error *err)
{
	byte_source *source;
	record_text x;
	*train = NULL;
	if (valid)
		*valid = NULL;
	TRY(byte_source_memory(&source, text, bytes, err));
	TRY(preferences_build(&x, source, t, length, &(corpus_tokens_options){0}, err));
	status s = preferences_make(train, valid, t, &x, length, fraction, err);
	record_text_close(&x);
	return s;
}
