/* length_counts.h - the distribution of lengths, in memory that does not grow.
 *
 * Lengths below 4096 are counted exactly. Longer ones share a counter with those that differ from them by less than
 * 1/2048; a percentile is then the least of these. */
#ifndef ENGINE_TEXT_LENGTH_COUNTS_H
#define ENGINE_TEXT_LENGTH_COUNTS_H

#include <stdint.h>

#include "engine/base/error.h"

typedef struct length_counts {
	int64_t n, least, most; /* least, most: 0 if n is 0 */
	int64_t *counters;
} length_counts;

status length_counts_init(length_counts *c, error *err);
/* length: at least 0. */
void length_counts_add(length_counts *c, int64_t length);
/* The least length that `percent` of all lengths do not exceed, by the nearest rank. 0 if there are none. */
int64_t length_counts_percentile(const length_counts *c, int percent);
void length_counts_fini(length_counts *c);

#endif
