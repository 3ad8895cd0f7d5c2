/* label_graph.h - inputs of 3Lin: the labels (rows of the embedding table) of each node of a batch, the nodes that each
 * node sees, and its targets. All are functions of text, options and a sequence of random numbers, drawn in the
 * order of the original.
 *
 * A fragment of n tokens gives n + 1 nodes: a start node of label 0, which sees and predicts nothing, and node t + 1
 * for token t. Fragments follow each other. The label of a token v in a vocabulary of V is 2 + v, or 1 if it is
 * dropped. With continuations, a continuation c has label V + 3 + c, or V + 2 if it is dropped. With `hashed` each
 * label is replaced by three rows (op_hash_rows). A node sees its start node and up to window - 1 earlier nodes that
 * belong to its document. A document begins after a token `document`, unless that is the first of the fragment. */
#ifndef TESTS_GOLDEN_LABEL_GRAPH_H
#define TESTS_GOLDEN_LABEL_GRAPH_H

#include <stdbool.h>

#include "engine/base/mt19937.h"
#include "engine/base/status.h"

enum { LABEL_GRAPH_NARROW = 0, LABEL_GRAPH_WIDE, LABEL_GRAPH_WINDOWS };

typedef struct label_options {
	int64_t vocabulary, window[LABEL_GRAPH_WINDOWS];
	double keep; /* probability that a label is kept */
	bool hashed;
	int32_t document; /* token id; -1: no documents */
	/* Nodes that predict: all except start nodes; those in the second half of a fragment; or the last but one
	 * before a target of 0, in documents that a token `document` began. */
	enum { LABEL_TARGETS_ALL, LABEL_TARGETS_TAIL, LABEL_TARGETS_ANSWER } targets;
} label_options;

typedef struct label_fragment {
	const int32_t *text, *target; /* [count] */
	const int32_t *continuation;  /* [count], -1: none; NULL: the batch has no continuations */
	int64_t count;
} label_fragment;

/* Spans of node i: [ptr[i], ptr[i + 1]) of start and finish, both ends inclusive. */
typedef struct label_spans {
	int32_t *start, *finish, *ptr;
	int64_t count;
} label_spans;

/* Nodes are numbered consecutively through the batch. */
typedef struct label_graph {
	int64_t nodes, labels, targets;
	int32_t *label, *label_ptr; /* for node i: [label_ptr[i], label_ptr[i + 1]) of label [labels] */
	int32_t *token;             /* [nodes]: index of the token in its fragment; -1: start node */
	label_spans spans[LABEL_GRAPH_WINDOWS];
	int32_t *target_node, *target_id; /* [targets] */
} label_graph;

/* Callers guarantee that tokens, targets and continuations are below the vocabulary and windows at least 1. Draws one
 * number for each label. STATUS_NOMEM: *out is empty. label_graph_free of an empty one is legal. */
status label_graph_new(label_graph *out, const label_options *o, const label_fragment *fragments, int count,
                       mt19937 *random);
void label_graph_free(label_graph *g);

/* Set bit i of word i / 32 if channel i is kept. Draws one number for each of the 32 · words channels. */
void label_graph_channels(uint32_t *mask, int64_t words, double keep, mt19937 *random);

#endif
