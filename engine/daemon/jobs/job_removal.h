/* job_removal.h - deletion of checkpoints beyond keep_checkpoints, by clients, and by retention.
 *
 * A checkpoint is a model like any other. It is kept while a session or a job uses it, it is being loaded, or it
 * generates. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_REMOVAL_H
#define ENGINE_DAEMON_JOBS_JOB_REMOVAL_H

#include "engine/daemon/jobs/job_table.h"

enum {
	JOB_REMOVAL_SWEEP_SECONDS = 60,
	JOB_REMOVAL_GRACE_SECONDS = 24 * 3600 /* minimum time for which a failed or cancelled job can be resumed */
};

/* Delete the oldest checkpoints of a running or waiting job beyond its keep_checkpoints intact ones. Damaged ones are
 * kept and not counted. */
void job_removal_prune(jobs *all, const job *j);
/* Retention (job_parts): delete at most one checkpoint of an ended job, the oldest first, if it is older than
 * retain_days or if all together exceed retain_bytes. The newest intact one of a failed or cancelled job is kept for
 * JOB_REMOVAL_GRACE_SECONDS. Runs every JOB_REMOVAL_SWEEP_SECONDS, after each end of a job, and again while it finds
 * something. */
void job_removal_sweep(jobs *all);

/* The methods job.delete and checkpoint.delete. */
void job_removal_delete(stream *s, job_queue *q);
void job_removal_delete_checkpoint(stream *s, job_queue *q);

#endif
