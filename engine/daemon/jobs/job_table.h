/* job_table.h - the jobs that have not ended, in the order in which they will run, and the requests for jobs that are
 * being checked.
 *
 * For the files of this folder: job_state.c changes a job, job_runner.c runs one, job_removal.c deletes what they have
 * left. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_TABLE_H
#define ENGINE_DAEMON_JOBS_JOB_TABLE_H

#include "engine/daemon/jobs/job_run.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/requests/job_watch.h"

/* Limits of the texts that jobs keep for their first run: bytes of memory in all, and jobs, since each text has an open
 * file. */
enum { JOB_TABLE_MAX_BYTES = 256 << 20, JOB_TABLE_MAX_KEEPING = 8 };

typedef enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED } job_state;

typedef struct job {
	struct job *next;
	char id[STORE_ID_BYTES];
	job_state state;
	json_t *document;  /* what the API answers; the ledger's row, unless `stale` */
	json_t *unwritten; /* array: events and checkpoints for the next commit, oldest first */
	bool stale;        /* the document has changed since it was written, in more than its progress */
	uint64_t late_ns;  /* the ledger has refused it: when to try again; 0: it has not */
	bool unsettled;    /* its run has ended with `reason`, and there was no memory to change the state */
	error reason;      /* the machine's last failure; STATUS_OK: none since the last progress */
	int failures, device_failures; /* in a row */
	uint64_t retry_ns;             /* paused by a failure: when to try again; 0: not by itself */
	int64_t best_step;             /* the furthest any run of it got */
	int64_t metrics_step;          /* of the last metrics event; -1: not looked up yet */
	corpus_texts texts; /* as its creation has read them, until its first run; empty: they are read again */
} job;

/* What a request for a job will use; a member of that request. */
typedef struct job_reservation {
	struct job_reservation *next, **link;
	const corpus_file *training; /* with ids of files, "" for none */
	size_t n_training;
	const char *validation; /* id of a file; "" for none */
	const char *tokenizer;  /* id of a file; NULL for none */
	const char *base;       /* id of a model; NULL: from scratch */
} job_reservation;

typedef struct jobs jobs;
struct jobs {
	engine *engine;
	job *first; /* those that have not ended, in the order they will run */
	job_run *run;
	job_reservation *reservations;
	job_watch *watches;
	uint64_t sweep_ns;    /* when retention is looked at next */
	uint64_t began_ns;    /* the two clocks when the table was made: ages are counted by the monotonic one, */
	int64_t began_unix;   /* so that a jump of the other removes nothing */
	int active, reserved; /* jobs, reservations */
	bool stopping;
};

/* NULL: it has ended, or never was. */
job *job_table_find(const jobs *all, const char *id);
void job_table_append(jobs *all, job *j);
void job_table_take_out(jobs *all, job *j);
/* A job that is not in the table yet; the document is shared. NULL when out of memory. */
job *job_table_make(const char *id, json_t *document);
void job_table_release(job *j);
/* Let the job of that id keep the texts, which are taken over, if there is room; else they stay the caller's. */
void job_table_keep_texts(jobs *all, const char *id, corpus_texts *texts);
/* Forget a job that was added in a commit which has failed. */
void job_table_discard(jobs *all, const char *id);
/* Is the run on the executor this job's? */
bool job_table_is_run_of(const jobs *all, const char *id);
/* The ledger's row of a training job (new reference). STATUS_NOT_FOUND. */
status job_table_stored(const jobs *all, const char *id, json_t **out, error *err);
/* The document of a job, ended or not (new reference). STATUS_NOT_FOUND. */
status job_table_document(const jobs *all, const char *id, json_t **out, bool *ended, error *err);
/* Is this the name of a model, or will a job give it to one? */
bool job_table_name_taken(const jobs *all, const char *result);
/* Used by a job that has not ended, or by a request for one. */
bool job_table_uses_file(const jobs *all, const char *id);
bool job_table_uses_model(const jobs *all, const char *id);
/* The names in r stay where they are until the end. */
void job_table_reserve(jobs *all, job_reservation *r);
void job_table_end_reservation(jobs *all, job_reservation *r);

#endif
