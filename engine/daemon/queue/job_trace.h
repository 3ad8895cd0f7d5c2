/* job_trace.h - the spans of a job that a traced request created: from its creation to its end.
 *
 * They are the member "trace" of the job's row, so each commit of a job has its spans up to then, also after a crash:
 *
 *   {"link": "TRACE-SPAN" of the request, "run": 0, "spans": [{"name", "from", "to"?, "step"?, "interrupted"?}…],
 *    "dropped": 0, "to"?}
 *
 * A phase has no "step", and the last one has no "to" until the next begins. A span with a step is a part of the phase
 * in which it began; it may end later, as a checkpoint does that is written when the job is paused. Times are
 * nanoseconds since the Unix epoch. The job begins a trace of its own, because it outlives the request; a link leads to
 * the request. Ids are hashes of the job's id, so a span that is sent twice has the same ids.
 *
 * A row without the member, from an older engine or another request, has no spans, and these functions do nothing.
 * Without memory a span is missing. Spans never have anything that a client wrote but its ids. Loop thread only. */
#ifndef ENGINE_DAEMON_QUEUE_JOB_TRACE_H
#define ENGINE_DAEMON_QUEUE_JOB_TRACE_H

#include "engine/daemon/net/stream.h"

enum { JOB_TRACE_STEPS = 64 /* spans with a step */, JOB_TRACE_SPANS = 96 };

#define JOB_TRACE "trace"

/* Begin the trace of a new document if its request is traced: it waits. */
void job_trace_begin(json_t *document, const stream *s);
/* Record the state of `document`: it waits, is paused, or has ended. A job that is queued after its end begins again.
 */
void job_trace_follow(json_t *document);
/* A run begins with a phase; NULL: "running". A phase that an earlier run has not ended is marked as interrupted. */
void job_trace_run(json_t *document, const char *phase);
/* Begin a phase, unless it is the last one. */
void job_trace_phase(json_t *document, const char *name);
/* Add a part of the last phase that ends now and took `ns`, unless it began before the job was resumed. */
void job_trace_step(json_t *document, const char *name, int64_t step, uint64_t ns);

/* Return the spans of a job that has ended: an array as OTLP's JSON has it. state: its status as clients see it. NULL:
 * none. */
json_t *job_trace_spans(const json_t *document, const char *state);

#endif
