/* idempotency.c - running requests are in a table by key. Stored answers are rows of the store, or entries of a table
 * in memory that is also a list, latest first. A repeated upload is received like the first but only hashed, because
 * its content decides whether it is a repeat. */
#include "engine/daemon/requests/idempotency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/base/string_table.h"
#include "engine/daemon/requests/upload.h"
#include "proto/json_memory.h"

#define PARAM "idempotency_key"

/* A key as it is stored: the id of the request's API key and a line feed, if it has one, then the client's own. */
enum { SCOPED_KEY_BYTES = STREAM_OWNER_BYTES + IDEMPOTENCY_KEY_BYTES + 1 };

/* A request's key and the data gathered under it. */
typedef struct request_key {
	string_node node; /* while running */
	stream *stream;
	bool running, kept, upload;
	status lost; /* not STATUS_OK: `events` is incomplete */
	digest_stream *digest;
	uint64_t request;   /* hash of the whole request; for an upload, known at its end */
	int64_t part_bytes; /* bytes of the current part of an upload */
	char *events;       /* one per line: events sent; in a repeat, events to send */
	size_t events_bytes, capacity, sent;
	char *result;          /* in a repeat: the stored answer, */
	uint64_t kept_request; /* and the hash of its request */
	char key[SCOPED_KEY_BYTES];
} request_key;

/* An answer kept in memory. */
typedef struct answer {
	string_node node;
	struct answer *older, *newer;
	uint64_t request, kept_ns;
	size_t bytes, events_bytes;
	char *result, *events;
	char key[SCOPED_KEY_BYTES];
} answer;

struct idempotency {
	string_table running, answers;
	answer *newest, *oldest;
	size_t bytes;
	uint64_t swept_ns;
};

#define KEPT_NS ((uint64_t)STORE_ANSWER_SECONDS * 1000000000)

/* --- answers in memory -------------------------------------------------------------- */

static void idempotency_forget(struct idempotency *all, answer *a)
{
	*(a->newer ? &a->newer->older : &all->newest) = a->older;
	*(a->older ? &a->older->newer : &all->oldest) = a->newer;
	string_table_remove(&all->answers, &a->node);
	all->bytes -= a->bytes;
	free(a->result);
	free(a->events);
	free(a);
}

static answer *find_answer(struct idempotency *all, const char *key)
{
	answer *a = STRING_TABLE_OWNER(string_table_find(&all->answers, key), answer, node);
	if (a && clock_ns() - a->kept_ns > KEPT_NS) {
		idempotency_forget(all, a);
		return NULL;
	}
	return a;
}

static bool insert(struct idempotency *all, answer *a)
{
	answer *before = find_answer(all, a->key);
	if (before)
		idempotency_forget(all, before);
	if (string_table_add(&all->answers, &a->node, a->key) != STATUS_OK)
		return false;
	a->older = all->newest;
	*(a->older ? &a->older->newer : &all->oldest) = a;
	all->newest = a;
	all->bytes += a->bytes;
	while (all->oldest != a && (all->answers.count > IDEMPOTENCY_MAX_ANSWERS || all->bytes > IDEMPOTENCY_MAX_BYTES))
		idempotency_forget(all, all->oldest);
	return true;
}

/* --- what was asked -------------------------------------------------------------------- */

void idempotency_hash(stream *s, const char *method)
{
	request_key *k = s->key;
	if (!k)
		return;
	char *params = json_text(s->params, JSON_COMPACT | JSON_SORT_KEYS);
	k->digest = params ? digest_stream_new() : NULL;
	if (k->digest) {
		digest_stream_add(k->digest, method, strlen(method) + 1);
		digest_stream_add(k->digest, s->target, strlen(s->target) + 1);
		digest_stream_add(k->digest, params, strlen(params) + 1);
		k->request = digest_stream_value(k->digest);
	}
	free(params);
}

