/* labelled.h - datasets of texts with a label.
 *
 * JSON lines: {"text": "…", "label": …} or {"text": "…", "text_pair": "…", "label": …}; further keys are ignored, blank
 * lines skipped. Labels are strings or integers, but not both in one corpus, and either all records have a pair or none
 * has. A record is at most `length` tokens (sequence.h).
 *
 * The classes are the labels that occur: strings sorted by their bytes, integers by their values. The index in this
 * order is the number of a class. */
#ifndef ENGINE_TEXT_LABELLED_H
#define ENGINE_TEXT_LABELLED_H

#include "engine/text/dataset.h"
#include "engine/text/labelled_text.h"

enum {
	LABELLED_MAX_CLASSES = 1 << 16,
	LABELLED_MAX_LABEL = 256,       /* bytes */
	LABELLED_MAX_NAMES = 512 << 10, /* bytes of all labels, which a model keeps in its config.json */
};

/* Build datasets from a cached text that was built with this tokenizer and length. ⌊fraction · records⌋ records are the
 * second set, which needs one; fraction 0: one set, and valid may be NULL. Its records are last in the permutation of
 * dataset.h (seed 1, epoch 0), since a corpus is often sorted by its labels. Both sets keep the corpus's order and have
 * the same classes. */
status labelled_make(dataset **train, dataset **valid, const tokenizer *t, const labelled_text *x, int64_t length,
                     double fraction, error *err);

int labelled_class_count(const dataset *d);
/* Names of the classes, NULL-terminated; valid as long as the dataset. */
const char *const *labelled_classes(const dataset *d);

#endif
