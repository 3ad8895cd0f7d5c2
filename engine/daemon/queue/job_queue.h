/* job_queue.h - jobs other than training jobs, as rows of the ledger. One runs at a time, in the order of creation.
 *
 *   create ──▶ queued ──▶ running ──▶ succeeded
 *                ▲           │  └───▶ failed          cancel, of a job that has not ended ──▶ cancelled
 *                └───────────┘ a failure of the machine
 *
 * Each kind of jobs has its own `object`, creation and run. Documents, states, retries and the methods that need
 * nothing else are here. A failure of the machine (no memory, no free score task, a lost device, a full disk) queues a
 * job again, with delays of 1, 2, … 300 seconds. A device that fails more than three times ends it. Loop thread only.
 */
#ifndef ENGINE_DAEMON_QUEUE_JOB_QUEUE_H
#define ENGINE_DAEMON_QUEUE_JOB_QUEUE_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/queue/job_watch.h"

enum { JOB_QUEUE_LISTED = 20 };

typedef struct queued_job {
	struct queued_job *next;
	char id[STORE_ID_BYTES];
	json_t *document; /* equal to the ledger's row */
	int failures;     /* consecutive */
	uint64_t retry_ns;
	void *kept; /* private to the kind: data from the job's creation for its first run; NULL: none */
} queued_job;

/* A kind of jobs. The members below are common to all documents (id, object, created_at, finished_at, status, error,
 * result, request); others belong to the kind. */
typedef struct job_queue_kind {
	const char *object, *name; /* "explain.evaluation.job", "evaluation" */
	const char *hidden[3];     /* members that clients do not see */
	void (*release)(void *kept);
	bool (*runs)(const void *owner, const char *id);       /* true if the job has a run */
	void (*stop_run)(void *owner);                         /* stop the run */
	json_t *(*event)(const char *state, const error *err); /* event of a new state; NULL: the kind has no such
	                                                        * events */
} job_queue_kind;

typedef struct job_queue {
	engine *engine;
	const job_queue_kind *kind;
	void *owner;
	queued_job *first; /* jobs that have not ended */
	int active;        /* their number */
	bool stopping;     /* start no run */
	job_watch *watches;
} job_queue;

/* Load the jobs that have not ended; those that were running come first. Call job_queue_fini also after an error. */
status job_queue_init(job_queue *q, engine *e, const job_queue_kind *kind, void *owner, error *err);
void job_queue_fini(job_queue *q);

/* Return a job; NULL: it has ended or never existed. */
queued_job *job_queue_find(const job_queue *q, const char *id);
/* Append a job with this document, which is shared. NULL: out of memory. */
queued_job *job_queue_add(job_queue *q, const char *id, json_t *document);
void job_queue_remove(job_queue *q, queued_job *j);
/* Return the job to run now; NULL: none is waiting, or the queue is stopping. The run must end with job_queue_settle.
 * Jobs during which the engine has died too often fail here. */
queued_job *job_queue_next(job_queue *q);
/* True if the member `key` of a job that has not ended equals `id`. */
bool job_queue_uses(const job_queue *q, const char *key, const char *id);

/* Return the part of a document that clients see. New reference. */
json_t *job_queue_public(const job_queue *q, const json_t *document);
/* Return a copy in another state. ended: finished now. err: reason, or NULL. NULL: out of memory. */
json_t *job_queue_in_state(const json_t *document, const char *state, bool ended, const error *err);
/* Write a document to the ledger, in its own commit or the open one. */
status job_queue_put(const job_queue *q, const json_t *document, error *err);
/* Write `next` with the event of its state and make it the job's document. It is taken over also on failure; NULL is
 * STATUS_NOMEM. */
status job_queue_change(job_queue *q, queued_job *j, json_t *next, error *err);
/* Reset the failure count, before the document becomes a row that reports progress. */
void job_queue_forget_failures(const job_queue *q, queued_job *j);
/* Apply the end of a run: remove the job, queue it again or fail it. A cancelled job stays cancelled. A job stopped by
 * the end of the engine continues after the next start. */
void job_queue_settle(job_queue *q, const char *id, status s, error *err);

/* Return the document of a job, ended or not (new reference). STATUS_NOT_FOUND. */
status job_queue_document(const job_queue *q, const char *id, json_t **out, error *err);
/* The methods NAME.get, cancel, delete and watch. */
void job_queue_get(stream *s, const job_queue *q);
void job_queue_cancel(stream *s, job_queue *q);
void job_queue_delete(stream *s, const job_queue *q);
void job_queue_watch(stream *s, job_queue *q, job_watch_find find);
/* For these methods: return what clients see of a ledger row. */
json_t *job_queue_row(const job_queue *q, const json_t *row);
/* The `find` argument of job_queue_watch. */
status job_queue_find_watched(const job_queue *q, const char *id, json_t **answer, bool *ended, error *err);

#endif
