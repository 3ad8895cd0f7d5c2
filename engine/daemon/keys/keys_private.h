/* keys_private.h - shared by keys.c and key_methods.c. */
#ifndef ENGINE_DAEMON_KEYS_KEYS_PRIVATE_H
#define ENGINE_DAEMON_KEYS_KEYS_PRIVATE_H

#include "engine/base/string_table.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/keys/rate_limit.h"

typedef struct access_key {
	string_node node;
	keys *keys;
	json_t *document; /* that of its row: the API's object and "hash"; "last_used_at" may be newer */
	rate_limit requests, tokens;
	stream *streams; /* that use it */
	bool unsaved;    /* "last_used_at" is to be stored */
	int64_t saved;   /* its stored value */
} access_key;

typedef struct key_watch {
	stream *stream;
	struct key_watch *next;
	bool due; /* an event is to be sent */
} key_watch;

struct keys {
	store *store;
	string_table table;
	bool required;      /* the service has had a key */
	uint64_t tried_ns;  /* when last uses were last stored */
	key_watch *watches; /* streams of key.watch */
	void (*revoked)(void *context, const char *id); /* keys_watch_revoked; may be NULL */
	void *revoked_context;
};

static inline const char *key_text(const access_key *x, const char *member)
{
	return json_string_value(json_object_get(x->document, member));
}

static inline int64_t key_number(const access_key *x, const char *member)
{
	return json_integer_value(json_object_get(x->document, member));
}

/* Return the entry; NULL: none. */
access_key *keys_find(const keys *k, const char *id);
access_key *keys_next(const keys *k, const access_key *x);
/* Add defaults for the members that a request, or a row of an earlier version, lacks. STATUS_NOMEM. */
status keys_complete(json_t *document);
/* True if the document is that of a key that can be used at the time. */
bool key_works(const json_t *document, int64_t now);
/* Store the document of a new or changed key, then make it the entry's. document is taken over. */
status keys_put(keys *k, json_t *document, error *err);
/* Remove a revoked key that no request uses. */
status keys_remove(keys *k, access_key *x, error *err);
/* Send an event to every watch. */
void keys_notify(keys *k);

#endif
