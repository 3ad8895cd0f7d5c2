/* job_runner.h - begins runs, and turns what they report into changes of their jobs. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_RUNNER_H
#define ENGINE_DAEMON_JOBS_JOB_RUNNER_H

#include "engine/daemon/jobs/job_table.h"

/* While nothing runs, begin the first job that waits. */
void job_runner_next(jobs *all);

#endif
