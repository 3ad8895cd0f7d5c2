/* training_form.h - the objectives that a training file fits. */
#ifndef ENGINE_RECIPE_TRAINING_FORM_H
#define ENGINE_RECIPE_TRAINING_FORM_H

#include "engine/text/dataset.h"

/* A file's layout, or the members of its first object. */
typedef enum training_form {
	FORM_TEXT,  /* documents, other data, or a file declared to be text */
	FORM_PROSE, /* running text by its content */
	FORM_CHAT,  /* conversations, the first of which has an answer */
	FORM_LABELLED,
	FORM_PAIRS,
	FORM_PREFERENCES
} training_form;

/* Look at the beginning of a file. One that cannot be read is FORM_TEXT: the reader of the whole file reports why. */
training_form training_form_of(const char *path);
record_kind training_form_records(training_form f);
/* A sentence on the lines and the objectives that fit them; NULL if any objective on running text does. */
const char *training_form_advice(training_form f);
/* A sentence on the lines that the objectives on such records read, with an example; NULL of RECORD_BLOCK. */
const char *training_form_example(record_kind k);

#endif
