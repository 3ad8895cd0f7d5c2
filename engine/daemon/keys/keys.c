#include "engine/daemon/keys/keys_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

enum {
	USE_STEP_SECONDS = 60,            /* resolution of "last_used_at" */
	USE_STORED_SECONDS = 3600,        /* and of its stored value */
	USE_RETRY_NS = 1000 * 1000 * 1000 /* between two attempts to store */
};

access_key *keys_find(const keys *k, const char *id)
{
	return STRING_TABLE_OWNER(string_table_find(&k->table, id), access_key, node);
}

access_key *keys_next(const keys *k, const access_key *x)
{
	return STRING_TABLE_OWNER(string_table_next(&k->table, x ? &x->node : NULL), access_key, node);
}

/* --- the table --------------------------------------------------------------- */

static void free_key(access_key *x)
{
	json_decref(x->document);
	free(x);
}

status keys_complete(json_t *document)
{
	json_t *defaults =
	    json_pack("{s:s, s:s, s:s, s:n, s:i, s:i, s:i, s:i, s:n, s:n, s:n}", "name", "", "role", "user", "project",
	              PROJECT_DEFAULT, "models", "requests_per_minute", 0, "tokens_per_minute", 0, "weight", 1,
	              "min_priority", 0, "expires_at", "last_used_at", "revoked_at");
	bool whole = defaults;
	for (int i = 0; i < QUOTAS && whole; i++)
		whole = json_object_set_new(defaults, project_quota_names[i], json_integer(0)) == 0;
	whole = whole && json_object_update_missing(document, defaults) == 0;
	json_decref(defaults);
	return whole ? STATUS_OK : STATUS_NOMEM;
}

static void set_document(access_key *x, json_t *document)
{
	json_decref(x->document);
	x->document = document;
	x->saved = key_number(x, "last_used_at");
	x->unsaved = false;
	rate_limit_set(&x->requests, key_number(x, "requests_per_minute"), clock_ns());
	rate_limit_set(&x->tokens, key_number(x, "tokens_per_minute"), clock_ns());
}

/* Make the document that of its entry, which is added if it is new. document is taken over. */
static status take_document(keys *k, json_t *document)
{
	const char *id = json_string_value(json_object_get(document, "id"));
	access_key *x = keys_find(k, id);
	if (!x) {
		x = memory_new(1, sizeof *x);
		if (x && string_table_add(&k->table, &x->node, id) != STATUS_OK) {
			free(x);
			x = NULL;
		}
		if (!x) {
			json_decref(document);
			return STATUS_NOMEM;
		}
		x->keys = k;
	}
	set_document(x, document);
	x->node.key = id;
	return STATUS_OK;
}

typedef struct reading {
	keys *keys;
	status result;
} reading;

static bool read_key(void *context, const json_t *object)
{
	reading *r = context;
	json_t *document = json_incref((json_t *)(uintptr_t)object);
	r->result = keys_complete(document);
	if (r->result == STATUS_OK)
		r->result = take_document(r->keys, document);
	else
		json_decref(document);
	return r->result == STATUS_OK;
}

status keys_new(keys **out, store *s, error *err)
{
	keys *k = *out = memory_new(1, sizeof *k);
	if (!k)
		return STATUS_NOMEM;
	reading r = {k, STATUS_OK};
	bool more;
	k->store = s;
	TRY(store_keys_had(s, &k->required, err));
	TRY(store_list(s, STORE_KEYS, &(store_page){.ascending = true}, read_key, &r, &more, err));
	return r.result;
}

void keys_free(keys *k)
{
	if (!k)
		return;
	for (access_key *x; (x = keys_next(k, NULL));) {
		string_table_remove(&k->table, &x->node);
		free_key(x);
	}
	string_table_fini(&k->table);
	free(k);
}

