#include "engine/text/length_counts.h"

#include <stdlib.h>

#include "engine/base/memory.h"

/* Counters of an octave, and of all 63 bits. */
enum { HALF = 2048, HALF_BITS = 11, COUNTERS = (63 - HALF_BITS + 1) * HALF };

/* Lengths shift by `shift` bits to HALF … 2 HALF - 1; below, shift is 0. */
static int64_t counter_of(int64_t length)
{
	const int bits = length > 0 ? 64 - __builtin_clzll((unsigned long long)length) : 0;
	const int shift = bits > HALF_BITS + 1 ? bits - HALF_BITS - 1 : 0;
	return (int64_t)shift * HALF + (length >> shift);
}

static int64_t least_of(int64_t counter)
{
	const int64_t shift = counter < 2 * HALF ? 0 : counter / HALF - 1;
	return (counter - shift * HALF) << shift;
}

status length_counts_init(length_counts *c, error *err)
{
	*c = (length_counts){.counters = memory_new(COUNTERS, sizeof *c->counters)};
	return c->counters ? STATUS_OK : error_no_memory(err, "the lengths of the documents");
}

void length_counts_add(length_counts *c, int64_t length)
{
	c->least = c->n == 0 || length < c->least ? length : c->least;
	c->most = length > c->most ? length : c->most;
	c->n++;
	c->counters[counter_of(length)]++;
}

int64_t length_counts_percentile(const length_counts *c, int percent)
{
	const int64_t rank = c->n / 100 * percent + (c->n % 100 * percent + 99) / 100;
	int64_t seen = 0, at = -1;
	if (c->n == 0)
		return 0;
	while (seen < rank)
		seen += c->counters[++at];
	const int64_t length = least_of(at);
	return length < c->least ? c->least : length;
}

void length_counts_fini(length_counts *c)
{
	free(c->counters);
	*c = (length_counts){0};
}
