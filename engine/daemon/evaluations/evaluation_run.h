/* evaluation_run.h - the run of an evaluation, unit after unit; the ledger keeps its progress. Loop thread.
 *
 *   pool:     add the scores of a unit, lay out the next       (evaluation_sums.h, evaluation_unit.h)
 *   executor: read it, in slices between steps of generations  (serve/score_task.h) */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H

#include "engine/daemon/queue/job_queue.h"

extern const queued_run_steps evaluation_run_steps;

#endif
