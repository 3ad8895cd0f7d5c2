#include "engine/text/grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { SLOTS = 2 * AUTOMATON_MAX_STATES, MAX_KEY_BYTES = 1 << 25 };

struct automaton_builder {
	automaton *a;
	unsigned char *keys; /* the keys of all states, one after the other */
	size_t *key_starts;  /* [AUTOMATON_MAX_STATES + 1] */
	int32_t *slots;      /* hash table of states, [SLOTS]; 0: empty, else the state + 1 */
	size_t keys_capacity;
	int32_t edges_capacity, started; /* states that have been begun */
	int64_t *budget;
	status problem;
};

void automaton_free(automaton *a)
{
	if (!a)
		return;
	free(a->edge_starts);
	free(a->accepts);
	free(a->edges);
	free(a);
}

int32_t automaton_next(const automaton *a, int32_t state, unsigned char byte)
{
	int32_t low = a->edge_starts[state], high = a->edge_starts[state + 1];
	while (low < high) {
		const int32_t middle = low + (high - low) / 2;
		if (a->edges[middle].last < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low < a->edge_starts[state + 1] && a->edges[low].first <= byte ? a->edges[low].target : -1;
}

/* --- building ------------------------------------------------------------------------------- */

static void builder_free(automaton_builder *b)
{
	automaton_free(b->a);
	free(b->keys);
	free(b->key_starts);
	free(b->slots);
	free(b);
}

automaton_builder *automaton_builder_new(int64_t *budget)
{
	automaton_builder *b = memory_new(1, sizeof *b);
	if (!b)
		return NULL;
	b->budget = budget;
	b->a = memory_new(1, sizeof *b->a);
	b->key_starts = memory_new(AUTOMATON_MAX_STATES + 1, sizeof *b->key_starts);
	b->slots = memory_new(SLOTS, sizeof *b->slots);
	if (b->a) {
		b->a->edge_starts = memory_new(AUTOMATON_MAX_STATES + 1, sizeof *b->a->edge_starts);
		b->a->accepts = memory_new(AUTOMATON_MAX_STATES, sizeof *b->a->accepts);
	}
	if (b->a && b->key_starts && b->slots && b->a->edge_starts && b->a->accepts)
		return b;
	builder_free(b);
	return NULL;
}

static int32_t automaton_fail(automaton_builder *b, status code)
{
	if (b->problem == STATUS_OK)
		b->problem = code;
	return -1;
}

bool automaton_builder_spend(automaton_builder *b, int64_t steps)
{
	*b->budget -= steps;
	if (*b->budget < 0)
		automaton_fail(b, STATUS_TOO_LARGE);
	return *b->budget >= 0;
}

static bool append_key(automaton_builder *b, const void *key, size_t bytes)
{
	const size_t used = b->key_starts[b->a->n_states];
	if (bytes > b->keys_capacity - used) {
		const size_t capacity = 2 * b->keys_capacity + bytes + 1024;
		unsigned char *bigger = capacity <= MAX_KEY_BYTES ? realloc(b->keys, capacity) : NULL;
		if (!bigger) {
			automaton_fail(b, capacity <= MAX_KEY_BYTES ? STATUS_NOMEM : STATUS_TOO_LARGE);
			return false;
		}
		b->keys = bigger;
		b->keys_capacity = capacity;
	}
	memcpy(b->keys + used, key, bytes);
	b->key_starts[b->a->n_states + 1] = used + bytes;
	return true;
}

int32_t automaton_builder_state(automaton_builder *b, const void *key, size_t bytes)
{
	uint64_t hash = UINT64_C(14695981039346656037);
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ ((const unsigned char *)key)[i]) * UINT64_C(1099511628211);
	automaton_builder_spend(b, 1 + (int64_t)(bytes / 8));
	if (b->problem != STATUS_OK)
		return -1;
	size_t at = (size_t)(hash >> 32) % SLOTS;
	for (; b->slots[at]; at = (at + 1) % SLOTS) {
		const int32_t state = b->slots[at] - 1;
		if (b->key_starts[state + 1] - b->key_starts[state] == bytes &&
		    memcmp(b->keys + b->key_starts[state], key, bytes) == 0)
			return state;
	}
	if (b->a->n_states == AUTOMATON_MAX_STATES)
		return automaton_fail(b, STATUS_TOO_LARGE);
	if (!append_key(b, key, bytes))
		return -1;
	b->slots[at] = ++b->a->n_states;
	return b->a->n_states - 1;
}

bool automaton_builder_next(automaton_builder *b, const void **key, size_t *bytes)
{
	if (b->problem != STATUS_OK || b->started == b->a->n_states)
		return false;
	*key = b->keys + b->key_starts[b->started];
	*bytes = b->key_starts[b->started + 1] - b->key_starts[b->started];
	b->a->edge_starts[b->started++] = b->a->n_edges;
	return true;
}

void automaton_builder_edge(automaton_builder *b, unsigned char first, unsigned char last, int32_t target)
{
	automaton *a = b->a;
	automaton_edge *before = a->n_edges > a->edge_starts[b->started - 1] ? &a->edges[a->n_edges - 1] : NULL;
	if (target < 0)
		return;
	if (before && before->target == target && before->last + 1 == first) {
		before->last = last;
		return;
	}
	if (a->n_edges == b->edges_capacity) {
		const int32_t capacity = 2 * b->edges_capacity + 64;
		automaton_edge *bigger =
		    capacity <= AUTOMATON_MAX_EDGES ? realloc(a->edges, (size_t)capacity * sizeof *bigger) : NULL;
		if (!bigger) {
			automaton_fail(b, capacity <= AUTOMATON_MAX_EDGES ? STATUS_NOMEM : STATUS_TOO_LARGE);
			return;
		}
		a->edges = bigger;
		b->edges_capacity = capacity;
	}
	a->edges[a->n_edges++] = (automaton_edge){target, first, last};
}

void automaton_builder_accept(automaton_builder *b)
{
	b->a->accepts[b->started - 1] = true;
}

/* Mark the states that lead to an accepting one: a search along the reversed edges. starts: [n_states + 2], zero. */
static void find_live(const automaton *a, int32_t *starts, int32_t *sources, int32_t *queue, bool *live)
{
	int32_t n = 0;
	for (int32_t e = 0; e < a->n_edges; e++)
		starts[a->edges[e].target + 2]++;
	for (int32_t s = 0; s < a->n_states; s++)
		starts[s + 2] += starts[s + 1];
	for (int32_t s = 0; s < a->n_states; s++)
		for (int32_t e = a->edge_starts[s]; e < a->edge_starts[s + 1]; e++)
			sources[starts[a->edges[e].target + 1]++] = s;
	for (int32_t s = 0; s < a->n_states; s++)
		if (a->accepts[s]) {
			live[s] = true;
			queue[n++] = s;
		}
	for (int32_t i = 0; i < n; i++)
		for (int32_t k = starts[queue[i]]; k < starts[queue[i] + 1]; k++)
			if (!live[sources[k]]) {
				live[sources[k]] = true;
				queue[n++] = sources[k];
			}
}

/* Remove the states that lead nowhere, and shrink the arrays. renamed: [n_states] */
static void keep_live(automaton *a, const bool *live, int32_t *renamed)
{
	int32_t n = 0, n_edges = 0;
	for (int32_t s = 0; s < a->n_states; s++)
		renamed[s] = live[s] ? n++ : -1;
	if (a->n_states > 0 && !live[0])
		n = 0;
	for (int32_t s = 0; s < a->n_states && n > 0; s++) {
		const int32_t first = a->edge_starts[s], end = a->edge_starts[s + 1];
		if (!live[s])
			continue;
		a->edge_starts[renamed[s]] = n_edges;
		a->accepts[renamed[s]] = a->accepts[s];
		for (int32_t e = first; e < end; e++)
			if (live[a->edges[e].target]) {
				a->edges[n_edges] = a->edges[e];
				a->edges[n_edges++].target = renamed[a->edges[e].target];
			}
	}
	a->n_states = n;
	a->n_edges = n_edges;
	a->edge_starts[n] = n_edges;
}

static status trim(automaton *a)
{
	const size_t n = (size_t)a->n_states;
	int32_t *starts = memory_new(n + 2, sizeof *starts), *queue = memory_new(n, sizeof *queue);
	int32_t *sources = memory_new((size_t)a->n_edges, sizeof *sources);
	bool *live = memory_new(n, sizeof *live);
	const status s = starts && queue && sources && live ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK) {
		find_live(a, starts, sources, queue, live);
		keep_live(a, live, queue);
	}
	free(starts);
	free(queue);
	free(sources);
	free(live);
	return s;
}

