/* training_form.h - the objectives that the lines of a training file fit. */
#ifndef ENGINE_RECIPE_TRAINING_FORM_H
#define ENGINE_RECIPE_TRAINING_FORM_H

#include "engine/text/dataset.h"

/* What the first object of JSON lines has. */
typedef enum training_form {
	FORM_TEXT, /* plain text, or documents: nothing beside their texts */
	FORM_LABELLED,
	FORM_PAIRS
} training_form;

/* Look at the beginning of a file. One that cannot be read is FORM_TEXT: the reader of the whole file reports why. */
training_form training_form_of(const char *path);
record_kind training_form_records(training_form f);
/* A sentence on the lines and the objectives that fit them; NULL of FORM_TEXT. */
const char *training_form_advice(training_form f);

#endif
