/* evaluations.h - evaluations of models over the text of a file: loss, perplexity, accuracy, as jobs.
 *
 * The jobs are a queue (requests/job_queue.h has their states). A run reads unit after unit of the text
 * (evaluation_unit.h) as scorings, which take turns with the steps of generations. The sums, the state that is carried
 * and the place in the text are a member `run` of the job's row, which clients do not see; row and event of progress
 * are one commit, every second at first. So after a stop of any kind a job goes on from its last commit, to the
 * same report bit for bit. Loop thread only. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATIONS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATIONS_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct evaluations evaluations;

status evaluations_new(evaluations **out, engine *e, error *err); /* reads the jobs that have not ended */
void evaluations_free(evaluations *all);
/* Every ENGINE_TICK_MS: begin what waits. */
void evaluations_tick(evaluations *all);
/* End the run, which goes on at the next start; begin no other. */
void evaluations_stop(evaluations *all);
bool evaluations_stopped(const evaluations *all);

/* By a job that has not ended. */
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
