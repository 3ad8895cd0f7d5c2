/* Orders of entries; see options.h. */
#include <stdio.h>
#include <string.h>

#include "engine/model/transformer/options.h"

/* Return the entries of one block. */
static const char *block_of(const stack_options *s)
{
	if (s->cross_attend && s->only_cross)
		return s->macaron ? "fcf" : "cf";
	if (s->cross_attend)
		return s->macaron ? "facf" : "acf";
	return s->macaron ? "faf" : "af";
}

typedef struct writer {
	char *out;
	int used;
	bool full;
} writer;

static void order_put(writer *w, const char *kinds, int64_t times)
{
	int n = (int)strlen(kinds);
	for (int64_t i = 0; i < times && !w->full; i++) {
		w->full = w->used + n > STACK_MAX_ENTRIES;
		if (w->full)
			return;
		memcpy(w->out + w->used, kinds, (size_t)n);
		w->used += n;
	}
}

/* Attentions are spread over the first two thirds of the entries; the rest is feed-forward. The list may be longer than
 * `depth` blocks, as in x-transformers. */
static void put_par(const stack_options *s, const char *block, writer *w)
{
	int64_t entries = s->depth * (int64_t)strlen(block), attentions = entries / s->par_ratio;
	int64_t cut = entries * 2 / 3, width = (cut + cut / attentions) / attentions, n = 0;
	char kinds[8] = "";
	for (const char *k = block; *k; k++)
		if (*k != 'f')
			kinds[n++] = *k;
	for (int64_t i = 0; i < attentions; i++) {
		order_put(w, kinds, 1);
		order_put(w, "f", width - n);
	}
	order_put(w, "f", entries - w->used);
}

int stack_order(const stack_options *s, char out[STACK_MAX_ENTRIES + 1])
{
	const char *block = block_of(s);
	int64_t entries = s->depth * (int64_t)strlen(block);
	writer w = {.out = out};
	if (s->par_ratio) {
		if (s->par_ratio < 2 || s->par_ratio > entries)
			return 0;
		put_par(s, block, &w);
	} else if (s->sandwich_coef) {
		if (s->sandwich_coef > s->depth)
			return 0;
		order_put(&w, "a", s->sandwich_coef);
		order_put(&w, block, s->depth - s->sandwich_coef);
		order_put(&w, "f", s->sandwich_coef);
	} else {
		order_put(&w, block, s->depth);
	}
	out[w.used] = '\0';
	return w.full ? 0 : w.used;
}
