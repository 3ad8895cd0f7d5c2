/* folder.h - the evaluation of a model folder over a file of inputs. */
#ifndef TESTS_GOLDEN_FOLDER_H
#define TESTS_GOLDEN_FOLDER_H

#include "tests/golden/options.h"

/* Add everything that the model computes. *blame: the argument that a failure is about. */
status folder_evaluate(results *out, const eval_options *o, backend *b, const char **blame, error *err);

#endif
