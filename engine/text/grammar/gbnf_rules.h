/* gbnf_rules.h - a grammar in llama.cpp's notation (GBNF) as trees (internal). */
#ifndef ENGINE_TEXT_GRAMMAR_GBNF_RULES_H
#define ENGINE_TEXT_GRAMMAR_GBNF_RULES_H

#include <stddef.h>

#include "engine/base/error.h"
#include "engine/text/grammar/code_points.h"

enum {
	GBNF_MAX_BYTES = 1 << 16,
	GBNF_MAX_RULES = 1024,
	GBNF_MAX_SETS = 1024,
	GBNF_MAX_COUNT = 100000,
	GBNF_MAX_DEPTH = 100,  /* groups within groups */
	GBNF_MAX_HEIGHT = 400, /* nodes of a rule within each other */
	GBNF_NO_BOUND = -1
};

typedef enum gbnf_kind { GBNF_TEXT, GBNF_SET, GBNF_RULE, GBNF_SEQUENCE, GBNF_CHOICE, GBNF_REPEAT } gbnf_kind;

typedef struct gbnf_node {
	gbnf_kind kind;
	int32_t next;  /* the next member of the same sequence or choice; -1: it is the last */
	int32_t first; /* sequences, choices: the first member, -1: none; repetitions: the node */
	/* texts: the first byte and their number; sets, rules: a is the index; repetitions: min and max */
	int32_t a, b;
	int32_t height; /* nodes within each other, this one included */
} gbnf_node;

typedef struct gbnf_rule {
	const char *name; /* borrowed from the grammar's text */
	size_t bytes;
	int32_t body; /* -1: not defined */
	int line;     /* where the name is first seen */
} gbnf_rule;

typedef struct gbnf_rules {
	gbnf_node *nodes;
	gbnf_rule *rules;
	code_points *sets;
	char *text; /* the literals, in UTF-8 */
	int32_t n_nodes, n_rules, n_sets, n_text;
	int32_t nodes_capacity, rules_capacity, sets_capacity, text_capacity;
	int32_t root;
} gbnf_rules;

/* Zero at first; gbnf_rules_fini also on failure. The text is UTF-8. STATUS_NOMEM; STATUS_INVALID, UNSUPPORTED and
 * TOO_LARGE name the line. */
status gbnf_rules_parse(gbnf_rules *r, const char *text, size_t bytes, error *err);
void gbnf_rules_fini(gbnf_rules *r);

#endif
