#include "engine/recipe/corpus.h"

#include <stdlib.h>

#include "engine/base/memory.h"
#include "engine/recipe/job_defaults.h"

/* The longest record, and the shortest length that covers 99 of 100. */
typedef struct spread {
	int64_t usual, longest;
} spread;

static spread spread_of(const int64_t *counts, int64_t bound)
{
	spread s = {0};
	int64_t all = 0, seen = 0;
	for (int64_t i = 0; i <= bound; i++)
		all += counts[i];
	for (int64_t i = 0; i <= bound; i++) {
		if (counts[i] > 0 && seen < all - all / 100)
			s.usual = i;
		s.longest = counts[i] > 0 ? i : s.longest;
		seen += counts[i];
	}
	return s;
}

/* Records that do not fit. Those that fill the bound were most likely cut to it. */
static int64_t count_cut(const int64_t *counts, int64_t length, int64_t bound)
{
	int64_t cut = 0;
	for (int64_t i = length < bound ? length + 1 : bound; i <= bound; i++)
		cut += counts[i];
	return cut;
}

static void fit(int64_t *length, bool open, const int64_t *counts, int64_t *cut, bool *changed)
{
	const int64_t bound = *length;
	if (!open)
		return;
	const spread s = spread_of(counts, bound);
	*length = job_defaults_row(s.usual, s.longest, bound);
	*cut += count_cut(counts, *length, bound);
	*changed |= *length != bound;
}

status corpus_lengths_fit(corpus *c, bool *changed, error *err)
{
	*changed = false;
	c->cut = 0;
	if (!c->fit.length && !c->fit.source)
		return STATUS_OK;
	int64_t *counts = memory_new((size_t)c->length + 1, sizeof *counts),
	        *sources = memory_new((size_t)c->source_length + 1, sizeof *sources);
	status s = counts && sources ? dataset_count_lengths(c->texts.train, counts, sources, err) : STATUS_NOMEM;
	if (s == STATUS_OK) {
		fit(&c->length, c->fit.length, counts, &c->cut, changed);
		fit(&c->source_length, c->fit.source, sources, &c->cut, changed);
	}
	free(counts);
	free(sources);
	return s;
}
