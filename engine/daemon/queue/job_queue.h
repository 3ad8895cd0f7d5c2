/* job_queue.h - the queue of one kind of jobs, which are rows of the ledger. One job of a kind runs at a time, in the
 * order of creation.
 *
 *   create ──▶ queued ──▶ running ──▶ succeeded
 *                ▲           │  └───▶ failed          cancel, of a job that has not ended ──▶ cancelled
 *                └───────────┘ a failure of the machine
 *
 * A kind is one table, job_kind: its constants, the steps of a request for a job (job_draft.h) and the steps of a run.
 * Everything else is common: documents, states, retries, restarts, and the methods that clients call
 * (job_machine.h). To add a kind, write the table in one file and add its name to JOB_KINDS (dispatch.c).
 *
 * A failure of the machine (no memory, no free score task, a lost device, a full disk) queues a job again. The delay
 * grows: 1, 2, … 300 seconds. A device that fails more than three times ends it. Loop thread only. */
#ifndef ENGINE_DAEMON_QUEUE_JOB_QUEUE_H
#define ENGINE_DAEMON_QUEUE_JOB_QUEUE_H

#include <uv.h>

#include "engine/base/death_log.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/queue/job_watch.h"

enum { JOB_QUEUE_LISTED = 20 };

typedef struct job_queue job_queue;
struct job_draft_steps;

/* Parts of the engine that jobs use. */
typedef struct job_parts {
	uv_loop_t *loop;
	net *net;
	store *store;
	death_log *deaths; /* NULL: not counted */
	catalog *catalog;
	fleet *fleet;
	struct sessions *sessions;
	const char *cache_folder; /* cached tokens */
	int64_t cache_budget;     /* bytes that no job uses */
	int threads;              /* 0: all cores */
	int retain_days;          /* retention of checkpoints of ended jobs (engine_options) */
	int64_t retain_bytes;
	struct trace_outbox *traces; /* NULL: spans of jobs are not sent */
	struct job_queue *queues;    /* one of each kind, linked by `sibling` */
} job_parts;

/* First member of a kind's jobs that have not ended. */
typedef struct queued_job {
	struct queued_job *next;
	char id[STORE_ID_BYTES];
	json_t *document;  /* equal to the ledger's row */
	int failures;      /* consecutive */
	uint64_t retry_ns; /* time on clock_ns before which the job does not start */
} queued_job;

/* First member of a kind's runs. */
typedef struct queued_run {
	job_queue *queue;
	char id[STORE_ID_BYTES];
	model_entry *model;
	bool cancelled; /* by a client or by the end of the engine */
} queued_run;

/* The steps of a run. The last one must call job_queue_end_run, which frees the run. */
typedef struct queued_run_steps {
	size_t bytes; /* size of the struct that begins with a queued_run */
	/* Read the job. The run is zeroed, except for its base with the opened model. */
	status (*open)(queued_run *r, queued_job *j, error *err);
	/* Start; the ledger has the state "running". After an error the run is freed without job_queue_end_run. */
	status (*start)(queued_run *r, queued_job *j);
	void (*cancel)(queued_run *r); /* r->cancelled is set: end soon */
	void (*fini)(queued_run *r);   /* release the members after the base; also after an error of `open` */
} queued_run_steps;

/* A method of one kind. */
typedef struct job_method {
	const char *name; /* "faithfulness.rows" */
	void (*begin)(stream *s, job_queue *q);
	bool counted; /* see dispatch.c */
} job_method;

/* A kind of jobs. All documents have the members id, object, created_at, finished_at, status, model, error and result;
 * others belong to the kind. Members marked "optional" may be 0 or NULL. */
typedef struct job_kind {
	const char *name;               /* first part of its methods' names */
	const char *object;             /* "object" of its documents */
	const char *noun;               /* in messages */
	const char *prefix;             /* start of its ids */
	const char *use;                /* message of the error for deleting a model that its jobs use */
	const char *hidden[3];          /* at most two members that clients do not see, then NULL */
	int max_active, max_drafts;     /* jobs that have not ended; requests for jobs in progress */
	int max_page;                   /* optional: limit of a page of jobs */
	size_t job_bytes;               /* size of the struct that begins with a queued_job */
	bool (*load)(queued_job *j);    /* optional: set its members from the document; false: out of memory */
	void (*release)(queued_job *j); /* optional: release its members, also after an error of `load` */
	bool without_model;             /* optional: its documents name no model; its runs have none */
	/* Optional: return the document of the end of a waiting job whose time has passed (new reference); NULL: it
	 * continues to wait. */
	json_t *(*overdue)(const queued_job *j);
	const char *first_phase;        /* optional: of a run, in its trace (job_trace.h); NULL: "running" */
	bool settles_poison;            /* optional: run also a job during which the engine has died too often */
	const job_method
	    *methods; /* optional: further methods, up to one without a name; they may replace common ones */
	const struct job_draft_steps *draft; /* optional; NULL: `methods` has NAME.create */
	const queued_run_steps *run;
	json_t *(*event)(const char *state,
	                 const error *err); /* optional: return the event of a new state (new reference) */
	/* Kinds that differ more (jobs/jobs.h): */
	size_t queue_bytes;                       /* optional: size of the struct that begins with a job_queue */
	void (*init)(job_queue *q);               /* optional: set its members */
	void (*tick)(job_queue *q);               /* optional: in place of job_queue_run_next */
	bool (*owns)(const json_t *document);     /* optional: in place of a comparison with `object` */
	/* Optional: in place of `hidden`; new reference. */
	json_t *(*shown)(const job_queue *q, const json_t *document);
	bool (*uses_file)(const job_queue *q, const char *id);  /* optional: in place of the member "file" */
	bool (*uses_model)(const job_queue *q, const char *id); /* optional: in place of the member "model" */
} job_kind;