void keys_watch_revoked(keys *k, void (*revoked)(void *context, const char *id), void *context)
{
	k->revoked = revoked;
	k->revoked_context = context;
	for (const access_key *x = keys_next(k, NULL); x; x = keys_next(k, x))
		if (key_number(x, "revoked_at"))
			revoked(context, x->node.key);
}

/* The entry is made first, since nothing may fail after the commit. */
status keys_put(keys *k, json_t *document, error *err)
{
	const char *id = json_string_value(json_object_get(document, "id"));
	access_key *known = keys_find(k, id);
	if (!known && take_document(k, json_incref(document)) != STATUS_OK) {
		json_decref(document);
		return STATUS_NOMEM;
	}
	status result = store_key_put(k->store, document, err);
	if (result == STATUS_OK) {
		k->required = true;
		take_document(k, document); /* has its entry, so it cannot fail */
		keys_notify(k);
		return STATUS_OK;
	}
	if (!known) {
		access_key *x = keys_find(k, id);
		string_table_remove(&k->table, &x->node);
		free_key(x);
	}
	json_decref(document);
	return result;
}

status keys_remove(keys *k, access_key *x, error *err)
{
	TRY(store_key_delete(k->store, key_text(x, "id"), err));
	string_table_remove(&k->table, &x->node);
	free_key(x);
	return STATUS_OK;
}

/* --- last uses --------------------------------------------------------------- */

static void note_use(access_key *x, int64_t now)
{
	const int64_t step = now - now % USE_STEP_SECONDS;
	if (key_number(x, "last_used_at") == step ||
	    json_object_set_new(x->document, "last_used_at", json_integer(step)))
		return;
	x->unsaved |= step - x->saved >= USE_STORED_SECONDS || step < x->saved;
}

static status store_uses(keys *k, error *err)
{
	TRY(store_begin(k->store, err));
	status result = STATUS_OK;
	for (access_key *x = keys_next(k, NULL); x && result == STATUS_OK; x = keys_next(k, x))
		if (x->unsaved)
			result = store_key_put(k->store, x->document, err);
	return store_end(k->store, result, err);
}

void keys_tick(keys *k)
{
	bool unsaved = false;
	for (const access_key *x = keys_next(k, NULL); x && !unsaved; x = keys_next(k, x))
		unsaved = x->unsaved;
	if (!unsaved || clock_ns() - k->tried_ns < USE_RETRY_NS)
		return;
	k->tried_ns = clock_ns();
	if (store_uses(k, NULL) != STATUS_OK)
		return;
	for (access_key *x = keys_next(k, NULL); x; x = keys_next(k, x)) {
		x->saved = x->unsaved ? key_number(x, "last_used_at") : x->saved;
		x->unsaved = false;
	}
}

/* --- requests ---------------------------------------------------------------- */

bool key_works(const json_t *document, int64_t now)
{
	const json_t *expires = json_object_get(document, "expires_at");
	return !json_is_integer(json_object_get(document, "revoked_at")) &&
	       !(json_is_integer(expires) && json_integer_value(expires) <= now);
}

/* Methods that front ends call for themselves. */
static bool needs_no_key(const char *method)
{
	return strncmp(method, "engine.", 7) == 0 || strcmp(method, "key.watch") == 0 ||
	       strcmp(method, "trace.watch") == 0;
}

status keys_admit(keys *k, stream *s, const char *method, error *err)
{
	const int64_t now = clock_unix();
	access_key *x = keys_find(k, s->access_id);
	if (strcmp(s->access_id, STREAM_KEY_OF_FILE) == 0 || (!s->access_id[0] && (!k->required || needs_no_key(method)))) {
		s->scope.all = true;
		return STATUS_OK;
	}
	if (!x || !key_works(x->document, now))
		return error_set(err, STATUS_UNAUTHORIZED, NULL,
		                 !s->access_id[0]                   ? "a key is needed"
		                 : x && key_number(x, "revoked_at") ? "the key has been revoked"
		                                                    : "the key has expired, or does not exist");
	s->access = x;
	project_set(&s->scope, key_text(x, "project"));
	s->scope.all = strcmp(key_text(x, "role"), "admin") == 0;
	for (int i = 0; i < QUOTAS; i++)
		s->scope.quotas[i] = key_number(x, project_quota_names[i]);
	s->access_next = x->streams;
	if (x->streams)
		x->streams->access_at = &s->access_next;
	s->access_at = &x->streams;
	x->streams = s;
	note_use(x, now);
	return STATUS_OK;
}

