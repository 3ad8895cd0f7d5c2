/* label_graph.h - the input side of 3Lin: which rows of the embedding table stand at the nodes of a batch, which nodes
 * each of them sees, and what it is to predict. Functions of text, options and a sequence of random numbers alone,
 * which draw in the order of the source.
 *
 * A fragment of n tokens gives n + 1 nodes: a start node of label 0, which sees nothing and predicts nothing, and for
 * token t node t + 1 behind it. Fragments follow each other. Labels of a token v, of a vocabulary of V:
 *   2 + v, or 1 where it is dropped;
 *   with continuations, where there is one, c: V + 3 + c, or V + 2 where it is dropped;
 * and with `hashed` three rows (op_hash_rows) in place of each of these.
 * A node sees those before it, up to window - 1 of them, that are not before the beginning of its document, and, beside
 * them, its start node. A document begins behind a token `document`, unless that is the first of the fragment. */
#ifndef ENGINE_MODEL_LABEL_GRAPH_H
#define ENGINE_MODEL_LABEL_GRAPH_H

#include <stdbool.h>

#include "engine/base/mt19937.h"
#include "engine/base/status.h"

enum { LABEL_GRAPH_NARROW = 0, LABEL_GRAPH_WIDE, LABEL_GRAPH_WINDOWS };

typedef struct label_options {
	int64_t vocabulary, window[LABEL_GRAPH_WINDOWS];
	double keep; /* the probability with which a label is not dropped */
	bool hashed;
	int32_t document; /* a token; -1: documents have no beginning */
	/* Which nodes predict: all but start nodes; those of the second half of a fragment; or those that are the last
	 * but one before a target of 0, of documents that a token `document` began. */
	enum { LABEL_TARGETS_ALL, LABEL_TARGETS_TAIL, LABEL_TARGETS_ANSWER } targets;
} label_options;

typedef struct label_fragment {
	const int32_t *text, *target; /* [count] */
	const int32_t *continuation;  /* [count], -1: none; NULL: the batch has no such labels */
	int64_t count;
} label_fragment;

/* Spans of node i: [ptr[i], ptr[i + 1]) of start and finish, both ends included. */
typedef struct label_spans {
	int32_t *start, *finish, *ptr;
	int64_t count;
} label_spans;

/* Nodes are numbered through the batch. */
typedef struct label_graph {
	int64_t nodes, labels, targets;
	int32_t *label, *label_ptr; /* of node i: [label_ptr[i], label_ptr[i + 1]) of label [labels] */
	int32_t *token;             /* [nodes]: the token's place in its fragment; -1: a start node */
	label_spans spans[LABEL_GRAPH_WINDOWS];
	int32_t *target_node, *target_id; /* [targets] */
} label_graph;

/* Tokens, targets and continuations are below the vocabulary and windows at least 1: callers see to it. Draws a number
 * for each label. STATUS_NOMEM, and then *out is empty. label_graph_free of an empty one is legal. */
status label_graph_new(label_graph *out, const label_options *o, const label_fragment *fragments, int count,
                       mt19937 *random);
void label_graph_free(label_graph *g);

/* Bit i of word i / 32: is channel i kept? Draws a number for each of the 32 · words channels. */
void label_graph_channels(uint32_t *mask, int64_t words, double keep, mt19937 *random);

#endif
