/* Answers of a stream, as frames. */
#include "engine/daemon/net/stream.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"

enum { RETRY_SECONDS = 1 };

const char stream_out_of_memory[] =
    "{\"status\":503,\"code\":\"out_of_memory\",\"message\":\"out of memory\",\"param\":null,\"retry_after\":1}";

/* Write the times of the answer: {"queued_ms":…}, since the request was received. NULL if they were not requested, or
 * without memory. */
static char *stream_times_text(const stream *s)
{
	const uint64_t received = s->times.received;
	const struct {
		const char *name;
		uint64_t at;
	} list[] = {{"queued_ms", s->times.queued},
	            {"started_ms", s->times.started},
	            {"first_token_ms", s->times.first_token},
	            {"ended_ms", s->times.ended},
	            {"answered_ms", clock_ns()}};
	enum { SIZE = 256 };
	char *text = s->times.requested ? malloc(SIZE) : NULL;
	size_t used = 0;
	for (size_t i = 0; text && i < sizeof list / sizeof *list; i++)
		if (list[i].at)
			used += (size_t)snprintf(text + used, SIZE - used, "%s\"%s\":%.3f", used ? "," : "{",
			                         list[i].name, (double)(list[i].at - received) * 1e-6);
	if (text)
		snprintf(text + used, SIZE - used, "}");
	return text;
}

stream *stream_new(net *n, stream_peer *p, uint64_t id, int64_t credit)
{
	stream *s = memory_new(1, sizeof *s);
	if (!s)
		return NULL;
	s->net = n;
	s->peer = p;
	s->id = id;
	s->credit = credit;
	n->streams++;
	if (n->most_streams < n->streams)
		n->most_streams = n->streams;
	return s;
}

void stream_cancel(stream *s)
{
	if (!s->cancelled)
		stream_cancel_again(s);
}

void stream_cancel_again(stream *s)
{
	s->cancelled = true;
	if (s->watch && s->watch->cancel)
		s->watch->cancel(s);
}

static void stream_send(stream *s, frame_type type, char *json, void *payload, size_t bytes)
{
	frame f = {.type = type, .stream = s->id, .json_bytes = json ? strlen(json) : 0, .payload_bytes = bytes};
	if (s->peer) {
		s->peer->send(s->peer, &f, json, payload);
	} else {
		reserve_free(json);
		free(payload);
	}
}

/* Send the RESULT or ERROR. */
static void stream_send_answer(stream *s, frame_type type, char *json)
{
	char *times = stream_times_text(s);
	stream_send(s, type, json, times, times ? strlen(times) : 0);
}

static void stream_free_params(uv_work_t *work)
{
	json_decref(work->data);
}

static void stream_params_freed(uv_work_t *work, int cancelled)
{
	(void)cancelled; /* cannot be cancelled */
	free(work);
}

/* Free the params. A large document takes milliseconds, so the pool frees it. */
static void stream_drop_params(stream *s)
{
	uv_work_t *work = s->large ? malloc(sizeof *work) : NULL;
	if (work) {
		work->data = s->params;
		if (uv_queue_work(s->net->loop, work, stream_free_params, stream_params_freed) == 0)
			return;
	}
	free(work);
	json_decref(s->params);
}

void stream_stop(stream *s, bool *reason)
{
	const bool continues = !s->cancelled || stream_detached(s);
	*reason = true;
	if (continues)
		stream_cancel_again(s);
}

void stream_full_owner(const stream *s, char out[2 * STREAM_OWNER_BYTES])
{
	snprintf(out, 2 * STREAM_OWNER_BYTES, s->fairness[0] ? "%s %s" : "%s", s->owner, s->fairness);
}

void stream_remove_deadline(stream *s)
{
	if (!s->deadline_at)
		return;
	*s->deadline_at = s->deadline_next;
	if (s->deadline_next)
		s->deadline_next->deadline_at = s->deadline_at;
	s->deadline_at = NULL;
}

static void stream_end(stream *s)
{
	stream_remove_deadline(s);
	if (s->peer)
		s->peer->forget(s->peer, s);
	s->net->streams--;
	if (s->work[0]) {
		death_log_forget(s->net->deaths, s->work);
		death_log_end(s->net->deaths, s->work);
	}
	if (s->record)
		s->record->end(s);
	stream_drop_params(s);
	free(s);
}

