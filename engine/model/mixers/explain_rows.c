#include "engine/model/mixers/explain_rows.h"

#include <math.h>

/* Eight parallel sums, which a compiler can keep in vectors. */
double explain_dot(const float *a, const float *b, int64_t n)
{
	double sums[8] = {0}, sum = 0;
	int64_t d = 0;
	for (; d + 8 <= n; d += 8)
		for (int i = 0; i < 8; i++)
			sums[i] += (double)a[d + i] * (double)b[d + i];
	for (; d < n; d++)
		sum += (double)a[d] * (double)b[d];
	for (int i = 0; i < 8; i++)
		sum += sums[i];
	return sum;
}

void explain_softmax(double *scores, int64_t n)
{
	double max = -INFINITY, sum = 0;
	for (int64_t j = 0; j < n; j++)
		max = fmax(max, scores[j]);
	for (int64_t j = 0; j < n; j++)
		sum += scores[j] = exp(scores[j] - max);
	for (int64_t j = 0; j < n; j++)
		scores[j] /= sum;
}
