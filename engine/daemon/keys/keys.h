/* keys.h - the API keys of the service: what a request with a key may do, and how much of it.
 *
 * A key is a row of the ledger and an entry here. Its secret is known to the client alone; the row has its SHA-256. A
 * front end gets the hashes with key.watch, finds the key of each request by its secret, and names it in REQUEST
 * (stream.access_id). It also compares roles. This side is the authority on everything else: whether the key still
 * works, its models, limits and weight.
 *
 * A service has no keys at first, and every request is allowed. From its first key on each request needs one. An admin
 * key without an end always remains, so the operator is not locked out by a revocation or an expiry. Keys of a front
 * end's file are the other way in; they have no entry here.
 *
 * Limits are counted in memory: a restart fills them again. Loop thread only. */
#ifndef ENGINE_DAEMON_KEYS_KEYS_H
#define ENGINE_DAEMON_KEYS_KEYS_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

/* Access of a request with a key of a front end's file (stream.access_id). */
#define KEYS_OF_FILE "file"
enum { KEYS_MAX = 1000 };

typedef struct keys keys;

status keys_new(keys **out, store *s, error *err);
void keys_free(keys *k);
/* Store when keys were last used. */
void keys_tick(keys *k);

/* Find the key of a request. STATUS_UNAUTHORIZED: it needs one, or its key works no longer. */
status keys_admit(keys *k, stream *s, const char *method, error *err);
/* Count a request against its key's limit of requests. STATUS_RATE_LIMITED, with s->retry_after. */
status keys_take_request(stream *s, error *err);
/* Reserve tokens of its key's limit. STATUS_RATE_LIMITED. STATUS_INVALID, naming the parameter: more than the limit of
 * a minute. */
status keys_reserve_tokens(stream *s, const char *param, int64_t n, error *err);
/* Correct what the request has reserved to n, the number of its tokens. */
void keys_count_tokens(stream *s, int64_t n);
/* The request has been answered. */
void keys_leave(stream *s);

/* True if the key of s may use the model; NULL: none is named. */
bool keys_allow_model(const stream *s, const char *id);
/* STATUS_INVALID "priority": less than its key allows. */
status keys_check_priority(const stream *s, int64_t priority, error *err);
/* Weight of its key in the shares of steps; 1 without a key. */
int keys_weight(const stream *s);

/* The methods; the room of their streams is the keys. */
void keys_create(stream *s);
void keys_list(stream *s);
void keys_get(stream *s);
void keys_update(stream *s);
void keys_revoke(stream *s);
void keys_watch(stream *s);

#endif
