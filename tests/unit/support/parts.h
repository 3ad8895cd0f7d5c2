/* parts.h - parts of an engine without its sockets. Include after cmocka.h; failures fail the test. */
#ifndef TESTS_UNIT_SUPPORT_PARTS_H
#define TESTS_UNIT_SUPPORT_PARTS_H

#include "engine/daemon/rooms.h"

static inline void parts_open_sessions(engine *e)
{
	static const engine_options none;
	e->options = e->options ? e->options : &none;
	const session_parts parts = rooms_sessions(e);
	assert_int_equal(sessions_new(&e->sessions, &parts, NULL), STATUS_OK);
}

/* kinds: up to NULL. */
static inline void parts_open_jobs(engine *e, const job_kind *const kinds[])
{
	static const engine_options none;
	e->options = e->options ? e->options : &none;
	e->net.loop = &e->loop;
	e->net.store = e->store;
	const job_parts parts = rooms_jobs(e);
	assert_int_equal(job_machine_new(&e->job_machine, &parts, kinds, NULL), STATUS_OK);
}

/* Open the queue of one kind. */
static inline job_queue *parts_open_kind(engine *e, const job_kind *kind)
{
	parts_open_jobs(e, (const job_kind *const[]){kind, NULL});
	return job_machine_queue(e->job_machine, kind);
}

/* Begin a job's method without the checks of the contract. */
static inline void parts_begin_method(const engine *e, stream *s, const char *name)
{
	job_queue *queue;
	const job_method *method = job_machine_method(e->job_machine, name, &queue);
	assert_non_null(method);
	method->begin(s, queue);
}

#endif
