/* Copies of a document share its members, so a changed trace replaces the shared one. */
#include "engine/daemon/queue/job_trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/json_read.h"
#include "engine/store/store.h"

enum { LINK_TRACE_DIGITS = 32 };

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static void set_number(json_t *object, const char *key, int64_t number)
{
	json_object_set_new(object, key, json_integer((json_int_t)number));
}

/* --- recording -------------------------------------------------------------------------------------------- */

/* Return the document's trace, to be changed; NULL: it has none. */
static json_t *own_trace(json_t *document)
{
	json_t *copy = json_deep_copy(json_object_get(document, JOB_TRACE));
	if (!json_is_object(copy) || json_object_set(document, JOB_TRACE, copy) != 0) {
		json_decref(copy);
		return NULL;
	}
	json_decref(copy);
	return copy;
}

/* Return the last phase; NULL: there is none. */
static json_t *last_phase(const json_t *trace)
{
	const json_t *spans = json_object_get(trace, "spans");
	for (size_t i = json_array_size(spans); i > 0; i--) {
		json_t *span = json_array_get(spans, i - 1);
		if (!json_object_get(span, "step"))
			return span;
	}
	return NULL;
}

static void drop(json_t *trace)
{
	set_number(trace, "dropped", json_read_integer(trace, "dropped", 0) + 1);
}

static void close_phase(const json_t *trace, int64_t now)
{
	json_t *last = last_phase(trace);
	if (last && !json_object_get(last, "to"))
		set_number(last, "to", now);
}

static void open_phase(json_t *trace, const char *name)
{
	json_t *spans = json_object_get(trace, "spans");
	const int64_t now = clock_unix_ns();
	close_phase(trace, now);
	if (json_array_size(spans) >= JOB_TRACE_SPANS) {
		drop(trace);
		return;
	}
	json_array_append_new(spans, json_pack("{s:s, s:I}", "name", name, "from", (json_int_t)now));
}

void job_trace_begin(json_t *document, const stream *s)
{
	json_t *trace = s->trace[0] && document
	                    ? json_pack("{s:s, s:i, s:[], s:i}", "link", s->trace, "run", 0, "spans", "dropped", 0)
	                    : NULL;
	if (!trace)
		return;
	open_phase(trace, "waiting");
	json_object_set_new(document, JOB_TRACE, trace);
}

void job_trace_phase(json_t *document, const char *name)
{
	const json_t *last = last_phase(json_object_get(document, JOB_TRACE));
	json_t *trace = last && strcmp(text_of(last, "name"), name) == 0 ? NULL : own_trace(document);
	if (trace)
		open_phase(trace, name);
}

/* A job that has ended is to run again: its spans have been sent. */
static void begin_again(json_t *document)
{
	json_t *trace = own_trace(document);
	if (!trace)
		return;
	json_object_del(trace, "to");
	set_number(trace, "run", json_read_integer(trace, "run", 0) + 1);
	set_number(trace, "dropped", 0);
	json_array_clear(json_object_get(trace, "spans"));
}

static void end(json_t *document)
{
	json_t *trace = own_trace(document);
	const int64_t now = clock_unix_ns();
	if (!trace)
		return;
	close_phase(trace, now);
	set_number(trace, "to", now);
}

void job_trace_follow(json_t *document)
{
	const char *state = text_of(document, "status");
	const bool waits = strcmp(state, "queued") == 0, paused = strcmp(state, "paused") == 0;
	const bool ended = json_object_get(json_object_get(document, JOB_TRACE), "to");
	if (ended && (waits || paused))
		begin_again(document);
	if (waits || paused)
		job_trace_phase(document, waits ? "waiting" : "paused");
	else if (strcmp(state, "running") != 0 && !ended)
		end(document);
}

void job_trace_run(json_t *document, const char *name)
{
	json_t *trace = own_trace(document), *last = last_phase(trace);
	if (!trace)
		return;
	if (last && !json_object_get(last, "to") && strcmp(text_of(last, "name"), "waiting") != 0)
		json_object_set_new(last, "interrupted", json_true());
	open_phase(trace, name ? name : "running");
}

void job_trace_step(json_t *document, const char *name, int64_t step, uint64_t ns)
{
	json_t *trace = own_trace(document), *spans = json_object_get(trace, "spans");
	const int64_t now = clock_unix_ns(), began = now - (int64_t)ns;
	size_t i, steps = 0;
	json_t *span;
	if (!trace || began < json_read_integer(json_array_get(spans, 0), "from", 0))
		return; /* the job is to run again; the step is of the run before, whose spans have been sent */
	json_array_foreach(spans, i, span) steps += json_object_get(span, "step") != NULL;
	if (steps < JOB_TRACE_STEPS && i < JOB_TRACE_SPANS)
		json_array_append_new(spans, json_pack("{s:s, s:I, s:I, s:I}", "name", name, "from",
		                                       (json_int_t)began, "to", (json_int_t)now, "step",
		                                       (json_int_t)step));
	else
		drop(trace);
}

/* --- as OTLP has them ------------------------------------------------------------------------------------- */

/* Return 16 digits that depend on the job, its run and a number. */
static json_t *hashed(const json_t *document, const json_t *trace, int number, bool wide)
{
	char text[STORE_ID_BYTES + 48], out[2 * DIGEST_TEXT_BYTES] = "";
	for (int i = 0; i <= wide; i++) {
		snprintf(text, sizeof text, "%.*s %" PRId64 " %d %d", STORE_ID_BYTES, text_of(document, "id"),
		         json_read_integer(trace, "run", 0), number, i);
		digest_write(digest_bytes(text, strlen(text)), out + strlen(out));
	}
	return json_string(out);
}

