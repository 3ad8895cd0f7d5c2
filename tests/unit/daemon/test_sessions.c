/* Lifetimes of stored sessions, on clocks that the test sets. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

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
#include "engine/daemon/sessions/sessions_private.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

/* Seconds by which each clock is set forward. */
static int64_t wall_ahead, monotonic_ahead;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, clock, t);
	t->tv_sec += clock == CLOCK_REALTIME ? wall_ahead : clock == CLOCK_MONOTONIC ? monotonic_ahead : 0;
	return (int)rc;
}

typedef struct fixture {
	engine *engine;
	char folder[64];
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	f->engine = memory_new(1, sizeof *f->engine);
	wall_ahead = monotonic_ahead = 0;
	folder_new(f->folder);
	log_init("test", LOG_ERROR);
	assert_int_equal(store_open(&f->engine->store, f->folder, NULL), STATUS_OK);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	sessions_free(f->engine->sessions);
	store_close(f->engine->store);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f->engine);
	free(f);
	return 0;
}

/* Store a durable session with this document, which is freed. */
static void keep_document(const fixture *f, const char *id, json_t *document)
{
	char path[PATH_MAX];
	store *s = f->engine->store;
	int64_t version;
	assert_int_equal(store_session_next(s, id, &version, path, NULL), STATUS_OK);
	assert_int_equal(store_session_write(path, id, document, "state", 5, NULL), STATUS_OK);
	assert_int_equal(store_session_keep(s, id, version, document, NULL), STATUS_OK);
	json_decref(document);
}

/* Add a durable session with a lifetime of `ttl` seconds, of which `left` remain by the wall clock. */
static void keep(const fixture *f, const char *id, int64_t ttl, int64_t left)
{
	keep_document(f, id,
	              json_pack("{s:s, s:s, s:i, s:i, s:i, s:b, s:s, s:I, s:I}", "id", id, "model", "some-model",
	                        "tokens", 3, "state_bytes", 4, "created", 5, "explain", 0, "position_policy", "error",
	                        "ttl_seconds", (json_int_t)ttl, "expires_at", (json_int_t)(clock_unix() + left)));
}

static void start(const fixture *f)
{
	parts_open_sessions(f->engine);
}

/* Number of sessions after `seconds` seconds on the monotonic clock. */
static int after(const fixture *f, int64_t seconds)
{
	monotonic_ahead = seconds;
	sessions_tick(f->engine->sessions);
	return sessions_count(f->engine->sessions);
}

static void a_jump_of_the_wall_clock_deletes_no_session_while_the_engine_runs(void **state)
{
	fixture *f = *state;
	keep(f, "sess-1", 3600, 3000);
	start(f);
	wall_ahead = 7200;
	assert_int_equal(after(f, 0), 1);
	assert_int_equal(after(f, 2990), 1);
	assert_int_equal(after(f, 3060), 0);
}

static void a_session_expired_by_the_wall_clock_is_kept_ten_minutes_from_the_start(void **state)
{
	fixture *f = *state;
	keep(f, "sess-1", 3600, -7200);
	keep(f, "sess-2", 3600, 3);
	start(f);
	assert_int_equal(after(f, 590), 2);
	assert_int_equal(after(f, 660), 0);
}

static void a_short_lifetime_starts_again_at_the_start(void **state)
{
	fixture *f = *state;
	keep(f, "sess-1", 20, -7200);
	start(f);
	assert_int_equal(after(f, 19), 1);
	assert_int_equal(after(f, 80), 0);
}

static void a_jump_backwards_does_not_keep_a_session_forever(void **state)
{
	fixture *f = *state;
	keep(f, "sess-1", 3600, 864000);
	start(f);
	wall_ahead = -864000;
	assert_int_equal(after(f, 3590), 1);
	assert_true(sessions_use_model(f->engine->sessions, "some-model"));
	assert_int_equal(after(f, 3660), 0);
	assert_false(sessions_use_model(f->engine->sessions, "some-model"));
}

static void sessions_without_a_lifetime_are_kept(void **state)
{
	fixture *f = *state;
	keep(f, "sess-1", -1, 0);
	keep(f, "sess-2", 700, 650);
	start(f);
	assert_int_equal(after(f, 710), 1);
	assert_int_equal(after(f, 864000), 1);
	assert_true(sessions_use_model(f->engine->sessions, "some-model"));
}

static void a_session_whose_document_is_malformed_can_be_deleted_for_good(void **state)
{
	fixture *f = *state;
	keep_document(f, "sess-1", json_pack("{s:s, s:s, s:s}", "id", "sess-1", "model", "some-model", "tokens", "3"));
	keep(f, "sess-2", -1, 0);
	start(f);
	assert_int_equal(sessions_count(f->engine->sessions), 2);
	sessions_remove(f->engine->sessions, sessions_find(f->engine->sessions, "sess-1"), NULL);
	sessions_free(f->engine->sessions);
	start(f);
	assert_int_equal(sessions_count(f->engine->sessions), 1);
}

/* Their lifetimes are in no order. */
static void each_of_many_sessions_expires_at_its_time(void **state)
{
	enum { MANY = 40, APART = 1000 };
	fixture *f = *state;
	char id[STORE_ID_BYTES];
	for (int i = 0; i < MANY; i++) {
		const int ttl = APART * (1 + i * 17 % MANY);
		snprintf(id, sizeof id, "sess-%d", i);
		keep(f, id, ttl, ttl);
	}
	start(f);
	for (int i = 0; i <= MANY; i++)
		assert_int_equal(after(f, i * APART + APART / 2), MANY - i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_jump_of_the_wall_clock_deletes_no_session_while_the_engine_runs, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_session_expired_by_the_wall_clock_is_kept_ten_minutes_from_the_start,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(a_short_lifetime_starts_again_at_the_start, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_jump_backwards_does_not_keep_a_session_forever, setup, teardown),
	    cmocka_unit_test_setup_teardown(each_of_many_sessions_expires_at_its_time, setup, teardown),
	    cmocka_unit_test_setup_teardown(sessions_without_a_lifetime_are_kept, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_whose_document_is_malformed_can_be_deleted_for_good, setup,
	                                    teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
