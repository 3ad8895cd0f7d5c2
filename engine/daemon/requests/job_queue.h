/* job_queue.h - jobs of which one runs at a time, in the order of their creation: rows of the ledger's jobs that are no
 * training jobs.
 *
 *   create ──▶ queued ──▶ running ──▶ succeeded
 *                ▲           │  └───▶ failed          cancel, of a job that has not ended ──▶ cancelled
 *                └───────────┘ a failure of the machine
 *
 * A kind of jobs has its own `object`, creation and run; documents, states, tries and the methods that only need these
 * are here. A failure of the machine (no memory, no place among the scorings, a lost device, a full disk) puts a job
 * back into the queue, to be tried again after 1, 2, … 300 seconds; a device that fails after three tries ends it. Loop
 * thread only. */
#ifndef ENGINE_DAEMON_REQUESTS_JOB_QUEUE_H
#define ENGINE_DAEMON_REQUESTS_JOB_QUEUE_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/requests/job_watch.h"

enum { JOB_QUEUE_LISTED = 20 };

typedef struct queued_job {
	struct queued_job *next;
	char id[STORE_ID_BYTES];
	json_t *document; /* the ledger's row */
	int failures;     /* in a row */
	uint64_t retry_ns;
	void *kept; /* of the kind: what its creation has read, until its first run; NULL: nothing */
} queued_job;

/* What a document has beside the members of this file (id, object, created_at, finished_at, status, error, result,
 * request) is the kind's. */
typedef struct job_queue_kind {
	const char *object, *name; /* "explain.evaluation.job", "evaluation" */
	const char *hidden[3];     /* members that clients do not see */
	void (*release)(void *kept);
	bool (*runs)(const void *owner, const char *id);        /* is there a run of this job? */
	void (*stop_run)(void *owner);                          /* end the run soon */
	json_t *(*event)(const char *state, const error *why); /* of a new state; NULL: jobs have no such events */
} job_queue_kind;

typedef struct job_queue {
	engine *engine;
	const job_queue_kind *kind;
	void *owner;
	queued_job *first; /* those that have not ended */
	int active;        /* how many these are */
	bool stopping;     /* begin no run */
	job_watch *watches;
} job_queue;

/* Read the jobs that have not ended; those that were running come first. job_queue_fini is due also after an error. */
status job_queue_init(job_queue *q, engine *e, const job_queue_kind *kind, void *owner, error *err);
void job_queue_fini(job_queue *q);

/* NULL: it has ended, or never was. */
queued_job *job_queue_find(const job_queue *q, const char *id);
/* A job of this document, which is shared, at the end. NULL: out of memory. */
queued_job *job_queue_add(job_queue *q, const char *id, json_t *document);
void job_queue_remove(job_queue *q, queued_job *j);
/* The job to run now; NULL: none waits, or the queue is stopping. The run ends with job_queue_settle. A job under which
 * the engine has died too often fails. */
queued_job *job_queue_next(job_queue *q);
/* Is the member `key` of a job that has not ended this text? */
bool job_queue_uses(const job_queue *q, const char *key, const char *id);

/* What clients see of a document. New reference. */
json_t *job_queue_public(const job_queue *q, const json_t *document);
/* A copy in another state; `ended`: finished now; why: NULL without. NULL: out of memory. */
json_t *job_queue_in_state(const json_t *document, const char *state, bool ended, const error *why);
/* Write it to the ledger, in a commit of its own or the one that is open. */
status job_queue_put(const job_queue *q, const json_t *document, error *err);
/* Write it, with the event of its state, and make it the job's (taken over also on failure; NULL is STATUS_NOMEM). */
status job_queue_change(job_queue *q, queued_job *j, json_t *next, error *err);
/* Before a row that tells of progress is made of the document: a failure after that is a first one. */
void job_queue_forget_failures(const job_queue *q, queued_job *j);
/* Take up how a run of the job has ended: it is removed, put back into the queue or failed. A job that was cancelled
 * meanwhile stays so; one that the end of the engine stops goes on after the next start. */
void job_queue_settle(job_queue *q, const char *id, status s, error *err);

/* The document of a job, ended or not; new reference. STATUS_NOT_FOUND. */
status job_queue_document(const job_queue *q, const char *id, json_t **out, error *err);
/* The methods NAME.get, cancel, delete and watch. */
void job_queue_get(stream *s, const job_queue *q);
void job_queue_cancel(stream *s, job_queue *q);
void job_queue_delete(stream *s, const job_queue *q);
void job_queue_watch(stream *s, job_queue *q, job_watch_find find);
/* For these: of a row of the ledger, what clients see of the job. */
json_t *job_queue_row(const job_queue *q, const json_t *row);
/* For `find` of job_queue_watch. */
status job_queue_find_watched(const job_queue *q, const char *id, json_t **answer, bool *ended, error *err);

#endif
