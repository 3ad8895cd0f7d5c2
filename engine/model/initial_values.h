/* initial_values.h - initial values of a new model's parameters, from its seed. */
#ifndef ENGINE_MODEL_INITIAL_VALUES_H
#define ENGINE_MODEL_INITIAL_VALUES_H

#include "engine/base/mt19937.h"
#include "engine/model/parameters.h"

typedef struct initial_values {
	uint64_t seed;
	int threads;
	int next;         /* index of the next parameter */
	mt19937 sequence; /* for INIT_NORMAL_SEQUENCE */
} initial_values;

/* Values are drawn on up to `threads` threads, the caller's included; their number changes no bit. */
void initial_values_begin(initial_values *v, uint64_t seed, int threads);
/* Fill x [shape_count(p->shape)] with the values of the next parameter of the list, in the graph's layout. */
void initial_values_fill(initial_values *v, const parameter_spec *p, float *x);

#endif
