/* job_machine.h - the queues of all kinds of jobs, and the methods that clients call. Loop thread only. */
#ifndef ENGINE_DAEMON_QUEUE_JOB_MACHINE_H
#define ENGINE_DAEMON_QUEUE_JOB_MACHINE_H

#include "engine/daemon/queue/job_queue.h"

typedef struct job_machine job_machine;

/* Open a queue for each kind, up to NULL, and load the jobs that have not ended. The parts are copied. *out must be
 * freed also after an error. */
status job_machine_new(job_machine **out, const job_parts *parts, const job_kind *const kinds[], error *err);
void job_machine_free(job_machine *m);
/* Start waiting jobs. Called at the start and every ENGINE_TICK_MS. */
void job_machine_tick(job_machine *m);
/* End the runs, which continue after the next start, and start no others. */
void job_machine_stop(job_machine *m);
/* True if no run and no request for a job is in progress. */
bool job_machine_stopped(const job_machine *m);

/* True if a job that has not ended uses the file. */
bool job_machine_uses_file(const job_machine *m, const char *id);
/* Return what a job that has not ended does with the model (job_kind.use); NULL: none uses it. */
const char *job_machine_use_of_model(const job_machine *m, const char *id);

/* Return the queue of a kind; NULL: there is none. */
job_queue *job_machine_queue(const job_machine *m, const job_kind *kind);
/* Return a method and its queue; NULL: no kind has a method of this name. Every kind has the methods create, list, get,
 * cancel, delete, events and watch; its table may replace them and add others. */
const job_method *job_machine_method(const job_machine *m, const char *name, job_queue **queue);

/* Call a method. A job that the request does not see is answered as one that does not exist, whatever the method. */
void job_machine_begin(stream *s, const job_method *m, job_queue *q);

/* For further methods of a kind: return the document of the requested job (new reference); NULL: the stream has been
 * answered with an error. */
json_t *job_machine_find_document(stream *s, const job_queue *q);
/* Answer that the requested job is in the wrong state, or does not exist. verb: "cancelled". */
void job_machine_refuse_state(stream *s, const job_queue *q, const char *verb);

#endif
