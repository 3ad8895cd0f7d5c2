/* faithfulness_run.h - the run of a job, text after text; each is stored in the ledger when it is complete. Loop
 * thread. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_RUN_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_RUN_H

#include "engine/daemon/queue/job_queue.h"

extern const queued_run_steps faithfulness_run_steps;

#endif
