/* faithfulness_job.h - a job that evaluates explanations of the texts of a file. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_JOB_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_JOB_H

#include "engine/daemon/faithfulness/faithfulness_corpus.h"
#include "engine/daemon/queue/job_queue.h"

typedef struct faithfulness_job {
	queued_job base;
	faithfulness_corpus texts; /* from its creation until its first run; empty: the run reads them again */
} faithfulness_job;

#endif
