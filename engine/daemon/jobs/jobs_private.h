/* jobs_private.h - the table of jobs, for the files that change it: jobs.c, job_state.c, job_runner.c, job_removal.c.
 */
#ifndef ENGINE_DAEMON_JOBS_JOBS_PRIVATE_H
#define ENGINE_DAEMON_JOBS_JOBS_PRIVATE_H

#include "engine/daemon/jobs/job_creation.h"
#include "engine/daemon/jobs/job_run.h"
#include "engine/daemon/jobs/job_watch.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/requests/engine.h"

struct jobs {
	engine *engine;
	job *first; /* those that have not ended, in the order they will run */
	job_run *run;
	job_creation *creations; /* not jobs yet */
	job_watch *watches;
	uint64_t sweep_ns;  /* when retention is looked at next */
	uint64_t began_ns;  /* the two clocks when the table was made: ages are counted by the monotonic one, */
	int64_t began_unix; /* so that a jump of the other removes nothing */
	int active;
	bool stopping;
};

/* NULL: it has ended, or never was. */
job *jobs_find(const jobs *all, const char *id);
void jobs_append(jobs *all, job *j);
void jobs_take_out(jobs *all, job *j);
/* A job that is not in the table yet; the document is shared. NULL when out of memory. */
job *jobs_make(const char *id, json_t *document);
void jobs_release(job *j);
/* Is the run on the executor this job's? */
bool jobs_is_run_of(const jobs *all, const char *id);

/* A member that is a string; NULL when it is not. */
const char *jobs_text(const json_t *document, const char *key);

#endif
