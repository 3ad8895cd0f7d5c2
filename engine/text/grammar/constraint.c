#include "engine/text/grammar/constraint.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum {
	KNOWN = 512, /* pairs of frames whose tokens are kept */
	SLOTS = 2 * KNOWN
};

/* A growing array. */
typedef struct scratch {
	int32_t *tops;
	int32_t n, capacity;
} scratch;

/* Tokens that fit on top of two frames, whatever is below. (Two, since a repetition of characters may end after each of
 * them, but only before a character that the frame below accepts.) */
typedef struct known_frames {
	grammar_frame top, second; /* without what is below; second.node FRAME_NONE: there is none */
	uint32_t *allowed;         /* NULL: the slot is empty */
	int32_t *exits;            /* nodes of the trie at which both may have ended */
	int32_t n_exits, exits_capacity;
} known_frames;

struct constraint {
	atomic_int references;
	grammar *grammar;
	const token_trie *trie;
	size_t words;
	known_frames known[SLOTS];
	int n_known;
	scratch scratch;
};

struct constrained_text {
	constraint *constraint;
	grammar_stacks stacks;
	scratch tops;              /* stacks during a walk */
	uint32_t *allowed, *whole; /* [words]: next, and what ends a whole text */
	bool continues, done;
};

/* --- walking the trie --------------------------------------------------------------------------- */

typedef struct walk {
	const grammar *grammar;
	const token_trie *trie;
	grammar_stacks *stacks;
	scratch *scratch;
	uint32_t *allowed;
	known_frames *exits; /* collects the exits; NULL: the end follows the last frame */
} walk;

/* The stacks after some bytes, and what may follow: parts of scratch->tops and stacks->next. */
typedef struct level {
	int32_t tops, n_tops, next, n_next;
	bool ends;
} level;

static void allow(uint32_t *bits, int32_t token)
{
	bits[token >> 5] |= UINT32_C(1) << (token & 31);
}

/* Add a stack unless it is among those from `first` on. STATUS_NOMEM; STATUS_TOO_LARGE: there has been too much work.
 */
static status add_top(grammar_stacks *s, scratch *to, int32_t first, int32_t top)
{
	for (int32_t i = first; i < to->n && s->work <= GRAMMAR_MOST_WORK; i++)
		if (grammar_same(s, to->tops[i], top))
			return STATUS_OK;
	if (s->work > GRAMMAR_MOST_WORK)
		return STATUS_TOO_LARGE;
	if (!MEMORY_ROOM(to->tops, to->capacity, to->n + 1))
		return STATUS_NOMEM;
	to->tops[to->n++] = top;
	return STATUS_OK;
}

static status expand_level(const walk *w, level *l)
{
	l->next = w->stacks->n_next;
	l->ends = false;
	for (int i = 0; i < l->n_tops; i++)
		TRY(grammar_expand(w->grammar, w->stacks, w->scratch->tops[l->tops + i], &l->ends));
	l->n_next = w->stacks->n_next - l->next;
	return STATUS_OK;
}

/* The stacks after one more byte. Errors as for add_top. */
static status step(const walk *w, const level *l, unsigned char byte, level *out)
{
	out->tops = w->scratch->n;
	w->stacks->work += l->n_next;
	for (int32_t i = 0; i < l->n_next; i++) {
		const grammar_next next = w->stacks->next[l->next + i];
		if (!grammar_fits(w->grammar, &next, byte))
			continue;
		const int32_t top = grammar_advance(w->grammar, w->stacks, &next, byte);
		TRY(top == -2 ? grammar_stacks_problem(w->stacks) : add_top(w->stacks, w->scratch, out->tops, top));
	}
	out->n_tops = w->scratch->n - out->tops;
	return w->stacks->work > GRAMMAR_MOST_WORK ? STATUS_TOO_LARGE : STATUS_OK;
}

/* True if the same strings of up to `bytes` bytes fit on both. */
static bool alike(const walk *w, int32_t a, int32_t b, int32_t bytes)
{
	if (a == b || a == FRAME_NONE || b == FRAME_NONE)
		return a == b;
	const grammar_frame *x = &w->stacks->frames[a], *y = &w->stacks->frames[b];
	return x->node == y->node && grammar_same(w->stacks, x->below, y->below) &&
	       grammar_position_like(w->grammar, x->node, x->position, bytes) ==
	           grammar_position_like(w->grammar, y->node, y->position, bytes);
}

