/* transformer.h - shared by the programs that test the transformer. */
#ifndef TESTS_UNIT_MODEL_TRANSFORMER_H
#define TESTS_UNIT_MODEL_TRANSFORMER_H

#include <math.h>

#include "tests/unit/model/fixture.h"

/* Random weights, so that no term vanishes. */
static void stir(const model *m)
{
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		float *x = model_arena(m) + model_parameter_offset(m, i);
		int64_t count = shape_count(p->shape);
		random_normal(x, count, 100 + (uint64_t)i, 0.3);
		for (int64_t k = 0; k < count && (p->init == INIT_ONE || p->init == INIT_CONSTANT); k++)
			x[k] += 1;
	}
}

/* The largest absolute difference. */
static double distance(const float *a, const float *b, int64_t n)
{
	double most = 0;
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)a[i] - (double)b[i]));
	return most;
}

#endif
