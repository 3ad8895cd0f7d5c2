/* compare.h - are two float arrays close? NaN never is. */
#ifndef TESTS_UNIT_SUPPORT_COMPARE_H
#define TESTS_UNIT_SUPPORT_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

/* |got - want| <= absolute + relative · |want| for every element; infinities only
 * equal themselves. On failure prints `what`, the worst element and how many failed. */
bool compare_close(const char *what, const float *got, const float *want, int64_t count, double absolute,
                   double relative);
/* The same bits, element by element; prints the first difference. */
bool compare_same(const char *what, const float *got, const float *want, int64_t count);
/* The largest |x|; NaN if any is. */
double compare_magnitude(const float *x, int64_t count);

#endif
