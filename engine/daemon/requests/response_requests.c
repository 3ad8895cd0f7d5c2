/* response_requests.c - requests that become responses, and the peer that records their generations. Memory is counted
 * when the buffer of events grows, so an event usually costs no look at the limits. */
#include "engine/daemon/requests/responses_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "proto/json_memory.h"

/* --- the recording peer ---------------------------------------------------------------- */

static void lose(response *r, status reason)
{
	error_settle(&r->lost, reason);
	response_cancel(r);
}

static void keep_event(response *r, const char *json, size_t bytes)
{
	const size_t growth = event_lines_growth(&r->events, bytes);
	if (r->lost.status != STATUS_OK)
		return;
	status s = growth ? response_reserve(r, (int64_t)growth, &r->lost) : STATUS_OK;
	if (s == STATUS_OK && !event_lines_add(&r->events, json, bytes))
		s = STATUS_NOMEM;
	if (s == STATUS_OK)
		response_send(r);
	else
		lose(r, s);
}

/* Move the model's state out of the result. Without room for it the response cannot be continued. */
static void keep_state(response *r, json_t *result)
{
	const char *blob = json_string_value(json_object_get(json_object_get(result, "state"), "blob"));
	error no_room = ERROR_INIT;
	if (blob && response_reserve(r, (int64_t)strlen(blob), &no_room) == STATUS_OK)
		r->state = strdup(blob);
	response_copy_member(r->model, sizeof r->model, result, "model");
	json_object_del(result, "state");
}

static void keep_outcome(response *r, const frame *f, const char *json)
{
	json_t *object = json_memory_parse(json, f->json_bytes, JSON_ALLOW_NUL, NULL);
	json_decref(r->outcome);
	if (object && f->type == FRAME_RESULT && r->keeps_state)
		keep_state(r, object);
	r->outcome = f->type == FRAME_RESULT ? json_pack("{s:s, s:o}", "status", "completed", "result", object)
	             : r->cancelled          ? json_pack("{s:s, s:o}", "status", "cancelled", "error", object)
	                                     : json_pack("{s:s, s:o}", "status", "failed", "error", object);
}

/* A note is for the head of the answer to the request that creates the response. */
static void pass_note(response *r, const char *json, size_t bytes)
{
	const follower *f = r->followers;
	while (f && !f->creator)
		f = f->next;
	if (f) {
		stream_note_text(f->stream, json, bytes);
		return;
	}
	free(r->note);
	r->note = strndup(json, bytes);
}

static void peer_send_copy(stream_peer *p, const frame *f)
{
	response *r = (response *)p;
	if (f->type == FRAME_EVENT)
		keep_event(r, f->json, f->json_bytes);
	else if (f->type == FRAME_RESULT || f->type == FRAME_ERROR)
		keep_outcome(r, f, f->json);
	else if (f->type == FRAME_CREDIT && f->json_bytes > 0)
		pass_note(r, f->json, f->json_bytes);
}

static void peer_send(stream_peer *p, const frame *f, char *json, void *payload)
{
	frame whole = *f;
	whole.json = json;
	peer_send_copy(p, &whole);
	reserve_free(json);
	free(payload);
}

static void peer_fail(stream_peer *p)
{
	lose((response *)p, STATUS_NOMEM);
}

/* Release the memory that growth has left unused, and count the outcome. */
static void fit_memory(response *r)
{
	response_charge(r, -(int64_t)event_lines_fit(&r->events));
	response_charge(r, (int64_t)json_dumpb(r->outcome, NULL, 0, JSON_COMPACT));
}

/* The response has ended, and is stored if it is kept; err: why it could not be. */
static void response_ended(response *r, const error *err)
{
	if (err->status != STATUS_OK) {
		log_line(LOG_WARN, "a response could not be stored: %s", error_message(err));
		response_fail(r, err);
	}
	if (!r->background && !response_is_completed(r)) {
		response_refuse_all(r);
		response_forget(r);
		return;
	}
	fit_memory(r);
	response_link(r);
	response_send(r);
}

