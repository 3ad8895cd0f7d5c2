#include "engine/daemon/queue/trace_outbox.h"

#include <stdlib.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"

typedef struct watch {
	stream *stream;
	trace_outbox *outbox;
	struct watch *next;
	json_t *sent;   /* not confirmed yet; NULL: none */
	int64_t credit; /* the stream's after it was sent; a later one confirms */
} watch;

struct trace_outbox {
	json_t *waiting; /* an array, oldest first */
	watch *watches;
	bool full; /* that was logged */
};

trace_outbox *trace_outbox_new(void)
{
	trace_outbox *o = memory_new(1, sizeof *o);
	if (o && !(o->waiting = json_array())) {
		free(o);
		return NULL;
	}
	return o;
}

void trace_outbox_free(trace_outbox *o)
{
	if (o)
		json_decref(o->waiting);
	free(o);
}

/* Send the oldest spans if the stream has a credit and has confirmed the last ones. */
static void send_next(watch *w)
{
	json_t *waiting = w->outbox->waiting, *spans = json_array_get(waiting, 0);
	if (w->sent || !spans || stream_ready(w->stream) == 0)
		return;
	w->sent = json_incref(spans);
	json_array_remove(waiting, 0);
	w->outbox->full = false;
	w->credit = w->stream->credit - 1;
	stream_event(w->stream, json_pack("{s:O}", "spans", spans)); /* may end w */
}

static void limit(trace_outbox *o)
{
	while (json_array_size(o->waiting) > TRACE_OUTBOX_JOBS) {
		json_array_remove(o->waiting, 0);
		if (!o->full)
			log_line(LOG_WARN, "the spans of a job are dropped: no front end takes them");
		o->full = true;
	}
}

void trace_outbox_add(trace_outbox *o, json_t *spans)
{
	if (!o || !spans) {
		json_decref(spans);
		return;
	}
	json_array_append_new(o->waiting, spans);
	for (watch *w = o->watches, *next; w; w = next) {
		next = w->next; /* sending may end w */
		send_next(w);
	}
	limit(o);
}

static void on_credit(stream *s)
{
	watch *w = s->context;
	if (w->sent && s->credit > w->credit) {
		json_decref(w->sent);
		w->sent = NULL;
	}
	send_next(w);
}

static void on_cancel(stream *s)
{
	watch *w = s->context, **at = &w->outbox->watches;
	trace_outbox *o = w->outbox;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	if (w->sent)
		json_array_insert_new(o->waiting, 0, w->sent);
	free(w);
	s->net->streams++;
	stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
	if (o->watches)
		send_next(o->watches);
	limit(o);
}

void trace_outbox_watch(stream *s, trace_outbox *o)
{
	static const stream_watch events = {.credit = on_credit, .cancel = on_cancel};
	watch *w = memory_new(1, sizeof *w);
	if (!w) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*w = (watch){.stream = s, .outbox = o, .next = o->watches};
	o->watches = w;
	s->context = w;
	s->watch = &events;
	s->net->streams--; /* while it waits; it must not look like work */
	send_next(w);
}
