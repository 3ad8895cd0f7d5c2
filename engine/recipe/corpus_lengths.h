/* corpus_lengths.h - row lengths that fit the training data. */
#ifndef ENGINE_RECIPE_CORPUS_LENGTHS_H
#define ENGINE_RECIPE_CORPUS_LENGTHS_H

#include "engine/recipe/corpus.h"

/* Lower the lengths of a corpus, where c->fit says so, to what its training records need, and count those that are
 * longer in c->cut. *changed: the datasets have to be built again. */
status corpus_lengths_fit(corpus *c, bool *changed, error *err);

#endif
