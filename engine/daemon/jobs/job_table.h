/* job_table.h - the jobs that have not ended, in the order in which they will run, and the requests for jobs that are
 * being checked.
 *
 * Private to this folder: job_state.c changes a job, job_runner.c runs one, job_removal.c deletes their files. Loop
 * thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_TABLE_H
#define ENGINE_DAEMON_JOBS_JOB_TABLE_H

#include "engine/daemon/jobs/job_run.h"
#include "engine/daemon/queue/job_queue.h"

/* Limits of the texts that jobs keep for their first run: total bytes of memory, and jobs, since each text has an open
 * file. */
enum { JOB_TABLE_MAX_BYTES = 256 << 20, JOB_TABLE_MAX_KEEPING = 8 };

typedef enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED } job_state;

typedef struct job {
	queued_job base; /* its document is equal to the ledger's row unless `stale`. retry_ns: paused by a failure:
	                  * time of the next attempt; 0: none is scheduled */
	job_state state;
	json_t *unwritten; /* array of events and checkpoints for the next commit, oldest first */
	bool stale;        /* the document differs from the ledger's row, in more than its progress */
	uint64_t late_ns;  /* the ledger refused a commit: time of the next attempt; 0: no */
	bool unsettled;    /* its run has ended with `reason`, but there was no memory to change the state */
	error reason;      /* last failure of the machine; STATUS_OK: none since the last progress */
	int device_failures;  /* consecutive */
	int64_t best_step;    /* furthest step of any of its runs */
	int64_t metrics_step; /* step of the last metrics event; -1: unknown */
	corpus_texts texts;   /* from its creation until its first run; empty: the run reads them again */
} job;

/* The files and models that a request for a job will use; a member of that request. */
typedef struct job_reservation {
	struct job_reservation *next, **link;
	const corpus_file *training; /* their ids, "" for none */
	size_t n_training;
	const char *validation; /* its id; "" for none */
	const char *tokenizer;  /* its id; NULL for none */
	const char *base;       /* its id; NULL: train from scratch */
} job_reservation;

typedef struct jobs jobs;
struct jobs {
	job_queue queue; /* its run is a job_run */
	job_reservation *reservations;
	uint64_t sweep_ns;  /* time of the next retention sweep */
	uint64_t began_ns;  /* both clocks when the table was created; ages are counted on the monotonic one, */
	int64_t began_unix; /* so a jump of the system clock deletes nothing */
};

/* Return a job; NULL: it has ended or never existed. */
job *job_table_find(const jobs *all, const char *id);
/* Return the first job, or the one after j; NULL: none. */
job *job_table_first(const jobs *all);
job *job_table_next(const job *j);
/* Set the members of a job from its document, and free them (job_kind). */
bool job_table_load(queued_job *base);
void job_table_release(queued_job *base);
/* Let job `id` keep the texts. They are taken over if there is room, otherwise they stay with the caller. */
void job_table_keep_texts(jobs *all, const char *id, corpus_texts *texts);
/* Forget a job that was added by a commit that failed. */
void job_table_discard(jobs *all, const char *id);
/* True if a model has this name or a job will give it to one. */
bool job_table_name_taken(const jobs *all, const char *result);
/* True if a job that has not ended, or a request for one, uses the file. */
bool job_table_uses_file(const jobs *all, const char *id);
bool job_table_uses_model(const jobs *all, const char *id);
/* Add a reservation; its names must stay valid until it is removed. */
void job_table_reserve(jobs *all, job_reservation *r);
void job_table_end_reservation(jobs *all, job_reservation *r);

#endif