void stream_release(stream *s)
{
	if (s->answer)
		stream_send_answer(s, s->answer_type, s->answer);
	else if (s->peer) /* a static text needs no memory */
		s->peer->send_copy(s->peer, &(frame){.type = FRAME_ERROR,
		                                     .stream = s->id,
		                                     .json = stream_out_of_memory,
		                                     .json_bytes = strlen(stream_out_of_memory)});
	stream_end(s);
}

static void ignore_data(stream *s, const frame *f)
{
	(void)s;
	(void)f;
}

/* Take the answer over; it is sent at once, or when net.answered has recorded it. */
static void stream_answer(stream *s, status result, frame_type type, char *text)
{
	static const stream_watch held = {.data = ignore_data};
	s->watch = &held;
	s->answer_type = type;
	s->answer = text;
	if (!s->net->answered || !s->net->answered(s, result, text))
		stream_release(s);
}

json_t *stream_error_object(int http, const char *code, const char *message, const char *param, int retry_after)
{
	json_t *object = json_pack("{s:i, s:s, s:s, s:s?}", "status", http, "code", code, "message", message, "param",
	                           param && param[0] ? param : NULL);
	if (object && retry_after)
		json_object_set_new(object, "retry_after", json_integer(retry_after));
	return object;
}

/* Build the message: if it begins with a verb, the parameter's name becomes its subject. */
static const char *whole_message(const error *err, char *out, size_t size)
{
	static const char *const verbs[] = {"must ", "needs ", "times ", "is ", "has ", "applies ", "does "};
	const char *message = error_message(err);
	for (size_t i = 0; err->param[0] && i < sizeof verbs / sizeof *verbs; i++) {
		if (strncmp(message, verbs[i], strlen(verbs[i])) == 0) {
			snprintf(out, size, "'%s' %s", err->param, message);
			return out;
		}
	}
	return message;
}

void stream_error(stream *s, const error *err, const char *code)
{
	char words[sizeof err->param + sizeof err->message + 8];
	status result = err->status == STATUS_OK ? STATUS_INTERNAL : err->status;
	const char *message = whole_message(err, words, sizeof words);
	if (result == STATUS_CANCELLED && s->net->draining) {
		stream_refuse_stopping(s);
		return;
	}
	if (result == STATUS_CANCELLED && s->revoked) {
		stream_refuse(s, STATUS_UNAUTHORIZED, NULL, NULL, "the key has been revoked");
		return;
	}
	if (s->expired && (result == STATUS_CANCELLED || (result == STATUS_TIMEOUT && !err->param[0]))) {
		stream_refuse(s, STATUS_TIMEOUT, NULL, "timeout", "the request was not done in the time that it allows");
		return;
	}
	if (status_http(result) == 500 || status_http(result) == 507)
		log_request(LOG_WARN, s->request_id, "answered with %s: %s", code ? code : status_name(result), message);
	/* A quota, which `param` names, has no room until something is deleted: to repeat the request would be wasted. */
	const bool rate = result == STATUS_RATE_LIMITED && !err->param[0];
	const bool again = rate || result == STATUS_BUSY || result == STATUS_UNAVAILABLE || result == STATUS_NOMEM ||
	                   result == STATUS_DEVICE;
	reserve_forget(); /* building it failed, so nothing is sent */
	json_t *object =
	    stream_error_object(status_http(result), code ? code : status_name(result), message, err->param,
	                        !again           ? 0
	                        : s->retry_after ? s->retry_after
	                                         : RETRY_SECONDS);
	char *text = json_text_reserve(object, PROTO_JSON);
	json_decref(object);
	stream_error_text(s, result, text);
}

void stream_error_text(stream *s, status result, char *text)
{
	s->net->failures++;
	stream_answer(s, result, FRAME_ERROR, text);
}

