/* faithfulness_run.h - the run of a job: text after text, each kept in the ledger as soon as it is done. Loop thread.
 */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_RUN_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_RUN_H

#include "engine/daemon/faithfulness/faithfulness_table.h"

/* Begin the run of the first job that waits, if none runs. */
void faithfulness_run_next(faithfulness_jobs *all);
bool faithfulness_run_is_of(const faithfulness_jobs *all, const char *id);
/* End the run soon. */
void faithfulness_run_cancel(faithfulness_jobs *all);

#endif