void keys_leave(stream *s)
{
	if (!s->access)
		return;
	*s->access_at = s->access_next;
	if (s->access_next)
		s->access_next->access_at = s->access_at;
}

bool keys_allow_model(const stream *s, const char *id)
{
	const json_t *models = s->access ? json_object_get(s->access->document, "models") : NULL;
	if (!json_is_array(models) || !id)
		return true;
	for (size_t i = 0; i < json_array_size(models); i++)
		if (strcmp(json_string_value(json_array_get(models, i)), id) == 0)
			return true;
	return false;
}

status keys_check_priority(const stream *s, int64_t priority, error *err)
{
	const int64_t least = s->access ? key_number(s->access, "min_priority") : INT64_MIN;
	return priority >= least ? STATUS_OK
	                         : error_set(err, STATUS_INVALID, "priority",
	                                     "must be at least %lld with this key (its min_priority)",
	                                     (long long)least);
}

int keys_weight(const stream *s)
{
	return s->access ? (int)key_number(s->access, "weight") : 1;
}

/* --- limits ------------------------------------------------------------------ */

/* Report the state of the limits, for the headers of the answer. */
static void send_limits(stream *s)
{
	access_key *x = s->access;
	const uint64_t now = clock_ns();
	const struct {
		const char *name;
		rate_limit *limit;
	} all[] = {{"requests", &x->requests}, {"tokens", &x->tokens}};
	json_t *object = json_object();
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		rate_limit *r = all[i].limit;
		if (r->per_minute)
			json_object_set_new(object, all[i].name,
			                    json_pack("[I, I, f]", (json_int_t)r->per_minute,
			                              (json_int_t)rate_limit_remaining(r, now),
			                              rate_limit_reset(r, now)));
	}
	stream_note(s, object);
}

static status refuse_rate(stream *s, const char *what, const rate_limit *r, double wait, error *err)
{
	s->retry_after = (int)ceil(wait);
	return error_set(err, STATUS_RATE_LIMITED, NULL, "the limit of this key is %lld %s a minute; try again in %d s",
	                 (long long)r->per_minute, what, s->retry_after);
}

status keys_take_request(stream *s, error *err)
{
	access_key *x = s->access;
	if (!x || (!x->requests.per_minute && !x->tokens.per_minute))
		return STATUS_OK;
	const double wait = rate_limit_take(&x->requests, 1, clock_ns());
	send_limits(s);
	return wait > 0 ? refuse_rate(s, "requests", &x->requests, wait, err) : STATUS_OK;
}

status keys_reserve_tokens(stream *s, const char *param, int64_t n, error *err)
{
	access_key *x = s->access;
	if (!x || !x->tokens.per_minute)
		return STATUS_OK;
	if (n > x->tokens.per_minute)
		return error_set(err, STATUS_INVALID, param,
		                 "the request may take %lld tokens; the limit of this key is %lld a minute",
		                 (long long)n, (long long)x->tokens.per_minute);
	const double wait = rate_limit_take(&x->tokens, n, clock_ns());
	s->tokens_reserved += wait > 0 ? 0 : n;
	send_limits(s);
	return wait > 0 ? refuse_rate(s, "tokens", &x->tokens, wait, err) : STATUS_OK;
}

void keys_count_tokens(stream *s, int64_t n)
{
	if (s->access)
		rate_limit_correct(&s->access->tokens, s->tokens_reserved - n, clock_ns());
	s->tokens_reserved = n;
}
