/* responses.c - the table of responses, their limits and their rows. */
#include "engine/daemon/requests/responses_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "proto/schema.h"

enum { EXPIRED_AT_ONCE = 256 };

/* --- counting and forgetting --------------------------------------------------------- */

void response_charge(response *r, int64_t bytes)
{
	r->bytes += bytes;
	r->owner->bytes += bytes;
	r->all->counts.bytes += bytes;
}

response_owner *response_owner_get(struct responses *all, const char *name)
{
	response_owner *o = STRING_TABLE_OWNER(string_table_find(&all->owners, name), response_owner, node);
	if (o)
		return o;
	o = memory_new(1, sizeof *o);
	if (!o)
		return NULL;
	snprintf(o->name, sizeof o->name, "%s", name);
	if (string_table_add(&all->owners, &o->node, o->name) == STATUS_OK)
		return o;
	free(o);
	return NULL;
}

void response_link(response *r)
{
	struct responses *all = r->all;
	response *before = all->newest;
	while (before && before->ended > r->ended)
		before = before->older;
	r->older = before;
	r->newer = before ? before->newer : all->oldest;
	*(r->older ? &r->older->newer : &all->oldest) = r;
	*(r->newer ? &r->newer->older : &all->newest) = r;
}

static bool is_linked(const response *r)
{
	return r->older || r->newer || r->all->oldest == r;
}

void response_free(response *r)
{
	struct responses *all = r->all;
	if (is_linked(r)) {
		*(r->newer ? &r->newer->older : &all->newest) = r->older;
		*(r->older ? &r->older->newer : &all->oldest) = r->newer;
	}
	if (r->owner) {
		response_charge(r, -r->bytes);
		if (--r->owner->responses == 0) {
			string_table_remove(&all->owners, &r->owner->node);
			free(r->owner);
		}
	}
	json_decref(r->about);
	json_decref(r->input);
	json_decref(r->outcome);
	free(r->events);
	free(r->state);
	free(r->note);
	free(r);
}

void response_forget(response *r)
{
	string_table_remove(&r->all->known, &r->node);
	r->removed = true;
	if (r->work)
		response_cancel(r);
	else if (!r->storing)
		response_free(r);
}

static void note_gone(struct responses *all, const response *r)
{
	gone_response *g = &all->removed[all->n_removed++ % RESPONSES_GONE];
	if (g->id[0])
		string_table_remove(&all->gone, &g->node);
	g->id[0] = 0;
	if (string_table_find(&all->gone, r->id))
		return;
	snprintf(g->id, sizeof g->id, "%s", r->id);
	snprintf(g->key, sizeof g->key, "%s", r->key);
	if (string_table_add(&all->gone, &g->node, g->id) != STATUS_OK)
		g->id[0] = 0;
}

/* Remove an ended response whose time or room is over. False: its row cannot be removed. */
static bool discard(response *r)
{
	error err = ERROR_INIT;
	if (store_response_delete(r->all->net->store, r->id, &err) != STATUS_OK) {
		log_line(LOG_WARN, "an old response is not removed: %s", error_message(&err));
		return false;
	}
	note_gone(r->all, r);
	response_forget(r);
	return true;
}

/* Remove the oldest ended response, of this owner unless NULL, that no stream follows. */
static bool evict(struct responses *all, const response_owner *o)
{
	response *r = all->oldest;
	while (r && (r->followers || (o && r->owner != o)))
		r = r->newer;
	if (!r || !discard(r))
		return false;
	all->counts.evicted++;
	return true;
}

/* Several removals in one commit; without one each has its own. A removal stays in memory even if the commit fails, so
 * its row is removed after the next start. */
static bool group_begin(struct responses *all)
{
	return store_begin(all->net->store, NULL) == STATUS_OK;
}

static void group_end(struct responses *all, bool grouped)
{
	error err = ERROR_INIT;
	if (grouped && store_commit(all->net->store, &err) != STATUS_OK)
		log_line(LOG_WARN, "old responses are not removed: %s", error_message(&err));
}

static status evict_for(const response *r, int64_t bytes, error *err)
{
	struct responses *all = r->all;
	while (r->owner->bytes + bytes > all->limits.owner_bytes)
		if (!evict(all, r->owner))
			return error_set(err, STATUS_BUSY, NULL, "the responses of this owner exceed %lld bytes",
			                 (long long)all->limits.owner_bytes);
	while (all->counts.bytes + bytes > all->limits.bytes)
		if (!evict(all, NULL))
			return error_set(err, STATUS_BUSY, NULL, "the responses of all owners exceed %lld bytes",
			                 (long long)all->limits.bytes);
	return STATUS_OK;
}

