/* Events of /v1/fine_tuning/jobs and /v1/evaluations, as a page or, with ?stream=true, as they happen. The job, or the
 * event to begin after, is looked up first. An unknown one is therefore a 404, at which an EventSource gives up. A
 * known one is answered at once, even if nothing happens for a while. */
#include <stdlib.h>
#include <string.h>

#include "gen/routes.h"
#include "server/forward.h"
#include "server/sse.h"

enum { JOBS_WINDOW = 32 };

/* The engine's methods of a kind of jobs. */
typedef struct job_methods {
	const char *events, *get, *watch;
} job_methods;

static const job_methods *jobs_methods(const request *r)
{
	static const job_methods kinds[] = {{"job.events", "job.get", "job.watch"},
	                                    {"evaluation.events", "evaluation.get", "evaluation.watch"}};
	return strcmp(r->route->engine_method, kinds[0].events) == 0 ? &kinds[0] : &kinds[1];
}

typedef struct job_watch {
	uint32_t ungranted; /* events received and not granted again */
} job_watch;

static void jobs_watch_event(void *context, const frame *f)
{
	request *r = context;
	job_watch *w = r->state;
	w->ungranted++;
	json_t *event = forward_json(r, f);
	if (!event)
		return;
	const char *id = json_string_value(json_object_get(event, "id"));
	buffer text = {0};
	sse_event(&text, id && uri_id_valid(id) ? id : NULL, f->json, f->json_bytes);
	if (text.failed)
		reply_out_of_memory(r);
	else
		reply_write(r, text.data, text.used);
	buffer_fini(&text);
	json_decref(event);
}

static void jobs_watch_end(void *context, const frame *f)
{
	static const char done[] = "data: [DONE]\n\n";
	request *r = context;
	if (forward_failed(r, f))
		return;
	reply_write(r, done, sizeof done - 1);
	reply_end(r, true);
}

static void jobs_watch_drained(request *r)
{
	job_watch *w = r->state;
	uint32_t ungranted = w->ungranted;
	w->ungranted = 0;
	if (r->call)
		engine_call_grant(r->call, ungranted);
}

static void jobs_watch_release(request *r)
{
	free(r->state);
}

/* The event to begin after, or NULL. */
static const char *jobs_watch_after(const request *r)
{
	const char *after = request_header_value(r, "Last-Event-ID");
	return after ? after : uri_query(&r->uri, "after");
}

/* The job exists, and the event too: answer, then watch. */
static void jobs_found(void *context, const frame *f)
{
	static const engine_events events = {.event = jobs_watch_event, .end = jobs_watch_end};
	request *r = context;
	if (forward_failed(r, f))
		return;
	const char *after = jobs_watch_after(r);
	json_t *params = after ? json_pack("{s:s, s:s}", "id", r->params[0], "after", after)
	                       : json_pack("{s:s}", "id", r->params[0]);
	r->endless = true;
	reply_begin(r, "text/event-stream", REPLY_SIZE_UNKNOWN, true);
	request_call(r, jobs_methods(r)->watch, params, JOBS_WINDOW, false, &events);
}

void jobs_events(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = jobs_found};
	const char *stream = uri_query(&r->uri, "stream");
	const char *after = jobs_watch_after(r);
	if (after && !uri_id_valid(after)) {
		reply_refuse(r, 400, "invalid_value", "Last-Event-ID", "Last-Event-ID is not the id of an event");
		return;
	}
	if (!stream || strcmp(stream, "false") == 0) {
		forward_handle(r);
		return;
	}
	if (strcmp(stream, "true") != 0) {
		reply_refuse(r, 400, "invalid_value", "stream", "'stream' must be true or false");
		return;
	}
	job_watch *w = calloc(1, sizeof *w);
	json_t *params = !w      ? NULL
	                 : after ? json_pack("{s:s, s:s, s:i}", "id", r->params[0], "after", after, "limit", 1)
	                         : json_pack("{s:s}", "id", r->params[0]);
	if (!params) {
		free(w);
		reply_out_of_memory(r);
		return;
	}
	r->state = w;
	r->drained = jobs_watch_drained;
	r->release = jobs_watch_release;
	request_call(r, after ? jobs_methods(r)->events : jobs_methods(r)->get, params, 0, false, &events);
}
