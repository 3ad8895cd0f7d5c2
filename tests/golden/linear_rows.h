/* linear_rows.h - the recurrent form of linear attention over rows that are all known: what each token reads, and the
 * state after it. */
#ifndef TESTS_GOLDEN_LINEAR_ROWS_H
#define TESTS_GOLDEN_LINEAR_ROWS_H

#include "tests/golden/golden.h"

typedef struct linear_rows {
	int64_t b, n, d, heads;
	double eps;
	const float *q, *k, *v; /* [B, N, D] */
	const int32_t *mask;    /* [B, N]; NULL: nothing is masked */
} linear_rows;

/* Read token after token with op_linear_stream. *y: [B, N, D]. *states: those after every row, [N, B, floats], or after
 * the last one, [B, floats], in the layout of engine/tensor/ops/linear_attention.h. Both belong to the set. */
status linear_rows_read(golden *g, const linear_rows *rows, bool every, float **y, float **states, error *err);

#endif
