/* job_draft.h - a request for a job, from its arrival until the job exists or the request is answered otherwise.
 *
 *   loop:  check the request; the file must exist
 *   pool:  read the file
 *   loop:  write the job, its first event and the stored answer as one commit
 *
 * Loop thread only, except where stated. */
#ifndef ENGINE_DAEMON_QUEUE_JOB_DRAFT_H
#define ENGINE_DAEMON_QUEUE_JOB_DRAFT_H

#include "engine/daemon/queue/job_queue.h"

/* First member of a kind's drafts. */
typedef struct job_draft {
	stream *stream;
	job_queue *queue;
	model_entry *model; /* set by `check`; released with the draft */
	uv_work_t work;
	status result; /* returned by `read` */
	error error;
} job_draft;

/* The steps of a request for a job. Functions marked "optional" may be NULL. */
typedef struct job_draft_steps {
	size_t bytes; /* size of the struct that begins with a job_draft */
	/* Check the request, and set everything that `read` uses. The draft is zeroed, except for stream and queue. */
	status (*check)(job_draft *d, error *err);
	status (*read)(job_draft *d, error *err); /* optional; pool thread */
	void (*cancel)(job_draft *d);             /* optional: the client has left; let `read` end soon */
	/* Optional: true if the request needs no job. Then this function answers it and frees the draft, perhaps later.
	 */
	bool (*answer)(job_draft *d);
	json_t *(*document)(job_draft *d,
	                    const char *id);            /* document of the job (new reference); NULL: out of memory */
	void (*hand_over)(job_draft *d, queued_job *j); /* optional: move data from the draft to the job */
	void (*fini)(job_draft *d);                     /* optional: release the members after the base */
} job_draft_steps;

/* False: there are too many jobs or requests for jobs, and the stream has been answered. */
bool job_draft_admit(stream *s, const job_queue *q);
/* Begin a request for a job. The method NAME.create. */
void job_draft_begin(stream *s, job_queue *q);
/* Check that the file of the request exists and that the data folder has room. path: PATH_MAX bytes for its path; NULL:
 * not needed. */
status job_draft_find_file(const job_draft *d, char *path, error *err);
/* Answer with an error and free the draft. */
void job_draft_refuse(job_draft *d, status result, error *err);
/* Free a draft whose stream has been answered. */
void job_draft_free(job_draft *d);

#endif
