#include "engine/text/grammar/plain_grammar.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/grammar/pattern.h"

/* Takes the automaton. */
static status make(grammar **out, automaton *a, error *err)
{
	grammar *g = grammar_new();
	if (!g) {
		automaton_free(a);
		return STATUS_NOMEM;
	}
	const status s = grammar_finish(g, grammar_automaton(g, a), err);
	if (s == STATUS_OK)
		*out = g;
	else
		grammar_free(g);
	return s;
}

status regex_grammar_new(grammar **out, const char *pattern, size_t bytes, error *err)
{
	int64_t budget = AUTOMATON_BUDGET;
	automaton *a;
	*out = NULL;
	TRY(pattern_text_automaton(&a, pattern, bytes, &budget, err));
	return make(out, a, err);
}

/* --- listed texts ---------------------------------------------------------------------------------- */

typedef struct listed {
	const char *text;
	size_t bytes;
} listed;

/* The sorted texts from `first` to before `end`, which have the same first `depth` bytes: a state. */
typedef struct group {
	size_t first, end, depth;
} group;

static int by_text(const void *pa, const void *pb)
{
	const listed *a = pa, *b = pb;
	const int order = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);
	return order != 0 ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static void expand_group(automaton_builder *b, const listed *all, group g)
{
	for (; g.first < g.end && all[g.first].bytes == g.depth; g.first++)
		automaton_builder_accept(b);
	for (group next = {g.first, g.first, g.depth + 1}; next.first < g.end; next.first = next.end) {
		const unsigned char byte = (unsigned char)all[next.first].text[g.depth];
		while (next.end < g.end && (unsigned char)all[next.end].text[g.depth] == byte)
			next.end++;
		automaton_builder_edge(b, byte, byte, automaton_builder_state(b, &next, sizeof next));
	}
}

static status listed_automaton(automaton **out, const listed *all, size_t n)
{
	int64_t budget = AUTOMATON_BUDGET;
	automaton_builder *b = automaton_builder_new(&budget);
	const group start = {0, n, 0};
	const void *key;
	size_t bytes;
	*out = NULL;
	if (!b)
		return STATUS_NOMEM;
	automaton_builder_state(b, &start, sizeof start);
	while (automaton_builder_next(b, &key, &bytes)) {
		group g;
		memcpy(&g, key, sizeof g);
		expand_group(b, all, g);
	}
	return automaton_builder_finish(out, b);
}

status choice_grammar_new(grammar **out, const json_t *texts, error *err)
{
	const size_t n = json_array_size(texts);
	listed *all = memory_new(n, sizeof *all);
	automaton *a;
	*out = NULL;
	if (!all)
		return STATUS_NOMEM;
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_array_get(texts, i);
		all[i] = (listed){json_string_value(one), json_string_length(one)};
	}
	qsort(all, n, sizeof *all, by_text);
	const status s = listed_automaton(&a, all, n);
	free(all);
	if (s == STATUS_TOO_LARGE)
		error_set(err, s, NULL, "the texts have more than %d different beginnings", AUTOMATON_MAX_STATES);
	return s == STATUS_OK ? make(out, a, err) : s;
}