/* A row that the pool makes. What a deletion would replace meanwhile belongs to it. */
typedef struct row_work {
	uv_work_t work;
	response *of;
	json_t *outcome;
	char *state, *text;
} row_work;

static void pool_make_row(uv_work_t *work)
{
	row_work *w = work->data;
	reserve_forget();
	json_t *row = response_row(w->of, w->state, w->outcome);
	w->text = row ? store_response_text(row) : NULL;
	json_decref(row);
}

static void row_made(uv_work_t *work, int cancelled)
{
	row_work *w = work->data;
	response *r = w->of;
	error err = ERROR_INIT;
	(void)cancelled; /* cannot be cancelled */
	r->storing = false;
	r->state = w->state;
	if (r->removed) {
		response_free(r);
	} else {
		error_settle(&err, w->text ? store_response_put_text(r->all->net->store, r->id, w->text, &err)
		                           : STATUS_NOMEM);
		response_ended(r, &err);
	}
	json_decref(w->outcome);
	free(w->text);
	free(w);
}

/* False: the row must be made here. */
static bool store_on_pool(response *r)
{
	row_work *w = r->bytes >= STREAM_LARGE ? memory_new(1, sizeof *w) : NULL;
	if (!w)
		return false;
	*w = (row_work){.work.data = w, .of = r, .outcome = json_incref(r->outcome), .state = r->state};
	if (uv_queue_work(r->all->net->loop, &w->work, pool_make_row, row_made) == 0) {
		r->state = NULL;
		r->storing = true;
		return true;
	}
	json_decref(w->outcome);
	free(w);
	return false;
}

/* The generation of an accepted response has ended. */
static void settle(response *r)
{
	error err = ERROR_INIT;
	if (!r->outcome)
		error_settle(&r->lost, STATUS_NOMEM);
	if (r->lost.status != STATUS_OK)
		response_fail(r, &r->lost);
	response_end(r);
	const bool kept = r->background || response_is_completed(r);
	if (kept && store_on_pool(r))
		return;
	if (kept)
		response_put(r, &err);
	response_ended(r, &err);
}

static void peer_forget(stream_peer *p, stream *s)
{
	response *r = (response *)p;
	r->work = NULL;
	response_note_times(r, &s->times);
	if (r->removed)
		response_free(r);
	else if (r->accepted)
		settle(r);
}

/* --- requests ---------------------------------------------------------------------------- */

/* Replace the id of a previous response by its state. False: the stream has been answered. */
static bool continue_previous(stream *s)
{
	static const char param[] = "previous_response_id";
	const char *id = json_string_value(json_object_get(s->params, param));
	const char *model = json_string_value(json_object_get(s->params, "model"));
	if (!id)
		return true;
	const response *r = response_find(s, id, param);
	if (!r)
		return false;
	if (!response_has_ended(r))
		stream_refuse(s, STATUS_CONFLICT, "response_in_progress", param, "the response has not ended yet");
	else if (!response_is_completed(r))
		stream_refuse(s, STATUS_CONFLICT, "response_failed", param,
		              "the response was not completed, so it cannot be continued");
	else if (!r->state)
		stream_refuse(s, STATUS_UNSUPPORTED, NULL, param,
		              "the response was kept without the model's state, which is too large");
	else if (!model || strcmp(model, r->model) != 0)
		stream_refuse(s, STATUS_INVALID, NULL, param, "the response is of the model \"%.64s\"", r->model);
	else if (json_object_set_new(s->params, "state", json_pack("{s:s}", "blob", r->state)) != 0)
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	else
		return true;
	return false;
}