static bool levels_alike(const walk *w, const level *a, const level *b, int32_t bytes)
{
	bool same = a->n_tops == b->n_tops;
	for (int i = 0; i < a->n_tops && same && w->stacks->work <= GRAMMAR_MOST_WORK; i++)
		same = alike(w, w->scratch->tops[a->tops + i], w->scratch->tops[b->tops + i], bytes);
	return same;
}

static status note_exit(known_frames *f, int32_t node)
{
	if (!MEMORY_ROOM(f->exits, f->exits_capacity, f->n_exits + 1))
		return STATUS_NOMEM;
	f->exits[f->n_exits++] = node;
	return STATUS_OK;
}

static status visit_children(const walk *w, const level *l, int32_t node);

static void allow_tokens(const walk *w, int32_t node)
{
	const token_trie_node *n = &w->trie->nodes[node];
	for (int32_t i = n->tokens; i < n[1].tokens; i++)
		allow(w->allowed, w->trie->tokens[i]);
}

/* The level has been expanded; the bytes up to `node` fit. */
static status visit(const walk *w, const level *l, int32_t node)
{
	allow_tokens(w, node);
	return visit_children(w, l, node);
}

static status visit_children(const walk *w, const level *l, int32_t node)
{
	const token_trie_node *nodes = w->trie->nodes;
	if (l->ends && w->exits)
		TRY(note_exit(w->exits, node));
	for (int32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
		const int32_t n_frames = w->stacks->n_frames, n_next = w->stacks->n_next;
		level after;
		TRY(step(w, l, nodes[child].byte, &after));
		if (after.n_tops == 0)
			continue;
		if (nodes[child].height == 0) {
			allow_tokens(w, child);
		} else if (levels_alike(w, &after, l, nodes[child].height)) {
			TRY(visit(w, l, child));
		} else {
			TRY(expand_level(w, &after));
			TRY(visit(w, &after, child));
		}
		w->stacks->n_frames = n_frames;
		w->stacks->n_next = n_next;
		w->scratch->n = after.tops;
	}
	return STATUS_OK;
}

/* Allow the tokens below `node` whose bytes from there on fit on `top`. */
static status walk_from(const walk *w, int32_t node, int32_t top)
{
	const int32_t n_frames = w->stacks->n_frames, n_next = w->stacks->n_next;
	level l = {.tops = w->scratch->n, .n_tops = 1};
	status s = add_top(w->stacks, w->scratch, l.tops, top);
	if (s == STATUS_OK)
		s = expand_level(w, &l);
	if (s == STATUS_OK)
		s = visit_children(w, &l, node);
	w->stacks->n_frames = n_frames;
	w->stacks->n_next = n_next;
	w->scratch->n = l.tops;
	return s;
}

/* --- what is known ------------------------------------------------------------------------------- */

static void forget(constraint *c)
{
	for (int i = 0; i < SLOTS; i++) {
		free(c->known[i].allowed);
		free(c->known[i].exits);
		c->known[i] = (known_frames){0};
	}
	c->n_known = 0;
}

status constraint_new(constraint **out, grammar *g, const token_trie *t)
{
	constraint *c = *out = memory_new(1, sizeof *c);
	if (!c) {
		grammar_free(g);
		return STATUS_NOMEM;
	}
	c->references = 1;
	c->grammar = g;
	c->trie = t;
	c->words = ((size_t)t->vocab + 31) / 32;
	return STATUS_OK;
}

constraint *constraint_share(constraint *c)
{
	c->references++;
	return c;
}

void constraint_free(constraint *c)
{
	if (!c || --c->references > 0)
		return;
	forget(c);
	free(c->scratch.tops);
	grammar_free(c->grammar);
	free(c);
}

static bool is_of(const known_frames *f, const grammar_frame *top, const grammar_frame *second)
{
	return f->top.node == top->node && f->top.position == top->position && f->second.node == second->node &&
	       f->second.position == second->position;
}

static known_frames *slot_of(constraint *c, const grammar_frame *top, const grammar_frame *second)
{
	const uint32_t words[] = {(uint32_t)top->node, (uint32_t)top->position, (uint32_t)second->node,
	                          (uint32_t)second->position};
	uint32_t at = 0;
	for (int i = 0; i < 4; i++)
		at = (at ^ words[i]) * UINT32_C(2654435761);
	at = (at >> 16) % SLOTS;
	while (c->known[at].allowed && !is_of(&c->known[at], top, second))
		at = (at + 1) % SLOTS;
	return &c->known[at];
}

