#include "engine/daemon/queue/job_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/store/store.h"

/* Events read at once; a slow peer is detected between pages. */
enum { JOB_WATCH_PAGE = 64 };

struct job_watch {
	job_watch *next, **link;
	stream *stream;
	job_watch_find find;
	const void *context; /* argument of `find` */
	char job[STORE_ID_BYTES], after[STORE_ID_BYTES];
};

static stream *job_watch_release(job_watch *w)
{
	stream *s = w->stream;
	*w->link = w->next;
	if (w->next)
		w->next->link = w->link;
	s->watch = NULL;
	free(w);
	return s;
}

static bool send_event(void *context, const json_t *event)
{
	job_watch *w = context;
	const char *id = json_string_value(json_object_get(event, "id"));
	snprintf(w->after, sizeof w->after, "%s", id ? id : "");
	stream_event(w->stream, json_incref((json_t *)(uintptr_t)event));
	return true; /* the page is no longer than the credit */
}

/* Send available events; answer if there will be no more. */
static void pump(job_watch *w)
{
	error err = ERROR_INIT;
	store *ledger = w->stream->net->store;
	bool more = true, ended;
	json_t *answer;
	for (int64_t ready; more && (ready = stream_ready(w->stream)) > 0;) {
		store_page page = {.parent = w->job,
		                   .after = w->after[0] ? w->after : NULL,
		                   .limit = ready < JOB_WATCH_PAGE ? ready : JOB_WATCH_PAGE,
		                   .ascending = true};
		if (store_list(ledger, STORE_EVENTS, &page, send_event, w, &more, &err) != STATUS_OK) {
			stream_error(job_watch_release(w), &err, NULL);
			return;
		}
	}
	if (more)
		return; /* no credit */
	if (w->find(w->context, w->job, &answer, &ended, &err) != STATUS_OK)
		stream_error(job_watch_release(w), &err, NULL);
	else if (ended)
		stream_result(job_watch_release(w), answer);
}

static void job_watch_on_credit(stream *s)
{
	pump(s->context);
}

static void job_watch_on_cancel(stream *s)
{
	stream_refuse(job_watch_release(s->context), STATUS_CANCELLED, NULL, NULL, "cancelled");
}

void job_watch_pump(job_watch *list, const char *id)
{
	for (job_watch *w = list, *next; w; w = next) {
		next = w->next;
		if (strcmp(w->job, id) == 0)
			pump(w);
	}
}

void job_watch_begin(stream *s, job_watch **list, job_watch_find find, const void *context)
{
	static const stream_watch watch = {.credit = job_watch_on_credit, .cancel = job_watch_on_cancel};
	error err = ERROR_INIT;
	const char *after = json_string_value(json_object_get(s->params, "after"));
	json_t *answer = NULL;
	bool ended;
	status result = find(context, s->target, &answer, &ended, &err);
	json_decref(answer);
	job_watch *w = result == STATUS_OK ? memory_new(1, sizeof *w) : NULL;
	if (!w) {
		error_set(&err, STATUS_NOMEM, NULL, "out of memory");
		stream_error(s, &err, NULL);
		return;
	}
	w->stream = s;
	w->find = find;
	w->context = context;
	snprintf(w->job, sizeof w->job, "%s", s->target);
	snprintf(w->after, sizeof w->after, "%s", after ? after : "");
	w->next = *list;
	w->link = list;
	if (w->next)
		w->next->link = &w->next;
	*list = w;
	s->watch = &watch;
	s->context = w;
	pump(w);
}