status stream_count_deaths(stream *s, const char *kind, uint64_t digest, error *err)
{
	char work[sizeof s->work];
	snprintf(work, sizeof work, "%s %016llx", kind, (unsigned long long)digest);
	if (death_log_refuses(s->net->deaths, work)) {
		s->retry_after = DEATH_LOG_PAUSE_SECONDS;
		return error_set(err, STATUS_UNAVAILABLE, NULL,
		                 "the engine died %d times while it ran this %s; it is refused for %d minutes",
		                 DEATH_LOG_LIMIT, kind, DEATH_LOG_PAUSE_SECONDS / 60);
	}
	memcpy(s->work, work, sizeof work);
	death_log_begin(s->net->deaths, s->work);
	return STATUS_OK;
}

void stream_refuse_stopping(stream *s)
{
	if (s->net->device_lost)
		stream_refuse(s, STATUS_DEVICE, NULL, NULL, "the compute device failed and the engine is restarting");
	else
		stream_refuse(s, STATUS_UNAVAILABLE, "shutting_down", NULL, "the engine is shutting down");
}

void stream_refuse(stream *s, status result, const char *code, const char *param, const char *format, ...)
{
	error err = ERROR_INIT;
	va_list arguments;
	va_start(arguments, format);
	error_set_list(&err, result, param, format, arguments);
	va_end(arguments);
	stream_error(s, &err, code);
}

void stream_result(stream *s, json_t *result)
{
	char *text = json_text_reserve(result, PROTO_JSON);
	json_decref(result);
	stream_result_text(s, text);
}

void stream_result_text(stream *s, char *text)
{
	bool too_large = text && strlen(text) > FRAME_MAX_JSON;
	if (text && !too_large) {
		s->net->requests++;
		if (s->record)
			s->record->result(s, text);
		stream_answer(s, STATUS_OK, FRAME_RESULT, text);
		return;
	}
	reserve_free(text);
	stream_refuse(s, too_large ? STATUS_TOO_LARGE : STATUS_NOMEM, NULL, NULL, "%s",
	              too_large ? "the answer is too large; ask for less at once" : "out of memory");
}

bool stream_detached(const stream *s)
{
	return s->record && s->record->detached(s);
}

int64_t stream_ready(const stream *s)
{
	if (stream_detached(s))
		return INT32_MAX;
	return s->peer && !s->peer->blocked && !s->cancelled ? s->credit : 0;
}

static void note_event(stream *s, const char *json, size_t bytes)
{
	if (s->record)
		s->record->event(s, json, bytes);
}

void stream_event(stream *s, json_t *event)
{
	char *text = json_text_reserve(event, PROTO_JSON);
	json_decref(event);
	s->credit--;
	if (text && strlen(text) <= FRAME_MAX_JSON) {
		note_event(s, text, strlen(text));
		stream_send(s, FRAME_EVENT, text, NULL, 0);
		return;
	}
	reserve_free(text);
	note_event(s, NULL, 0);
	if (s->peer)
		s->peer->fail(s->peer); /* a stream that lacks an event must not end as complete */
}

void stream_event_text(stream *s, const char *json, size_t bytes)
{
	assert(bytes <= FRAME_MAX_JSON);
	s->credit--;
	note_event(s, json, bytes);
	if (s->peer)
		s->peer->send_copy(s->peer,
		                   &(frame){.type = FRAME_EVENT, .stream = s->id, .json = json, .json_bytes = bytes});
}

void stream_data(stream *s, void *data, size_t bytes)
{
	assert(bytes <= FRAME_MAX_PAYLOAD);
	s->credit--;
	stream_send(s, FRAME_DATA, NULL, data, bytes);
}

void stream_note(stream *s, json_t *note)
{
	char *text = json_text_reserve(note, PROTO_JSON);
	json_decref(note);
	if (text) /* otherwise the answer lacks it */
		stream_send(s, FRAME_CREDIT, text, NULL, 0);
}

void stream_note_text(stream *s, const char *json, size_t bytes)
{
	if (s->peer)
		s->peer->send_copy(s->peer,
		                   &(frame){.type = FRAME_CREDIT, .stream = s->id, .json = json, .json_bytes = bytes});
}

void stream_grant(stream *s, uint32_t frames)
{
	if (s->peer)
		s->peer->send(s->peer, &(frame){.type = FRAME_CREDIT, .stream = s->id, .credit = frames}, NULL, NULL);
}
