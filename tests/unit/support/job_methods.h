/* job_methods.h - jobs in an engine without its sockets. */
#ifndef TESTS_UNIT_SUPPORT_JOB_METHODS_H
#define TESTS_UNIT_SUPPORT_JOB_METHODS_H

#include "engine/daemon/queue/job_machine.h"

/* Begin a request without its checks by the contract. */
static inline void job_methods_begin(stream *s, const char *name)
{
	job_queue *queue;
	const job_method *method = job_machine_method(s->engine->job_machine, name, &queue);
	assert_non_null(method);
	method->begin(s, queue);
}

/* Open the queue of one kind. */
static inline job_queue *job_methods_open(engine *e, const job_kind *kind)
{
	const job_kind *const kinds[] = {kind, NULL};
	assert_int_equal(job_machine_new(&e->job_machine, e, kinds, NULL), STATUS_OK);
	return job_machine_queue(e->job_machine, kind);
}

#endif
