#include "engine/text/grammar/gbnf.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/text/grammar/gbnf_rules.h"
#include "engine/text/grammar/pattern.h"

/* Each tree becomes a node of its texts that are not empty; a part that may be empty is optional where it is used. So
 * no repetition is of an empty text, and no two ways of reading the empty text multiply.
 *
 * An attempt to make an automaton may fail after some work. Its parts are then tried on their own, as long as steps are
 * left; what is not tried is as correct, but slower to follow. */

enum {
	MAX_SIZE = 1 << 13,    /* characters of a tree that is tried as an automaton, repetitions written out */
	MAX_TREE_DEPTH = 1000, /* nodes within each other, those of rules included */
	TRY_STEPS = 1 << 19,
	TRY_COST = 1 << 12,   /* steps that an attempt costs at least, so that there are few */
	MAX_SPELLINGS = 4096, /* more than a class can have */
	LITERAL_SIZE = 1      /* at most: no automaton is needed */
};

typedef struct compiler {
	const gbnf_rules *rules;
	grammar *g;
	bool *empty;           /* [n_nodes] the node has the empty text */
	bool *safe;            /* [n_rules] the rule does not begin with itself */
	int32_t *sizes;        /* [n_rules] as for MAX_SIZE; -1: recursive, or not known yet */
	grammar_node *forward; /* [n_rules] plus 1; 0: not referred to */
	automaton *nothing;    /* accepts the empty text only */
	character_bytes *spellings;
	int64_t budget, n_edges;
	status problem;
} compiler;

static const gbnf_node *node_at(const compiler *c, int32_t i)
{
	return &c->rules->nodes[i];
}

static int32_t body_of(const compiler *c, const gbnf_node *n)
{
	return c->rules->rules[n->a].body;
}

/* --- properties of rules --------------------------------------------------------------------------- */

/* True if the node has the empty text, as far as this is known of the nodes that it consists of. */
static bool may_be_empty(const compiler *c, int32_t i)
{
	const gbnf_node *n = node_at(c, i);
	bool all = true, any = false;
	switch (n->kind) {
	case GBNF_TEXT:
		return n->b == 0;
	case GBNF_RULE:
		return c->empty[body_of(c, n)];
	case GBNF_REPEAT:
		return n->a == 0 || c->empty[n->first];
	case GBNF_SEQUENCE:
	case GBNF_CHOICE:
		for (int32_t k = n->first; k >= 0; k = node_at(c, k)->next) {
			all &= c->empty[k];
			any |= c->empty[k];
		}
		return n->kind == GBNF_SEQUENCE ? all : any;
	case GBNF_SET:
		break;
	}
	return false;
}

/* Members come before the nodes that they are members of, so a round passes one reference to a rule at least. */
static void learn_empty(compiler *c)
{
	for (bool changed = true; changed;) {
		changed = false;
		for (int32_t i = 0; i < c->rules->n_nodes; i++)
			if (!c->empty[i] && (c->empty[i] = may_be_empty(c, i)))
				changed = true;
	}
}

/* The first rule not known to be safe with which the node may begin; -1: there is none. */
static int32_t unsafe_begin(const compiler *c, int32_t i)
{
	const gbnf_node *n = node_at(c, i);
	int32_t found = -1;
	switch (n->kind) {
	case GBNF_RULE:
		return c->safe[n->a] ? -1 : n->a;
	case GBNF_REPEAT:
		return unsafe_begin(c, n->first);
	case GBNF_SEQUENCE:
	case GBNF_CHOICE:
		for (int32_t k = n->first; k >= 0 && found < 0; k = node_at(c, k)->next) {
			found = unsafe_begin(c, k);
			if (n->kind == GBNF_SEQUENCE && !c->empty[k])
				break;
		}
		return found;
	case GBNF_TEXT:
	case GBNF_SET:
		break;
	}
	return -1;
}

/* Characters of a tree, at most MAX_SIZE + 1; -1: it refers to a rule of unknown size. */
static int32_t size_of(const compiler *c, int32_t i)
{
	const gbnf_node *n = node_at(c, i);
	int64_t size = 1, one;
	switch (n->kind) {
	case GBNF_TEXT:
		size = n->b;
		break;
	case GBNF_RULE:
		return c->sizes[n->a];
	case GBNF_REPEAT:
		if (n->b == 0)
			break;
		one = size_of(c, n->first);
		if (one < 0)
			return -1;
		size = 1 + one * (n->b == GBNF_NO_BOUND ? (int64_t)n->a + 1 : n->b);
		break;
	case GBNF_SEQUENCE:
	case GBNF_CHOICE:
		for (int32_t k = n->first; k >= 0; k = node_at(c, k)->next) {
			one = size_of(c, k);
			if (one < 0)
				return -1;
			size = size + one > MAX_SIZE ? MAX_SIZE + 1 : size + one;
		}
		break;
	case GBNF_SET:
		break;
	}
	return size > MAX_SIZE ? MAX_SIZE + 1 : (int32_t)size;
}