/* OTLP's JSON has 64-bit numbers as texts. */
static json_t *digits(int64_t number)
{
	return json_sprintf("%" PRId64, number);
}

static void add_number(json_t *attributes, const char *key, int64_t number)
{
	json_array_append_new(attributes, json_pack("{s:s, s:{s:o}}", "key", key, "value", "intValue", digits(number)));
}

static void add_word(json_t *attributes, const char *key, const char *text)
{
	json_array_append_new(attributes, json_pack("{s:s, s:{s:s}}", "key", key, "value", "stringValue", text));
}

/* Span `number` of a job, 0 the job itself, with a parent unless that is negative. attributes: taken over. */
static json_t *otlp_span(const json_t *document, const char *name, int number, int parent, const json_t *times,
                         json_t *attributes)
{
	const json_t *trace = json_object_get(document, JOB_TRACE);
	return json_pack("{s:o, s:o, s:o*, s:s, s:i, s:o, s:o, s:o}", "traceId", hashed(document, trace, -1, true),
	                 "spanId", hashed(document, trace, number, false), "parentSpanId",
	                 parent < 0 ? NULL : hashed(document, trace, parent, false), "name", name, "kind", 1,
	                 "startTimeUnixNano", digits(json_read_integer(times, "from", 0)), "endTimeUnixNano",
	                 digits(json_read_integer(times, "to", 0)), "attributes", attributes);
}

static void add_counts(json_t *attributes, const json_t *document)
{
	const json_t *run = json_object_get(document, "run"), *total = json_object_get(document, "total");
	if (!json_is_integer(total) || !json_is_integer(json_object_get(run, "done")))
		return;
	add_number(attributes, "additive.requests.total", json_integer_value(total));
	add_number(attributes, "additive.requests.done", json_read_integer(run, "done", 0));
	add_number(attributes, "additive.requests.failed", json_read_integer(run, "failed", 0));
}

/* Return why the job has failed: the code of its error, or of the first problem of its file; NULL: none. */
static const char *error_code(const json_t *document)
{
	const json_t *reason = json_object_get(document, "error");
	if (!json_is_object(reason))
		reason = json_array_get(json_object_get(document, "problems"), 0);
	return json_string_value(json_object_get(reason, "code"));
}

static json_t *job_span(const json_t *document, const json_t *trace, const char *state)
{
	const json_t *first = json_array_get(json_object_get(trace, "spans"), 0);
	const char *link = text_of(trace, "link"), *code = error_code(document);
	const bool failed = strcmp(text_of(document, "status"), "failed") == 0;
	json_t *attributes = json_array(),
	       *times = json_pack("{s:I, s:I}", "from", (json_int_t)json_read_integer(first, "from", 0), "to",
	                          (json_int_t)json_read_integer(trace, "to", 0));
	add_word(attributes, "additive.job_id", text_of(document, "id"));
	add_word(attributes, "additive.job_status", state);
	if (failed && code)
		add_word(attributes, "error.type", code);
	if (json_read_integer(trace, "dropped", 0) > 0)
		add_number(attributes, "additive.spans_dropped", json_read_integer(trace, "dropped", 0));
	add_counts(attributes, document);
	json_t *span = otlp_span(document, text_of(document, "object"), 0, -1, times, attributes);
	json_t *links = strlen(link) > LINK_TRACE_DIGITS
	                    ? json_pack("[{s:s%, s:s}]", "traceId", link, (size_t)LINK_TRACE_DIGITS, "spanId",
	                                link + LINK_TRACE_DIGITS + 1)
	                    : NULL;
	json_decref(times);
	json_object_set_new(span, "links", links);
	json_object_set_new(span, "status", json_pack("{s:i}", "code", failed ? 2 : 0));
	return span;
}

/* Return the number of the last of the first n spans that is a phase and began before a time; 0: none. */
static int phase_at(const json_t *spans, size_t n, int64_t time)
{
	for (size_t i = n; i > 0; i--) {
		const json_t *span = json_array_get(spans, i - 1);
		if (!json_object_get(span, "step") && json_read_integer(span, "from", 0) <= time)
			return (int)i;
	}
	return 0;
}

json_t *job_trace_spans(const json_t *document, const char *state)
{
	const json_t *trace = json_object_get(document, JOB_TRACE);
	const json_t *spans = json_object_get(trace, "spans");
	json_t *out = json_object_get(trace, "to") ? json_array() : NULL, *span;
	size_t i;
	if (!out)
		return NULL;
	int failed = json_array_append_new(out, job_span(document, trace, state));
	json_array_foreach(spans, i, span)
	{
		const json_t *step = json_object_get(span, "step");
		const int parent = step ? phase_at(spans, i, json_read_integer(span, "from", 0)) : 0;
		json_t *attributes = json_array();
		if (step)
			add_number(attributes, "additive.step", json_integer_value(step));
		if (json_object_get(span, "interrupted"))
			json_array_append_new(attributes, json_pack("{s:s, s:{s:b}}", "key", "additive.interrupted",
			                                            "value", "boolValue", 1));
		failed |= json_array_append_new(
		    out, otlp_span(document, text_of(span, "name"), (int)i + 1, parent, span, attributes));
	}
	if (!failed)
		return out;
	json_decref(out);
	return NULL;
}
