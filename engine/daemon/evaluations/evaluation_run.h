/* evaluation_run.h - the run of an evaluation: unit after unit, kept in the ledger as it goes. Loop thread.
 *
 *   pool:     the scores of a unit are added, the next is laid out     (evaluation_sums.h, evaluation_unit.h)
 *   executor: it is read, in slices behind the steps of generations    (serve/scoring.h) */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H

#include "engine/daemon/evaluations/evaluation_document.h"

/* Begin the run of the first job that waits, if none runs. */
void evaluation_run_next(evaluations *all);
bool evaluation_run_is_of(const evaluations *all, const char *id);
/* End the run soon. */
void evaluation_run_cancel(evaluations *all);

#endif
