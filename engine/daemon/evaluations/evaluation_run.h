/* evaluation_run.h - the run of a job: text after text, each kept in the ledger as soon as it is done. Loop thread. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_RUN_H

#include "engine/daemon/evaluations/evaluation_table.h"

/* Begin the run of the first job that waits, if none runs. */
void evaluation_run_next(evaluations *all);
bool evaluation_run_is_of(const evaluations *all, const char *id);
/* End the run soon. */
void evaluation_run_cancel(evaluations *all);

#endif
