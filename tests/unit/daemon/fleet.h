/* fleet.h - an engine with two devices, both CPU backends, for its tests: failures of a device, a clock that is set
 * forward, and clients' requests. */
#ifndef TESTS_UNIT_DAEMON_FLEET_H
#define TESTS_UNIT_DAEMON_FLEET_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/serve/scheduler_state.h"
#include "tests/unit/support/rig.h"

enum { DEVICES = 2 };

/* Seconds by which the monotonic clock is set forward. */
static _Atomic int64_t ahead;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, clock, t);
	t->tv_sec += clock == CLOCK_MONOTONIC ? ahead : 0;
	return (int)rc;
}

/* The CPU backend with a linear layer that fails once on the device `failing`; that device then opens again only with
 * `repaired`. */
static backend *opened[DEVICES];
static int n_opened;
static backend_kernel real_linear;
static _Atomic int failing, lost;
static _Atomic bool repaired;

static inline status failing_linear(backend *b, const op_call *call)
{
	if (failing < 0 || opened[failing] != b)
		return real_linear(b, call);
	lost = failing;
	failing = -1;
	return STATUS_DEVICE;
}

/* The next allocation on the device `refusing` is refused, once. */
static status (*real_allocate)(backend *b, size_t bytes, void **out);
static _Atomic int refusing;

static inline status refusing_allocate(backend *b, size_t bytes, void **out)
{
	if (refusing < 0 || opened[refusing] != b)
		return real_allocate(b, bytes, out);
	refusing = -1;
	*out = NULL;
	return STATUS_NOMEM;
}

static inline status open_numbered(backend **out, int threads, error *err)
{
	const bool again = n_opened == DEVICES;
	if (again && !repaired)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the device is gone");
	TRY(cpu_open(out, threads, err));
	real_linear = (*out)->kernel[OP_linear];
	(*out)->kernel[OP_linear] = failing_linear;
	real_allocate = (*out)->allocate;
	(*out)->allocate = refusing_allocate;
	opened[again ? lost : n_opened++] = *out;
	return STATUS_OK;
}

static inline int setup(void **state)
{
	ahead = 0;
	n_opened = 0;
	failing = lost = refusing = -1;
	repaired = false;
	*state = rig_new_fleet(open_numbered, DEVICES);
	log_init("test", LOG_NOTHING);
	return 0;
}

static inline int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

static inline device_stats stats_of(rig *d, int at)
{
	device_stats now;
	rig_settle(d);
	device_snapshot(fleet_device(d->engine.fleet, at), &now);
	return now;
}

/* --- clients' requests ------------------------------------------------------------------ */

static inline json_t *only(const char *id)
{
	return json_pack("{s:s}", "id", id);
}

/* Create a session that has read `prompt`. */
static inline void create(rig *d, const char *prompt, bool durable, char id[STORE_ID_BYTES])
{
	rig_keep_id(rig_ask(d, 0, "session.create",
	                    json_pack("{s:s, s:s, s:b}", "model", "m", "prompt", prompt, "durable", durable)),
	            id);
}

static inline json_t *generating(const char *id, int max_tokens)
{
	return json_pack("{s:s, s:i, s:f, s:i}", "id", id, "max_tokens", max_tokens, "temperature", 0.0, "seed", 1);
}

static inline json_t *tokens_in(const rig_call *c)
{
	size_t i, k;
	json_t *event, *token, *ids = json_array();
	json_array_foreach(c->events, i, event) json_array_foreach(json_object_get(event, "tokens"), k, token)
	    json_array_append(ids, token);
	return ids;
}

/* The next tokens of the session, as ids. */
static inline json_t *says(rig *d, const char *id)
{
	rig_call *c = rig_begin(d, "session.generate", generating(id, 8), 100);
	rig_wait(c);
	assert_false(c->failed);
	json_t *ids = tokens_in(c);
	rig_call_free(c);
	assert_int_equal(json_array_size(ids), 8);
	return ids;
}

static inline void assert_equal_answers(rig *d, const char *a, const char *b)
{
	json_t *one = says(d, a), *other = says(d, b);
	assert_true(json_equal(one, other));
	json_decref(one);
	json_decref(other);
}

static inline void append(rig *d, int http, const char *id, const char *text)
{
	json_decref(rig_ask(d, http, "session.append", json_pack("{s:s, s:s}", "id", id, "text", text)));
}

/* Begin a completion of a's that waits for credit after two events of each choice. */
static inline rig_call *begin_stream(rig *d, int n)
{
	return rig_begin(d, "completion.create",
	                 json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "model", "m", "prompt", "word", "max_tokens", 40,
	                           "n", n, "logit_bias", "100", 100),
	                 2 * n);
}

#define FLEET_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
