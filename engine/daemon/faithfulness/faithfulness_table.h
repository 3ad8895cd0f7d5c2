/* faithfulness_table.h - the queue of evaluations of explanations, for the files of this folder. Loop thread only. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TABLE_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TABLE_H

#include "engine/daemon/faithfulness/faithfulness_corpus.h"
#include "engine/daemon/requests/job_queue.h"

#define FAITHFULNESS_OBJECT "explain.evaluation.job"

typedef struct faithfulness_jobs faithfulness_jobs;
struct faithfulness_jobs {
	job_queue queue;              /* what a job has kept is a faithfulness_corpus */
	struct faithfulness_run *run; /* NULL: none */
	int creations;                /* requests under way */
};

/* A new job's document; settings are taken over. NULL: out of memory. */
json_t *faithfulness_document_new(const char *id, const json_t *params, json_t *settings, int64_t texts);

#endif
