/* pattern_tree.h - a regular expression as a tree (internal). */
#ifndef ENGINE_TEXT_GRAMMAR_PATTERN_TREE_H
#define ENGINE_TEXT_GRAMMAR_PATTERN_TREE_H

#include <stddef.h>

#include "engine/base/error.h"
#include "engine/text/grammar/code_points.h"

enum {
	PATTERN_MAX_BYTES = 1 << 14,
	PATTERN_MAX_NODES = 2 * PATTERN_MAX_BYTES,
	PATTERN_MAX_SETS = 1024,
	PATTERN_SET_SLOTS = 2 * PATTERN_MAX_SETS,
	PATTERN_MAX_LOOKS = 16,
	PATTERN_NO_BOUND = -1
};

typedef enum pattern_kind {
	PATTERN_EMPTY,
	PATTERN_CHARACTER, /* one of set a */
	PATTERN_SEQUENCE,  /* a, then b */
	PATTERN_EITHER,    /* a or b */
	PATTERN_REPEAT,    /* a, min to max times */
	PATTERN_BEGIN,
	PATTERN_END
} pattern_kind;

typedef struct pattern_node {
	pattern_kind kind;
	int32_t a, b, min, max;
} pattern_node;

/* A condition on the text after the ^ with which the pattern begins. */
typedef struct pattern_look {
	int32_t root;
	bool negative;
} pattern_look;

typedef struct pattern_tree {
	pattern_node *nodes;
	code_points *sets;
	int32_t n_nodes, n_sets, root;
	int16_t set_slots[PATTERN_SET_SLOTS]; /* hash table of sets; 0: empty, else the set + 1 */
	int64_t work; /* steps of a budget: nodes, sets compared, and eight ranges looked up for one */
	pattern_look looks[PATTERN_MAX_LOOKS];
	int n_looks;
} pattern_tree;

/* Zero at first; pattern_tree_fini also on failure. Errors as pattern_automaton. */
status pattern_tree_parse(pattern_tree *t, const char *pattern, size_t bytes, error *err);
void pattern_tree_fini(pattern_tree *t);

/* To make a tree without a pattern: the arrays, then nodes; `root` is set last. STATUS_NOMEM. */
status pattern_tree_init(pattern_tree *t);
/* The node's index; -1: there are too many, or a is -1. */
int32_t pattern_tree_node(pattern_tree *t, pattern_node node);
/* A node of one character of the set; -1: there are too many nodes or sets. */
int32_t pattern_tree_set(pattern_tree *t, const code_points *s);

#endif
