/* jobs.h - training jobs: the queue, the states of a job, and the methods job.* and checkpoint.delete.
 *
 *            create                      ┌──── cancel ────┐
 *   (checked) ────▶ queued ──▶ running ──┼─▶ succeeded    ▼
 *                    ▲ ▲ │        │      └─▶ failed ┐  cancelled ┐
 *                    │ │ └─ pause ┤                 │     ▲      │
 *                    │ └─ resume ─ paused ─── cancel ─────┘      │
 *                    │  or retry ┘   ▲ a failure of the machine  │
 *                    └───────────── resume, from a checkpoint ◀──┘ (failed too)
 *
 * Failures are of two kinds. One of the job itself (its loss is not finite, its options do not fit the device) ends the
 * job: "failed". One of the machine (disk full, I/O error, no memory, a lost device, a damaged file) pauses it: the
 * document's additive.paused_reason holds the error and the time of the next try. Tries come after 1 s, 2 s, … 300 s,
 * without end, and begin anew at 1 s when the job gets further than ever before; only a device that fails more than
 * three times in a row ends the job, in however many processes of the engine: the ledger keeps the count. job.resume
 * tries at once. It also puts a failed or cancelled job that has an intact checkpoint into the queue again, under the
 * same id.
 *
 * Jobs that have not ended are held in memory, in the order in which they will run; one runs at a time. A change of
 * state and the event that reports it are one commit. A change that a client asks for is made only when the ledger
 * takes it. A change that has happened (a run has ended) is made in memory at once and is written as soon as the
 * ledger takes it, so a job is "running" exactly while it has a run, whatever the disk does. After a stop of any kind a
 * job that the ledger calls running comes first again and goes on from its newest intact checkpoint.
 * ("validating_files" is never seen: a job is validated before it exists.)
 *
 * A job that is paused or cancelled is so at once; the run on the executor ends a little later, and
 * until then no other begins. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOBS_H
#define ENGINE_DAEMON_JOBS_JOBS_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct jobs jobs;

status jobs_new(jobs **out, engine *e, error *err); /* reads those that have not ended */
/* Begin what waits. */
void jobs_start(jobs *all);
/* Retries and retention; every ENGINE_TICK_MS. */
void jobs_tick(jobs *all);
/* Let the running job save a checkpoint and end its run; begin no other. */
void jobs_stop(jobs *all);
bool jobs_stopped(const jobs *all);
void jobs_free(jobs *all);

/* By a job that has not ended, or a request for one. */
bool jobs_use_file(const jobs *all, const char *id);
bool jobs_use_model(const jobs *all, const char *id);
int jobs_waiting(const jobs *all);
int jobs_running(const jobs *all);
/* For each job that runs or is paused: its id and `additive` of its document. */
void jobs_each_begun(const jobs *all, void (*take)(void *context, const char *id, const json_t *progress),
                     void *context);

void jobs_create(stream *s);
void jobs_list(stream *s);
void jobs_get(stream *s);
void jobs_cancel(stream *s);
void jobs_pause(stream *s);
void jobs_resume(stream *s);
void jobs_delete(stream *s);
void jobs_events(stream *s);
void jobs_watch(stream *s);
void jobs_checkpoints(stream *s);
void jobs_delete_checkpoint(stream *s);

#endif
