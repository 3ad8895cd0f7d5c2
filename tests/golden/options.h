/* options.h - the options of additive-eval. */
#ifndef TESTS_GOLDEN_OPTIONS_H
#define TESTS_GOLDEN_OPTIONS_H

#include "tests/golden/evaluation.h"
#include "engine/tensor/tensor.h"

enum { OPTIONS_MAX_GOLDEN = 64 };

typedef struct eval_options {
	const char *model, *inputs;             /* a model folder and its inputs, or */
	const char *golden[OPTIONS_MAX_GOLDEN]; /* golden files */
	int n_golden;
	char *golden_names; /* all of them, for messages; owned */
	const char *outputs, *backend;
	long threads;
	dtype weights;
	evaluation_spec spec;
} eval_options;

#endif