status response_reserve(response *r, int64_t bytes, error *err)
{
	struct responses *all = r->all;
	if (r->owner->bytes + bytes > all->limits.owner_bytes || all->counts.bytes + bytes > all->limits.bytes) {
		const bool grouped = group_begin(all);
		const status s = evict_for(r, bytes, err);
		group_end(all, grouped);
		TRY(s);
	}
	response_charge(r, bytes);
	return STATUS_OK;
}

/* --- rows ----------------------------------------------------------------------------- */

json_t *response_row(const response *r, const char *state, json_t *outcome)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:b, s:O, s:O*, s:I, s:I, s:s%, s:s*, s:O*}", "id", r->id, "key",
	                 r->key, "owner", r->owner->name, "model", r->model, "background", r->background, "about",
	                 r->about, "input", r->input, "created", (json_int_t)r->created, "ended", (json_int_t)r->ended,
	                 "events", r->events ? r->events : "", r->events_bytes, "state", state, "outcome", outcome);
}

status response_put(response *r, error *err)
{
	json_t *row = response_row(r, r->state, r->outcome);
	status s = row ? store_response_put(r->all->net->store, r->id, row, err) : STATUS_NOMEM;
	json_decref(row);
	return error_settle(err, s);
}

void response_copy_member(char *out, size_t size, const json_t *row, const char *key)
{
	const char *text = json_string_value(json_object_get(row, key));
	snprintf(out, size, "%s", text ? text : "");
}

static json_t *failed_outcome(const error *err)
{
	json_t *object =
	    stream_error_object(status_http(err->status), status_name(err->status), error_message(err), err->param, 0);
	return json_pack("{s:s, s:o}", "status", "failed", "error", object);
}

void response_fail(response *r, const error *err)
{
	json_decref(r->outcome);
	r->outcome = failed_outcome(err);
	free(r->state);
	r->state = NULL;
}

void response_end(response *r)
{
	r->ended = clock_unix();
	r->ended_ns = (int64_t)clock_ns();
}

typedef struct reading {
	struct responses *all;
	status result;
} reading;

static bool read_row(void *context, const json_t *row)
{
	reading *x = context;
	struct responses *all = x->all;
	char owner[STREAM_OWNER_BYTES];
	const json_t *events = json_object_get(row, "events");
	const char *state = json_string_value(json_object_get(row, "state"));
	response *r = memory_new(1, sizeof *r);
	x->result = STATUS_NOMEM;
	if (!r)
		return false;
	r->all = all;
	response_copy_member(r->id, sizeof r->id, row, "id");
	response_copy_member(r->key, sizeof r->key, row, "key");
	response_copy_member(r->model, sizeof r->model, row, "model");
	response_copy_member(owner, sizeof owner, row, "owner");
	r->background = json_is_true(json_object_get(row, "background"));
	r->about = json_deep_copy(json_object_get(row, "about"));
	r->input = json_deep_copy(json_object_get(row, "input"));
	r->outcome = json_deep_copy(json_object_get(row, "outcome"));
	r->created = json_integer_value(json_object_get(row, "created"));
	r->ended = json_integer_value(json_object_get(row, "ended"));
	r->events_bytes = json_string_length(events);
	r->events = memory_new(r->events_bytes, 1);
	r->state = state ? strdup(state) : NULL;
	r->owner = response_owner_get(all, owner);
	if (r->owner)
		r->owner->responses++;
	if (!r->owner || !r->events || !r->about || (state && !r->state) ||
	    string_table_add(&all->known, &r->node, r->id) != STATUS_OK) {
		response_free(r);
		return false;
	}
	memcpy(r->events, json_string_value(events), r->events_bytes);
	response_charge(r, RESPONSE_FIXED_BYTES + (int64_t)json_dumpb(row, NULL, 0, JSON_COMPACT));
	const int64_t past = clock_unix() - r->ended, most = all->limits.seconds;
	r->ended_ns = (int64_t)clock_ns() - (past < 0 ? 0 : past > most ? most : past) * 1000000000;
	x->result = STATUS_OK;
	return true;
}

