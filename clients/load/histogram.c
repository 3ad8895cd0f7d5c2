/* histogram.c - a value is kept as its 7 leading bits. */
#include "clients/load/histogram.h"

#include <math.h>

enum { BITS = 7, HALF = 1 << (BITS - 1) };

static int counter_of(uint64_t value)
{
	const int length = value ? 64 - __builtin_clzll(value) : 0, shift = length > BITS ? length - BITS : 0;
	return shift * HALF + (int)(value >> shift);
}

/* The largest value of a counter. */
static uint64_t largest(int counter)
{
	const int shift = counter < 2 * HALF ? 0 : counter / HALF - 1;
	return (((uint64_t)(counter - shift * HALF) + 1) << shift) - 1;
}

void histogram_add(histogram *h, uint64_t value)
{
	h->counters[counter_of(value)]++;
	h->n++;
	h->max = value > h->max ? value : h->max;
}

uint64_t histogram_percentile(const histogram *h, double percent)
{
	const double rank = ceil(percent / 100 * (double)h->n);
	uint64_t seen = 0;
	for (int i = 0; h->n > 0 && i < HISTOGRAM_COUNTERS; i++) {
		seen += h->counters[i];
		if (seen > 0 && (double)seen >= rank)
			return largest(i) < h->max ? largest(i) : h->max;
	}
	return 0;
}