static status learn(constraint *c, known_frames *f, int64_t *work)
{
	grammar_stacks alone = {.work = *work};
	const walk w = {c->grammar, c->trie, &alone, &c->scratch, f->allowed, f};
	int32_t top = FRAME_NONE;
	if (f->second.node != FRAME_NONE)
		top = grammar_push(&alone, f->second.node, f->second.position, FRAME_NONE);
	if (top != -2)
		top = grammar_push(&alone, f->top.node, f->top.position, top);
	status s = top == -2 ? STATUS_NOMEM : walk_from(&w, 0, top);
	*work = alone.work;
	grammar_stacks_fini(&alone);
	return s;
}

static grammar_frame like(const constraint *c, const grammar_frame *f)
{
	return (grammar_frame){f->node, grammar_position_like(c->grammar, f->node, f->position, c->trie->longest),
	                       FRAME_NONE};
}

/* *out is valid until the next call. *work grows. */
static status know(constraint *c, const grammar_frame *upper, const grammar_frame *lower, int64_t *work,
                   const known_frames **out)
{
	const grammar_frame top = like(c, upper);
	const grammar_frame second = lower ? like(c, lower) : (grammar_frame){FRAME_NONE, 0, FRAME_NONE};
	known_frames *f = slot_of(c, &top, &second);
	*out = f;
	if (f->allowed)
		return STATUS_OK;
	if (c->n_known == KNOWN) {
		forget(c);
		*out = f = slot_of(c, &top, &second);
	}
	*f = (known_frames){.top = top, .second = second};
	f->allowed = memory_new(c->words, sizeof *f->allowed);
	status s = f->allowed ? learn(c, f, work) : STATUS_NOMEM;
	if (s == STATUS_OK) {
		c->n_known++;
		return s;
	}
	free(f->allowed);
	free(f->exits);
	*f = (known_frames){0};
	return s;
}

/* --- a text ---------------------------------------------------------------------------------------- */

/* Allow what fits on this stack. *whole: it may end here. */
static status allow_on(constrained_text *x, int32_t top, bool *whole)
{
	constraint *c = x->constraint;
	const walk w = {c->grammar, c->trie, &x->stacks, &c->scratch, x->allowed, NULL};
	while (top != FRAME_NONE) {
		const grammar_frame *f = &x->stacks.frames[top];
		const grammar_frame *second = f->below == FRAME_NONE ? NULL : &x->stacks.frames[f->below];
		const int32_t below = second ? second->below : FRAME_NONE;
		const known_frames *known;
		bool ends = false;
		TRY(know(c, f, second, &x->stacks.work, &known));
		for (size_t i = 0; i < c->words; i++)
			x->allowed[i] |= known->allowed[i];
		for (int32_t i = 0; i < known->n_exits; i++) {
			if (known->exits[i] == 0)
				ends = true;
			else if (below != FRAME_NONE)
				TRY(walk_from(&w, known->exits[i], below));
		}
		if (!ends)
			return STATUS_OK;
		top = below;
	}
	*whole = true;
	return STATUS_OK;
}

/* *more: any token may follow, except an end. */
static status find_more(constrained_text *x, bool *more)
{
	const int32_t n_frames = x->stacks.n_frames;
	bool ends = false;
	for (int32_t i = 0; i < x->tops.n && x->stacks.n_next == 0; i++)
		TRY(grammar_expand(x->constraint->grammar, &x->stacks, x->tops.tops[i], &ends));
	*more = x->stacks.n_next > 0;
	x->stacks.n_next = 0;
	x->stacks.n_frames = n_frames;
	return STATUS_OK;
}

static status find_allowed(constrained_text *x)
{
	const size_t words = x->constraint->words;
	bool whole = false, more;
	x->stacks.work = 0;
	memset(x->allowed, 0, words * sizeof *x->allowed);
	for (int32_t i = 0; i < x->tops.n; i++)
		TRY(allow_on(x, x->tops.tops[i], &whole));
	TRY(find_more(x, &more));
	x->continues = false;
	x->done = whole && !more;
	for (size_t i = 0; i < words; i++) {
		x->allowed[i] |= whole ? x->whole[i] : 0;
		x->continues |= x->allowed[i] != 0;
	}
	return STATUS_OK;
}

