/* evaluation_run.h - the run of an evaluation, unit after unit; the ledger keeps its progress. Loop thread.
 *
 *   pool:     add the scores of a unit, lay out the next       (evaluation_sums.h, evaluation_unit.h)
 *   executor: read it, in slices between steps of generations  (serve/score_task.h) */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H

#include "engine/daemon/evaluations/evaluation_document.h"

/* Start the first waiting job if none is running. */
void evaluation_run_next(evaluations *all);
bool evaluation_run_is_of(const evaluations *all, const char *id);
/* Cancel the run. */
void evaluation_run_cancel(evaluations *all);

#endif
