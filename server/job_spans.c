#include "server/job_spans.h"

#include <stdlib.h>

#include "proto/json_memory.h"

static void append_span(buffer *out, const json_t *span)
{
	char *text = json_memory_print(span, JSON_COMPACT);
	out->failed |= !text;
	buffer_string(out, out->used > 0 ? "," : "");
	buffer_string(out, text ? text : "");
	free(text);
}

static void forget_held(job_spans *j)
{
	buffer_fini(&j->held);
	j->held = (buffer){0};
}

static void job_spans_event(void *context, const frame *f)
{
	job_spans *j = context;
	json_t *event = json_memory_parse(f->json, f->json_bytes, 0, NULL);
	const json_t *spans = json_object_get(event, "spans");
	forget_held(j);
	for (size_t i = 0; i < json_array_size(spans); i++)
		append_span(&j->held, json_array_get(spans, i));
	json_decref(event);
	if (j->held.used > 0 && !j->held.failed)
		return;
	engine_call_cancel(j->call); /* the engine sends them again on the next stream */
	j->call = NULL;
	forget_held(j);
}

/* An engine that still has the held spans sends them again, with the same ids. */
static void job_spans_end(void *context, const frame *f)
{
	job_spans *j = context;
	(void)f;
	j->call = NULL;
}

void job_spans_open(job_spans *j, engine_link *l)
{
	static const engine_events events = {.event = job_spans_event, .end = job_spans_end};
	if (!j->call && j->held.used == 0 && l)
		j->call = engine_link_call(l, "trace.watch", NULL, NULL, NULL, 1, false, 0, &events, j);
}

void job_spans_done(job_spans *j)
{
	if (j->held.used == 0)
		return;
	forget_held(j);
	if (j->call)
		engine_call_grant(j->call, 1);
}

void job_spans_fini(job_spans *j)
{
	buffer_fini(&j->held);
}
