/* prefixes.h - states after the beginnings of prompts, so that a prompt reads only what is new.
 *
 * While a request without a session is served, its state is copied to host memory:
 *
 *   after the tokens that it says others share, or that it has in common with a recent prompt
 *   after every PREFIXES_EVERY tokens of its prompt; on a device, after every step's worth
 *   before the last token of the prompt; on a device, after it if a slot has at most PREFIXES_AT_ONCE bytes
 *   when the generation ends, unless it is copied in pieces: the next turn of a chat begins there
 *
 * A later prompt of the same owner begins with a copy of the state after the most tokens that it has in common.
 *
 * No bit depends on it. Where bits depend on the pieces of a prompt (served_model.any_pieces), only states between
 * whole pieces are kept.
 *
 * A state is a held session in memory (session.h), and a bare blob on the disk (session_blob.h). States that have
 * tokens in common share their keys and values (held_state.h). All states of a device share a budget of bytes, in which
 * shared ones count once. The least recently used leaves memory first, and so does a model's when it is unloaded. They
 * move to the disk (prefix_disk.h), if there is one. A state there returns to memory before its prompt begins, in the
 * `prepare` of the task (prefixes_ready): never in a step.
 *
 * A state of more than PREFIXES_AT_ONCE bytes enters and leaves its slot in pieces, beside steps of others
 * (prefixes_copy); its prompt waits. Such a state is kept only if copying what it does not share takes little time
 * against reading the tokens since the last state. The budget must also have room for PREFIXES_ROOM tokens at as many
 * bytes for each. Otherwise one after more tokens may be. One state at a time leaves its slot in pieces; its bytes
 * count once it is complete. A state that leaves memory while it enters a slot is freed after that.
 *
 * A state on the disk is read or written only if reading it takes less time than computing the tokens that it saves.
 * The first is estimated from the speed of the latest reads, the second from the fastest recent steps of prompts.
 * Before the first such step every state is. A prompt waits PREFIXES_WAIT_NS at most, and then is computed. Executor
 * thread only. */
#ifndef ENGINE_SERVE_PREFIXES_H
#define ENGINE_SERVE_PREFIXES_H

#include <sys/queue.h>

#include "engine/serve/prefix_disk.h"
#include "engine/serve/session.h"

enum {
	PREFIXES_EVERY = 1024,
	PREFIXES_COMPARED = 32,     /* recent states that a prompt is compared with */
	PREFIXES_SHARED = 16,       /* minimum of tokens that others share; reading fewer is as fast */
	PREFIXES_LEAST = 64,        /* minimum of tokens since the last state, otherwise */
	PREFIXES_TOKENS = 1 << 20,  /* maximum */
	PREFIXES_AT_ONCE = 4 << 20, /* bytes that are copied at once; more are copied in pieces */
	PREFIXES_COPY_SHARE = 8,    /* copying takes at most this part of the time of reading, and of a step */
	PREFIXES_ROOM = 1024        /* minimum of tokens whose states the budget has room for */
};
#define PREFIXES_WAIT_NS 1000000000u

typedef struct prefix prefix;

/* Zero-initialise; free with prefixes_fini. */
typedef struct prefix_cache {
	prefix **buckets;
	size_t n_buckets, count;
	TAILQ_HEAD(prefix_order, prefix) uses; /* most recent first; the cache does not move */
	int64_t bytes, limit;                  /* limit 0: nothing is kept */
	prefix_disk *disk;                     /* NULL: states are freed when they leave memory */
	uint64_t program;                      /* equal for programs and devices that compute the same bits */
	uint64_t removed_owners;               /* prefix_disk_removed_owners at the last look */
	prefix_read read;                      /* one at a time, */
	served_model *read_model;              /* for this model */
	session *leaving;                      /* the copy of the state that leaves its slot in pieces; NULL: none */
	double byte_ns;                        /* recent time to copy a byte in pieces */
	uint64_t too_large;                    /* states that were not kept: larger than the budget, */
	uint64_t thinned; /* not worth it, or to be copied in pieces at a generation's end or beside another */
} prefix_cache;

/* Zero all and set limit, disk and program. */
void prefixes_init(prefix_cache *c, const backend *b, int64_t limit, prefix_disk *disk);
/* Bring a state from the disk to memory with which the prompt begins, if that is cheaper than computing. False: it is
 * not there yet; call again. A prompt without such a state does not wait for the reads of others. */
bool prefixes_ready(prefix_cache *c, served_model *m, const generation_request *r, prefix_wait *w);
/* Create the session of a request without one. It is empty, or a copy of a kept state with which the prompt begins;
 * then *r has only the rest of the prompt. The copy may have to be completed (session_copies). */
status prefixes_begin(prefix_cache *c, served_model *m, generation_request *r, session **out, error *err);
/* Return how many tokens of g's prompt, at most n, are read before a state is to be kept. */
int64_t prefixes_piece(const generation *g, int64_t n);
/* Keep a copy of the state of g's session if it is to be kept, after a piece of its prompt. The copy may have to be
 * completed. */
void prefixes_keep(prefix_cache *c, const generation *g);
/* Return how many bytes may be copied in pieces after a step that took `ns`. */
size_t prefixes_copy_room(const prefix_cache *c, uint64_t ns);
/* Copy the next bytes to or from the slot of x, for which *room has room, and take them from it. STATUS_DEVICE: x is
 * lost. */
status prefixes_copy(prefix_cache *c, session *x, size_t *room);
/* In the same way as g ends, unless a step in flight has changed the state. */
void prefixes_keep_end(prefix_cache *c, const generation *g);
/* Move the states of a model to the disk, of which the most recently used come first if it cannot hold all, or free
 * them.
 */
void prefixes_free(prefix_cache *c, const served_model *m);
void prefixes_fini(prefix_cache *c); /* no model has a state */

/* --- for prefix_keeping.c --- */

prefix_key prefixes_key(const served_model *m, uint64_t owner, uint64_t hash, int64_t tokens);
/* Drop the states of owners that have been removed since the last call. False: the owner is one of them, so none of its
 * states may be kept. */
bool prefixes_take(prefix_cache *c, uint64_t owner);
/* Add a held session, of which the cache becomes the owner. Nothing depends on it, so no memory is no error: it is
 * freed. False: it has not been added. */
bool prefixes_add(prefix_cache *c, const served_model *m, const prefix_key *key, session *state);
/* Use the state with this key after the tokens of x. False: there is none; other tokens may have the same hash. */
bool prefixes_use(prefix_cache *c, session *x, const prefix_key *key);

#endif
