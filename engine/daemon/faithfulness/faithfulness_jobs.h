/* faithfulness_jobs.h - evaluations of explanations, for one input, and as jobs over the texts of a file.
 *
 * The jobs are a queue (queue/job_queue.h has their states). The numbers of a text and the job's row that counts it
 * are one commit; the texts are events of the job in the ledger. After any stop a job therefore continues with the text
 * that it was reading. Loop thread only. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_JOBS_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_JOBS_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct faithfulness_jobs faithfulness_jobs;

status faithfulness_jobs_new(faithfulness_jobs **out, engine *e, error *err); /* loads the jobs that have not ended */
void faithfulness_jobs_free(faithfulness_jobs *all);
/* Start a waiting job. Called every ENGINE_TICK_MS. */
void faithfulness_jobs_tick(faithfulness_jobs *all);
/* End the run, which continues after the next start, and start no other. */
void faithfulness_jobs_stop(faithfulness_jobs *all);
bool faithfulness_jobs_stopped(const faithfulness_jobs *all);

/* True if a job that has not ended uses the file. */
bool faithfulness_jobs_use_file(const faithfulness_jobs *all, const char *id);
bool faithfulness_jobs_use_model(const faithfulness_jobs *all, const char *id);

void faithfulness_jobs_create(stream *s);
void faithfulness_jobs_list(stream *s);
void faithfulness_jobs_get(stream *s);
void faithfulness_jobs_cancel(stream *s);
void faithfulness_jobs_delete(stream *s);
void faithfulness_jobs_rows(stream *s);

#endif