static bool learn_safe(compiler *c, int32_t rule)
{
	return c->safe[rule] = unsafe_begin(c, c->rules->rules[rule].body) < 0;
}

/* One more than the size, so that an empty rule counts in those that refer to it. */
static bool learn_size(compiler *c, int32_t rule)
{
	const int32_t size = size_of(c, c->rules->rules[rule].body);
	c->sizes[rule] = size < 0 || size > MAX_SIZE ? size : size + 1;
	return size >= 0;
}

/* Apply `learn` to each rule until it is true or does not change any more. */
static void learn_all(compiler *c, bool (*learn)(compiler *c, int32_t rule))
{
	bool known[GBNF_MAX_RULES] = {false};
	for (bool changed = true; changed;) {
		changed = false;
		for (int32_t i = 0; i < c->rules->n_rules; i++)
			if (!known[i] && (known[i] = learn(c, i)))
				changed = true;
	}
}

/* A rule that begins with itself; -1: there is none. */
static int32_t left_recursive(const compiler *c)
{
	int32_t rule = 0;
	while (rule < c->rules->n_rules && c->safe[rule])
		rule++;
	if (rule == c->rules->n_rules)
		return -1;
	for (int32_t i = 0; i < c->rules->n_rules; i++) /* that many steps end on a cycle */
		rule = unsafe_begin(c, c->rules->rules[rule].body);
	return rule;
}

/* --- automata -------------------------------------------------------------------------------------- */

static int32_t tree_of(const compiler *c, pattern_tree *t, int32_t i, int depth);

static int32_t tree_of_text(const compiler *c, pattern_tree *t, const gbnf_node *n)
{
	int32_t all = -1;
	for (int32_t at = n->a; at < n->a + n->b; at++) {
		const unsigned char *p = (const unsigned char *)c->rules->text + at;
		const int more = *p < 0xc0 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
		int32_t character = more == 0 ? *p : *p & (0x3f >> more);
		for (int k = 1; k <= more; k++)
			character = character << 6 | (p[k] & 0x3f);
		at += more;
		const int32_t one = pattern_tree_set(t, &(code_points){{{character, character}}, 1});
		if (one < 0)
			return -1;
		all =
		    all < 0 ? one : pattern_tree_node(t, (pattern_node){.kind = PATTERN_SEQUENCE, .a = all, .b = one});
	}
	return all < 0 ? pattern_tree_node(t, (pattern_node){.kind = PATTERN_EMPTY}) : all;
}

static int32_t tree_of_members(const compiler *c, pattern_tree *t, const gbnf_node *n, int depth)
{
	const pattern_kind kind = n->kind == GBNF_SEQUENCE ? PATTERN_SEQUENCE : PATTERN_EITHER;
	int32_t all = -1;
	for (int32_t k = n->first; k >= 0; k = node_at(c, k)->next) {
		const int32_t one = tree_of(c, t, k, depth);
		if (one < 0)
			return -1;
		all = k == n->first ? one : pattern_tree_node(t, (pattern_node){.kind = kind, .a = all, .b = one});
	}
	return n->first < 0 ? pattern_tree_node(t, (pattern_node){.kind = PATTERN_EMPTY}) : all;
}

/* Append the tree, with all rules that it refers to; -1: too large, or too deep. */
static int32_t tree_of(const compiler *c, pattern_tree *t, int32_t i, int depth)
{
	const gbnf_node *n = node_at(c, i);
	if (depth == MAX_TREE_DEPTH)
		return -1;
	switch (n->kind) {
	case GBNF_TEXT:
		return tree_of_text(c, t, n);
	case GBNF_SET:
		return pattern_tree_set(t, &c->rules->sets[n->a]);
	case GBNF_RULE:
		return tree_of(c, t, body_of(c, n), depth + 1);
	case GBNF_SEQUENCE:
	case GBNF_CHOICE:
		return tree_of_members(c, t, n, depth + 1);
	case GBNF_REPEAT:
		break;
	}
	if (n->b == 0)
		return pattern_tree_node(t, (pattern_node){.kind = PATTERN_EMPTY});
	return pattern_tree_node(t, (pattern_node){.kind = PATTERN_REPEAT,
	                                           .a = tree_of(c, t, n->first, depth + 1),
	                                           .min = n->a,
	                                           .max = n->b == GBNF_NO_BOUND ? PATTERN_NO_BOUND : n->b});
}

