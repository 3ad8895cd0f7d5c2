/* prefix_keeping.c - when the state of a prompt is kept, and copies that take more than a turn. */
#include "engine/base/clock.h"
#include "engine/serve/scheduler_state.h"
#include "engine/serve/session_blob.h"

/* States are kept after multiples of this many tokens. */
static int64_t unit_of(const served_model *m)
{
	const model_dims *d = model_dimensions(m->model);
	return m->any_pieces ? 1 : d->by_segments ? d->segment : SCHEDULER_PREFILL_CHUNK;
}

/* Return the number of tokens after which g's next state is kept, at least `from`; INT64_MAX: none while its prompt is
 * read. */
static int64_t next_kept(const generation *g, int64_t from)
{
	const session *x = g->session;
	const int64_t prompt_tokens = model_backend(x->model->model)->prompt_tokens, unit = unit_of(x->model);
	const int64_t every = prompt_tokens > PREFIXES_EVERY ? prompt_tokens : PREFIXES_EVERY;
	const bool after = prompt_tokens && statepool_slot_bytes(x->model->pool) <= PREFIXES_AT_ONCE;
	const int64_t all = g->n_cached + g->n_prompt, last = (after ? all : all - 1) / unit * unit;
	const int64_t shared = (g->n_cached + g->n_shared) / unit * unit, least = x->kept->tokens + PREFIXES_LEAST;
	const int64_t regular = (from > least ? from + every - 1 : least + every - 1) / every * every;
	int64_t next = regular <= all ? regular : INT64_MAX;
	if (g->n_shared > 0 && shared >= from && shared >= x->kept->tokens + PREFIXES_SHARED)
		next = smaller_of(next, shared);
	if (last >= from && last >= least)
		next = smaller_of(next, last);
	return next;
}

int64_t prefixes_piece(const generation *g, int64_t n)
{
	const session *x = g->session;
	if (!x->kept || !x->model->any_pieces)
		return n;
	return smaller_of(n, next_kept(g, x->tokens + 1) - x->tokens);
}

/* True if copying `each` bytes for a token takes too long against reading it. The time of a byte is measured only
 * while states are copied. So every refusal lowers it, and a slow period does not refuse states for good. */
static bool takes_long(prefix_cache *c, const served_model *m, double each)
{
	const double fade = 0.98;
	const bool is_long = m->prompt_ns > 0 && each * c->byte_ns * PREFIXES_COPY_SHARE > (double)m->prompt_ns;
	c->byte_ns *= is_long ? fade : 1;
	return is_long;
}

/* True if a copy of x is worth the `bytes` that it does not share. */
static bool is_worth(prefix_cache *c, const session *x, size_t bytes)
{
	const double each = (double)bytes / (double)(x->tokens - x->kept->tokens);
	return bytes <= PREFIXES_AT_ONCE ||
	       (each * PREFIXES_ROOM <= (double)c->limit && !takes_long(c, x->model, each));
}

/* Add a copy of x, or begin one in pieces if x can wait. False: none is kept. */
static bool add_copy(prefix_cache *c, session *x, const prefix_key *key, bool waits)
{
	session *copy;
	const bool fits = session_blob_bare_bytes(x) <= c->limit;
	c->too_large += !fits;
	if (x->tokens > PREFIXES_TOKENS || !fits || !prefixes_take(c, key->owner) ||
	    session_hold_new(&copy, x->model, &x->options, x->tokens, false, &x->held.blocks) != STATUS_OK)
		return false;
	const size_t bytes = held_state_missing(&copy->held);
	const bool pieces = bytes > PREFIXES_AT_ONCE;
	if (!is_worth(c, x, bytes) || (pieces && (!waits || c->leaving))) {
		c->thinned++;
		session_free(copy);
		return false;
	}
	if (pieces) {
		c->leaving = copy;
		x->kept->copies = true;
		x->kept->moved = 0;
		return true;
	}
	return session_copy_all(&copy, x) == STATUS_OK && prefixes_add(c, x->model, key, copy);
}

/* Return the key of the present state of x. */
static prefix_key key_of_state(session *x)
{
	session_kept *k = x->kept;
	for (; k->hashed < x->tokens; k->hashed++)
		k->hash = prefix_disk_hash(k->hash, token_history_at(&x->history, k->hashed));
	return prefixes_key(x->model, k->owner, k->hash, x->tokens);
}

static void keep(prefix_cache *c, session *x, bool waits)
{
	const prefix_key key = key_of_state(x);
	if (prefixes_use(c, x, &key) || add_copy(c, x, &key, waits))
		x->kept->tokens = x->tokens;
}

void prefixes_keep(prefix_cache *c, const generation *g)
{
	session *x = g->session;
	if (x->kept && !x->lost && next_kept(g, x->tokens) == x->tokens)
		keep(c, x, g->n_read < g->n_prompt);
}

/* End the copy of x, and free the state that it was made from or that it is. */
static void end_copy(prefix_cache *c, session *x, bool done)
{
	session *from = x->kept->entering, *copy = from ? NULL : c->leaving;
	x->kept->copies = false;
	x->kept->entering = NULL;
	session_free(from);
	if (!copy)
		return;
	c->leaving = NULL;
	const prefix_key key = key_of_state(x);
	if (done && prefixes_take(c, key.owner) && !prefixes_use(c, x, &key))
		prefixes_add(c, x->model, &key, copy);
	else
		session_free(copy);
}

size_t prefixes_copy_room(const prefix_cache *c, uint64_t ns)
{
	const double room = (double)ns / PREFIXES_COPY_SHARE / c->byte_ns;
	return room < SESSION_STEP ? SESSION_STEP : room < (double)PTRDIFF_MAX ? (size_t)room : PTRDIFF_MAX;
}

status prefixes_copy(prefix_cache *c, session *x, size_t *room)
{
	enum { SHARE = 8 }; /* weight of an earlier average against the latest pieces */
	session_kept *k = x->kept;
	const uint64_t began = clock_ns();
	size_t bytes = 0; /* those that are shared count as one piece */
	status s = STATUS_OK;
	bool done = false;
	while (s == STATUS_OK && !done && bytes < *room) {
		const size_t before = k->moved;
		s = k->entering ? session_rollback_step(x, k->entering, &k->moved, &done, NULL)
		                : session_fork_step(c->leaving, x, &k->moved, &done, NULL);
		bytes += (size_t)smaller_of((int64_t)(k->moved - before), SESSION_STEP);
	}
	*room -= (size_t)smaller_of((int64_t)bytes, (int64_t)*room);
	if (bytes >= SESSION_STEP)
		c->byte_ns += ((double)(clock_ns() - began) / (double)bytes - c->byte_ns) / SHARE;
	const status result = k->entering ? s : STATUS_OK; /* nothing depends on a state that leaves */
	if (done || s != STATUS_OK)
		end_copy(c, x, done && s == STATUS_OK);
	return result;
}

void prefixes_keep_end(prefix_cache *c, const generation *g)
{
	session *x = g->session;
	bool changes = session_copies(x);
	if (changes)
		end_copy(c, x, false);
	for (int i = 0; i < INFLIGHT_STEPS; i++)
		changes |= g->row[i] != NULL;
	if (x->kept && x->model->any_pieces && !g->beams && !x->lost && !changes &&
	    x->tokens >= x->kept->tokens + PREFIXES_LEAST)
		keep(c, x, false);
}
