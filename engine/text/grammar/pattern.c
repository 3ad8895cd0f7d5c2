#include "engine/text/grammar/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* The tree becomes a nondeterministic automaton over characters, whose subsets are the states of the result. */

enum {
	MAX_STEPS = 1 << 16,
	MAX_SPELLINGS = 1 << 13,
	MAX_SET_SPELLINGS = 1024,
	VISITS = 8 /* nodes or steps visited for one step of the budget */
};

typedef enum step_kind { STEP_CHARACTER, STEP_SPLIT, STEP_BEGIN, STEP_END, STEP_MATCHED } step_kind;

typedef struct step {
	step_kind kind;
	int32_t a, b; /* the step that follows; of STEP_SPLIT two; b of STEP_CHARACTER is its set */
} step;

/* A step that is waiting for a character, or one whose character has been read in part. Ordered by value. */
typedef uint64_t item;

static item item_of(int32_t at, int32_t spelling, int bytes)
{
	return (uint64_t)at << 24 | (uint64_t)(spelling + 1) << 3 | (uint64_t)bytes;
}

typedef struct items {
	item *all;
	int32_t n, capacity;
} items;

typedef struct arc {
	unsigned char first, last;
	item next; /* the first byte of a character may be its last: then the step alone */
} arc;

typedef struct compiler {
	const pattern_tree *tree;
	code_points_spelling spelling;
	bool searches; /* the pattern may match anywhere; false: as a whole */
	step *steps;   /* [MAX_STEPS] */
	character_bytes *spellings;
	int32_t *set_starts; /* [n_sets + 2]: spellings of each set; the last set is every character */
	arc *arcs;
	items now, after;
	int32_t *stack, *seen; /* [MAX_STEPS]; seen: the last mark */
	int32_t n_steps, n_spellings, n_arcs, arcs_capacity, mark, rest;
	int64_t visits; /* not yet counted in the budget */
	automaton_builder *builder;
	status problem;
} compiler;

static int32_t pattern_fail(compiler *c, status code)
{
	if (c->problem == STATUS_OK)
		c->problem = code;
	return -1;
}

static void spend(compiler *c, int64_t steps)
{
	if (!automaton_builder_spend(c->builder, steps))
		pattern_fail(c, STATUS_TOO_LARGE);
}

static void visited(compiler *c, int64_t n)
{
	c->visits += n;
	spend(c, c->visits / VISITS);
	c->visits %= VISITS;
}

/* --- steps --------------------------------------------------------------------------------------- */

static int32_t pattern_add_step(compiler *c, step s)
{
	if (s.a < 0 || c->problem != STATUS_OK)
		return -1;
	if (c->n_steps == MAX_STEPS)
		return pattern_fail(c, STATUS_TOO_LARGE);
	c->steps[c->n_steps] = s;
	return c->n_steps++;
}

static int32_t pattern_compile(compiler *c, int32_t at, int32_t next);

static int32_t compile_repeat(compiler *c, const pattern_node *n, int32_t next)
{
	int32_t from = next;
	if (n->max == PATTERN_NO_BOUND) {
		from = pattern_add_step(c, (step){STEP_SPLIT, next, next});
		const int32_t body = pattern_compile(c, n->a, from);
		if (body >= 0)
			c->steps[from].b = body;
	}
	for (int32_t i = n->min; i < n->max && c->problem == STATUS_OK; i++) {
		const int32_t body = pattern_compile(c, n->a, from);
		if (body == from) /* the empty string */
			break;
		from = pattern_add_step(c, (step){STEP_SPLIT, body, next});
	}
	for (int32_t i = 0; i < n->min && c->problem == STATUS_OK; i++) {
		const int32_t body = pattern_compile(c, n->a, from);
		if (body == from)
			break;
		from = body;
	}
	return c->problem == STATUS_OK ? from : -1;
}

