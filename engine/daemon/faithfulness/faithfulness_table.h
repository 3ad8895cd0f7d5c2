/* faithfulness_table.h - the queue of evaluations of explanations, private to this folder. Loop thread only. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TABLE_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TABLE_H

#include "engine/daemon/faithfulness/faithfulness_corpus.h"
#include "engine/daemon/queue/job_queue.h"

#define FAITHFULNESS_OBJECT "explain.evaluation.job"

typedef struct faithfulness_jobs faithfulness_jobs;
struct faithfulness_jobs {
	job_queue queue;              /* a job keeps a faithfulness_corpus until its run */
	struct faithfulness_run *run; /* NULL: not running */
	int creations;                /* requests in progress */
};

/* Return the document of a new job; settings are taken over. NULL: out of memory. */
json_t *faithfulness_document_new(const char *id, const json_t *params, json_t *settings, int64_t texts);

#endif
