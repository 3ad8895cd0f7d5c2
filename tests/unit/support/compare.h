/* compare.h - compare float arrays. NaN is close to nothing. */
#ifndef TESTS_UNIT_SUPPORT_COMPARE_H
#define TESTS_UNIT_SUPPORT_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

/* True if |got - want| <= absolute + relative · |want| for every element; infinities only equal themselves. On failure
 * prints `what`, the worst element and the number of elements that failed. */
bool compare_close(const char *what, const float *got, const float *want, int64_t count, double absolute,
                   double relative);
/* True if the arrays have the same bits; prints the first difference. */
bool compare_same(const char *what, const float *got, const float *want, int64_t count);
/* The largest |x|; NaN if any element is NaN. */
double compare_magnitude(const float *x, int64_t count);

#endif
