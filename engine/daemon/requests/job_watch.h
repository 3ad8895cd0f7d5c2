/* job_watch.h - streams that follow a job's events as they come.
 *
 * A watch holds no events, only the id of the last one it has sent: what comes next is read from the ledger when
 * there is credit. So a slow watcher costs nothing, and one that comes back with the id of its last event misses none.
 * Loop thread only. */
#ifndef ENGINE_DAEMON_REQUESTS_JOB_WATCH_H
#define ENGINE_DAEMON_REQUESTS_JOB_WATCH_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

/* The watches of one kind of jobs: a list, NULL at first. */
typedef struct job_watch job_watch;

/* Find a job. *ended: it has no further events, and *answer is what clients see of it (new reference; NULL: out of
 * memory); else *answer is NULL. STATUS_NOT_FOUND. */
typedef status (*job_watch_find)(const engine *e, const char *id, json_t **answer, bool *ended, error *err);

/* Follow the job s->target from the event params.after on; answers with the job when that has ended. */
void job_watch_begin(stream *s, job_watch **list, job_watch_find find);
/* Something has happened to the job. */
void job_watch_pump(job_watch *list, const char *id);

#endif