static void end_part(request_key *k)
{
	digest_stream_add(k->digest, &k->part_bytes, sizeof k->part_bytes);
	k->part_bytes = 0;
}

static void key_part(stream *s, const char *name)
{
	request_key *k = s->key;
	end_part(k);
	digest_stream_add(k->digest, name, strlen(name) + 1);
}

static void key_bytes(stream *s, const void *data, size_t bytes)
{
	request_key *k = s->key;
	digest_stream_add(k->digest, data, bytes);
	k->part_bytes += (int64_t)bytes;
}

/* Return the hash of everything received. */
static uint64_t request_hash(request_key *k)
{
	if (k->upload && k->digest) {
		end_part(k);
		k->request = digest_stream_value(k->digest);
		digest_stream_free(k->digest);
		k->digest = NULL;
	}
	return k->request;
}

/* --- repeats --------------------------------------------------------------------------- */

static void send_events(stream *s)
{
	request_key *k = s->key;
	while (k->sent < k->events_bytes && stream_ready(s) > 0) {
		const char *line = k->events + k->sent;
		size_t n = (size_t)((const char *)memchr(line, '\n', k->events_bytes - k->sent) - line);
		stream_event_text(s, line, n);
		k->sent += n + 1;
	}
	if (k->sent < k->events_bytes)
		return;
	char *text = k->result;
	k->result = NULL;
	s->watch = NULL;
	stream_result_text(s, text);
}

static void idempotency_on_cancel(stream *s)
{
	s->watch = NULL;
	stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
}

static void answer_again(stream *s)
{
	static const stream_watch watch = {.credit = send_events, .cancel = idempotency_on_cancel};
	request_key *k = s->key;
	s->watch = NULL;
	if (request_hash(k) != k->kept_request) {
		stream_refuse(s, STATUS_CONFLICT, "idempotency_mismatch", PARAM,
		              "another request was made with this key");
		return;
	}
	s->watch = &watch;
	if (s->cancelled)
		idempotency_on_cancel(s);
	else
		send_events(s);
}

static void on_data(stream *s, const frame *f)
{
	if (f->json_bytes) {
		json_t *object = json_memory_parse(f->json, f->json_bytes, JSON_REJECT_DUPLICATES, NULL);
		const char *part = json_string_value(json_object_get(object, "part"));
		const char *file = json_string_value(json_object_get(object, "file"));
		key_part(s, file ? file : part ? part : "");
		json_decref(object);
	}
	key_bytes(s, f->payload, f->payload_bytes);
	if (f->flags & FRAME_FLAG_END)
		answer_again(s);
	else
		stream_grant(s, 1);
}

static void repeat(stream *s)
{
	static const stream_watch watch = {.data = on_data, .cancel = idempotency_on_cancel};
	if (!((request_key *)s->key)->upload) {
		answer_again(s);
		return;
	}
	s->upload = true;
	s->watch = &watch;
	stream_grant(s, UPLOAD_WINDOW);
}

static char *idempotency_copy(const char *text, size_t bytes)
{
	char *new = malloc(bytes + 1);
	if (new &&bytes)
		memcpy(new, text, bytes);
	if (new)
		new[bytes] = 0;
	return new;
}

/* Load the answer stored under k's key to k->result, if there is one. */
static status look_up(request_key *k, error *err)
{
	json_t *kept;
	const answer *a = find_answer(k->stream->net->idempotency, k->key);
	if (a) {
		k->result = idempotency_copy(a->result, strlen(a->result));
		k->events = idempotency_copy(a->events, a->events_bytes);
		k->events_bytes = a->events_bytes;
		k->kept_request = a->request;
		return k->result && k->events ? STATUS_OK : STATUS_NOMEM;
	}
	TRY(store_answer_get(k->stream->net->store, k->key, &k->kept_request, &kept, err));
	if (!kept)
		return STATUS_OK;
	const json_t *events = json_object_get(kept, "events");
	k->result = json_text_reserve(json_object_get(kept, "result"), PROTO_JSON);
	k->events_bytes = json_string_length(events);
	k->events = idempotency_copy(json_string_value(events), k->events_bytes);
	json_decref(kept);
	return k->result && k->events ? STATUS_OK : STATUS_NOMEM;
}

