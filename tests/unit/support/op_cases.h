/* op_cases.h - the test graphs of every op.
 *
 * A case builds a small graph whose last node is the op on trial; the nodes before it make its arguments
 * (log-normalizers that a gradient needs, a state that has read tokens). The same cases serve every backend: see
 * op_trial.h. They are in op_cases/, one source for each family of ops. */
#ifndef TESTS_UNIT_SUPPORT_OP_CASES_H
#define TESTS_UNIT_SUPPORT_OP_CASES_H

#include "engine/tensor/graph.h"

/* arg[OP_CASE_REAL] is the dtype of the inputs that ops.h calls [real]; f32 by default. */
enum { OP_CASE_REAL = 7 };

typedef struct op_case {
	op_id id;
	const char *name;
	void (*build)(graph *g, const int64_t *arg);
	int64_t arg[OP_CASE_REAL + 1];
	int32_t low, high; /* range of "index", "label" and "length" inputs */
	/* Allowed error of a kernel against the reference: absolute + relative · |reference|. A bf16 result may be off
	 * by one more step of bf16, 2^-7 · |reference|. */
	double absolute, relative;
	/* Step of the finite differences; 0: the op has no gradient, or this case does not check it. */
	double step;
} op_case;

/* An input named "spans" holds five tensors, two of which are updated by row; the number of their floats and rows. */
enum { OP_CASE_SPANS = 5, OP_CASE_SPAN_FLOATS = 976, OP_CASE_SPAN_ROWS = 44 };
int op_cases_count(void);
const op_case *op_cases_at(int index);
/* Make the same case with [real] inputs in bf16, under the same name, for backends that have bf16. False if there is
 * nothing to try: the case has no [real] input, or has it in bf16 already. A caller whose kernels round intermediate
 * results may widen the tolerance of *out. */
bool op_cases_bf16(const op_case *c, op_case *out);
/* Draw the content of an input, parameter or state of the case. */
void op_cases_fill(const op_case *c, const value_info *info, void *data);

#endif
