/* trace_outbox.h - spans of jobs that have ended, until a front end has sent them to its collector (trace.watch).
 *
 * Each job's spans go to one front end, which confirms them with a credit. If that stream ends first, another front end
 * gets them. At most TRACE_OUTBOX_JOBS jobs wait; the oldest are dropped, with a message logged. They are in memory
 * only. Loop thread only. */
#ifndef ENGINE_DAEMON_QUEUE_TRACE_OUTBOX_H
#define ENGINE_DAEMON_QUEUE_TRACE_OUTBOX_H

#include "engine/daemon/net/stream.h"

enum { TRACE_OUTBOX_JOBS = 64 };

typedef struct trace_outbox trace_outbox;

/* NULL: out of memory. */
trace_outbox *trace_outbox_new(void);
/* All streams have ended. */
void trace_outbox_free(trace_outbox *o); /* NULL is legal */

/* Add the spans of a job, an array, which is taken over. NULL is legal for both. */
void trace_outbox_add(trace_outbox *o, json_t *spans);
/* The method trace.watch. */
void trace_outbox_watch(stream *s, trace_outbox *o);

#endif