/* The automaton of the texts that are not empty. */
static status nonempty_automaton(const compiler *c, automaton **out, int32_t i, int64_t *budget)
{
	pattern_tree t = {0};
	automaton *all = NULL;
	status s = pattern_tree_init(&t);
	if (s == STATUS_OK) {
		t.root = tree_of(c, &t, i, 0);
		*budget -= t.work;
		s = t.root < 0 || *budget < 0 ? STATUS_TOO_LARGE : pattern_tree_automaton(&all, &t, budget);
	}
	if (s == STATUS_OK)
		s = automaton_filter(out, all, c->nothing, true, budget);
	automaton_free(all);
	pattern_tree_fini(&t);
	return s;
}

/* Try an automaton; -1: there is none. */
static grammar_node try_automaton(compiler *c, int32_t i)
{
	const int32_t size = size_of(c, i);
	int64_t left = c->budget < TRY_STEPS ? c->budget : TRY_STEPS;
	automaton *a = NULL;
	if (size <= LITERAL_SIZE || size > MAX_SIZE || left < TRY_COST)
		return -1;
	const int64_t before = left;
	const status s = nonempty_automaton(c, &a, i, &left);
	c->budget -= before - left > TRY_COST ? before - left : TRY_COST;
	if (s == STATUS_NOMEM)
		c->problem = s;
	if (s != STATUS_OK || c->n_edges + a->n_edges > GRAMMAR_MAX_EDGES) {
		automaton_free(a);
		return -1;
	}
	c->n_edges += a->n_edges;
	return grammar_automaton(c->g, a);
}

/* --- the grammar ------------------------------------------------------------------------------------- */

static grammar_node nonempty(compiler *c, int32_t i);

static grammar_node no_text(compiler *c)
{
	return grammar_choice(c->g, NULL, 0);
}

static grammar_node optional(compiler *c, grammar_node node, bool empty)
{
	return empty ? grammar_repeat(c->g, node, 0, 1) : node;
}

static grammar_node node_of_set(compiler *c, const code_points *set)
{
	const int n = code_points_spell(set, SPELL_UTF8, c->spellings, MAX_SPELLINGS);
	grammar_node *all = n > 0 ? memory_new((size_t)n, sizeof *all) : NULL;
	if (n == 0)
		return no_text(c);
	if (!all) {
		c->problem = n < 0 ? STATUS_TOO_LARGE : STATUS_NOMEM;
		return -1;
	}
	for (int i = 0; i < n; i++) {
		grammar_node bytes[SPELLING_MAX_BYTES];
		for (int k = 0; k < c->spellings[i].bytes; k++)
			bytes[k] = grammar_range(c->g, c->spellings[i].first[k], c->spellings[i].last[k]);
		all[i] = grammar_sequence(c->g, bytes, c->spellings[i].bytes);
	}
	const grammar_node node = grammar_choice(c->g, all, n);
	free(all);
	return node;
}

/* The members of a list from the last to the first; owned. */
static int32_t *members_of(compiler *c, const gbnf_node *n, int32_t *count)
{
	*count = 0;
	for (int32_t k = n->first; k >= 0; k = node_at(c, k)->next)
		++*count;
	int32_t *all = memory_new((size_t)*count, sizeof *all), at = *count;
	for (int32_t k = n->first; all && k >= 0; k = node_at(c, k)->next)
		all[--at] = k;
	if (!all)
		c->problem = STATUS_NOMEM;
	return all;
}

/* A text of the first members that is not empty, then the rest; or, if the first may be empty, a text of the rest. */
static grammar_node node_of_sequence(compiler *c, const gbnf_node *n)
{
	int32_t count;
	int32_t *all = members_of(c, n, &count);
	grammar_node rest = count > 0 && all ? nonempty(c, all[0]) : no_text(c);
	bool rest_empty = count == 0 || !all || c->empty[all[0]];
	for (int32_t i = 1; i < count && all && c->problem == STATUS_OK; i++) {
		const bool empty = c->empty[all[i]];
		const grammar_node pair[] = {nonempty(c, all[i]), optional(c, rest, rest_empty)};
		const grammar_node either[] = {grammar_sequence(c->g, pair, 2), rest};
		rest = empty ? grammar_choice(c->g, either, 2) : either[0];
		rest_empty &= empty;
	}
	free(all);
	return rest;
}

static grammar_node node_of_choice(compiler *c, const gbnf_node *n)
{
	int32_t count;
	int32_t *all = members_of(c, n, &count);
	for (int32_t i = 0; i < count && all && c->problem == STATUS_OK; i++)
		all[i] = nonempty(c, all[i]);
	const grammar_node node = all ? grammar_choice(c->g, all, count) : -1;
	free(all);
	return node;
}

