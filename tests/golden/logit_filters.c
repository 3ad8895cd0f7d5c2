#include "tests/golden/logit_filters.h"

#include <math.h>
#include <stdlib.h>

static int by_rank(const void *pa, const void *pb)
{
	const logit_rank *a = pa, *b = pb;
	if (a->logit != b->logit)
		return a->logit > b->logit ? -1 : 1;
	return a->at < b->at ? -1 : 1;
}

static void rank(const float *row, int64_t n, logit_rank *out)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = (logit_rank){(double)row[i], i};
	qsort(out, (size_t)n, sizeof *out, by_rank);
}

/* The largest logit, and the sum of all e^(logit / temperature) relative to that of the largest. */
typedef struct softmax {
	double most, sum, temperature;
} softmax;

static softmax softmax_of(const float *row, int64_t n, double temperature)
{
	softmax s = {.most = -INFINITY, .temperature = temperature};
	for (int64_t i = 0; i < n; i++)
		s.most = fmax(s.most, (double)row[i]);
	for (int64_t i = 0; i < n; i++)
		s.sum += exp(((double)row[i] - s.most) / temperature);
	return s;
}

static double probability(const softmax *s, double logit)
{
	return exp((logit - s->most) / s->temperature) / s->sum;
}

int64_t logit_filter_count(double threshold, int64_t n)
{
	return (int64_t)ceil((1 - threshold) * (double)n);
}

void logit_filter_top_k(float *row, int64_t n, double threshold, logit_rank *space)
{
	rank(row, n, space);
	for (int64_t i = logit_filter_count(threshold, n); i < n; i++)
		row[space[i].at] = -INFINITY;
}

void logit_filter_top_p(float *row, int64_t n, double threshold, logit_rank *space)
{
	const softmax s = softmax_of(row, n, 1);
	rank(row, n, space);
	double before = 0;
	for (int64_t i = 0; i < n; i++) {
		if (i > 0 && before > 1 - threshold)
			row[space[i].at] = -INFINITY;
		before += probability(&s, space[i].logit);
	}
}

void logit_filter_top_a(float *logits, int64_t rows, int64_t n, double ratio, double power)
{
	double most = 0;
	for (int64_t row = 0; row < rows; row++)
		most = fmax(most, 1 / softmax_of(logits + row * n, n, 1).sum);
	const double limit = ratio * pow(most, power);
	for (int64_t row = 0; row < rows; row++) {
		const softmax s = softmax_of(logits + row * n, n, 1);
		for (int64_t i = row * n; i < (row + 1) * n; i++)
			logits[i] = probability(&s, (double)logits[i]) < limit ? -INFINITY : 1;
	}
}

void logit_filter_softmax(float *row, int64_t n, double temperature)
{
	const softmax s = softmax_of(row, n, temperature);
	for (int64_t i = 0; i < n; i++)
		row[i] = (float)probability(&s, (double)row[i]);
}
