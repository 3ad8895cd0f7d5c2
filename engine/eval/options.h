/* options.h - what additive-eval is asked for. */
#ifndef ENGINE_EVAL_OPTIONS_H
#define ENGINE_EVAL_OPTIONS_H

#include "engine/eval/evaluation.h"
#include "engine/tensor/tensor.h"

typedef struct options {
	const char *model, *inputs, *outputs, *backend;
	long threads;
	dtype weights;
	evaluation_spec spec;
} options;

#endif
