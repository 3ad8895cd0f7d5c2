/* job_spans.h - spans of jobs that have ended, from the engine (trace.watch) to the collector.
 *
 * The engine sends those of one job at a time and keeps them until they are confirmed, so a front end that ends loses
 * none. Loop thread only. */
#ifndef SERVER_JOB_SPANS_H
#define SERVER_JOB_SPANS_H

#include "server/engine_link.h"

/* Zero-initialise; free with job_spans_fini. */
typedef struct job_spans {
	engine_call *call; /* NULL: none */
	buffer held;       /* spans as OTLP's JSON has them, separated by commas; empty: none */
} job_spans;

/* Open the stream unless it is open. l: NULL or not up is legal. */
void job_spans_open(job_spans *j, engine_link *l);
/* The held spans were sent, or can never be: confirm them. */
void job_spans_done(job_spans *j);
void job_spans_fini(job_spans *j);

#endif
