#include "tests/unit/support/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Written so that NaN on either side is not close: !(d <= tolerance). */
static bool close_enough(double got, double want, double absolute, double relative)
{
	if (isinf(want))
		return got == want;
	return fabs(got - want) <= absolute + relative * fabs(want);
}

bool compare_close(const char *what, const float *got, const float *want, int64_t count, double absolute,
                   double relative)
{
	int64_t bad = 0, worst = -1;
	double worst_error = -1;
	for (int64_t i = 0; i < count; i++) {
		double error = fabs((double)got[i] - (double)want[i]);
		if (close_enough((double)got[i], (double)want[i], absolute, relative))
			continue;
		bad++;
		if (worst < 0 || !(error <= worst_error))
			worst = i, worst_error = error;
	}
	if (!bad)
		return true;
	printf("%s: %" PRId64 " of %" PRId64 " differ; worst at %" PRId64
	       ": got %.9g, want %.9g, error %.3g (allowed %.3g + %.3g relative)\n",
	       what, bad, count, worst, (double)got[worst], (double)want[worst], worst_error, absolute, relative);
	return false;
}

bool compare_same(const char *what, const float *got, const float *want, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		if (memcmp(&got[i], &want[i], sizeof got[i]) == 0)
			continue;
		printf("%s: element %" PRId64 " of %" PRId64 " is %.9g, not %.9g\n", what, i, count, (double)got[i],
		       (double)want[i]);
		return false;
	}
	return true;
}

double compare_magnitude(const float *x, int64_t count)
{
	double largest = 0;
	for (int64_t i = 0; i < count; i++)
		if (!(fabs((double)x[i]) <= largest))
			largest = fabs((double)x[i]);
	return largest;
}