/* Give r a stream with the request of s. */
static bool take_request(response *r, stream *s)
{
	stream *w = stream_new(s->net, &r->peer, 0, INT32_MAX);
	if (!w)
		return false;
	w->room = s->room;
	w->params = s->params;
	w->digest = s->digest;
	w->large = s->large;
	w->background = s->background;
	w->timeout = s->timeout;
	memcpy(w->owner, s->owner, sizeof w->owner);
	memcpy(w->fairness, s->fairness, sizeof w->fairness);
	memcpy(w->access_id, s->access_id, sizeof w->access_id);
	memcpy(w->request_id, s->request_id, sizeof w->request_id);
	s->params = NULL;
	s->large = false;
	r->work = w;
	return true;
}

static response *response_new(stream *s, const json_t *how, bool keeps_state, error *err)
{
	struct responses *all = s->net->responses;
	json_t *input = json_object_get(s->params, "input"), *about = json_object_get(how, "about");
	int64_t bytes = RESPONSE_FIXED_BYTES + (int64_t)json_dumpb(about, NULL, 0, JSON_COMPACT);
	response *r = memory_new(1, sizeof *r);
	if (!r) {
		error_settle(err, STATUS_NOMEM);
		return NULL;
	}
	r->all = all;
	r->peer = (stream_peer){peer_send, peer_send_copy, peer_fail, peer_forget, false};
	response_copy_member(r->id, sizeof r->id, how, "id");
	snprintf(r->project, sizeof r->project, "%s", s->scope.project);
	r->about = json_is_object(about) ? json_incref(about) : json_object();
	r->background = json_is_true(json_object_get(how, "background"));
	r->keeps_state = keeps_state;
	r->created = clock_unix();
	if (input && !s->large) {
		r->input = json_incref(input);
		bytes += (int64_t)json_dumpb(input, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
	}
	status result = !store_valid_name(r->id) ? error_set(err, STATUS_INVALID, "response.id", "is not an id")
	                : string_table_find(&all->known, r->id)
	                    ? error_set(err, STATUS_CONFLICT, "response.id", "is in use")
	                    : STATUS_OK;
	r->owner = result == STATUS_OK ? response_owner_get(all, s->owner) : NULL;
	if (r->owner) {
		r->owner->responses++;
		result = response_reserve(r, bytes, err);
	}
	if (result == STATUS_OK && r->owner && string_table_add(&all->known, &r->node, r->id) == STATUS_OK) {
		if (take_request(r, s))
			return r;
		string_table_remove(&all->known, &r->node);
	}
	error_settle(err, result == STATUS_OK ? STATUS_NOMEM : result);
	response_free(r);
	return NULL;
}

/* Keep an accepted request. */
static status response_accept(response *r, error *err)
{
	r->accepted = true;
	if (!r->work && !response_is_completed(r))
		return STATUS_CANCELLED; /* refused at once: the outcome has the error */
	status s = r->background ? response_put(r, err) : STATUS_OK;
	if (s != STATUS_OK)
		response_fail(r, err);
	return s;
}

void responses_run(stream *s, const char *method, void (*begin)(stream *s, void *context), void *context)
{
	error err = ERROR_INIT;
	json_t *how = json_incref(json_object_get(s->params, "response"));
	const bool kept = json_object_get(how, "id"), streams = json_is_true(json_object_get(how, "stream"));
	const bool responds = strcmp(method, "response.create") == 0;
	json_object_del(s->params, "response");
	if (responds && !continue_previous(s)) {
		json_decref(how);
		return;
	}
	if (kept && responds)
		json_object_set_new(s->params, "keep_state", json_true());
	response *r = kept ? response_new(s, how, responds, &err) : NULL;
	json_decref(how);
	if (!r) {
		if (kept)
			stream_error(s, &err, NULL);
		else
			begin(s, context);
		return;
	}
	begin(r->work, context);
	if (r->note)
		stream_note_text(s, r->note, strlen(r->note));
	if (response_accept(r, &err) != STATUS_OK) {
		stream_error_text(s, STATUS_INTERNAL, response_error_text(r));
		response_forget(r);
		return;
	}
	const bool ended = !r->work;
	if (r->background && !streams)
		stream_result(s, json_pack("{s:s}", "status", "queued"));
	else
		response_follow(r, s, true, true);
	if (ended)
		settle(r);
}
