/* prefixes.c - a hash table by the hash of all tokens of a state and of its owner. The hash of a longer beginning
 * follows from that of a shorter one in one step, so all beginnings of a prompt are looked up in one pass. */
#include "engine/serve/prefixes.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/memory.h"
#include "engine/serve/scheduler_state.h"
#include "engine/serve/served_adapter.h"
#include "engine/serve/session_blob.h"

struct prefix {
	prefix *next; /* in its bucket */
	TAILQ_ENTRY(prefix) use;
	const served_model *model;
	prefix_key key;
	session *state; /* held */
};

/* Digest of the sizes and times of the files with the program's and the backend's code. */
static uint64_t code_of(const backend *b)
{
	enum { FILES = 2, PARTS = 3 };
	Dl_info found = {0};
	dladdr((void *)(uintptr_t)b->close, &found);
	const char *const files[FILES] = {"/proc/self/exe", found.dli_fname};
	int64_t parts[FILES][PARTS] = {0};
	for (int i = 0; i < FILES; i++) {
		struct stat st;
		if (!files[i] || stat(files[i], &st) != 0)
			continue;
		parts[i][0] = st.st_size;
		parts[i][1] = st.st_mtim.tv_sec;
		parts[i][2] = st.st_mtim.tv_nsec;
	}
	return digest_bytes(parts, sizeof parts);
}

void prefixes_init(prefix_cache *c, const backend *b, int64_t limit, prefix_disk *disk)
{
	*c = (prefix_cache){.limit = limit, .disk = limit > 0 ? disk : NULL};
	c->byte_ns = 0.5;
	TAILQ_INIT(&c->uses);
	c->program =
	    code_of(b) ^ prefix_disk_name(ADDITIVE_VERSION) ^ prefix_disk_name(b->name) ^ prefix_disk_name(b->device);
}

prefix_key prefixes_key(const served_model *m, uint64_t owner, uint64_t hash, int64_t tokens)
{
	return (prefix_key){prefix_disk_name(m->id), owner, hash, tokens};
}

/* The hash of no token. Every bit depends on the whole owner, so that no token makes up for another owner. So it does
 * on the adapter. */
static uint64_t hash_start(const prefix_cache *c, const served_model *m, uint64_t owner, const served_adapter *a)
{
	const uint64_t parts[] = {m->hash, owner, c->program, served_adapter_hash(a)};
	return digest_bytes(parts, a ? sizeof parts : 3 * sizeof *parts); /* states stored without adapters stay valid */
}

/* --- the table --------------------------------------------------------------------- */

static prefix **bucket(const prefix_cache *c, uint64_t hash)
{
	return &c->buckets[hash & (c->n_buckets - 1)];
}

static void touch(prefix_cache *c, prefix *p)
{
	TAILQ_REMOVE(&c->uses, p, use);
	TAILQ_INSERT_HEAD(&c->uses, p, use);
}

/* Bytes of an entry besides its state. */
static int64_t entry_bytes(const session *x)
{
	return (int64_t)(sizeof(prefix) + sizeof *x) + x->tokens * (int64_t)sizeof(int32_t);
}

/* Remove an entry and return its state. */
static session *take_out(prefix_cache *c, prefix *p)
{
	session *x = p->state;
	prefix **link = bucket(c, p->key.hash);
	while (*link != p)
		link = &(*link)->next;
	*link = p->next;
	TAILQ_REMOVE(&c->uses, p, use);
	c->count--;
	c->bytes -= entry_bytes(x) + held_state_uncount(&x->held, HELD_PREFIXES);
	free(p);
	return x;
}

static void drop(prefix_cache *c, prefix *p)
{
	session_free(take_out(c, p));
}

/* Double the buckets; false: out of memory, and the table is unchanged. */
static bool grow_table(prefix_cache *c)
{
	enum { FIRST = 256 };
	const size_t n = c->n_buckets ? 2 * c->n_buckets : FIRST;
	prefix **buckets = memory_new(n, sizeof *buckets);
	if (!buckets)
		return false;
	free(c->buckets);
	c->buckets = buckets;
	c->n_buckets = n;
	for (prefix *p = TAILQ_FIRST(&c->uses); p; p = TAILQ_NEXT(p, use)) {
		prefix **to = bucket(c, p->key.hash);
		p->next = *to;
		*to = p;
	}
	return true;
}

