/* automaton.h - deterministic automata over bytes, for strings and numbers of JSON and for plain texts.
 *
 * An automaton is built by exploration: the builder numbers states by their keys and hands out each new state once, so
 * that its edges can be added. Every construction has the same two bounds: states and edges of one automaton, and the
 * steps of all automata that share a budget. A finished automaton has only states that lead to an accepting one.
 * It is immutable and thread-safe. */
#ifndef ENGINE_TEXT_GRAMMAR_AUTOMATON_H
#define ENGINE_TEXT_GRAMMAR_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { AUTOMATON_MAX_STATES = 1 << 15, AUTOMATON_MAX_EDGES = 1 << 18, AUTOMATON_BUDGET = 1 << 23 };

typedef struct automaton_edge {
	int32_t target;
	unsigned char first, last; /* bytes */
} automaton_edge;

typedef struct automaton {
	int32_t *edge_starts; /* [n_states + 1]; the edges of one state are ascending and disjoint */
	bool *accepts;        /* [n_states] */
	automaton_edge *edges;
	int32_t n_states, n_edges; /* state 0 is the start; no state at all: no string fits */
} automaton;

void automaton_free(automaton *a); /* NULL is legal */
/* The state after `byte`; -1: the byte does not fit. */
int32_t automaton_next(const automaton *a, int32_t state, unsigned char byte);
/* Bytes of the shortest rest of a string from a state on. STATUS_NOMEM. */
status automaton_shortest(const automaton *a, int32_t from, int64_t *bytes);
/* Bytes of the longest string; -1: there is no longest one. STATUS_NOMEM. */
status automaton_longest(const automaton *a, int64_t *bytes);

/* The strings of `a` that are also strings of b, or that are no strings of b when `without`. STATUS_NOMEM;
 * STATUS_TOO_LARGE. */
status automaton_filter(automaton **out, const automaton *a, const automaton *b, bool without, int64_t *budget);

/* --- building ------------------------------------------------------------------------------- */

typedef struct automaton_builder automaton_builder;

/* budget: steps left for all automata that share it. NULL: out of memory. */
automaton_builder *automaton_builder_new(int64_t *budget);
/* The number of the state with this key. The first state is the start. Negative: automaton_builder_finish says why. */
int32_t automaton_builder_state(automaton_builder *b, const void *key, size_t bytes);
/* Begin the next state without edges. *key is valid until a state is added. False: every state has its edges. */
bool automaton_builder_next(automaton_builder *b, const void **key, size_t *bytes);
/* Add an edge or a mark to the state that was begun last. Edges must be ascending. */
void automaton_builder_edge(automaton_builder *b, unsigned char first, unsigned char last, int32_t target);
void automaton_builder_accept(automaton_builder *b);
/* Count work that is not a state or an edge. False: the budget is spent. */
bool automaton_builder_spend(automaton_builder *b, int64_t steps);
/* Frees the builder, also on failure. STATUS_NOMEM; STATUS_TOO_LARGE: a bound was reached. */
status automaton_builder_finish(automaton **out, automaton_builder *b);

#endif
