/* job_removal.h - what goes: checkpoints beyond keep_checkpoints, what clients delete, what retention removes.
 *
 * A checkpoint is a model like any other: one that a session uses, that a job begins with, or that is being loaded or
 * generates stays. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_REMOVAL_H
#define ENGINE_DAEMON_JOBS_JOB_REMOVAL_H

#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/net/stream.h"

enum {
	JOB_REMOVAL_SWEEP_SECONDS = 60,
	JOB_REMOVAL_GRACE_SECONDS = 24 * 3600 /* a failed or cancelled job can be resumed for so long, at least */
};

/* Remove the oldest checkpoints of a job that has not ended, down to its keep_checkpoints intact ones. Damaged ones
 * stay, and do not count. */
void job_removal_prune(jobs *all, const job *j);
/* Retention (engine_options): remove at most one checkpoint of a job that has ended, the oldest first, when it is
 * older than retain_days or all of them together have more than retain_bytes. The newest intact one of a failed or
 * cancelled job stays for JOB_REMOVAL_GRACE_SECONDS after the end. Looks every JOB_REMOVAL_SWEEP_SECONDS, after each
 * end of a job, and again as long as it finds something. */
void job_removal_sweep(jobs *all);

/* The methods job.delete and checkpoint.delete. */
void job_removal_delete(stream *s);
void job_removal_delete_checkpoint(stream *s);

#endif
