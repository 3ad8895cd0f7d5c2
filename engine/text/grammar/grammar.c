#include "engine/text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

typedef enum node_kind {
	NODE_SET,
	NODE_TEXT,
	NODE_AUTOMATON,
	NODE_SEQUENCE,
	NODE_CHOICE,
	NODE_REPEAT,
	NODE_FORWARD
} node_kind;

typedef struct node {
	node_kind kind;
	int32_t first, count; /* sets, automata: index; texts: bytes; sequences and choices: members; others: the node
	                         in `first` */
	int32_t min, max;     /* a repetition's bounds; an automaton's first state is in min */
	int64_t shortest;     /* bytes */
} node;

struct grammar {
	node *nodes;
	byte_set *sets;
	automaton **automata;
	grammar_node *members;
	unsigned char *text;
	int32_t n_nodes, n_sets, n_automata, n_members, n_text;
	int32_t nodes_capacity, sets_capacity, automata_capacity, members_capacity, text_capacity;
	int64_t n_edges; /* all automata together */
	grammar_node root;
	status problem;
};

void byte_set_add(byte_set *s, unsigned char first, unsigned char last)
{
	for (unsigned b = first; b <= last; b++)
		s->bits[b >> 6] |= UINT64_C(1) << (b & 63);
}

void byte_set_remove(byte_set *s, unsigned char byte)
{
	s->bits[byte >> 6] &= ~(UINT64_C(1) << (byte & 63));
}

/* --- making one --------------------------------------------------------------------------- */

grammar *grammar_new(void)
{
	return memory_new(1, sizeof(grammar));
}

void grammar_free(grammar *g)
{
	if (!g)
		return;
	for (int32_t i = 0; i < g->n_automata; i++)
		automaton_free(g->automata[i]);
	free(g->automata);
	free(g->nodes);
	free(g->sets);
	free(g->members);
	free(g->text);
	free(g);
}

static grammar_node grammar_fail(grammar *g, status code)
{
	if (g->problem == STATUS_OK)
		g->problem = code;
	return -1;
}

static grammar_node grammar_add(grammar *g, node n)
{
	if (g->n_nodes == GRAMMAR_MAX_NODES)
		return grammar_fail(g, STATUS_TOO_LARGE);
	if (!MEMORY_ROOM(g->nodes, g->nodes_capacity, g->n_nodes + 1))
		return grammar_fail(g, STATUS_NOMEM);
	n.shortest = INT64_MAX;
	g->nodes[g->n_nodes] = n;
	return g->n_nodes++;
}

grammar_node grammar_set(grammar *g, const byte_set *set)
{
	if (!MEMORY_ROOM(g->sets, g->sets_capacity, g->n_sets + 1))
		return grammar_fail(g, STATUS_NOMEM);
	g->sets[g->n_sets] = *set;
	return grammar_add(g, (node){.kind = NODE_SET, .first = g->n_sets++});
}

grammar_node grammar_range(grammar *g, unsigned char first, unsigned char last)
{
	byte_set set = {{0}};
	byte_set_add(&set, first, last);
	return grammar_set(g, &set);
}

grammar_node grammar_text(grammar *g, const char *text, size_t bytes)
{
	if (bytes > INT32_MAX / 2)
		return grammar_fail(g, STATUS_TOO_LARGE);
	if (!MEMORY_ROOM(g->text, g->text_capacity, g->n_text + (int64_t)bytes))
		return grammar_fail(g, STATUS_NOMEM);
	memcpy(g->text + g->n_text, text, bytes);
	g->n_text += (int32_t)bytes;
	return grammar_add(g, (node){.kind = NODE_TEXT, .first = g->n_text - (int32_t)bytes, .count = (int32_t)bytes});
}

static grammar_node add_automaton(grammar *g, int32_t index, int32_t start)
{
	int64_t shortest;
	if (automaton_shortest(g->automata[index], start, &shortest) != STATUS_OK)
		return grammar_fail(g, STATUS_NOMEM);
	return grammar_add(g, (node){.kind = NODE_AUTOMATON, .first = index, .count = (int32_t)shortest, .min = start});
}

grammar_node grammar_automaton(grammar *g, automaton *a)
{
	g->n_edges += a->n_edges;
	if (g->n_edges > GRAMMAR_MAX_EDGES || !MEMORY_ROOM(g->automata, g->automata_capacity, g->n_automata + 1)) {
		automaton_free(a);
		return grammar_fail(g, g->n_edges > GRAMMAR_MAX_EDGES ? STATUS_TOO_LARGE : STATUS_NOMEM);
	}
	g->automata[g->n_automata++] = a;
	return a->n_states == 0 ? grammar_choice(g, NULL, 0) : add_automaton(g, g->n_automata - 1, 0);
}