status constrained_text_new(constrained_text **out, constraint *c, const int32_t *ends, int n_ends, bool ignore_end)
{
	constrained_text *x = *out = memory_new(1, sizeof *x);
	if (!x)
		return STATUS_NOMEM;
	x->constraint = c;
	x->allowed = memory_new(c->words, sizeof *x->allowed);
	x->whole = memory_new(c->words, sizeof *x->whole);
	const int32_t root = grammar_push(&x->stacks, grammar_root(c->grammar), 0, FRAME_NONE);
	bool room = x->allowed && x->whole && root != -2 && add_top(&x->stacks, &x->tops, 0, root) == STATUS_OK;
	for (int32_t i = 0; room && i < c->trie->n_ends && !ignore_end; i++)
		allow(x->whole, c->trie->ends[i]);
	for (int i = 0; room && i < n_ends; i++)
		if (ends[i] >= 0 && ends[i] < c->trie->vocab)
			allow(x->whole, ends[i]);
	const status s = room ? find_allowed(x) : STATUS_NOMEM;
	if (s != STATUS_OK) {
		constrained_text_free(x);
		*out = NULL;
	}
	return s;
}

void constrained_text_free(constrained_text *x)
{
	if (!x)
		return;
	grammar_stacks_fini(&x->stacks);
	free(x->tops.tops);
	free(x->allowed);
	free(x->whole);
	free(x);
}

const uint32_t *constrained_text_allowed(const constrained_text *x)
{
	return x->allowed;
}

bool constrained_text_continues(const constrained_text *x)
{
	return x->continues;
}

bool constrained_text_done(const constrained_text *x)
{
	return x->done;
}

static status push_byte(constrained_text *x, unsigned char byte)
{
	const grammar *g = x->constraint->grammar;
	grammar_stacks *s = &x->stacks;
	scratch *tops = &x->tops;
	const int32_t before = tops->n;
	bool ends = false;
	s->work = 0;
	for (int32_t i = 0; i < before; i++)
		TRY(grammar_expand(g, s, tops->tops[i], &ends));
	for (int32_t i = 0; i < s->n_next; i++) {
		const grammar_next next = s->next[i];
		if (!grammar_fits(g, &next, byte))
			continue;
		const int32_t top = grammar_advance(g, s, &next, byte);
		TRY(top == -2 ? grammar_stacks_problem(s) : add_top(s, tops, before, top));
	}
	s->n_next = 0;
	tops->n -= before;
	memmove(tops->tops, tops->tops + before, (size_t)tops->n * sizeof *tops->tops);
	return tops->n > 0 ? STATUS_OK : STATUS_INVALID;
}

/* Drop frames without a stack. Frames come after those below them. */
static status compact(constrained_text *x)
{
	grammar_stacks *s = &x->stacks;
	int32_t *moved = memory_new((size_t)s->n_frames, sizeof *moved), n = 0;
	if (!moved)
		return STATUS_NOMEM;
	for (int32_t i = 0; i < x->tops.n; i++)
		for (int32_t f = x->tops.tops[i]; f != FRAME_NONE && !moved[f]; f = s->frames[f].below)
			moved[f] = 1;
	for (int32_t f = 0; f < s->n_frames; f++) {
		if (!moved[f])
			continue;
		grammar_frame frame = s->frames[f];
		frame.below = frame.below == FRAME_NONE ? FRAME_NONE : moved[frame.below];
		s->frames[n] = frame;
		moved[f] = n++;
	}
	for (int32_t i = 0; i < x->tops.n; i++)
		x->tops.tops[i] = x->tops.tops[i] == FRAME_NONE ? FRAME_NONE : moved[x->tops.tops[i]];
	s->n_frames = n;
	free(moved);
	return STATUS_OK;
}

status constrained_text_push(constrained_text *x, int32_t token)
{
	char bytes[TOKEN_MAX_BYTES];
	const size_t n = tokenizer_token_bytes(x->constraint->trie->tokenizer, token, bytes, sizeof bytes);
	if (n == 0)
		return STATUS_INVALID;
	for (size_t i = 0; i < n; i++)
		TRY(push_byte(x, (unsigned char)bytes[i]));
	TRY(compact(x));
	return find_allowed(x);
}
