/* job_watch.h - streams that follow a job's events.
 *
 * A watch stores only the id of the last event sent; the next ones are read from the ledger once there is credit. A
 * slow watcher therefore costs nothing, and a client that returns with the id of its last event misses none. Loop
 * thread only. */
#ifndef ENGINE_DAEMON_QUEUE_JOB_WATCH_H
#define ENGINE_DAEMON_QUEUE_JOB_WATCH_H

#include "engine/daemon/net/stream.h"

/* The watches of one kind of jobs: a list, initially NULL. */
typedef struct job_watch job_watch;

/* Find a job. *ended: no more events follow, and *answer is what clients see of it (new reference; NULL: out of
 * memory). Otherwise *answer is NULL. STATUS_NOT_FOUND. */
typedef status (*job_watch_find)(const void *context, const char *id, json_t **answer, bool *ended, error *err);

/* Follow the job s->target, starting after event params.after. Answers with the job once it has ended.
 * context: the argument of `find`, valid while the list is. */
void job_watch_begin(stream *s, job_watch **list, job_watch_find find, const void *context);
/* The job may have new events: serve its watches. */
void job_watch_pump(job_watch *list, const char *id);

#endif
