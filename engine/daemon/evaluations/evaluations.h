/* evaluations.h - how faithful explanations are: evaluations of an input, and jobs over the texts of a file.
 *
 *   create ──▶ queued ──▶ running ──▶ succeeded
 *                ▲           │  └───▶ failed          cancel, of a job that has not ended ──▶ cancelled
 *                └───────────┘ a failure of the machine
 *
 * One job runs at a time. The numbers of a text and the job's row that counts it are one commit (the texts are events
 * of the job in the ledger), so that after a stop of any kind a job goes on with the text that it was at. A failure of
 * the machine (no memory, no place among the scorings, a lost device, a full disk) puts the job back into the queue, to
 * be tried again after 1, 2, … 300 seconds; a device that fails after three tries ends it. Loop thread only. */
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
void evaluations_rows(stream *s);

#endif
