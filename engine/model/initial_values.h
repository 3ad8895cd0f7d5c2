/* initial_values.h - the first values of a new model's parameters, by its seed. */
#ifndef ENGINE_MODEL_INITIAL_VALUES_H
#define ENGINE_MODEL_INITIAL_VALUES_H

#include "engine/base/mt19937.h"
#include "engine/model/parameters.h"

typedef struct initial_values {
	uint64_t seed;
	int next;         /* the number of the next parameter */
	mt19937 sequence; /* of INIT_NORMAL_SEQUENCE */
} initial_values;

void initial_values_begin(initial_values *v, uint64_t seed);
/* Those of the next parameter of the list, in the graph's layout: x [shape_count(p->shape)]. */
void initial_values_fill(initial_values *v, const parameter_spec *p, float *x);

#endif
