/* job_runner.h - starts runs and applies their reports to the jobs. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_RUNNER_H
#define ENGINE_DAEMON_JOBS_JOB_RUNNER_H

#include "engine/daemon/jobs/job_table.h"

/* Start the first waiting job if nothing is running. */
void job_runner_next(jobs *all);

#endif
