/* job_creation.h - the method job.create: from a request to a queued job.
 *
 * Everything is judged before the job exists, so a mistake is an answer and not a failed job: fields, files and
 * models on the loop, the texts themselves on the pool. A dry run ends there, and without a training file before the
 * texts. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_CREATION_H
#define ENGINE_DAEMON_JOBS_JOB_CREATION_H

#include "engine/daemon/jobs/jobs.h"

typedef struct job_creation job_creation;

/* Answers s. While the texts are checked, the creation is in the list. */
void job_creation_begin(job_creation **list, stream *s);
int job_creation_count(const job_creation *list);
bool job_creation_uses_file(const job_creation *list, const char *id);
bool job_creation_uses_model(const job_creation *list, const char *id);

#endif
