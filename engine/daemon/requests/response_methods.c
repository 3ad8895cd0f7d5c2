/* Streams that follow a response, and the methods on responses. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/requests/responses_private.h"

/* --- followers ----------------------------------------------------------------------------- */

/* Unlink and free; returns its stream. */
static stream *follower_end(follower *f)
{
	follower **at = &f->of->followers;
	stream *s = f->stream;
	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	free(f);
	s->watch = NULL;
	return s;
}

static const char *status_now(const response *r)
{
	return r->events_bytes > 0 ? "in_progress" : "queued";
}

static json_t *outcome_now(const response *r)
{
	return response_has_ended(r) ? json_incref(r->outcome) : json_pack("{s:s}", "status", status_now(r));
}

static void follower_send(follower *f)
{
	const response *r = f->of;
	stream *s = f->stream;
	if (!f->opened && stream_ready(s) > 0) {
		f->opened = true;
		stream_event(s, json_pack("{s:O, s:b}", "about", r->about, "background", r->background));
	}
	while (f->opened && f->at < r->events_bytes && stream_ready(s) > 0) {
		const char *line = r->events + f->at;
		size_t n = (size_t)((const char *)memchr(line, '\n', r->events_bytes - f->at) - line);
		stream_event_text(s, line, n);
		f->at += n + 1;
	}
	if (!f->opened || f->at < r->events_bytes || (f->waits && !response_has_ended(r)))
		return;
	json_t *outcome = outcome_now(r);
	stream_result(follower_end(f), outcome);
}

static void follower_on_credit(stream *s)
{
	follower_send(s->context);
}

static void follower_on_cancel(stream *s)
{
	follower *f = s->context;
	response *r = f->creator && !f->of->background ? f->of : NULL;
	stream_refuse(follower_end(f), STATUS_CANCELLED, NULL, NULL, "cancelled");
	if (r)
		response_cancel(r);
}

void response_note_times(response *r, const stream_times *times)
{
	for (follower *f = r->followers; f; f = f->next) {
		stream_times *own = &f->stream->times;
		if (!f->creator)
			continue;
		own->queued = times->queued;
		own->started = times->started;
		own->first_token = times->first_token;
		own->ended = times->ended;
	}
}

void response_follow(response *r, stream *s, bool waits, bool creator)
{
	static const stream_watch watch = {.credit = follower_on_credit, .cancel = follower_on_cancel};
	follower *f = memory_new(1, sizeof *f);
	if (!f) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*f = (follower){.of = r, .stream = s, .next = r->followers, .waits = waits, .creator = creator};
	r->followers = f;
	s->context = f;
	s->watch = &watch;
	if (s->cancelled)
		follower_on_cancel(s);
	else
		follower_send(f);
}

void response_send(response *r)
{
	for (follower *f = r->followers, *next; f; f = next) {
		next = f->next;
		follower_send(f);
	}
}

void response_refuse_all(response *r)
{
	while (r->followers)
		stream_error_text(follower_end(r->followers), STATUS_INTERNAL, response_error_text(r));
}

/* --- methods --------------------------------------------------------------------------------- */

/* The response that the request names. NULL: the stream has been answered. */
static response *find_named(stream *s)
{
	return response_find(s, s->target, s->params, "id");
}

void responses_get(stream *s)
{
	response *r = find_named(s);
	if (r)
		response_follow(r, s, json_is_true(json_object_get(s->params, "follow")), false);
}

void responses_cancel(stream *s)
{
	response *r = find_named(s);
	if (!r)
		return;
	if (!r->background && !response_has_ended(r)) {
		stream_refuse(s, STATUS_CONFLICT, "not_in_background", "id",
		              "the response is not in the background: its client cancels it by leaving");
		return;
	}
	r->cancelled = true;
	response_follow(r, s, true, false);
	response_cancel(r);
}

void responses_delete(stream *s)
{
	error err = ERROR_INIT;
	response *r = find_named(s);
	if (!r)
		return;
	if (response_remove(r, &err) == STATUS_OK)
		stream_result(s, json_pack("{s:s, s:b}", "id", s->target, "deleted", 1));
	else
		stream_error(s, &err, NULL);
}

void responses_input(stream *s)
{
	const response *r = find_named(s);
	if (r && r->input)
		stream_result(s, json_pack("{s:O}", "input", r->input));
	else if (r)
		stream_refuse(s, STATUS_TOO_LARGE, NULL, "id",
		              "the input of a request of more than %d bytes is not kept", STREAM_LARGE);
}