grammar_node grammar_automaton_from(grammar *g, grammar_node of, int32_t state)
{
	return of < 0 ? -1 : add_automaton(g, g->nodes[of].first, state);
}

static grammar_node add_members(grammar *g, node_kind kind, const grammar_node *nodes, int n)
{
	for (int i = 0; i < n; i++)
		if (nodes[i] < 0)
			return -1;
	if (!MEMORY_ROOM(g->members, g->members_capacity, g->n_members + n))
		return grammar_fail(g, STATUS_NOMEM);
	if (n > 0)
		memcpy(g->members + g->n_members, nodes, (size_t)n * sizeof *nodes);
	g->n_members += n;
	return grammar_add(g, (node){.kind = kind, .first = g->n_members - n, .count = n});
}

grammar_node grammar_sequence(grammar *g, const grammar_node *nodes, int n)
{
	return add_members(g, NODE_SEQUENCE, nodes, n);
}

grammar_node grammar_choice(grammar *g, const grammar_node *nodes, int n)
{
	return add_members(g, NODE_CHOICE, nodes, n);
}

grammar_node grammar_repeat(grammar *g, grammar_node of, int32_t min, int32_t max)
{
	return of < 0 ? -1 : grammar_add(g, (node){.kind = NODE_REPEAT, .first = of, .min = min, .max = max});
}

grammar_node grammar_forward(grammar *g)
{
	return grammar_add(g, (node){.kind = NODE_FORWARD, .first = -1});
}

void grammar_define(grammar *g, grammar_node forward, grammar_node as)
{
	if (forward >= 0 && as >= 0)
		g->nodes[forward].first = as;
}

/* --- finishing ------------------------------------------------------------------------------ */

