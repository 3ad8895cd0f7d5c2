/* job_watch.h - streams that follow a job's events as they come.
 *
 * A watch holds no events, only the id of the last one it has sent: what comes next is read from the ledger when
 * there is credit. So a slow watcher costs nothing, and one that comes back with the id of its last event misses none.
 */
#ifndef ENGINE_DAEMON_JOBS_JOB_WATCH_H
#define ENGINE_DAEMON_JOBS_JOB_WATCH_H

#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/net/stream.h"

/* Follow the job s->target from the event params.after on; answers with the job when that has ended. */
void job_watch_begin(stream *s);
/* Something has happened to the job. */
void job_watch_pump(const jobs *all, const char *id);

#endif