/* True if computing n tokens takes longer than reading a state in `ns`, or its time is not known. */
static bool is_slower(const served_model *m, int64_t n, uint64_t ns)
{
	return m->prompt_ns == 0 || m->prompt_ns * (uint64_t)n > ns;
}

static int64_t file_bytes(const prefix *p)
{
	return session_blob_bare_bytes(p->state);
}

/* Move a state to the disk if it may be worth reading from there, and drop it. extra: as in prefix_disk_put. */
static void move_out(prefix_cache *c, prefix *p, int64_t extra)
{
	const prefix_key key = p->key;
	const bool worth = c->disk && is_slower(p->model, key.tokens, prefix_disk_read_ns(c->disk, file_bytes(p)));
	session *x = take_out(c, p);
	session_transfer t;
	if (!worth)
		session_free(x);
	else if (session_blob_give(x, &t) == STATUS_OK)
		prefix_disk_put(c->disk, &key, &t, extra);
}

bool prefixes_take(prefix_cache *c, uint64_t owner)
{
	const uint64_t n = prefix_disk_removed_owners(c->disk), before = c->removed_owners;
	c->removed_owners = n;
	for (prefix *p = n > before ? TAILQ_FIRST(&c->uses) : NULL, *older; p; p = older) {
		older = TAILQ_NEXT(p, use);
		if (prefix_disk_has_removed(c->disk, p->key.owner))
			drop(c, p);
	}
	return n == 0 || !prefix_disk_has_removed(c->disk, owner);
}

void prefixes_free(prefix_cache *c, const served_model *m)
{
	if (c->read_model == m) {
		prefix_disk_cancel(c->disk, &c->read);
		c->read_model = NULL;
	}
	const int64_t limit = prefix_disk_limit(c->disk);
	int64_t all = 0; /* bytes of the files; their states share memory until they are written */
	for (prefix *p = TAILQ_FIRST(&c->uses), *older; p; p = older) {
		older = TAILQ_NEXT(p, use);
		if (p->model != m)
			continue;
		if (file_bytes(p) <= limit - all)
			all += file_bytes(p);
		else
			drop(c, p);
	}
	for (prefix *p = TAILQ_LAST(&c->uses, prefix_order), *newer; p; p = newer) {
		newer = TAILQ_PREV(p, prefix_order, use);
		if (p->model == m)
			move_out(c, p, all);
	}
}

void prefixes_fini(prefix_cache *c)
{
	free(c->buckets);
	*c = (prefix_cache){0};
}

bool prefixes_add(prefix_cache *c, const served_model *m, const prefix_key *key, session *state)
{
	const int64_t most = entry_bytes(state) + (int64_t)state->held.size;
	prefix *p = most <= c->limit && (c->count < c->n_buckets || grow_table(c)) ? memory_new(1, sizeof *p) : NULL;
	if (!p) {
		session_free(state);
		return false;
	}
	c->bytes += entry_bytes(state) + held_state_count(&state->held, HELD_PREFIXES);
	while (c->bytes > c->limit)
		move_out(c, TAILQ_LAST(&c->uses, prefix_order), 0);
	*p = (prefix){.model = m, .key = *key, .state = state, .next = *bucket(c, key->hash)};
	*bucket(c, key->hash) = p;
	TAILQ_INSERT_HEAD(&c->uses, p, use);
	c->count++;
	return true;
}

/* --- looking up -------------------------------------------------------------------- */

static int64_t common_tokens(const prefix *p, const int32_t *ids, int64_t n)
{
	return token_history_common(&p->state->history, ids, n);
}

/* Return the state after exactly these tokens, of which `hash` is the hash; NULL: none. */
static prefix *find_state(const prefix_cache *c, const served_model *m, uint64_t owner, uint64_t hash,
                          const int32_t *ids, int64_t n)
{
	for (prefix *p = *bucket(c, hash); p; p = p->next)
		if (p->key.hash == hash && p->key.owner == owner && p->model == m && p->key.tokens == n &&
		    common_tokens(p, ids, n) == n)
			return p;
	return NULL;
}