/* The first step of a node that `next` follows. */
static int32_t pattern_compile(compiler *c, int32_t at, int32_t next)
{
	const pattern_node *n = &c->tree->nodes[at];
	int32_t either = -1;
	visited(c, 1);
	if (c->problem != STATUS_OK)
		return -1;
	for (; n->kind == PATTERN_SEQUENCE; n = &c->tree->nodes[n->a])
		next = pattern_compile(c, n->b, next);
	for (; n->kind == PATTERN_EITHER; n = &c->tree->nodes[n->a]) {
		const int32_t one = pattern_compile(c, n->b, next);
		either = either < 0 ? one : pattern_add_step(c, (step){STEP_SPLIT, either, one});
	}
	if (either >= 0)
		return pattern_add_step(
		    c, (step){STEP_SPLIT, pattern_compile(c, (int32_t)(n - c->tree->nodes), next), either});
	switch (n->kind) {
	case PATTERN_CHARACTER:
		return pattern_add_step(c, (step){STEP_CHARACTER, next, n->a});
	case PATTERN_REPEAT:
		return compile_repeat(c, n, next);
	case PATTERN_BEGIN:
		return pattern_add_step(c, (step){STEP_BEGIN, next, 0});
	case PATTERN_END:
		return pattern_add_step(c, (step){STEP_END, next, 0});
	case PATTERN_EMPTY:
	case PATTERN_SEQUENCE:
	case PATTERN_EITHER:
		break;
	}
	return next;
}

/* Steps for all strings that match, or in which the pattern matches somewhere: any characters before and after it. */
static int32_t compile_root(compiler *c, int32_t root)
{
	const int32_t every = c->tree->n_sets;
	c->n_steps = 0;
	const int32_t matched = pattern_add_step(c, (step){STEP_MATCHED, 0, 0});
	if (!c->searches)
		return pattern_compile(c, root, matched);
	c->rest = pattern_add_step(c, (step){STEP_SPLIT, matched, matched});
	c->steps[c->rest].b = pattern_add_step(c, (step){STEP_CHARACTER, c->rest, every});
	const int32_t start = pattern_add_step(c, (step){STEP_SPLIT, 0, 0});
	const int32_t skip = pattern_add_step(c, (step){STEP_CHARACTER, start, every});
	const int32_t first = pattern_compile(c, root, c->rest);
	if (first < 0)
		return -1;
	c->steps[start].a = first;
	c->steps[start].b = skip;
	return start;
}

static status spell_sets(compiler *c)
{
	const int32_t n = c->tree->n_sets;
	for (int32_t i = 0; i <= n; i++) {
		static const code_points every = {{{0, CODE_POINT_LAST}}, 1};
		const int32_t room = MAX_SPELLINGS - c->n_spellings;
		const int count =
		    code_points_spell(i < n ? &c->tree->sets[i] : &every, c->spelling, c->spellings + c->n_spellings,
		                      room < MAX_SET_SPELLINGS ? room : MAX_SET_SPELLINGS);
		if (count < 0)
			return STATUS_TOO_LARGE;
		c->set_starts[i] = c->n_spellings;
		c->n_spellings += count;
	}
	c->set_starts[n + 1] = c->n_spellings;
	return STATUS_OK;
}

/* --- subsets -------------------------------------------------------------------------------------- */

static void add_item(compiler *c, items *to, item one)
{
	if (!MEMORY_ROOM(to->all, to->capacity, to->n + 1)) {
		pattern_fail(c, STATUS_NOMEM);
		return;
	}
	to->all[to->n++] = one;
}

/* Add what can be reached from `at` without a character. ended: no character follows. True: the pattern has matched. */
static bool close_over(compiler *c, items *to, int32_t at, bool started, bool ended)
{
	int32_t n = 0, popped = 0;
	bool matched = false;
	if (c->seen[at] == c->mark)
		return false;
	c->seen[c->stack[n++] = at] = c->mark;
	for (; n > 0; popped++) {
		const int32_t i = c->stack[--n];
		const step *s = &c->steps[i];
		int32_t next[2] = {-1, -1};
		matched |= s->kind == STEP_MATCHED;
		if (s->kind == STEP_SPLIT || (s->kind == STEP_BEGIN && !started) || (s->kind == STEP_END && ended))
			next[0] = s->a;
		if (s->kind == STEP_SPLIT)
			next[1] = s->b;
		else if (s->kind != STEP_BEGIN && to)
			add_item(c, to, item_of(i, -1, 0));
		for (int k = 0; k < 2; k++)
			if (next[k] >= 0 && c->seen[next[k]] != c->mark)
				c->seen[c->stack[n++] = next[k]] = c->mark;
	}
	visited(c, popped);
	return matched;
}

