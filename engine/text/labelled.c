#include "engine/text/labelled.h"

#include "engine/text/dataset_private.h"

status labelled_make(dataset **train, dataset **valid, const tokenizer *t, const labelled_text *x, int64_t length,
                     double fraction, error *err)
{
	const record_source source = {.kind = RECORD_LABELLED, .text = &x->text, .length = length, .labels = x};
	return records_make(train, valid, t, &source, fraction, err);
}

static status from_memory(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
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
	return from_memory(out, NULL, t, text, bytes, length, classes, 0, err);
}

status labelled_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                      int64_t length, const char *const *classes, double fraction, error *err)
{
	*train = *valid = NULL;
	if (!(fraction > 0 && fraction < 1))
		return error_set(err, STATUS_INVALID, "validation_fraction", "must be between 0 and 1");
	return from_memory(train, valid, t, text, bytes, length, classes, fraction, err);
}

int labelled_class_count(const dataset *d)
{
	return d->n_classes;
}

const char *const *labelled_classes(const dataset *d)
{
	return (const char *const *)d->classes;
}