status automaton_builder_finish(automaton **out, automaton_builder *b)
{
	status s = b->problem;
	*out = NULL;
	b->a->edge_starts[b->started] = b->a->n_edges;
	if (s == STATUS_OK)
		s = trim(b->a);
	if (s == STATUS_OK) {
		*out = b->a;
		b->a = NULL;
	}
	builder_free(b);
	return s;
}

/* --- the length of strings -------------------------------------------------------------------- */

status automaton_shortest(const automaton *a, int32_t from, int64_t *out)
{
	int32_t *queue = memory_new((size_t)a->n_states, sizeof *queue);
	int64_t *bytes = memory_new((size_t)a->n_states, sizeof *bytes); /* plus 1; 0: not reached */
	const bool room = queue && bytes;
	int32_t n = 0;
	*out = INT64_MAX;
	if (room && from < a->n_states)
		bytes[queue[n++] = from] = 1;
	for (int32_t i = 0; i < n && *out == INT64_MAX; i++) {
		if (a->accepts[queue[i]])
			*out = bytes[queue[i]] - 1;
		for (int32_t e = a->edge_starts[queue[i]]; e < a->edge_starts[queue[i] + 1]; e++)
			if (bytes[a->edges[e].target] == 0) {
				bytes[a->edges[e].target] = bytes[queue[i]] + 1;
				queue[n++] = a->edges[e].target;
			}
	}
	free(queue);
	free(bytes);
	return room ? STATUS_OK : STATUS_NOMEM;
}

