/* The methods on keys, and the stream by which front ends know them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/checksum.h"
#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/daemon/keys/keys_private.h"
#include "engine/daemon/requests/listing.h"

enum { SECRET_BYTES = 64, LISTING_KEYS = KEYS_MAX };

static keys *keys_of(const stream *s)
{
	return s->room;
}

/* --- objects ----------------------------------------------------------------- */

/* Return the API's object: the row without the hash. */
static json_t *key_object(const json_t *document)
{
	json_t *object = json_copy((json_t *)(uintptr_t)document);
	json_object_del(object, "hash");
	return object;
}

static json_t *object_of_row(stream *s, const json_t *row)
{
	const access_key *x = keys_find(keys_of(s), json_string_value(json_object_get(row, "id")));
	return key_object(x ? x->document : row); /* the entry knows a later use */
}

/* Return the entry that a request names, or NULL after answering. */
static access_key *named_key(stream *s)
{
	access_key *x = keys_find(keys_of(s), s->target);
	if (!x)
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no key \"%.64s\"", s->target);
	return x;
}

static void answer(stream *s, status result, error *err, json_t *object)
{
	if (result == STATUS_OK) {
		stream_result(s, object);
		return;
	}
	json_decref(object);
	error_set(err, result, NULL, "%s", status_text(result));
	stream_error(s, err, NULL);
}

/* --- checks ------------------------------------------------------------------ */

static bool is_lasting_admin(const json_t *document)
{
	const char *role = json_string_value(json_object_get(document, "role"));
	return role && strcmp(role, "admin") == 0 && !json_is_integer(json_object_get(document, "expires_at")) &&
	       !json_is_integer(json_object_get(document, "revoked_at"));
}

/* STATUS_CONFLICT: without it as it was, no admin key without an end would remain. */
static status check_admin_remains(const keys *k, const json_t *changed, error *err)
{
	const char *id = json_string_value(json_object_get(changed, "id"));
	bool remains = is_lasting_admin(changed);
	for (const access_key *x = keys_next(k, NULL); x && !remains; x = keys_next(k, x))
		remains = is_lasting_admin(x->document) && strcmp(key_text(x, "id"), id) != 0;
	if (remains)
		return STATUS_OK;
	return keys_find(k, id) ? error_set(err, STATUS_CONFLICT, "id",
	                                    "it is the last admin key that does not expire; create another one first")
	                        : error_set(err, STATUS_INVALID, "role",
	                                    "must be admin, without expires_at: the first key is its owner's way back");
}

static status check_expiry(const json_t *params, error *err)
{
	const json_t *expires = json_object_get(params, "expires_at");
	return json_is_integer(expires) && json_integer_value(expires) <= clock_unix()
	           ? error_set(err, STATUS_INVALID, "expires_at", "must be in the future")
	           : STATUS_OK;
}

/* Make room for one key more, by removing the key that was revoked first. */
static status make_room(keys *k, error *err)
{
	access_key *oldest = NULL;
	if (k->table.count < KEYS_MAX)
		return STATUS_OK;
	for (access_key *x = keys_next(k, NULL); x; x = keys_next(k, x))
		if (key_number(x, "revoked_at") && !x->streams &&
		    (!oldest || key_number(x, "revoked_at") < key_number(oldest, "revoked_at")))
			oldest = x;
	return oldest ? keys_remove(k, oldest, err)
	              : error_set(err, STATUS_CONFLICT, NULL, "there are %d keys, the maximum; revoke one", KEYS_MAX);
}

/* --- key.create, key.update, key.delete -------------------------------------- */

static status hash_secret(const char *secret, char out[CHECKSUM_TEXT_BYTES])
{
	checksum *c = checksum_new();
	if (!c)
		return STATUS_NOMEM;
	checksum_add(c, secret, strlen(secret));
	checksum_end(c, out);
	checksum_free(c);
	return STATUS_OK;
}

static json_t *new_document(const json_t *params, const char *hash)
{
	char id[STORE_ID_BYTES];
	store_new_id(id, "key-");
	json_t *document = json_pack("{s:s, s:s, s:I, s:s}", "id", id, "object", "api_key", "created_at",
	                             (json_int_t)clock_unix(), "hash", hash);
	if (document && json_object_update(document, (json_t *)(uintptr_t)params) == 0 &&
	    keys_complete(document) == STATUS_OK)
		return document;
	json_decref(document);
	return NULL;
}

