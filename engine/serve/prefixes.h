/* prefixes.h - states after the beginnings of prompts, so that a prompt reads only what is new.
 *
 * While a request without a session is served, its state is copied to host memory:
 *
 *   after the tokens that it says others share, or that it has in common with a prompt of late
 *   after every PREFIXES_EVERY tokens of its prompt; on a device, after every step's worth
 *   before the last token of the prompt; on a device, after it
 *   when the generation ends: the next turn of a chat begins there
 *
 * A later prompt of the same owner begins with a copy of the state after the most tokens that it has in common.
 *
 * No bit depends on it. Where bits depend on the pieces of a prompt (served_model.any_pieces), only states between
 * whole pieces are kept.
 *
 * All states share a budget of bytes; the least recently used goes first. Executor thread only. */
#ifndef ENGINE_SERVE_PREFIXES_H
#define ENGINE_SERVE_PREFIXES_H

#include "engine/serve/session.h"

enum {
	PREFIXES_EVERY = 1024,
	PREFIXES_COMPARED = 32,        /* states of late that a prompt is compared with */
	PREFIXES_SHARED = 16,          /* minimum of tokens that others share; reading fewer is as fast */
	PREFIXES_LEAST = 64,           /* minimum of tokens since the last state, otherwise */
	PREFIXES_STATE_BYTES = 4 << 20 /* maximum; copying a larger state exceeds a turn */
};

typedef struct prefix prefix;

/* Zero-initialise; free with prefixes_fini. */
typedef struct prefix_cache {
	prefix **buckets;
	size_t n_buckets, count;
	prefix *newest, *oldest; /* by last use */
	int64_t bytes, limit;    /* limit 0: nothing is kept */
} prefix_cache;

/* Create the session of a request without one. It is empty, or a copy of a kept state with which the prompt begins;
 * then *r has only the rest of the prompt. */
status prefixes_begin(prefix_cache *c, served_model *m, generation_request *r, session **out, error *err);
/* Return how many tokens of g's prompt, at most n, are read before a state is to be kept. */
int64_t prefixes_piece(const generation *g, int64_t n);
/* Keep a copy of the state of g's session if it is to be kept, after a piece of its prompt. */
void prefixes_keep(prefix_cache *c, const generation *g);
/* In the same way as g ends, unless a step in flight has changed the state. */
void prefixes_keep_end(prefix_cache *c, const generation *g);
/* Free the states of a model. */
void prefixes_free(prefix_cache *c, const served_model *m);
void prefixes_fini(prefix_cache *c); /* no model has a state */

#endif
