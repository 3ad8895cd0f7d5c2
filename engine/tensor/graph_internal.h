/* graph_internal.h - shared by graph.c (building) and autodiff.c (gradients).
 *
 * Values and nodes are allocated one by one, so that a value_info or an op_node
 * stays where it is while the graph grows. */
#ifndef ENGINE_TENSOR_GRAPH_INTERNAL_H
#define ENGINE_TENSOR_GRAPH_INTERNAL_H

#include "engine/tensor/graph.h"

typedef struct graph_value_slot {
	value_info info;
	bool gradient_requested; /* graph_want_gradient */
	bool needs;              /* depends on something differentiable; set by graph_backward */
	value gradient;          /* sum of the contributions so far, or VALUE_NONE */
} graph_value_slot;

typedef struct graph_name {
	char *text;
	value v;
} graph_name;

/* graph_collect: one for each sum and shape of contributions. */
typedef struct graph_collection {
	graph_sum which;
	bool apart;
	value sum;
} graph_collection;
enum { GRAPH_COLLECTIONS = 6 };

/* A growing array of pointers. */
typedef struct graph_list {
	void **items;
	int count, capacity;
} graph_list;

struct graph {
	graph_list values; /* graph_value_slot */
	graph_list nodes;  /* op_node */
	graph_list names;  /* graph_name: inputs, parameters, states and outputs */
	int *checkpoints;  /* node counts, ascending */
	int n_checkpoints;
	error error; /* the first failure */
	graph_rule rule;
	graph_collection collections[GRAPH_COLLECTIONS];
	int n_collections;
	bool apart; /* the walk is past rule.apart */
	bool differentiated;
};

graph_value_slot *graph_slot(const graph *g, value v);
/* Record the first failure; returns s. */
status graph_fail(graph *g, status s, const char *param, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