/* Fail those whose generation a previous process has not ended. */
static void fail_interrupted(struct responses *all)
{
	error cause = ERROR_INIT;
	error_set(&cause, STATUS_UNAVAILABLE, NULL, "the engine stopped before the response was complete");
	for (string_node *n = NULL; (n = string_table_next(&all->known, n));) {
		response *r = STRING_TABLE_OWNER(n, response, node);
		if (!r->outcome) {
			error put = ERROR_INIT;
			response_fail(r, &cause);
			response_end(r);
			if (response_put(r, &put) != STATUS_OK)
				log_line(LOG_WARN, "an interrupted response is not updated: %s", error_message(&put));
		}
		response_link(r);
	}
}

status responses_new(struct responses **out, net *n, const responses_limits *limits, error *err)
{
	struct responses *all = *out = memory_new(1, sizeof *all);
	reading x = {.all = all};
	bool more;
	if (!all)
		return STATUS_NOMEM;
	all->net = n;
	all->limits = *limits;
	all->removed = memory_new(RESPONSES_GONE, sizeof *all->removed);
	if (!all->removed)
		return STATUS_NOMEM;
	TRY(store_list(n->store, STORE_RESPONSES, &(store_page){.ascending = true}, read_row, &x, &more, err));
	TRY(x.result);
	fail_interrupted(all);
	while (all->counts.bytes > limits->bytes && evict(all, NULL))
		;
	return STATUS_OK;
}

void responses_free(struct responses *all)
{
	if (!all)
		return;
	for (string_node *n; (n = string_table_any(&all->known));)
		response_forget(STRING_TABLE_OWNER(n, response, node));
	string_table_fini(&all->known);
	string_table_fini(&all->owners);
	string_table_fini(&all->gone);
	free(all->removed);
	free(all);
}

char *response_error_text(const response *r)
{
	return json_text_reserve(json_object_get(r->outcome, "error"), PROTO_JSON);
}

void responses_tick(struct responses *all)
{
	const int64_t now = (int64_t)clock_ns(), kept = all->limits.seconds * 1000000000;
	response *next = all->oldest;
	if (!next || now - next->ended_ns <= kept)
		return;
	const bool grouped = group_begin(all);
	for (int i = 0; i < EXPIRED_AT_ONCE && next && now - next->ended_ns > kept; i++) {
		response *r = next;
		next = r->newer;
		if (r->followers)
			continue;
		if (!discard(r))
			break;
		all->counts.expired++;
	}
	group_end(all, grouped);
}

void responses_drain(struct responses *all)
{
	for (string_node *n = string_table_next(&all->known, NULL); n;) {
		response *r = STRING_TABLE_OWNER(n, response, node);
		n = string_table_next(&all->known, n); /* a cancelled generation may end at once */
		response_cancel(r);
	}
}

responses_counts responses_count(const struct responses *all)
{
	responses_counts c = all->counts;
	c.known = (int)all->known.count;
	for (string_node *n = NULL; (n = string_table_next(&all->known, n));)
		c.running += STRING_TABLE_OWNER(n, response, node)->work != NULL;
	return c;
}

/* --- one response ----------------------------------------------------------------------- */

void response_cancel(response *r)
{
	stream *s = r->work;
	if (!s || s->cancelled)
		return;
	s->cancelled = true;
	if (s->watch && s->watch->cancel)
		s->watch->cancel(s);
}

bool response_has_ended(const response *r)
{
	return r->ended && !r->storing;
}

bool response_is_completed(const response *r)
{
	const char *s = json_string_value(json_object_get(r->outcome, "status"));
	return s && strcmp(s, "completed") == 0;
}

const char *response_key(const stream *s, const json_t *how)
{
	const char *named = json_string_value(json_object_get(how, "key"));
	return s->access ? s->access_id : named ? named : "";
}

response *response_find(stream *s, const char *id, const json_t *how, const char *param)
{
	struct responses *all = s->net->responses;
	response *r = STRING_TABLE_OWNER(string_table_find(&all->known, id), response, node);
	const gone_response *g = STRING_TABLE_OWNER(string_table_find(&all->gone, id), gone_response, node);
	const char *key = response_key(s, how);
	if (r && strcmp(r->key, key) == 0)
		return r;
	if (!r && g && strcmp(g->key, key) == 0)
		stream_refuse(s, STATUS_GONE, NULL, param, "the response \"%.64s\" is no longer kept", id);
	else
		stream_refuse(s, STATUS_NOT_FOUND, NULL, param, "there is no response \"%.64s\"", id);
	return NULL;
}

status response_remove(response *r, error *err)
{
	TRY(store_response_delete(r->all->net->store, r->id, err));
	response_fail(r, &(error){STATUS_NOT_FOUND, "", "the response was deleted"});
	response_refuse_all(r);
	response_forget(r);
	return STATUS_OK;
}