/* Every state of a finished automaton is on the way to an accepting one. So the longest way ends in one, and exists
 * unless there is a cycle: then no order of the states has all edges ahead. */
status automaton_longest(const automaton *a, int64_t *out)
{
	const size_t n_states = (size_t)a->n_states;
	int32_t *queue = memory_new(n_states, sizeof *queue), *waiting = memory_new(n_states, sizeof *waiting);
	int64_t *bytes = memory_new(n_states, sizeof *bytes), longest = 0;
	const bool room = queue && waiting && bytes;
	int32_t n = 0;
	if (room) {
		for (int32_t e = 0; e < a->n_edges; e++)
			waiting[a->edges[e].target]++;
		if (a->n_states > 0 && waiting[0] == 0)
			queue[n++] = 0;
	}
	for (int32_t i = 0; i < n; i++) {
		const int32_t s = queue[i];
		longest = bytes[s] > longest ? bytes[s] : longest;
		for (int32_t e = a->edge_starts[s]; e < a->edge_starts[s + 1]; e++) {
			const int32_t t = a->edges[e].target;
			bytes[t] = bytes[t] > bytes[s] + 1 ? bytes[t] : bytes[s] + 1;
			if (--waiting[t] == 0)
				queue[n++] = t;
		}
	}
	free(queue);
	free(waiting);
	free(bytes);
	*out = n == a->n_states ? longest : -1;
	return room ? STATUS_OK : STATUS_NOMEM;
}

/* --- two automata ------------------------------------------------------------------------------ */

typedef struct pair {
	int32_t a, b; /* b negative: no string of b begins like this */
} pair;

static void add_pair_edges(automaton_builder *builder, const automaton *a, const automaton *b, bool without, pair at)
{
	for (int32_t e = a->edge_starts[at.a]; e < a->edge_starts[at.a + 1]; e++)
		for (int byte = a->edges[e].first; byte <= a->edges[e].last; byte++) {
			const pair next = {a->edges[e].target,
			                   at.b < 0 ? -1 : automaton_next(b, at.b, (unsigned char)byte)};
			if (next.b < 0 && !without)
				continue;
			automaton_builder_edge(builder, (unsigned char)byte, (unsigned char)byte,
			                       automaton_builder_state(builder, &next, sizeof next));
		}
}

status automaton_filter(automaton **out, const automaton *a, const automaton *b, bool without, int64_t *budget)
{
	automaton_builder *builder = automaton_builder_new(budget);
	const void *key;
	size_t bytes;
	*out = NULL;
	if (!builder)
		return STATUS_NOMEM;
	const pair start = {0, b->n_states > 0 ? 0 : -1};
	if (a->n_states > 0 && (start.b == 0 || without))
		automaton_builder_state(builder, &start, sizeof start);
	while (automaton_builder_next(builder, &key, &bytes)) {
		pair at;
		memcpy(&at, key, sizeof at);
		if (a->accepts[at.a] && (at.b >= 0 && b->accepts[at.b]) != without)
			automaton_builder_accept(builder);
		add_pair_edges(builder, a, b, without, at);
	}
	return automaton_builder_finish(out, builder);
}
