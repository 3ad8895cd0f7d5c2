/* op_cases.h - for every op, the graphs it is tried on.
 *
 * A case builds a small graph whose last node is the op on trial; nodes before it
 * make its arguments (the log-normalisers a gradient wants, a state that has read
 * tokens). The same cases serve every backend: see op_trial.h. */
#ifndef TESTS_UNIT_SUPPORT_OP_CASES_H
#define TESTS_UNIT_SUPPORT_OP_CASES_H

#include "engine/tensor/graph.h"

typedef struct op_case {
	op_id id;
	const char *name;
	void (*build)(graph *g, const int64_t *arg);
	int64_t arg[7];
	int32_t low, high; /* range of "index", "label" and "length" inputs */
	/* How far a kernel may be from the reference: absolute + relative · |reference|. */
	double absolute, relative;
	/* Step of the finite differences; 0: the op has no gradient, or this case is not
	 * meant for it. */
	double step;
} op_case;

int op_cases_count(void);
const op_case *op_cases_at(int index);
/* Draw the content of an input, parameter or state of the case. */
void op_cases_fill(const op_case *c, const value_info *info, void *data);

#endif