static int64_t plus(int64_t a, int64_t b)
{
	int64_t sum;
	return a == INT64_MAX || b == INT64_MAX || __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* From those of its members, as far as these are known. */
static int64_t shortest_of(const grammar *g, const node *n)
{
	const grammar_node *members = g->members ? g->members + n->first : NULL;
	int64_t sum = 0, least = INT64_MAX, each;
	switch (n->kind) {
	case NODE_SET:
		return 1;
	case NODE_TEXT:
	case NODE_AUTOMATON:
		return n->count;
	case NODE_SEQUENCE:
		for (int32_t i = 0; i < n->count; i++)
			sum = plus(sum, g->nodes[members[i]].shortest);
		return sum;
	case NODE_CHOICE:
		for (int32_t i = 0; i < n->count; i++)
			if (g->nodes[members[i]].shortest < least)
				least = g->nodes[members[i]].shortest;
		return least;
	case NODE_REPEAT:
		each = n->min > 0 ? g->nodes[n->first].shortest : 0;
		return each == INT64_MAX || __builtin_mul_overflow(each, (int64_t)n->min, &sum) ? INT64_MAX : sum;
	case NODE_FORWARD:
		break;
	}
	return n->first < 0 ? INT64_MAX : g->nodes[n->first].shortest;
}

/* The shortest strings of all nodes: the least fixed point. */
static void find_shortest(grammar *g)
{
	for (bool changed = true; changed;) {
		changed = false;
		for (int32_t i = 0; i < g->n_nodes; i++) {
			const int64_t shortest = shortest_of(g, &g->nodes[i]);
			changed |= shortest != g->nodes[i].shortest;
			g->nodes[i].shortest = shortest;
		}
	}
}

/* Without what has no string: its alternatives, and its repetitions where there may be none. */
static void prune(grammar *g)
{
	for (int32_t i = 0; i < g->n_nodes; i++) {
		node *n = &g->nodes[i];
		int32_t kept = 0;
		for (int32_t k = 0; n->kind == NODE_CHOICE && k < n->count; k++)
			if (g->nodes[g->members[n->first + k]].shortest < INT64_MAX)
				g->members[n->first + kept++] = g->members[n->first + k];
		if (n->kind == NODE_CHOICE)
			n->count = kept;
		if (n->kind == NODE_REPEAT && g->nodes[n->first].shortest == INT64_MAX)
			n->max = 0;
	}
}

/* True if a node begins with itself, or with too many nodes within each other: then *deep is set. seen: 0 not visited,
 * 1 in progress, 2 false. */
static bool begins_with_itself(const grammar *g, grammar_node i, char *seen, int depth, bool *deep)
{
	const node *n = &g->nodes[i];
	bool found = false;
	if (seen[i])
		return seen[i] != 2;
	if (depth == GRAMMAR_MAX_DEPTH)
		return *deep = true;
	seen[i] = 1;
	switch (n->kind) {
	case NODE_SET:
	case NODE_TEXT:
	case NODE_AUTOMATON:
		break;
	case NODE_SEQUENCE:
	case NODE_CHOICE:
		for (int32_t k = 0; k < n->count && !found; k++) {
			const grammar_node member = g->members[n->first + k];
			found = begins_with_itself(g, member, seen, depth + 1, deep);
			if (n->kind == NODE_SEQUENCE && g->nodes[member].shortest > 0)
				break;
		}
		break;
	case NODE_REPEAT:
		found = n->max != 0 &&
		        (g->nodes[n->first].shortest == 0 || begins_with_itself(g, n->first, seen, depth + 1, deep));
		break;
	case NODE_FORWARD:
		found = begins_with_itself(g, n->first, seen, depth + 1, deep);
		break;
	}
	seen[i] = 2;
	return found;
}

status grammar_finish(grammar *g, grammar_node root, error *err)
{
	if (g->problem == STATUS_TOO_LARGE)
		return error_set(err, STATUS_TOO_LARGE, NULL,
		                 "is too large: its grammar has more than %d nodes or %d edges", GRAMMAR_MAX_NODES,
		                 GRAMMAR_MAX_EDGES);
	if (g->problem != STATUS_OK)
		return g->problem;
	find_shortest(g);
	if (g->nodes[root].shortest == INT64_MAX)
		return error_set(err, STATUS_INVALID, NULL, "no text fits");
	prune(g);
	char *seen = memory_new((size_t)g->n_nodes, 1);
	if (!seen)
		return STATUS_NOMEM;
	bool any = false, deep = false; /* every node may be the top of a stack */
	for (int32_t i = 0; i < g->n_nodes && !any; i++)
		any = g->nodes[i].shortest < INT64_MAX && begins_with_itself(g, i, seen, 0, &deep);
	free(seen);
	if (deep)
		return error_set(err, STATUS_TOO_LARGE, NULL, "is nested more than %d deep", GRAMMAR_MAX_DEPTH);
	if (any)
		return error_set(err, STATUS_INVALID, NULL, "a value is defined by nothing but itself");
	g->root = root;
	return STATUS_OK;
}

grammar_node grammar_root(const grammar *g)
{
	return g->root;
}

bool grammar_has_text(const grammar *g, grammar_node n)
{
	return g->nodes[n].shortest < INT64_MAX;
}

/* --- reading -------------------------------------------------------------------------------- */

void grammar_stacks_fini(grammar_stacks *s)
{
	free(s->frames);
	free(s->next);
	*s = (grammar_stacks){0};
}

int32_t grammar_push(grammar_stacks *s, grammar_node n, int32_t position, int32_t below)
{
	if (s->n_frames == GRAMMAR_MAX_FRAMES || !MEMORY_ROOM(s->frames, s->frames_capacity, s->n_frames + 1))
		return -2;
	s->frames[s->n_frames] = (grammar_frame){n, position, below};
	return s->n_frames++;
}

static status expand(const grammar *g, grammar_stacks *s, grammar_node at, int32_t position, int32_t below, bool *ends);

status grammar_stacks_problem(const grammar_stacks *s)
{
	return s->n_frames == GRAMMAR_MAX_FRAMES || s->n_next == GRAMMAR_MAX_FRAMES ? STATUS_TOO_LARGE : STATUS_NOMEM;
}

static status leave(const grammar *g, grammar_stacks *s, int32_t top, bool *ends)
{
	if (top == FRAME_NONE) {
		*ends = true;
		return STATUS_OK;
	}
	const grammar_frame f = s->frames[top];
	return expand(g, s, f.node, f.position, f.below, ends);
}

/* The state of an automaton's node. Position 0 is its start, which may be any state; the others are states + 1. */
static int32_t state_at(const node *n, int32_t position)
{
	return position == 0 ? n->min : position - 1;
}

static bool has_edges(const automaton *a, int32_t state)
{
	return a->edge_starts[state] < a->edge_starts[state + 1];
}

/* Repetitions without a bound only count up to their least number. */
static int32_t after_one(const node *n, int32_t position)
{
	return n->max == GRAMMAR_NO_BOUND && position >= n->min ? n->min : position + 1;
}

/* Expand `member` of a node that continues at `rest` after it, unless the member is its last. */
static status expand_member(const grammar *g, grammar_stacks *s, grammar_node member, grammar_node at, int32_t rest,
                            bool last, int32_t below, bool *ends)
{
	const int32_t under = last ? below : grammar_push(s, at, rest, below);
	return under == -2 ? grammar_stacks_problem(s) : expand(g, s, member, 0, under, ends);
}

static status expand_node(const grammar *g, grammar_stacks *s, grammar_node at, int32_t position, int32_t below,
                          bool *ends)
{
	const node *n = &g->nodes[at];
	switch (n->kind) {
	case NODE_AUTOMATON:
		if (g->automata[n->first]->accepts[state_at(n, position)])
			TRY(leave(g, s, below, ends));
		if (!has_edges(g->automata[n->first], state_at(n, position)))
			return STATUS_OK;
		/* fall through */
	case NODE_SET:
	case NODE_TEXT:
		if (s->n_next == GRAMMAR_MAX_FRAMES || !MEMORY_ROOM(s->next, s->next_capacity, s->n_next + 1))
			return grammar_stacks_problem(s);
		s->next[s->n_next++] = (grammar_next){at, position, below};
		return STATUS_OK;
	case NODE_SEQUENCE:
		if (position == n->count)
			return leave(g, s, below, ends);
		return expand_member(g, s, g->members[n->first + position], at, position + 1, position + 1 == n->count,
		                     below, ends);
	case NODE_CHOICE:
		for (int32_t i = 0; i < n->count; i++)
			TRY(expand(g, s, g->members[n->first + i], 0, below, ends));
		return STATUS_OK;
	case NODE_REPEAT:
		if (n->max == GRAMMAR_NO_BOUND || position < n->max)
			TRY(expand_member(g, s, n->first, at, after_one(n, position), position + 1 == n->max, below,
			                  ends));
		return position >= n->min ? leave(g, s, below, ends) : STATUS_OK;
	case NODE_FORWARD:
		break;
	}
	return expand(g, s, n->first, 0, below, ends);
}

static status expand(const grammar *g, grammar_stacks *s, grammar_node at, int32_t position, int32_t below, bool *ends)
{
	if (++s->work > GRAMMAR_MOST_WORK || s->depth == GRAMMAR_MAX_DEPTH)
		return STATUS_TOO_LARGE;
	s->depth++;
	const status result = expand_node(g, s, at, position, below, ends);
	s->depth--;
	return result;
}

status grammar_expand(const grammar *g, grammar_stacks *s, int32_t top, bool *ends)
{
	return leave(g, s, top, ends);
}

bool grammar_fits(const grammar *g, const grammar_next *next, unsigned char byte)
{
	const node *n = &g->nodes[next->node];
	if (n->kind == NODE_AUTOMATON)
		return automaton_next(g->automata[n->first], state_at(n, next->position), byte) >= 0;
	return n->kind == NODE_SET ? byte_set_has(&g->sets[n->first], byte)
	                           : g->text[n->first + next->position] == byte;
}

int32_t grammar_advance(const grammar *g, grammar_stacks *s, const grammar_next *next, unsigned char byte)
{
	const node *n = &g->nodes[next->node];
	if (n->kind == NODE_AUTOMATON) {
		const automaton *a = g->automata[n->first];
		const int32_t state = automaton_next(a, state_at(n, next->position), byte);
		return has_edges(a, state) ? grammar_push(s, next->node, state + 1, next->below) : next->below;
	}
	if (n->kind == NODE_SET || next->position + 1 == n->count)
		return next->below;
	return grammar_push(s, next->node, next->position + 1, next->below);
}

bool grammar_same(grammar_stacks *s, int32_t a, int32_t b)
{
	for (s->work++; a != b; s->work++) {
		if (a == FRAME_NONE || b == FRAME_NONE)
			return false;
		const grammar_frame *x = &s->frames[a], *y = &s->frames[b];
		if (x->node != y->node || x->position != y->position)
			return false;
		a = x->below;
		b = y->below;
	}
	return true;
}

int32_t grammar_position_like(const grammar *g, grammar_node at, int32_t position, int32_t bytes)
{
	const node *n = &g->nodes[at];
	if (n->kind != NODE_REPEAT)
		return position;
	if (position < n->min - bytes)
		return n->min - bytes - 1;
	if (n->max != GRAMMAR_NO_BOUND && position >= n->min && position < n->max - bytes)
		return n->max - bytes - 1;
	return position;
}