void keys_create(stream *s)
{
	error err = ERROR_INIT;
	keys *k = keys_of(s);
	char first[STORE_ID_BYTES], second[STORE_ID_BYTES], secret[2 * SECRET_BYTES], hash[CHECKSUM_TEXT_BYTES];
	store_new_id(first, "ak-");
	store_new_id(second, "");
	snprintf(secret, sizeof secret, "%s%s", first, second);
	status result = hash_secret(secret, hash);
	json_t *document = result == STATUS_OK ? new_document(s->params, hash) : NULL;
	json_t *object = document ? key_object(document) : NULL;
	if (!object || json_object_set_new(object, "secret", json_string(secret)) != 0)
		result = STATUS_NOMEM;
	if (result == STATUS_OK)
		result = check_expiry(s->params, &err);
	if (result == STATUS_OK && !store_valid_name(json_string_value(json_object_get(document, "project"))))
		result = error_set(&err, STATUS_INVALID, "project",
		                   "must be 1 to 63 of A-Z a-z 0-9 . _ : - and begin with a letter or digit");
	if (result == STATUS_OK)
		result = check_admin_remains(k, document, &err);
	if (result == STATUS_OK)
		result = make_room(k, &err);
	if (result == STATUS_OK)
		result = keys_put(k, json_incref(document), &err);
	json_decref(document);
	answer(s, result, &err, object);
}

/* Store a changed copy of the document, which is taken over, and answer with it. False: the change was refused. */
static bool change_key(stream *s, json_t *document)
{
	error err = ERROR_INIT;
	json_t *object = document ? key_object(document) : NULL;
	status result = object ? check_admin_remains(keys_of(s), document, &err) : STATUS_NOMEM;
	if (result == STATUS_OK)
		result = keys_put(keys_of(s), json_incref(document), &err);
	json_decref(document);
	answer(s, result, &err, object);
	return result == STATUS_OK;
}

void keys_update(stream *s)
{
	error err = ERROR_INIT;
	const access_key *x = named_key(s);
	if (!x)
		return;
	if (key_number(x, "revoked_at")) {
		stream_refuse(s, STATUS_CONFLICT, NULL, "id", "the key has been revoked");
		return;
	}
	if (check_expiry(s->params, &err) != STATUS_OK) {
		stream_error(s, &err, NULL);
		return;
	}
	json_t *document = json_copy(x->document);
	if (document && json_object_update(document, s->params) != 0) {
		json_decref(document);
		document = NULL;
	}
	change_key(s, document);
}

/* Cancel the requests of a revoked key, also those that continue without their client. Cancelling may answer a request,
 * which removes it from the list. */
static void cancel_streams(const access_key *x)
{
	for (stream *s = x->streams; s;) {
		if (s->revoked) {
			s = s->access_next;
			continue;
		}
		stream_stop(s, &s->revoked);
		s = x->streams;
	}
}

void keys_revoke(stream *s)
{
	const access_key *x = named_key(s);
	if (!x)
		return;
	json_t *document = json_copy(x->document);
	if (document && !key_number(x, "revoked_at") &&
	    json_object_set_new(document, "revoked_at", json_integer(clock_unix())) != 0) {
		json_decref(document);
		document = NULL;
	}
	if (!change_key(s, document))
		return;
	cancel_streams(x);
	if (x->keys->revoked)
		x->keys->revoked(x->keys->revoked_context, x->node.key);
}

/* --- key.list, key.get ------------------------------------------------------- */

void keys_list(stream *s)
{
	listing_answer(s, STORE_KEYS, NULL, LISTING_KEYS, object_of_row);
}

void keys_get(stream *s)
{
	const access_key *x = named_key(s);
	if (x)
		stream_result(s, key_object(x->document));
}

/* --- key.watch --------------------------------------------------------------- */

/* {"required", "keys": [{"id", "hash", "role", "expires_at"}…]} of the keys that work. NULL: out of memory. */
static json_t *watch_event(const keys *k)
{
	static const char *const members[] = {"id", "hash", "role", "expires_at"};
	json_t *list = json_array();
	bool whole = list != NULL;
	for (const access_key *x = keys_next(k, NULL); x && whole; x = keys_next(k, x)) {
		if (!key_works(x->document, clock_unix()))
			continue;
		json_t *one = json_object();
		for (size_t i = 0; i < sizeof members / sizeof *members; i++)
			whole &= json_object_set(one, members[i], json_object_get(x->document, members[i])) == 0;
		whole &= json_array_append_new(list, one) == 0;
	}
	json_t *event = whole ? json_pack("{s:b, s:O}", "required", k->required, "keys", list) : NULL;
	json_decref(list);
	return event;
}

static void send_if_due(key_watch *w)
{
	if (!w->due || stream_ready(w->stream) == 0)
		return;
	w->due = false;
	stream_event(w->stream, watch_event(w->stream->room));
}

static void watch_credit(stream *s)
{
	send_if_due(s->context);
}

static void watch_cancel(stream *s)
{
	key_watch *w = s->context, **at = &keys_of(s)->watches;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	free(w);
	s->net->streams++;
	stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
}

void keys_watch(stream *s)
{
	static const stream_watch events = {.credit = watch_credit, .cancel = watch_cancel};
	keys *k = keys_of(s);
	key_watch *w = memory_new(1, sizeof *w);
	if (!w) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*w = (key_watch){.stream = s, .next = k->watches, .due = true};
	k->watches = w;
	s->context = w;
	s->watch = &events;
	s->net->streams--; /* while it waits; it must not look like work */
	send_if_due(w);
}

void keys_notify(keys *k)
{
	for (key_watch *w = k->watches, *next; w; w = next) {
		next = w->next;
		w->due = true;
		send_if_due(w);
	}
}
