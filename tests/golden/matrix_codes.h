/* matrix_codes.h - a matrix as op_quantize reads it: codes and the step that they are multiplied with. */
#ifndef TESTS_GOLDEN_MATRIX_CODES_H
#define TESTS_GOLDEN_MATRIX_CODES_H

#include "tests/golden/golden.h"

/* Convert x [n] to integer codes [n] of 8, 4 or 2 bits, and the step. */
status matrix_codes(golden *g, const float *x, int64_t n, int64_t bits, float *codes, float *step, error *err);
/* x [n] as a forward reads it, in place. */
status matrix_codes_read(golden *g, float *x, int64_t n, int64_t bits, error *err);

#endif
