#include "engine/text/labelled.h"

#include "engine/text/dataset_private.h"

status labelled_make(dataset **train, dataset **valid, const tokenizer *t, const labelled_text *x, int64_t length,
                     double fraction, error *err)
{
	const record_source source = {.kind = RECORD_LABELLED, .text = &x->text, .length = length, .labels = x};
	return records_make(train, valid, t, &source, fraction, err);
}

int labelled_class_count(const dataset *d)
{
	return d->n_classes;
}

const char *const *labelled_classes(const dataset *d)
{
	return (const char *const *)d->classes;
}
