/* job_creation.h - the method job.create: from a request to a queued job.
 *
 * Everything is judged before the job exists, so a mistake is an answer and not a failed job: fields, files and
 * models on the loop, the texts themselves on the pool. A dry run ends there, and without a training file before the
 * texts. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_CREATION_H
#define ENGINE_DAEMON_JOBS_JOB_CREATION_H

#include "engine/daemon/net/stream.h"

/* Answers s. While the texts are checked, what they will use is reserved in the table. */
void job_creation_begin(stream *s);

#endif
