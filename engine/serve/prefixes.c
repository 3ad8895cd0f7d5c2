/* prefixes.c - a hash table by the hash of all tokens of a state and of its owner. The hash of a longer beginning
 * follows from that of a shorter one in one step, so all beginnings of a prompt are looked up in one pass. */
#include "engine/serve/prefixes.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"
#include "engine/serve/scheduler_state.h"

struct prefix {
	prefix *next;          /* in its bucket */
	prefix *newer, *older; /* by last use */
	uint64_t hash, owner;
	session *state; /* a snapshot without logits */
	int64_t bytes;
};

static uint64_t hash_owner(const char *owner)
{
	return owner ? digest_bytes(owner, strlen(owner)) : 0;
}

/* The hash of no token. */
static uint64_t hash_start(const served_model *m, uint64_t owner)
{
	return m->hash ^ owner;
}

static uint64_t hash_token(uint64_t hash, int32_t token)
{
	hash = (hash ^ (uint32_t)token) * 0x9fb21c651e98df25u;
	return hash ^ (hash >> 29);
}

/* --- the table --------------------------------------------------------------------- */

static prefix **bucket(const prefix_cache *c, uint64_t hash)
{
	return &c->buckets[hash & (c->n_buckets - 1)];
}

static void unlink_use(prefix_cache *c, prefix *p)
{
	*(p->newer ? &p->newer->older : &c->newest) = p->older;
	*(p->older ? &p->older->newer : &c->oldest) = p->newer;
}

static void link_use(prefix_cache *c, prefix *p)
{
	p->newer = NULL;
	p->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = p;
	c->newest = p;
}

static void touch(prefix_cache *c, prefix *p)
{
	unlink_use(c, p);
	link_use(c, p);
}

static void drop(prefix_cache *c, prefix *p)
{
	prefix **link = bucket(c, p->hash);
	while (*link != p)
		link = &(*link)->next;
	*link = p->next;
	unlink_use(c, p);
	c->count--;
	c->bytes -= p->bytes;
	session_free(p->state);
	free(p);
}

/* Double the buckets; false: out of memory, and the table is unchanged. */
static bool grow_table(prefix_cache *c)
{
	enum { FIRST = 256 };
	prefix_cache larger = *c;
	larger.n_buckets = c->n_buckets ? 2 * c->n_buckets : FIRST;
	larger.buckets = memory_new(larger.n_buckets, sizeof *larger.buckets);
	if (!larger.buckets)
		return false;
	for (prefix *p = c->newest; p; p = p->older) {
		prefix **to = bucket(&larger, p->hash);
		p->next = *to;
		*to = p;
	}
	free(c->buckets);
	*c = larger;
	return true;
}

void prefixes_free(prefix_cache *c, const served_model *m)
{
	for (prefix *p = c->newest, *older; p; p = older) {
		older = p->older;
		if (p->state->model == m)
			drop(c, p);
	}
}

void prefixes_fini(prefix_cache *c)
{
	free(c->buckets);
	*c = (prefix_cache){0};
}

/* --- looking up -------------------------------------------------------------------- */

/* Return the state after exactly these tokens, of which `hash` is the hash; NULL: none. */
static prefix *find_state(const prefix_cache *c, const served_model *m, uint64_t owner, uint64_t hash,
                          const int32_t *ids, int64_t n)
{
	for (prefix *p = *bucket(c, hash); p; p = p->next)
		if (p->hash == hash && p->owner == owner && p->state->model == m && p->state->tokens == n &&
		    token_history_equals(&p->state->history, ids))
			return p;
	return NULL;
}

/* Return the longest state with which the prompt begins; NULL: none. At least one token remains to be read. */
static prefix *find_longest(const prefix_cache *c, const served_model *m, uint64_t owner, const int32_t *ids, int64_t n)
{
	prefix *found = NULL;
	uint64_t hash = hash_start(m, owner);
	for (int64_t i = 0; c->count > 0 && i < n - 1; i++) {
		hash = hash_token(hash, ids[i]);
		prefix *p = find_state(c, m, owner, hash, ids, i + 1);
		found = p ? p : found;
	}
	return found;
}

/* Return how many tokens the prompt has in common with one of late. */
static int64_t find_branch(const prefix_cache *c, const served_model *m, uint64_t owner, const int32_t *ids, int64_t n)
{
	int64_t most = 0;
	int compared = 0;
	for (const prefix *p = c->newest; p && compared < PREFIXES_COMPARED; p = p->older) {
		if (p->owner != owner || p->state->model != m)
			continue;
		const int64_t common = token_history_common(&p->state->history, ids, n - 1);
		most = common > most ? common : most;
		compared++;
	}
	return most;
}

static status copy_state(session *to, const session *from, error *err)
{
	size_t moved = 0;
	for (bool done = false; !done;)
		TRY(session_fork_step(to, from, &moved, &done, err));
	return STATUS_OK;
}

/* True if the states of this request may be kept and used. */
static bool takes_part(const prefix_cache *c, const served_model *m, const generation_request *r)
{
	return c->limit > 0 && !r->reads_all && r->n_alpha == 0 && !r->explain && !r->score_prompt &&
	       r->n_source == 0 && model_dimensions(m->model)->form->stepwise &&
	       statepool_slot_bytes(m->pool) <= PREFIXES_STATE_BYTES;
}