static int by_value(const void *pa, const void *pb)
{
	const item *a = pa, *b = pb;
	return (*a > *b) - (*a < *b);
}

/* The state of a set of items. In a search all strings fit once the pattern has matched: then the rest is the whole
 * set. */
static int32_t state_of(compiler *c, items *set)
{
	int32_t n = 0;
	for (int32_t i = 0; c->searches && i < set->n; i++)
		if (set->all[i] == item_of(0, -1, 0)) { /* STEP_MATCHED */
			c->mark++;
			set->n = 0;
			close_over(c, set, c->rest, true, false);
			break;
		}
	if (set->n > 0)
		qsort(set->all, (size_t)set->n, sizeof *set->all, by_value);
	for (int32_t i = 0; i < set->n; i++)
		if (n == 0 || set->all[i] != set->all[n - 1])
			set->all[n++] = set->all[i];
	set->n = n;
	return c->problem == STATUS_OK ? automaton_builder_state(c->builder, set->all, (size_t)n * sizeof *set->all)
	                               : -1;
}

static void add_arc(compiler *c, int32_t at, int32_t spelling, int byte)
{
	if (!MEMORY_ROOM(c->arcs, c->arcs_capacity, c->n_arcs + 1)) {
		pattern_fail(c, STATUS_NOMEM);
		return;
	}
	const character_bytes *s = &c->spellings[spelling];
	const bool whole = byte + 1 == s->bytes;
	c->arcs[c->n_arcs++] = (arc){s->first[byte], s->last[byte],
	                             whole ? item_of(c->steps[at].a, -1, 0) : item_of(at, spelling, byte + 1)};
}

/* The arcs of c->now; begins[b]: one begins or the one before ends at byte b. */
static void list_arcs(compiler *c, bool begins[257])
{
	c->n_arcs = 0;
	memset(begins, 0, 257 * sizeof *begins);
	for (int32_t i = 0; i < c->now.n; i++) {
		const int32_t at = (int32_t)(c->now.all[i] >> 24),
		              spelling = (int32_t)(c->now.all[i] >> 3 & 0x1fffff) - 1;
		if (c->steps[at].kind != STEP_CHARACTER)
			continue;
		if (spelling >= 0)
			add_arc(c, at, spelling, (int)(c->now.all[i] & 7));
		for (int32_t k = c->set_starts[c->steps[at].b]; spelling < 0 && k < c->set_starts[c->steps[at].b + 1];
		     k++)
			add_arc(c, at, k, 0);
	}
	for (int32_t i = 0; i < c->n_arcs; i++)
		begins[c->arcs[i].first] = begins[c->arcs[i].last + 1] = true;
}

/* The state after any byte from `byte` up to the next one at which an arc begins or ends; -1: none fits. */
static int32_t state_after(compiler *c, int byte)
{
	c->after.n = 0;
	c->mark++;
	for (int32_t i = 0; i < c->n_arcs; i++) {
		const arc *a = &c->arcs[i];
		if (a->first > byte || a->last < byte)
			continue;
		if (a->next & 0xffffff)
			add_item(c, &c->after, a->next);
		else
			close_over(c, &c->after, (int32_t)(a->next >> 24), true, false);
	}
	return c->after.n > 0 ? state_of(c, &c->after) : -1;
}

static bool matches_at_end(compiler *c)
{
	bool matched = false;
	c->mark++;
	for (int32_t i = 0; i < c->now.n && !matched; i++)
		if ((c->now.all[i] & 0xffffff) == 0)
			matched = close_over(c, NULL, (int32_t)(c->now.all[i] >> 24), true, true);
	return matched;
}

static void expand(compiler *c, const void *key, size_t bytes)
{
	bool begins[257];
	c->now.n = 0;
	for (size_t i = 0; i < bytes / sizeof(item); i++) {
		item one;
		memcpy(&one, (const char *)key + i * sizeof one, sizeof one);
		add_item(c, &c->now, one);
	}
	if (matches_at_end(c))
		automaton_builder_accept(c->builder);
	list_arcs(c, begins);
	spend(c, c->n_arcs);
	for (int byte = 0, end; byte < 256 && c->problem == STATUS_OK; byte = end) {
		for (end = byte + 1; end < 256 && !begins[end]; end++)
			;
		spend(c, c->n_arcs / 16);
		automaton_builder_edge(c->builder, (unsigned char)byte, (unsigned char)(end - 1), state_after(c, byte));
	}
}

