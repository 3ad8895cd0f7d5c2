/* evaluations.h - evaluations of models over the text of a file (loss, perplexity, accuracy), as jobs.
 *
 * The jobs are a queue (queue/job_queue.h has their states). A run reads unit after unit of the text
 * (evaluation_unit.h) as score tasks, which run between the steps of generations. The sums, the carried state and the
 * place in the text are the member `run` of the job's row, which clients do not see. The row and the event of progress
 * are one commit, initially every second. After any stop a job continues from its last commit and gives the same
 * report, bit for bit. Loop thread only. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATIONS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATIONS_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct evaluations evaluations;

status evaluations_new(evaluations **out, engine *e, error *err); /* loads the jobs that have not ended */
void evaluations_free(evaluations *all);
/* Start a waiting job. Called every ENGINE_TICK_MS. */
void evaluations_tick(evaluations *all);
/* End the run, which continues after the next start, and start no other. */
void evaluations_stop(evaluations *all);
bool evaluations_stopped(const evaluations *all);

/* True if a job that has not ended uses the file. */
bool evaluations_use_file(const evaluations *all, const char *id);
bool evaluations_use_model(const evaluations *all, const char *id);

void evaluations_create(stream *s);
void evaluations_list(stream *s);
void evaluations_get(stream *s);
void evaluations_cancel(stream *s);
void evaluations_delete(stream *s);
void evaluations_events(stream *s);
void evaluations_watch(stream *s);

#endif
