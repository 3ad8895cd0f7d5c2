/* job_schedule.h - when a job that waits will run. One job runs at a time, so its start is the end of those before it. */
#ifndef ENGINE_DAEMON_JOBS_JOB_SCHEDULE_H
#define ENGINE_DAEMON_JOBS_JOB_SCHEDULE_H

#include "engine/daemon/queue/job_queue.h"

/* Return the part of a job's document that clients see. `additive` has two members more: queue_position, 1 for the next
 * job to run, and expected_start in Unix time. Both are null unless the job waits; the start is also null if the time of
 * a job before it is unknown. A job that waits and is not in the queue yet will be its last. New reference; NULL: out of
 * memory. q: the queue of training jobs. Loop thread. */
json_t *job_schedule_show(const job_queue *q, const json_t *document);
/* Return the event that says how many jobs a new one waits for, and about how long; NULL: none, or out of memory. Loop
 * thread. */
json_t *job_schedule_event(const job_queue *q);

#endif
