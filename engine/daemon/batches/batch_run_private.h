/* batch_run_private.h - the state of a run, which its sources share. Loop thread only, except for `work`. */
#ifndef ENGINE_DAEMON_BATCHES_BATCH_RUN_PRIVATE_H
#define ENGINE_DAEMON_BATCHES_BATCH_RUN_PRIVATE_H

#include "engine/daemon/batches/batch_document.h"
#include "engine/daemon/batches/batch_line.h"
#include "engine/daemon/batches/batch_output.h"
#include "engine/daemon/batches/batch_run.h"

/* Treatment of the lines that have not started. */
typedef enum batch_ending {
	BATCH_RUNS,
	BATCH_EXPIRES, /* they get errors */
	BATCH_CANCELS  /* they get nothing */
} batch_ending;

typedef struct batch_run {
	queued_run base;
	batch_context context;
	char fingerprint[GENERATION_ANSWER_FINGERPRINT_BYTES], key[STREAM_OWNER_BYTES];
	char path[PATH_MAX];
	store_file file;
	int64_t expires;
	batch_index index;
	batch_progress progress; /* as committed */
	batch_ending ending;
	int alone;     /* lines to commit before several run at a time */
	bool poisoned; /* the first line gets an error */
	/* The lines in memory. Those before `settled` are committed, those before `next` have been started. */
	batch_line lines[BATCH_CHUNK];
	int n, settled, next, running;
	size_t pending; /* bytes of results that are not committed */
	bool expired;   /* a line has expired */
	uint64_t committed_ns;
	status failure; /* failure of the machine: no more lines start; the run waits if it is STATUS_BUSY, else it ends */
	error reason;
	bool room;          /* a line has ended since others were refused, which may begin again */
	int retry_after;    /* seconds, of the refused lines; 0: not known */
	uint64_t resume_ns; /* no line starts before this time; by clock_ns */
	bool busy; /* the pool works, or `batch_run_advance` runs */
	batch_output output;
	bool more; /* `output` has an event to write */
	uv_work_t work;
	status result;
	error error;
} batch_run;

/* Return the run's job; NULL: it has ended. */
queued_job *batch_run_job(const batch_run *r);
/* End the run and free it. */
void batch_run_end(batch_run *r, status s, error *err);
/* Run `work` on the pool, then `done` on the loop. The run may have ended when this function returns. */
void batch_run_on_pool(batch_run *r, uv_work_cb work, uv_after_work_cb done);
/* Back on the loop: end the run if it must not continue. False: it has ended. */
bool batch_run_returned(batch_run *r);

/* batch_finish.c. No line runs: join the results to the files, and end. */
void batch_run_finalize(batch_run *r, queued_job *j);
/* The files are committed: delete the results from the ledger, and end. */
void batch_run_discard(batch_run *r);

#endif