/* Return the longest state with which the prompt begins; NULL: none. At least one token remains to be read. */
static prefix *find_longest(const prefix_cache *c, const served_model *m, uint64_t owner, const served_adapter *a,
                            const int32_t *ids, int64_t n)
{
	prefix *found = NULL;
	uint64_t hash = hash_start(c, m, owner, a);
	for (int64_t i = 0; c->count > 0 && i < n - 1; i++) {
		hash = prefix_disk_hash(hash, ids[i]);
		prefix *p = find_state(c, m, owner, hash, ids, i + 1);
		found = p ? p : found;
	}
	return found;
}

/* Return how many tokens the prompt has in common with a recent one. */
static int64_t find_branch(const prefix_cache *c, const served_model *m, uint64_t owner, const int32_t *ids, int64_t n)
{
	int64_t most = 0;
	int compared = 0;
	for (const prefix *p = TAILQ_FIRST(&c->uses); p && compared < PREFIXES_COMPARED; p = TAILQ_NEXT(p, use)) {
		if (p->key.owner != owner || p->model != m)
			continue;
		const int64_t common = common_tokens(p, ids, n - 1);
		most = common > most ? common : most;
		compared++;
	}
	return most;
}

/* Bring x, which is empty, to a kept state. A large one is only begun. */
static status enter_state(session *x, const prefix *p)
{
	const bool small = p->state->held.size <= PREFIXES_AT_ONCE;
	session_kept *k = x->kept;
	bool done = false;
	do
		TRY(session_rollback_step(x, p->state, &k->moved, &done, NULL));
	while (small && !done);
	k->copies = !done;
	k->entering = done ? NULL : session_share(p->state);
	k->tokens = k->hashed = x->tokens;
	k->hash = p->key.hash;
	return STATUS_OK;
}

/* True if the states of this request may be kept and used. */
static bool takes_part(const prefix_cache *c, const served_model *m, const generation_request *r)
{
	return c->limit > 0 && !r->reads_all && r->n_alpha == 0 && !r->explain && !r->score_prompt &&
	       r->n_source == 0 && model_dimensions(m->model)->form->stepwise;
}

/* Make the bare blob of the state after a prompt's first tokens, to be read. It shares the blocks of the longest state
 * with which it begins. */
static status begin_state(const prefix_cache *c, served_model *m, const prefix_key *key, const generation_request *r,
                          session_transfer *t)
{
	const session_options o = {.policy = POSITION_ERROR, .adapter = r->adapter};
	session *x = NULL;
	block_list blocks = {0};
	const prefix *p = find_longest(c, m, key->owner, r->adapter, r->prompt, key->tokens);
	status s = p ? block_list_copy(&blocks, &p->state->held.blocks, INT64_MAX) : STATUS_OK;
	if (s == STATUS_OK)
		s = session_hold_new(&x, m, &o, key->tokens, false, &blocks);
	block_list_fini(&blocks);
	if (s == STATUS_OK)
		s = token_history_reserve(&x->history, key->tokens);
	if (s != STATUS_OK) {
		session_free(x);
		return s;
	}
	token_history_append(&x->history, r->prompt, key->tokens);
	x->tokens = key->tokens;
	return session_blob_give(x, t);
}

/* Take the state that has been read from the disk. Without it the file goes, so that it is not read again and again. */
static void take_read(prefix_cache *c)
{
	prefix_read *r = &c->read;
	session *x = r->state.held;
	r->state.held = NULL;
	scheduler_transfer_fini(&r->state);
	if (x && !prefixes_take(c, r->key.owner)) {
		session_free(x);
		x = NULL;
	}
	if (!x || !prefixes_add(c, c->read_model, &r->key, x))
		prefix_disk_remove(c->disk, &r->key);
	r->began_ns = 0;
	c->read_model = NULL;
}

/* Find the state on the disk that saves time; false: there is none. */
static bool find_on_disk(const prefix_cache *c, const served_model *m, const generation_request *r, prefix_key *key)
{
	const uint64_t owner = prefix_disk_owner(r->owner);
	const prefix *p = find_longest(c, m, owner, r->adapter, r->prompt, r->n_prompt);
	const int64_t least = p ? p->key.tokens : 0;
	uint64_t ns;
	*key = prefixes_key(m, owner, hash_start(c, m, owner, r->adapter), 0);
	if (!prefix_disk_find(c->disk, key, r->prompt, r->n_prompt, least, &ns))
		return false;
	if (!is_slower(m, key->tokens - least, ns)) {
		prefix_disk_doubt(c->disk);
		return false;
	}
	return true;
}

