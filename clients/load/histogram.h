/* histogram.h - many times in fixed memory, with percentiles that are at most 1/64 too large.
 *
 * The design is that of HdrHistogram: the counters of each power of two have equal width. */
#ifndef CLIENTS_LOAD_HISTOGRAM_H
#define CLIENTS_LOAD_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_COUNTERS = 3776 };

/* Zero-initialise. */
typedef struct histogram {
	uint64_t counters[HISTOGRAM_COUNTERS];
	uint64_t n, max;
} histogram;

void histogram_add(histogram *h, uint64_t value);
/* The value that `percent` of all values do not exceed; 0 if there are none. */
uint64_t histogram_percentile(const histogram *h, double percent);

#endif