status prefixes_begin(prefix_cache *c, served_model *m, generation_request *r, session **out, error *err)
{
	const session_options o = {.policy = POSITION_ERROR, .explain = r->n_alpha > 0 || r->explain};
	const uint64_t owner = hash_owner(r->owner);
	TRY(session_new(out, m, "", &o, err));
	if (!takes_part(c, m, r))
		return STATUS_OK;
	session *x = *out;
	prefix *p = find_longest(c, m, owner, r->prompt, r->n_prompt);
	const int64_t branch = find_branch(c, m, owner, r->prompt, r->n_prompt);
	r->n_shared = branch > r->n_shared ? branch : r->n_shared;
	x->kept = (session_kept){.active = true, .hash = hash_start(m, owner), .owner = owner};
	if (!p)
		return STATUS_OK;
	if (copy_state(x, p->state, NULL) != STATUS_OK) { /* the prompt is read from its beginning */
		session_free(x);
		return session_new(out, m, "", &o, err);
	}
	touch(c, p);
	x->kept.tokens = x->kept.hashed = x->tokens;
	x->kept.hash = p->hash;
	r->prompt += x->tokens;
	r->n_prompt -= x->tokens;
	r->n_shared -= r->n_shared < x->tokens ? r->n_shared : x->tokens;
	return STATUS_OK;
}

/* --- keeping ------------------------------------------------------------------------- */

/* States are kept after multiples of this many tokens. */
static int64_t unit_of(const served_model *m)
{
	const model_dims *d = model_dimensions(m->model);
	return m->any_pieces ? 1 : d->by_segments ? d->segment : SCHEDULER_PREFILL_CHUNK;
}

static int64_t least_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Return the number of tokens after which g's next state is kept, at least `from`; INT64_MAX: none while its prompt is
 * read. */
static int64_t next_kept(const generation *g, int64_t from)
{
	const session *x = g->session;
	const int64_t prompt_tokens = model_backend(x->model->model)->prompt_tokens, unit = unit_of(x->model);
	const int64_t every = prompt_tokens > PREFIXES_EVERY ? prompt_tokens : PREFIXES_EVERY;
	const int64_t all = g->n_cached + g->n_prompt, last = (prompt_tokens ? all : all - 1) / unit * unit;
	const int64_t shared = (g->n_cached + g->n_shared) / unit * unit, least = x->kept.tokens + PREFIXES_LEAST;
	const int64_t regular = (from > least ? from + every - 1 : least + every - 1) / every * every;
	int64_t next = regular <= all ? regular : INT64_MAX;
	if (g->n_shared > 0 && shared >= from && shared >= x->kept.tokens + PREFIXES_SHARED)
		next = least_of(next, shared);
	if (last >= from && last >= least)
		next = least_of(next, last);
	return next;
}

int64_t prefixes_piece(const generation *g, int64_t n)
{
	const session *x = g->session;
	if (!x->kept.active || !x->model->any_pieces)
		return n;
	return least_of(n, next_kept(g, x->tokens + 1) - x->tokens);
}

static int64_t bytes_of(const session *x)
{
	/* Other states may share most chunks of the history, and leave before. */
	const int64_t chunks = (x->tokens + TOKEN_CHUNK - 1) / TOKEN_CHUNK;
	return (int64_t)(sizeof(prefix) + sizeof *x + statepool_slot_bytes(x->model->pool)) +
	       chunks * TOKEN_CHUNK * (int64_t)sizeof(int32_t);
}

static prefix *find_hash(const prefix_cache *c, const session *x)
{
	prefix *p = c->n_buckets ? *bucket(c, x->kept.hash) : NULL;
	while (p && (p->hash != x->kept.hash || p->state->model != x->model || p->state->tokens != x->tokens))
		p = p->next;
	return p;
}

/* Add a copy of x. Nothing depends on it, so no memory is no error. */
static void add(prefix_cache *c, const session *x)
{
	const int64_t bytes = bytes_of(x);
	if (bytes > c->limit || (c->count >= c->n_buckets && !grow_table(c)))
		return;
	while (c->bytes + bytes > c->limit)
		drop(c, c->oldest);
	prefix *p = memory_new(1, sizeof *p);
	if (!p || session_snapshot(&p->state, x, "", NULL) != STATUS_OK) {
		free(p);
		return;
	}
	free(p->state->logits);
	p->state->logits = NULL;
	if (copy_state(p->state, x, NULL) != STATUS_OK) {
		session_free(p->state);
		free(p);
		return;
	}
	p->hash = x->kept.hash;
	p->owner = x->kept.owner;
	p->bytes = bytes;
	p->next = *bucket(c, p->hash);
	*bucket(c, p->hash) = p;
	link_use(c, p);
	c->count++;
	c->bytes += bytes;
}

static void keep(prefix_cache *c, session *x)
{
	session_kept *k = &x->kept;
	for (; k->hashed < x->tokens; k->hashed++)
		k->hash = hash_token(k->hash, token_history_at(&x->history, k->hashed));
	prefix *p = find_hash(c, x);
	if (p)
		touch(c, p);
	else
		add(c, x);
	k->tokens = x->tokens;
}

void prefixes_keep(prefix_cache *c, const generation *g)
{
	session *x = g->session;
	if (x->kept.active && !x->lost && next_kept(g, x->tokens) == x->tokens)
		keep(c, x);
}

void prefixes_keep_end(prefix_cache *c, const generation *g)
{
	session *x = g->session;
	bool changes = false;
	for (int i = 0; i < INFLIGHT_STEPS; i++)
		changes |= g->row[i] != NULL;
	if (x->kept.active && x->model->any_pieces && !g->beams && !x->lost && !changes &&
	    x->tokens >= x->kept.tokens + PREFIXES_LEAST)
		keep(c, x);
}