/* Begin to read the prompt's state unless it has none, or another is being read. True: the prompt need not wait. */
static bool begin_read(prefix_cache *c, served_model *m, const generation_request *r, const prefix_wait *w)
{
	const uint64_t now = clock_ns();
	prefix_key key = {0};
	if (now - w->since_ns >= PREFIXES_WAIT_NS)
		return true;
	if (!(w->waits && c->read.began_ns) &&
	    !find_on_disk(c, m, r, &key)) /* a prompt that waits has been looked up */
		return true;
	if (c->read.began_ns)
		return now - c->read.began_ns >= PREFIXES_WAIT_NS;
	if (begin_state(c, m, &key, r, &c->read.state) != STATUS_OK)
		return true;
	c->read_model = m;
	c->read.key = key;
	prefix_disk_read(c->disk, &c->read);
	return false;
}

bool prefixes_ready(prefix_cache *c, served_model *m, const generation_request *r, prefix_wait *w)
{
	if (!c->disk || !takes_part(c, m, r))
		return true;
	if (c->read.began_ns && atomic_load(&c->read.done))
		take_read(c);
	w->since_ns = w->since_ns ? w->since_ns : clock_ns();
	w->waits = !begin_read(c, m, r, w);
	return !w->waits;
}

/* Create the session of a request whose states may be kept. */
static status new_session(session **out, const prefix_cache *c, served_model *m, const session_options *o,
                          uint64_t owner, error *err)
{
	session_kept *kept = memory_new(1, sizeof *kept);
	if (!kept)
		return error_set(err, STATUS_NOMEM, NULL, "no memory for another session");
	const status s = session_new(out, m, "", o, err);
	if (s != STATUS_OK) {
		free(kept);
		return s;
	}
	kept->owner = owner;
	kept->hash = hash_start(c, m, owner, o->adapter);
	(*out)->kept = kept;
	return STATUS_OK;
}

status prefixes_begin(prefix_cache *c, served_model *m, generation_request *r, session **out, error *err)
{
	const session_options o = {
	    .policy = POSITION_ERROR, .explain = r->n_alpha > 0 || r->explain, .adapter = r->adapter};
	const uint64_t owner = prefix_disk_owner(r->owner);
	if (!takes_part(c, m, r))
		return session_new(out, m, "", &o, err);
	(void)prefixes_take(c, owner);
	prefix *p = find_longest(c, m, owner, r->adapter, r->prompt, r->n_prompt);
	const int64_t branch = find_branch(c, m, owner, r->prompt, r->n_prompt);
	TRY(new_session(out, c, m, &o, owner, err));
	if (p && enter_state(*out, p) != STATUS_OK) { /* the prompt is read from its beginning */
		p = NULL;
		session_free(*out);
		TRY(new_session(out, c, m, &o, owner, err));
	}
	const session *x = *out;
	r->n_shared = branch > r->n_shared ? branch : r->n_shared;
	if (!p)
		return STATUS_OK;
	touch(c, p);
	r->prompt += x->tokens;
	r->n_prompt -= x->tokens;
	r->n_shared -= r->n_shared < x->tokens ? r->n_shared : x->tokens;
	return STATUS_OK;
}

/* Return the state with this key after the tokens of x; NULL: none. Other tokens may have the same hash. */
static prefix *find_kept(const prefix_cache *c, const session *x, const prefix_key *key)
{
	for (prefix *p = c->n_buckets ? *bucket(c, key->hash) : NULL; p; p = p->next)
		if (p->key.hash == key->hash && p->key.owner == key->owner && p->model == x->model &&
		    token_history_same(&p->state->history, &x->history))
			return p;
	return NULL;
}

bool prefixes_use(prefix_cache *c, session *x, const prefix_key *key)
{
	prefix *p = find_kept(c, x, key);
	if (p) {
		touch(c, p);
		session_share_blocks(x, p->state);
	}
	return p;
}
