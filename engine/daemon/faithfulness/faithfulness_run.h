/* faithfulness_run.h - the run of a job, text after text; each is stored in the ledger when it is complete. Loop
 * thread. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_RUN_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_RUN_H

#include "engine/daemon/faithfulness/faithfulness_table.h"

/* Start the first waiting job if none is running. */
void faithfulness_run_next(faithfulness_jobs *all);
bool faithfulness_run_is_of(const faithfulness_jobs *all, const char *id);
/* Cancel the run. */
void faithfulness_run_cancel(faithfulness_jobs *all);

#endif