struct job_queue {
	const job_parts *parts;
	const job_kind *kind;
	job_queue *sibling;
	queued_job *first;  /* jobs that have not ended */
	int active;         /* their number */
	int drafts;         /* requests for jobs in progress */
	queued_run *run;    /* NULL: none */
	bool stopping;      /* start no run */
	job_watch *watches; /* streams that follow jobs of this kind */
};

/* Create a queue and load the jobs that have not ended: running ones first, then queued, then paused (jobs/jobs.h).
 * *out must be freed also after an error. */
status job_queue_new(job_queue **out, const job_parts *parts, const job_kind *kind, error *err);
void job_queue_free(job_queue *q);

/* STATUS_RATE_LIMITED: the project has as many jobs that have not ended, of all kinds, as the request allows. Checked in the
 * loop's turn in which a job is added. */
status job_queue_check_quota(const job_queue *q, const stream *s, const char *project, error *err);

/* Return a job; NULL: it has ended or never existed. */
queued_job *job_queue_find(const job_queue *q, const char *id);
/* Create a job outside the queue, with a reference of its own to the document. NULL: out of memory. */
queued_job *job_queue_make(const job_queue *q, const char *id, json_t *document);
void job_queue_append(job_queue *q, queued_job *j);
void job_queue_take_out(job_queue *q, queued_job *j);
/* Free a job that is not in the queue. */
void job_queue_release(const job_queue *q, queued_job *j);
/* Take out and free a job that has ended; its watches end. */
void job_queue_remove(job_queue *q, queued_job *j);
/* True if a job that has not ended uses the file or the model. */
bool job_queue_uses_file(const job_queue *q, const char *id);
bool job_queue_uses_model(const job_queue *q, const char *id);
/* True if the current run is that of job `id`, which may have ended meanwhile. */
bool job_queue_runs(const job_queue *q, const char *id);

/* Return the document of a new job (new reference); NULL: out of memory. own: the kind's members, an object, taken
 * over; NULL is an error. */
json_t *job_queue_document_new(const job_queue *q, const char *id, json_t *params, json_t *own);
/* Return the part of a document that clients see. New reference. */
json_t *job_queue_public(const job_queue *q, const json_t *document);
/* Return a copy in another state. ended: finished now. err: reason, or NULL. NULL: out of memory. */
json_t *job_queue_in_state(const json_t *document, const char *state, bool ended, const error *err);
/* Write a document to the ledger, in its own commit or the open one. */
status job_queue_put(const job_queue *q, const json_t *document, error *err);
/* Return the document of a job, ended or not (new reference). STATUS_NOT_FOUND. */
status job_queue_document(const job_queue *q, const char *id, json_t **out, error *err);
/* Return STATUS_NOT_FOUND with its message. */
status job_queue_no_job(const job_queue *q, const char *id, error *err);

/* Write `next` with the event of its state and make it the job's document. It is taken over also on failure; NULL is
 * STATUS_NOMEM. */
status job_queue_change(job_queue *q, queued_job *j, json_t *next, error *err);
/* The run has made progress: reset the failure count and write `next` and `event`, as job_queue_change does. */
status job_queue_progress(job_queue *q, queued_job *j, json_t *next, json_t *event, error *err);
/* Write the result into `next` and let the job succeed. The caller keeps its reference to the result. next: as for
 * job_queue_change. */
status job_queue_succeed(job_queue *q, queued_job *j, json_t *next, json_t *result, error *err);
/* Cancel a job and its run; the job is freed. *answer: the document that clients see (new reference). On error nothing
 * changes and *answer is NULL. */
status job_queue_cancel(job_queue *q, queued_job *j, json_t **answer, error *err);

/* Start the first waiting job if none is running. Jobs during which the engine has died too often fail here. */
void job_queue_run_next(job_queue *q);
/* End the run, start no other. */
void job_queue_stop(job_queue *q);
/* Apply the end of a run, free it and start the next. A failure of the machine queues the job again, another one ends
 * it. A cancelled job stays cancelled. A job stopped by the end of the engine continues after the next start. */
void job_queue_end_run(queued_run *r, status s, error *err);

#endif