/* --- what a stream sends --------------------------------------------------------------------- */

static void key_event(stream *s, const char *json, size_t bytes)
{
	request_key *k = s->key;
	if (!k->running || k->lost != STATUS_OK)
		return;
	if (!json) {
		k->lost = STATUS_NOMEM;
		return;
	}
	size_t needed = k->events_bytes + bytes + 1;
	if (needed > k->capacity) {
		size_t capacity = 2 * needed;
		char *bigger = needed <= IDEMPOTENCY_MAX_EVENTS ? realloc(k->events, capacity) : NULL;
		if (!bigger) {
			k->lost = needed <= IDEMPOTENCY_MAX_EVENTS ? STATUS_NOMEM : STATUS_TOO_LARGE;
			return;
		}
		k->events = bigger;
		k->capacity = capacity;
	}
	memcpy(k->events + k->events_bytes, json, bytes);
	k->events[needed - 1] = '\n';
	k->events_bytes = needed;
}

static void idempotency_remember(struct idempotency *all, request_key *k, const char *result)
{
	answer *a = k->lost != STATUS_OK ? NULL : memory_new(1, sizeof *a);
	if (a) {
		a->request = request_hash(k);
		a->kept_ns = clock_ns();
		a->events = idempotency_copy(k->events, k->events_bytes);
		a->events_bytes = k->events_bytes;
		a->result = idempotency_copy(result, strlen(result));
		a->bytes = sizeof *a + a->events_bytes + strlen(result);
		snprintf(a->key, sizeof a->key, "%s", k->key);
		if (a->events && a->result && insert(all, a))
			return;
		free(a->events);
		free(a->result);
		free(a);
	}
	log_line(LOG_WARN, "an answer could not be stored for repeats of its request");
}

static void key_result(stream *s, const char *json)
{
	request_key *k = s->key;
	if (k->running && !k->kept)
		idempotency_remember(s->net->idempotency, k, json);
}

static void key_end(stream *s)
{
	request_key *k = s->key;
	if (k->running)
		string_table_remove(&s->net->idempotency->running, &k->node);
	digest_stream_free(k->digest);
	free(k->events);
	reserve_free(k->result);
	free(k);
	s->key = NULL;
	s->record = NULL;
}

static bool key_detached(const stream *s)
{
	const request_key *k = s->key;
	return k->running && (s->cancelled || !s->peer) && !s->net->draining && !s->revoked && !s->expired;
}

static const stream_record record = {key_event, key_result, key_part, key_bytes, key_detached, key_end};

/* --- where a stream begins --------------------------------------------------------------- */

bool idempotency_take(stream *s)
{
	const json_t *given = json_object_get(s->params, PARAM);
	const char *text = json_string_value(given);
	size_t bytes = json_string_length(given);
	if (!given || json_is_null(given)) {
		json_object_del(s->params, PARAM);
		return true;
	}
	if (!text || bytes < 1 || bytes > IDEMPOTENCY_KEY_BYTES || strlen(text) != bytes) {
		stream_refuse(s, STATUS_INVALID, text ? "invalid_value" : "invalid_type", PARAM,
		              PARAM " must be a string of 1 to %d bytes without U+0000", IDEMPOTENCY_KEY_BYTES);
		return false;
	}
	if (json_is_true(json_object_get(s->params, "stream"))) {
		stream_refuse(s, STATUS_INVALID, "invalid_value", PARAM, "a streamed answer cannot be repeated");
		return false;
	}
	request_key *k = s->key = memory_new(1, sizeof *k);
	if (!k) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return false;
	}
	s->record = &record;
	k->stream = s;
	snprintf(k->key, sizeof k->key, "%s%s%s", s->access_id, s->access_id[0] ? "\n" : "", text);
	json_object_del(s->params, PARAM);
	return true;
}

