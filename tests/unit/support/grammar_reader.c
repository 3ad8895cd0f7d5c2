#include "tests/unit/support/grammar_reader.h"

#include <stdlib.h>

static void require(bool condition)
{
	if (!condition)
		abort();
}

void grammar_reader_start(grammar_reader *r, const grammar *g)
{
	r->g = g;
	r->stacks = (grammar_stacks){0};
	r->tops[0] = grammar_push(&r->stacks, grammar_root(g), 0, FRAME_NONE);
	r->n = 1;
	require(r->tops[0] >= 0);
}

/* Set stacks.next to all places where a byte may be read. Returns true if the text may end. */
static bool expand(grammar_reader *r)
{
	bool ends = false;
	r->stacks.n_next = 0;
	r->stacks.work = 0;
	for (int i = 0; i < r->n; i++)
		require(grammar_expand(r->g, &r->stacks, r->tops[i], &ends) == STATUS_OK);
	return ends;
}

void grammar_reader_next(grammar_reader *r, byte_set *bytes, bool *ends)
{
	*bytes = (byte_set){{0}};
	*ends = expand(r);
	for (int byte = 0; byte < 256; byte++)
		for (int32_t i = 0; i < r->stacks.n_next && !byte_set_has(bytes, (unsigned char)byte); i++)
			if (grammar_fits(r->g, &r->stacks.next[i], (unsigned char)byte))
				byte_set_add(bytes, (unsigned char)byte, (unsigned char)byte);
}

bool grammar_reader_push(grammar_reader *r, unsigned char byte)
{
	expand(r);
	r->n = 0;
	for (int32_t i = 0; i < r->stacks.n_next; i++)
		if (grammar_fits(r->g, &r->stacks.next[i], byte)) {
			const grammar_next next = r->stacks.next[i];
			const int32_t top = grammar_advance(r->g, &r->stacks, &next, byte);
			bool known = false;
			for (int k = 0; k < r->n && !known; k++)
				known = grammar_same(&r->stacks, r->tops[k], top);
			require(top != -2 && r->n < (int)(sizeof r->tops / sizeof *r->tops));
			if (!known)
				r->tops[r->n++] = top;
		}
	return r->n > 0;
}

void grammar_reader_fini(grammar_reader *r)
{
	grammar_stacks_fini(&r->stacks);
}

bool grammar_reader_accepts(const grammar *g, const char *text, size_t bytes)
{
	static grammar_reader r;
	bool good = true;
	grammar_reader_start(&r, g);
	for (size_t i = 0; i < bytes && good; i++)
		good = grammar_reader_push(&r, (unsigned char)text[i]);
	good = good && expand(&r);
	grammar_reader_fini(&r);
	return good;
}
