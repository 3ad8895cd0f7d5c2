/* jobs.h - training jobs, a kind of jobs (queue/job_queue.h): the states of a job, and the methods job.* and
 * checkpoint.delete.
 *
 * The list of jobs, their pages, documents, events, watches, drafts and reload after a restart are those of every kind.
 * States, failures and runs are this folder's own, for three reasons. A client can pause a job, and a failure of the
 * machine pauses it too. A run writes checkpoints and metrics, which must survive a ledger that refuses a commit. A run
 * may outlive its job's state, because it saves a checkpoint before it ends.
 *
 *            create                      ┌──── cancel ────┐
 *   (checked) ────▶ queued ──▶ running ──┼─▶ succeeded    ▼
 *                    ▲ ▲ │        │      └─▶ failed ┐  cancelled ┐
 *                    │ │ └─ pause ┤                 │     ▲      │
 *                    │ └─ resume ─ paused ─── cancel ─────┘      │
 *                    │  or retry ┘   ▲ a failure of the machine  │
 *                    └───────────── resume, from a checkpoint ◀──┘ (failed too)
 *
 * Two kinds of failure. A failure of the job itself (its loss is not finite, its options do not fit the device) ends it
 * as "failed". A failure of the machine (disk full, I/O error, no memory, a lost device, a damaged file) pauses it.
 * additive.paused_reason of the document has the error and the time of the next attempt. Attempts follow after 1 s,
 * 2 s, … 300 s, without limit. The delay returns to 1 s when the job passes its furthest step. Only a device that fails
 * more than three times in a row ends the job; the ledger keeps that count, also across restarts of the engine.
 * job.resume retries at once. It also queues a failed or cancelled job that has an intact checkpoint again, under the
 * same id.
 *
 * Jobs that have not ended are in memory, in the order in which they will run. One runs at a time. A change of state
 * and the event that reports it are one commit. A change requested by a client is made only if the ledger accepts it. A
 * change that has happened (a run has ended) is made in memory at once and written when the ledger accepts it. A job is
 * therefore "running" exactly while it has a run, whatever the disk does. After any stop, the job that the ledger calls
 * running is first in the queue and continues from its newest intact checkpoint. The state "validating_files" does not
 * occur, because a job is validated before it exists.
 *
 * Pausing or cancelling takes effect at once; the run on the executor ends a little later. No other run starts before
 * that. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOBS_H
#define ENGINE_DAEMON_JOBS_JOBS_H

#include "engine/daemon/queue/job_machine.h"

typedef struct jobs jobs;

extern const job_kind training_jobs;

/* Return the training jobs; NULL: the machine has none. */
jobs *jobs_of(const job_machine *m);
int jobs_waiting(const jobs *all);
int jobs_running(const jobs *all);
/* Call `take` for each job that runs or is paused, with its id and its document's `additive`. */
void jobs_each_started(const jobs *all, void (*take)(void *context, const char *id, const json_t *progress),
                       void *context);

#endif