bool idempotency_admit(stream *s, bool upload)
{
	error err = ERROR_INIT;
	struct idempotency *all = s->net->idempotency;
	request_key *k = s->key;
	if (!k)
		return true;
	k->upload = upload;
	if (string_table_find(&all->running, k->key)) {
		stream_refuse(s, STATUS_CONFLICT, "idempotency_in_progress", PARAM,
		              "a request with this key has not ended yet");
		return false;
	}
	status ended = k->digest ? look_up(k, &err) : STATUS_NOMEM;
	if (ended == STATUS_OK && k->result) {
		repeat(s);
		return false;
	}
	if (ended == STATUS_OK)
		ended = string_table_add(&all->running, &k->node, k->key);
	if (ended != STATUS_OK) {
		error_set(&err, ended, NULL, "%s", status_text(ended));
		stream_error(s, &err, NULL);
		return false;
	}
	k->running = true;
	return true;
}

/* --- what a request does ------------------------------------------------------------------------- */

status idempotency_keep(stream *s, const json_t *result, error *err)
{
	request_key *k = s->key;
	if (!k)
		return STATUS_OK;
	if (k->lost == STATUS_NOMEM)
		return STATUS_NOMEM;
	if (k->lost != STATUS_OK)
		return error_set(
		    err, k->lost, NULL,
		    "the answer is too large to be kept for a repeat; ask for less at once, or without " PARAM);
	json_t *whole =
	    json_pack("{s:O, s:s%}", "result", result, "events", k->events ? k->events : "", k->events_bytes);
	if (!whole)
		return STATUS_NOMEM;
	status ended = store_answer_put(s->net->store, k->key, request_hash(k), whole, err);
	json_decref(whole);
	k->kept = ended == STATUS_OK;
	return ended;
}

status idempotency_begin(stream *s, error *err)
{
	return store_begin(s->net->store, err);
}

status idempotency_commit(stream *s, status outcome, const json_t *result, error *err)
{
	if (outcome == STATUS_OK)
		outcome = result ? idempotency_keep(s, result, err) : STATUS_NOMEM;
	outcome = store_end(s->net->store, outcome, err);
	return outcome == STATUS_OK ? outcome : error_set(err, outcome, NULL, "%s", status_text(outcome));
}

/* --- the engine's -------------------------------------------------------------------------------- */

status idempotency_new(struct idempotency **out)
{
	*out = memory_new(1, sizeof **out);
	return *out ? STATUS_OK : STATUS_NOMEM;
}

void idempotency_free(struct idempotency *all)
{
	if (!all)
		return;
	while (all->oldest)
		idempotency_forget(all, all->oldest);
	string_table_fini(&all->answers);
	string_table_fini(&all->running);
	free(all);
}

void idempotency_tick(struct idempotency *all, store *s)
{
	error err = ERROR_INIT;
	uint64_t now = clock_ns();
	if (all->swept_ns && now - all->swept_ns < (uint64_t)IDEMPOTENCY_SWEEP_SECONDS * 1000000000)
		return;
	all->swept_ns = now;
	while (all->oldest && now - all->oldest->kept_ns > KEPT_NS)
		idempotency_forget(all, all->oldest);
	if (store_answers_expire(s, &err) != STATUS_OK)
		log_line(LOG_WARN, "old answers are not removed: %s", error_message(&err));
}

void idempotency_drain(struct idempotency *all)
{
	string_node *next = string_table_next(&all->running, NULL);
	for (request_key *key; (key = STRING_TABLE_OWNER(next, request_key, node));) {
		stream *s = key->stream;
		next = string_table_next(&all->running, next); /* a cancelled request may end at once */
		if ((s->cancelled || !s->peer) && s->watch && s->watch->cancel)
			s->watch->cancel(s);
	}
}
