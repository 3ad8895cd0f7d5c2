/* job_creation.h - the method job.create, from a request to a queued job.
 *
 * Everything is checked before the job exists, so a mistake is an error response and not a failed job. Fields, files
 * and models are checked on the loop, the texts on the pool. A dry run ends there; without a training file it ends
 * before the texts. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_CREATION_H
#define ENGINE_DAEMON_JOBS_JOB_CREATION_H

#include "engine/daemon/queue/job_queue.h"

/* Create a job and answer s. While the texts are checked, the files and models that it will use are reserved in the
 * table. */
void job_creation_begin(stream *s, job_queue *q);

#endif