static grammar_node node_of_repeat(compiler *c, const gbnf_node *n)
{
	if (n->b == 0)
		return no_text(c);
	const int32_t least = c->empty[n->first] || n->a == 0 ? 1 : n->a;
	return grammar_repeat(c->g, nonempty(c, n->first), least, n->b == GBNF_NO_BOUND ? GRAMMAR_NO_BOUND : n->b);
}

static grammar_node node_of_rule(compiler *c, int32_t rule)
{
	if (c->forward[rule] == 0)
		c->forward[rule] = grammar_forward(c->g) + 1;
	return c->forward[rule] - 1;
}

/* The texts of a tree that are not empty. */
static grammar_node nonempty(compiler *c, int32_t i)
{
	const gbnf_node *n = node_at(c, i);
	if (c->problem != STATUS_OK)
		return -1;
	if (n->kind == GBNF_RULE)
		return node_of_rule(c, n->a);
	if (n->kind == GBNF_TEXT)
		return n->b == 0 ? no_text(c) : grammar_text(c->g, c->rules->text + n->a, (size_t)n->b);
	const grammar_node made = try_automaton(c, i);
	if (made >= 0)
		return made;
	switch (n->kind) {
	case GBNF_SET:
		return node_of_set(c, &c->rules->sets[n->a]);
	case GBNF_SEQUENCE:
		return node_of_sequence(c, n);
	case GBNF_CHOICE:
		return node_of_choice(c, n);
	case GBNF_REPEAT:
		return node_of_repeat(c, n);
	case GBNF_TEXT:
	case GBNF_RULE:
		break;
	}
	return -1;
}

/* Define the rules that are referred to, until no more are. */
static void define_rules(compiler *c)
{
	bool defined[GBNF_MAX_RULES] = {false};
	for (bool changed = true; changed && c->problem == STATUS_OK;) {
		changed = false;
		for (int32_t i = 0; i < c->rules->n_rules; i++)
			if (c->forward[i] > 0 && !defined[i]) {
				defined[i] = changed = true;
				grammar_define(c->g, c->forward[i] - 1, nonempty(c, c->rules->rules[i].body));
			}
	}
}

static status make_nothing(automaton **out, int64_t *budget)
{
	automaton_builder *b = automaton_builder_new(budget);
	const void *key;
	size_t bytes;
	*out = NULL;
	if (!b)
		return STATUS_NOMEM;
	automaton_builder_state(b, "start", 1);
	if (automaton_builder_next(b, &key, &bytes))
		automaton_builder_accept(b);
	return automaton_builder_finish(out, b);
}

static status compile(compiler *c, error *err)
{
	const gbnf_rule *root = &c->rules->rules[c->rules->root];
	TRY(make_nothing(&c->nothing, &c->budget));
	memset(c->sizes, -1, (size_t)c->rules->n_rules * sizeof *c->sizes);
	learn_empty(c);
	learn_all(c, learn_safe);
	learn_all(c, learn_size);
	const int32_t wrong = left_recursive(c);
	if (wrong >= 0) {
		const gbnf_rule *r = &c->rules->rules[wrong];
		return error_set(err, STATUS_INVALID, NULL,
		                 "line %d: the rule %.*s begins with itself (left recursion), which is not implemented",
		                 r->line, r->bytes < 64 ? (int)r->bytes : 64, r->name);
	}
	const grammar_node node = nonempty(c, root->body);
	const grammar_node whole = optional(c, node, c->empty[root->body]);
	define_rules(c);
	TRY(c->problem);
	return grammar_finish(c->g, whole, err);
}

static status gbnf_make(grammar **out, const gbnf_rules *rules, error *err)
{
	const size_t n = (size_t)rules->n_rules;
	compiler c = {.rules = rules,
	              .g = grammar_new(),
	              .empty = memory_new((size_t)rules->n_nodes, sizeof *c.empty),
	              .safe = memory_new(n, sizeof *c.safe),
	              .sizes = memory_new(n, sizeof *c.sizes),
	              .forward = memory_new(n, sizeof *c.forward),
	              .spellings = memory_new(MAX_SPELLINGS, sizeof *c.spellings),
	              .budget = AUTOMATON_BUDGET};
	status s = c.g && c.empty && c.safe && c.sizes && c.forward && c.spellings ? compile(&c, err) : STATUS_NOMEM;
	if (s == STATUS_OK)
		*out = c.g;
	else
		grammar_free(c.g);
	free(c.empty);
	free(c.safe);
	free(c.sizes);
	free(c.forward);
	free(c.spellings);
	automaton_free(c.nothing);
	return s;
}

status gbnf_grammar_new(grammar **out, const char *text, size_t bytes, error *err)
{
	gbnf_rules rules = {0};
	*out = NULL;
	status s = gbnf_rules_parse(&rules, text, bytes, err);
	if (s == STATUS_OK)
		s = gbnf_make(out, &rules, err);
	gbnf_rules_fini(&rules);
	return s;
}