static status determinize(compiler *c, int32_t root, int64_t *budget, automaton **out)
{
	const void *key;
	size_t bytes;
	*out = NULL;
	c->builder = automaton_builder_new(budget);
	if (!c->builder)
		return STATUS_NOMEM;
	const int32_t start = compile_root(c, root);
	c->after.n = 0;
	c->mark++;
	if (start >= 0) {
		close_over(c, &c->after, start, false, false);
		state_of(c, &c->after);
	}
	while (c->problem == STATUS_OK && automaton_builder_next(c->builder, &key, &bytes))
		expand(c, key, bytes);
	const status s = automaton_builder_finish(out, c->builder);
	if (c->problem == STATUS_OK)
		return s;
	automaton_free(*out);
	*out = NULL;
	return c->problem;
}

/* --- the whole pattern ------------------------------------------------------------------------------ */

static status make_all(compiler *c, int64_t *budget, automaton **out)
{
	const pattern_tree *t = c->tree;
	TRY(spell_sets(c));
	status s = determinize(c, t->root, budget, out);
	c->searches = true;
	for (int i = 0; i < t->n_looks && s == STATUS_OK; i++) {
		automaton *look, *all = *out;
		s = determinize(c, t->looks[i].root, budget, &look);
		if (s == STATUS_OK)
			s = automaton_filter(out, all, look, t->looks[i].negative, budget);
		else
			*out = NULL;
		automaton_free(all);
		automaton_free(look);
	}
	return s;
}

static status pattern_make(const pattern_tree *t, code_points_spelling spelling, bool searches, int64_t *budget,
                           automaton **out)
{
	compiler c = {.tree = t,
	              .spelling = spelling,
	              .searches = searches,
	              .steps = memory_new(MAX_STEPS, sizeof *c.steps),
	              .spellings = memory_new(MAX_SPELLINGS, sizeof *c.spellings),
	              .set_starts = memory_new((size_t)t->n_sets + 2, sizeof *c.set_starts),
	              .stack = memory_new(MAX_STEPS, sizeof *c.stack),
	              .seen = memory_new(MAX_STEPS, sizeof *c.seen)};
	status s = STATUS_NOMEM;
	if (c.steps && c.spellings && c.set_starts && c.stack && c.seen)
		s = make_all(&c, budget, out);
	free(c.steps);
	free(c.spellings);
	free(c.set_starts);
	free(c.stack);
	free(c.seen);
	free(c.arcs);
	free(c.now.all);
	free(c.after.all);
	return s;
}

static status make_parsed(automaton **out, const char *pattern, size_t bytes, code_points_spelling spelling,
                          bool searches, int64_t *budget, error *err)
{
	pattern_tree t = {0};
	*out = NULL;
	status s = pattern_tree_parse(&t, pattern, bytes, err);
	if (s == STATUS_OK) {
		s = pattern_make(&t, spelling, searches, budget, out);
		if (s == STATUS_TOO_LARGE)
			error_set(err, s, NULL,
			          "the regular expression needs more than %d states, %d edges or %d steps",
			          AUTOMATON_MAX_STATES, AUTOMATON_MAX_EDGES, AUTOMATON_BUDGET);
	}
	pattern_tree_fini(&t);
	return s;
}

status pattern_automaton(automaton **out, const char *pattern, size_t bytes, int64_t *budget, error *err)
{
	return make_parsed(out, pattern, bytes, SPELL_JSON, true, budget, err);
}

status pattern_text_automaton(automaton **out, const char *pattern, size_t bytes, int64_t *budget, error *err)
{
	return make_parsed(out, pattern, bytes, SPELL_UTF8, false, budget, err);
}

status pattern_tree_automaton(automaton **out, const pattern_tree *t, int64_t *budget)
{
	*out = NULL;
	return pattern_make(t, SPELL_UTF8, false, budget, out);
}
