/* grammar.h - a grammar of byte strings, and the pushdown automaton that reads them byte by byte.
 *
 * A grammar consists of nodes: a set of bytes, a text, an automaton, a sequence, a choice, a repetition, or a
 * reference. A reference names a node that is defined later, so nodes may be recursive. grammar_finish removes nodes
 * without strings (an alternative that can never end). Every string that the automaton accepts so far is therefore the
 * beginning of a complete one.
 *
 * The automaton's state is a set of stacks. A stack is a list of frames, each a node and the position in it. The frames
 * of all stacks are in one array, and a frame names the one below it. Immutable once finished, and then thread-safe. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/text/grammar/automaton.h"

enum {
	GRAMMAR_MAX_NODES = 1 << 16,
	GRAMMAR_MAX_EDGES = 1 << 20,
	GRAMMAR_MAX_DEPTH = 4000,     /* nodes and frames between two bytes: the recursion fits on 2 MiB of stack */
	GRAMMAR_MAX_FRAMES = 1 << 20, /* frames of all stacks together */
	GRAMMAR_MOST_WORK = 1 << 24,  /* nodes and comparisons for one token, some 50 ms */
	GRAMMAR_NO_BOUND = -1
};

typedef struct grammar grammar;
typedef int32_t grammar_node; /* negative: it could not be made, and grammar_finish says why */

/* A set of bytes. */
typedef struct byte_set {
	uint64_t bits[4];
} byte_set;
void byte_set_add(byte_set *s, unsigned char first, unsigned char last);
void byte_set_remove(byte_set *s, unsigned char byte);
static inline bool byte_set_has(const byte_set *s, unsigned char byte)
{
	return s->bits[byte >> 6] >> (byte & 63) & 1;
}

/* --- making one --------------------------------------------------------------------------- */

grammar *grammar_new(void); /* NULL: out of memory */
void grammar_free(grammar *g);

grammar_node grammar_set(grammar *g, const byte_set *set);
grammar_node grammar_range(grammar *g, unsigned char first, unsigned char last);
/* Not empty. */
grammar_node grammar_text(grammar *g, const char *text, size_t bytes);
/* The strings of an automaton, which is taken, also on failure. */
grammar_node grammar_automaton(grammar *g, automaton *a);
/* The rest of such a node's strings after the bytes that lead to `state`. */
grammar_node grammar_automaton_from(grammar *g, grammar_node automaton_node, int32_t state);
grammar_node grammar_sequence(grammar *g, const grammar_node *nodes, int n); /* n 0: the empty string */
grammar_node grammar_choice(grammar *g, const grammar_node *nodes, int n);   /* n 0: no string at all */
/* `node`, which is not the empty string, min to max times; max GRAMMAR_NO_BOUND: any number. */
grammar_node grammar_repeat(grammar *g, grammar_node node, int32_t min, int32_t max);
/* A node to be defined once. */
grammar_node grammar_forward(grammar *g);
void grammar_define(grammar *g, grammar_node forward, grammar_node as);

/* The grammar of `root`. STATUS_NOMEM; STATUS_TOO_LARGE: too many nodes, or too deep; STATUS_INVALID: no string fits,
 * or a node begins with itself, or repeats the empty string. */
status grammar_finish(grammar *g, grammar_node root, error *err);
grammar_node grammar_root(const grammar *g);
/* True if a string fits the node; of a finished grammar. */
bool grammar_has_text(const grammar *g, grammar_node node);

/* --- reading ------------------------------------------------------------------------------ */

enum { FRAME_NONE = -1 /* below the last frame */ };

typedef struct grammar_frame {
	grammar_node node;
	int32_t position; /* within it: bytes of a text, an automaton's state, members of a sequence, repetitions */
	int32_t below;    /* its index; FRAME_NONE */
} grammar_frame;

/* Where one more byte may be read: `node` is a set, a text or an automaton. */
typedef struct grammar_next {
	grammar_node node;
	int32_t position, below;
} grammar_next;

/* Growing arrays; zero at first. */
typedef struct grammar_stacks {
	grammar_frame *frames;
	grammar_next *next;
	int32_t n_frames, n_next, frames_capacity, next_capacity;
	int32_t depth; /* nodes within each other in the expansion in progress */
	int64_t work;  /* nodes expanded and frames compared; the user resets it */
} grammar_stacks;
void grammar_stacks_fini(grammar_stacks *s);

/* Push a frame: its index, or -2 when there are too many or memory is out. */
int32_t grammar_push(grammar_stacks *s, grammar_node node, int32_t position, int32_t below);
/* The reason for which a frame was not pushed. */
status grammar_stacks_problem(const grammar_stacks *s);
/* Append what may follow on top of frame `top` to s->next, and the frames of it to s->frames. *ends: nothing may
 * follow, all frames are read (unchanged if not). top FRAME_NONE: nothing is left. STATUS_NOMEM; STATUS_TOO_LARGE: a
 * bound on stacks or GRAMMAR_MOST_WORK was reached. */
status grammar_expand(const grammar *g, grammar_stacks *s, int32_t top, bool *ends);
/* True if the byte fits. */
bool grammar_fits(const grammar *g, const grammar_next *next, unsigned char byte);
/* The top frame after a byte that fits, FRAME_NONE when all is read; -2 as for grammar_push. */
int32_t grammar_advance(const grammar *g, grammar_stacks *s, const grammar_next *next, unsigned char byte);
/* True if these stacks are equal. */
bool grammar_same(grammar_stacks *s, int32_t a, int32_t b);
/* A position of a node that accepts the same strings of up to `bytes` bytes, one for as many positions as possible. */
int32_t grammar_position_like(const grammar *g, grammar_node node, int32_t position, int32_t bytes);

#endif
