/* test_session_tiers.c - sessions that leave their slots for host memory and for the disk, and return. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/daemon/sessions/sessions_private.h"
#include "engine/serve/session.h"
#include "tests/unit/support/disk.h"
#include "tests/unit/support/rig.h"

enum { MANY = 8, PLENTY = 1 << 20 };

/* Seconds by which the monotonic clock is set forward. */
static _Atomic int64_t ahead;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, clock, t);
	t->tv_sec += clock == CLOCK_MONOTONIC ? ahead : 0;
	return (int)rc;
}

/* Open the engine again with these budgets; durable sessions stay. */
static rig *budget(void **state, int64_t memory, int64_t disk)
{
	rig *d = *state;
	d->options.session_memory_bytes = memory;
	d->options.session_disk_bytes = disk;
	d->options.max_known_sessions = MANY + 2;
	rig_reopen(d, rig_open_failing);
	return d;
}

static int setup(void **state)
{
	ahead = 0;
	*state = rig_new(rig_open_failing);
	return 0;
}

static int teardown(void **state)
{
	rig_fails = false;
	disk_fail(NULL, 0);
	rig_free(*state);
	return 0;
}

static json_t *only(const char *id)
{
	return json_pack("{s:s}", "id", id);
}

static void create(rig *d, json_t *params, char id[STORE_ID_BYTES])
{
	json_object_set_new(params, "model", json_string("m"));
	rig_keep_id(rig_ask(d, 0, "session.create", params), id);
}

static void create_plain(rig *d, const char *prompt, char id[STORE_ID_BYTES])
{
	create(d, json_pack("{s:s}", "prompt", prompt), id);
}

static void append(rig *d, int http, const char *id, const char *text)
{
	json_decref(rig_ask(d, http, "session.append", json_pack("{s:s, s:s}", "id", id, "text", text)));
}

static json_t *asking(const char *id, int max_tokens)
{
	return json_pack("{s:s, s:i, s:f, s:i, s:i}", "id", id, "max_tokens", max_tokens, "temperature", 0.9, "seed", 5,
	                 "logprobs", 2);
}

/* Return the events of a generation of 6 tokens, with log-probabilities, without their times. */
static json_t *says(rig *d, const char *id)
{
	size_t i;
	json_t *event, *said;
	rig_call *c = rig_begin(d, "session.generate", asking(id, 6), 100);
	rig_wait(c);
	assert_false(c->failed);
	said = json_incref(c->events);
	json_array_foreach(said, i, event)
	{
		json_object_del(event, "t_ms");
		json_object_del(event, "time_ms");
	}
	rig_call_free(c);
	return said;
}

static sessions_stats stats_of(rig *d)
{
	sessions_stats s;
	rig_settle(d);
	sessions_stats_read(d->engine.sessions, &s);
	return s;
}

static void assert_places(rig *d, int64_t slots, int64_t memory, int64_t files)
{
	const sessions_stats s = stats_of(d);
	assert_int_equal(s.sessions[TIER_DEVICE], slots);
	assert_int_equal(s.sessions[TIER_HOST], memory);
	assert_int_equal(s.sessions[TIER_DISK], files);
	assert_true((s.bytes[TIER_HOST] > 0) == (memory > 0));
}

static const char *prompt_of(int i)
{
	static const char *const prompts[] = {"one", "and two", "three of them", "four"};
	return prompts[i % 4];
}

/* Many sessions in few slots write what each writes alone, whatever the budgets. */
static void check_texts(void **state, int64_t memory, int64_t disk, bool durable)
{
	rig *d = budget(state, memory, disk);
	char ids[MANY][STORE_ID_BYTES];
	json_t *expected[4], *said;
	for (int i = 0; i < MANY; i++)
		create(d, json_pack("{s:s, s:b}", "prompt", prompt_of(i), "durable", durable), ids[i]);
	for (int i = 0; i < MANY; i++)
		append(d, 0, ids[i], " more");
	for (int i = 0; i < 4; i++) {
		char fresh[STORE_ID_BYTES];
		create_plain(d, prompt_of(i), fresh);
		append(d, 0, fresh, " more");
		expected[i] = says(d, fresh);
		json_decref(rig_ask(d, 0, "session.delete", only(fresh)));
	}
	for (int i = MANY - 1; i >= 0; i--) {
		said = says(d, ids[i]);
		assert_true(json_array_size(said) > 0 && json_equal(said, expected[i % 4]));
		json_decref(said);
	}
	for (int i = 0; i < 4; i++)
		json_decref(expected[i]);
	const sessions_stats s = stats_of(d);
	assert_int_equal(s.sessions[TIER_DEVICE] + s.sessions[TIER_HOST] + s.sessions[TIER_DISK], MANY);
	assert_int_equal(s.sessions[TIER_DEVICE], RIG_SESSIONS);
	assert_true(s.bytes[TIER_HOST] <= memory && s.bytes[TIER_DISK] <= disk);
	for (int i = 0; i < MANY; i++)
		json_decref(rig_ask(d, 0, "session.delete", only(ids[i])));
	assert_places(d, 0, 0, 0);
}

static void sessions_in_memory_write_what_they_write_in_a_slot(void **state)
{
	check_texts(state, PLENTY, 0, false);
	assert_int_equal(stats_of(*state).moves[TIER_HOST][TIER_DISK], 0);
}

static void sessions_on_the_disk_write_what_they_write_in_a_slot(void **state)
{
	check_texts(state, 0, PLENTY, false);
	const sessions_stats s = stats_of(*state);
	assert_true(s.moves[TIER_HOST][TIER_DISK] >= MANY);
	assert_true(s.moves[TIER_DISK][TIER_DEVICE] >= MANY);
}

static void some_sessions_stay_in_memory_and_others_go_to_the_disk(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char id[STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", id);
	const int64_t each = stats_of(d).bytes[TIER_HOST];
	check_texts(state, 2 * each, PLENTY, false);
}

static void durable_sessions_in_memory_and_on_the_disk_write_what_they_write_in_a_slot(void **state)
{
	check_texts(state, PLENTY, 0, true);
	assert_true(stats_of(*state).moves[TIER_HOST][TIER_DEVICE] >= MANY);
	check_texts(state, 0, 0, true);
	assert_int_equal(stats_of(*state).moves[TIER_HOST][TIER_DEVICE], 0);
}

/* The session that is idle longest leaves its slot first, and memory first. */
static void the_session_that_is_idle_longest_moves(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS + 1][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", ids[i]);
	append(d, 0, ids[0], "!");
	create_plain(d, "one", ids[RIG_SESSIONS]);
	assert_places(d, RIG_SESSIONS, 1, 0);
	scheduler *s = device_scheduler(fleet_device(d->engine.fleet, 0));
	for (int i = 0; i <= RIG_SESSIONS; i++)
		assert_int_equal(scheduler_session_find(s, ids[i]) == NULL, i == 1);
	/* A listing does not move it. */
	json_decref(rig_ask(d, 0, "session.get", only(ids[1])));
	assert_places(d, RIG_SESSIONS, 1, 0);
}

static void a_refused_interval_takes_no_slot(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char id[STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", id);
	json_decref(rig_ask(d, 400, "session.create",
	                    json_pack("{s:s, s:b, s:i}", "model", "m", "explain", 1, "snapshot_every", 100)));
	assert_places(d, RIG_SESSIONS, 0, 0);
}

static void a_busy_session_keeps_its_slot(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS][STORE_ID_BYTES], id[STORE_ID_BYTES];
	rig_call *calls[RIG_SESSIONS];
	for (int i = 0; i < RIG_SESSIONS; i++) {
		create_plain(d, "one", ids[i]);
		calls[i] = rig_begin(d, "session.generate", asking(ids[i], 6), 0);
	}
	json_decref(rig_ask(d, 429, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "x")));
	rig_grant(calls[1], 100);
	rig_wait(calls[1]);
	create_plain(d, "x", id);
	assert_places(d, RIG_SESSIONS, 1, 0);
	assert_null(scheduler_session_find(device_scheduler(fleet_device(d->engine.fleet, 0)), ids[1]));
	for (int i = 0; i < RIG_SESSIONS; i++) {
		rig_grant(calls[i], 100);
		rig_wait(calls[i]);
		assert_false(calls[i]->failed);
		rig_call_free(calls[i]);
	}
}

/* Requests for a session that is leaving its slot wait until it has left; then it returns. */
static void a_request_waits_for_a_session_that_moves(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS + 1][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", ids[i]);
	json_t *expected = says(d, ids[2]);
	append(d, 0, ids[1], "!");
	rig_hold(d);
	rig_call *made = rig_begin(d, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "x"), 0),
	         *use = rig_begin(d, "session.generate", asking(ids[0], 6), 100),
	         *second = rig_begin(d, "session.append", json_pack("{s:s, s:s}", "id", ids[0], "text", "y"), 0),
	         *gone = rig_begin(d, "session.fork", only(ids[0]), 0);
	for (int i = 0; i < 10; i++)
		uv_run(&d->engine.loop, UV_RUN_NOWAIT);
	assert_int_equal(made->answers + use->answers + second->answers + gone->answers, 0);
	rig_cancel(gone);
	rig_release(d);
	rig_wait(use);
	rig_wait(second);
	assert_false(made->failed || use->failed);
	assert_true(second->failed); /* the first of them has the session */
	assert_string_equal(json_string_value(json_object_get(second->answer, "code")), "session_busy");
	assert_int_equal(json_integer_value(json_object_get(gone->answer, "status")), 499);
	assert_int_equal(json_array_size(use->events), json_array_size(expected));
	rig_call *calls[] = {made, use, second, gone};
	for (int i = 0; i < 4; i++)
		rig_call_free(calls[i]);
	json_decref(expected);
}

/* Its state moves in several turns. */
static void a_request_waits_for_the_slot_of_a_large_session(void **state)
{
	enum { LONG = 40000, ROOM = 64 << 20, LARGE = 2 << 20 };
	rig *d = budget(state, ROOM, 0);
	char large[STORE_ID_BYTES], id[STORE_ID_BYTES], *text = calloc(LONG + 1, 1);
	memset(text, 'a', LONG);
	create(d, json_pack("{s:s, s:b, s:s}", "prompt", text, "explain", 1, "position_policy", "wrap"), large);
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", id);
	assert_places(d, RIG_SESSIONS, 1, 0);
	assert_true(stats_of(d).bytes[TIER_HOST] > LARGE);
	append(d, 0, large, "a");
	for (int i = 0; i < RIG_SESSIONS - 1; i++)
		append(d, 0, id, "x");
	create_plain(d, "one", id);
	json_decref(rig_ask(d, 0, "session.fork", only(id))); /* leaves again */
	json_t *shown = rig_ask(d, 0, "session.get", only(large));
	assert_int_equal(json_integer_value(json_object_get(shown, "tokens")), LONG + 1);
	json_decref(shown);
	free(text);
}

static void a_session_that_moves_can_be_deleted(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", ids[i]);
	rig_hold(d);
	rig_call *made = rig_begin(d, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "x"), 0),
	         *removed = rig_begin(d, "session.delete", only(ids[0]), 0),
	         *again = rig_begin(d, "session.delete", only(ids[0]), 0);
	ahead = SESSIONS_TTL_SECONDS + 10; /* it has expired, too, as the others have */
	sessions_tick(d->engine.sessions);
	rig_release(d);
	assert_true(made->answers && removed->answers && again->answers);
	assert_false(removed->failed);
	assert_int_equal(json_integer_value(json_object_get(again->answer, "status")), 404);
	rig_call_free(made);
	rig_call_free(removed);
	rig_call_free(again);
}

/* --- what a session carries ---------------------------------------------------------------- */

static void check_snapshots_and_forks(void **state, int64_t memory)
{
	rig *d = budget(state, memory, PLENTY);
	char id[STORE_ID_BYTES], other[RIG_SESSIONS][STORE_ID_BYTES], fork[STORE_ID_BYTES];
	create(d, json_pack("{s:s, s:b}", "prompt", "one", "explain", 1), id);
	json_t *first = rig_ask(d, 0, "snapshot.create", json_pack("{s:s, s:s}", "id", id, "name", "first"));
	append(d, 0, id, " and two");
	json_t *expected = rig_ask(d, 0, "explain", json_pack("{s:s, s:s}", "session", id, "aggregate", "mean"));
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "x", other[i]);
	assert_null(scheduler_session_find(device_scheduler(fleet_device(d->engine.fleet, 0)), id));
	json_t *explained = rig_ask(d, 0, "explain", json_pack("{s:s, s:s}", "session", id, "aggregate", "mean"));
	json_object_del(expected, "time_ms");
	json_object_del(explained, "time_ms");
	assert_true(json_equal(explained, expected));
	const char *at = json_string_value(json_object_get(first, "id"));
	for (int i = 0; i < RIG_SESSIONS; i++)
		append(d, 0, other[i], "y"); /* away again */
	rig_keep_id(rig_ask(d, 0, "session.fork", json_pack("{s:s, s:s}", "id", id, "snapshot", at)), fork);
	for (int i = 0; i < RIG_SESSIONS; i++)
		append(d, 0, other[i], "y");
	json_decref(rig_ask(d, 0, "session.rollback", json_pack("{s:s, s:s}", "id", id, "snapshot", at)));
	json_t *a = says(d, id), *b = says(d, fork);
	assert_true(json_equal(a, b));
	json_decref(rig_ask(d, 0, "session.delete", only(fork)));
	for (int i = 0; i < RIG_SESSIONS; i++)
		append(d, 0, other[i], "y");
	json_decref(rig_ask(d, 0, "session.delete", only(id))); /* with its snapshot, away */
	json_decref(a);
	json_decref(b);
	json_decref(first);
	json_decref(expected);
	json_decref(explained);
}

static void a_session_keeps_its_log_and_snapshots(void **state)
{
	check_snapshots_and_forks(state, PLENTY);
	check_snapshots_and_forks(state, 0);
}

/* A rollback of a durable session in memory is one of its stored states. */
static void a_durable_session_in_memory_is_rolled_back(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char id[STORE_ID_BYTES], other[STORE_ID_BYTES];
	create(d, json_pack("{s:s, s:b}", "prompt", "one", "durable", 1), id);
	json_t *expected = rig_ask(d, 0, "snapshot.create", only(id));
	append(d, 0, id, " and two");
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "x", other);
	assert_places(d, RIG_SESSIONS, 1, 0);
	json_t *back = rig_ask(d, 0, "session.rollback",
	                       json_pack("{s:s, s:O}", "id", id, "snapshot", json_object_get(expected, "id")));
	assert_int_equal(json_integer_value(json_object_get(back, "tokens")), 3);
	json_decref(back);
	json_decref(expected);
}

/* The budget of host memory counts what is allocated for a session besides its arrays, too. */
static void host_memory_counts_all_that_a_session_takes(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char id[STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", id);
	json_t *made = rig_ask(d, 0, "snapshot.create", only(id));
	const int64_t arrays = json_integer_value(json_object_get(made, "bytes"));
	json_decref(made);
	assert_places(d, RIG_SESSIONS, 1, 0);
	const int64_t each = stats_of(d).bytes[TIER_HOST];
	assert_true(each >= arrays + (int64_t)(sizeof(session) + sizeof(state_piece) + sizeof(session_place)));
	d = budget(state, 2 * each - 1, PLENTY);
	for (int i = 0; i < RIG_SESSIONS + 2; i++)
		create_plain(d, "one", id);
	assert_places(d, RIG_SESSIONS, 1, 1);
}

/* --- lifetimes and ends ----------------------------------------------------------------------- */

static void sessions_expire_wherever_they_are(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char id[STORE_ID_BYTES];
	create_plain(d, "one", id);
	for (int i = 1; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", id);
	const int64_t each = stats_of(d).bytes[TIER_HOST];
	d = budget(state, 2 * each, PLENTY);
	for (int i = 0; i < MANY; i++)
		create_plain(d, "one", id);
	assert_places(d, RIG_SESSIONS, 2, MANY - RIG_SESSIONS - 2);
	ahead = SESSIONS_TTL_SECONDS / 2;
	append(d, 0, id, "!");
	ahead = SESSIONS_TTL_SECONDS + 10;
	sessions_tick(d->engine.sessions);
	assert_places(d, 1, 0, 0);
	ahead = 2 * SESSIONS_TTL_SECONDS + 20;
	sessions_tick(d->engine.sessions);
	assert_places(d, 0, 0, 0);
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/tmp", d->folder);
	assert_int_equal(rmdir(path), 0); /* no file is left */
	assert_int_equal(mkdir(path, 0700), 0);
}

/* After a restart only durable sessions exist. */
static void a_start_removes_the_files(void **state)
{
	rig *d = budget(state, 0, PLENTY);
	char id[STORE_ID_BYTES], kept[STORE_ID_BYTES], path[PATH_MAX];
	create(d, json_pack("{s:s, s:b}", "prompt", "one", "durable", 1), kept);
	create_plain(d, "one", id);
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "x", path);
	rig_settle(d);
	snprintf(path, sizeof path, "%s/tmp/%s", d->folder, id);
	assert_int_equal(access(path, F_OK), 0);
	d = budget(state, 0, PLENTY);
	assert_int_not_equal(access(path, F_OK), 0);
	json_decref(rig_ask(d, 404, "session.get", only(id)));
	append(d, 0, kept, "!");
	assert_int_equal(sessions_count(d->engine.sessions), 1);
}

/* --- limits and failures ------------------------------------------------------------------------ */

static void sessions_stay_when_no_place_has_room(void **state)
{
	rig *d = budget(state, PLENTY, 0);
	char ids[RIG_SESSIONS + 2][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", ids[i]);
	const int64_t each = stats_of(d).bytes[TIER_HOST];
	d = budget(state, each, each + each / 2);
	for (int i = 0; i < RIG_SESSIONS + 2; i++)
		create_plain(d, "one", ids[i]);
	assert_places(d, RIG_SESSIONS, 1, 1);
	json_decref(rig_ask(d, 429, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "one")));
	json_decref(rig_ask(d, 429, "session.fork", only(ids[0])));
	for (int i = 0; i < RIG_SESSIONS + 2; i++)
		append(d, 0, ids[i], "!"); /* they change places */
	assert_places(d, RIG_SESSIONS, 1, 1);
}

static void an_engine_that_stops_writes_no_idle_session(void **state)
{
	rig *d = budget(state, 0, PLENTY);
	char id[STORE_ID_BYTES];
	sessions_drain(d->engine.sessions);
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", id);
	assert_places(d, RIG_SESSIONS, 1, 0);
}

static const char *const disk[] = {"/tmp/sess-", NULL};

static void a_full_disk_refuses_the_next_session_and_keeps_the_others(void **state)
{
	rig *d = budget(state, 0, PLENTY);
	char ids[RIG_SESSIONS + 1][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", ids[i]);
	json_t *expected = says(d, ids[1]);
	append(d, 0, ids[2], "!");
	disk_fail(disk, ENOSPC);
	create_plain(d, "one", ids[RIG_SESSIONS]); /* the first one moves to memory, and stays there */
	assert_places(d, RIG_SESSIONS, 1, 0);
	assert_true(disk_failures() > 0);
	json_t *refused = rig_ask(d, 507, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "one"));
	assert_string_equal(json_string_value(json_object_get(refused, "code")), "storage_full");
	json_decref(refused);
	json_decref(rig_ask(d, 507, "session.fork", only(ids[0])));
	append(d, 0, ids[0], "!"); /* changes places with another one */
	assert_places(d, RIG_SESSIONS, 1, 0);
	disk_fail(NULL, 0);
	ahead = 2;
	sessions_tick(d->engine.sessions);
	assert_places(d, RIG_SESSIONS, 0, 1);
	create_plain(d, "one", ids[0]);
	assert_places(d, RIG_SESSIONS, 0, 2);
	json_decref(expected);
}

static void a_disk_that_fails_is_a_storage_error(void **state)
{
	rig *d = budget(state, 0, PLENTY);
	char id[STORE_ID_BYTES];
	disk_fail(disk, EIO);
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", id);
	rig_settle(d);
	json_t *refused = rig_ask(d, 500, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "one"));
	assert_string_equal(json_string_value(json_object_get(refused, "code")), "storage_error");
	json_decref(refused);
}

/* Change a byte of a session's file, or truncate it to `bytes`. */
static void damage(rig *d, const char *id, off_t bytes)
{
	char path[PATH_MAX], c;
	snprintf(path, sizeof path, "%s/tmp/%s", d->folder, id);
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, 200), 1);
	c ^= 1;
	assert_int_equal(bytes ? ftruncate(fd, bytes) : pwrite(fd, &c, 1, 200) - 1, 0);
	close(fd);
}

static void a_damaged_file_is_an_error_of_its_session_alone(void **state)
{
	rig *d = budget(state, 0, PLENTY);
	char ids[RIG_SESSIONS + 3][STORE_ID_BYTES], path[PATH_MAX];
	for (int i = 0; i < RIG_SESSIONS + 3; i++)
		create_plain(d, "one", ids[i]);
	assert_places(d, RIG_SESSIONS, 0, 3);
	damage(d, ids[0], 0);
	damage(d, ids[1], 100);
	for (int i = 0; i < 2; i++) {
		json_t *e = rig_ask(d, 500, "session.append", json_pack("{s:s, s:s}", "id", ids[i], "text", "x"));
		assert_string_equal(json_string_value(json_object_get(e, "code")), "storage_error");
		json_decref(e);
	}
	json_t *shown = rig_ask(d, 0, "session.get", only(ids[0]));
	assert_true(json_is_true(json_object_get(shown, "damaged")));
	json_decref(shown);
	append(d, 0, ids[2], "!");
	snprintf(path, sizeof path, "%s/tmp/%s", d->folder, ids[1]);
	assert_int_equal(unlink(path), 0);
	append(d, 500, ids[1], "x"); /* missing */
	json_decref(rig_ask(d, 0, "session.delete", only(ids[0])));
	json_decref(rig_ask(d, 0, "session.delete", only(ids[1])));
	assert_int_equal(store_damaged_count(d->engine.store), 0); /* none of it is in the ledger */
}

/* The device is lost: a session in a slot is lost, one in memory or on the disk returns to the device. */
static void sessions_without_a_slot_survive_their_device(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS + 2][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS + 2; i++)
		create_plain(d, "one", ids[i]);
	json_t *expected = says(d, ids[4]), *said;
	assert_places(d, RIG_SESSIONS, 2, 0);
	rig_fails = true;
	append(d, 503, ids[4], "never read");
	said = says(d, ids[0]);
	assert_true(json_equal(said, expected));
	json_decref(said);
	said = says(d, ids[1]);
	assert_true(json_equal(said, expected));
	json_decref(said);
	append(d, 404, ids[4], "x");
	json_decref(expected);
}

static void a_session_that_is_lost_when_it_would_move_is_removed(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS + 2][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create_plain(d, "one", ids[i]);
	rig_fails = true;
	append(d, 503, ids[0], "never read");
	append(d, 404, ids[0], "x");
	create_plain(d, "one", ids[RIG_SESSIONS]);
	create_plain(d, "one", ids[RIG_SESSIONS + 1]); /* takes the slot of ids[1] */
	assert_places(d, RIG_SESSIONS, 0, 0);
	json_decref(rig_ask(d, 404, "session.get", only(ids[1])));
	assert_int_equal(sessions_count(d->engine.sessions), RIG_SESSIONS);
}

/* The device fails while it reads a session that has just returned: that one is lost with it. One whose return fails
 * stays in memory. */
static void a_return_that_fails_leaves_the_session_where_it_was(void **state)
{
	rig *d = budget(state, PLENTY, PLENTY);
	char ids[RIG_SESSIONS + 1][STORE_ID_BYTES];
	rig_call *calls[RIG_SESSIONS];
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", ids[i]);
	for (int i = 0; i < RIG_SESSIONS; i++)
		calls[i] = rig_begin(d, "session.generate", asking(ids[i + 1], 6), 0);
	append(d, 429, ids[0], "x"); /* no slot is free */
	for (int i = 0; i < RIG_SESSIONS; i++) {
		rig_grant(calls[i], 100);
		rig_wait(calls[i]);
		rig_call_free(calls[i]);
	}
	append(d, 0, ids[0], "x");
	assert_places(d, RIG_SESSIONS, 1, 0);
}

/* There is no model after the first steps of a return. */
static void a_return_without_a_model_leaves_the_state(void **state)
{
	(void)state;
	error err;
	session *x;
	model_entry none = {.gate = MODEL_DELETED};
	session_away away = {.blob = calloc(1, PLENTY), .bytes = PLENTY};
	session_ticket t = {.away = &away, .import = {.blob = away.blob, .bytes = PLENTY, .moved = 1}};
	assert_true(session_ticket_prepare(&t, &none, NULL));
	assert_int_equal(session_ticket_redeem(&t, &none, NULL, &x, &err), STATUS_NOT_FOUND);
	assert_null(t.import.blob);
	session_ticket_fini(&t);
	memset(away.blob, 1, PLENTY);
	free(away.blob);
}

static void moves_and_returns_are_counted(void **state)
{
	rig *d = budget(state, 0, PLENTY);
	char ids[RIG_SESSIONS + 1][STORE_ID_BYTES];
	uint64_t returns = 0;
	for (int i = 0; i < RIG_SESSIONS + 1; i++)
		create_plain(d, "one", ids[i]);
	assert_places(d, RIG_SESSIONS, 0, 1);
	append(d, 0, ids[0], "x");
	assert_places(d, RIG_SESSIONS, 0, 1);
	const sessions_stats s = stats_of(d);
	assert_int_equal(s.moves[TIER_DEVICE][TIER_HOST], 2);
	assert_int_equal(s.moves[TIER_HOST][TIER_DISK], 2);
	assert_int_equal(s.moves[TIER_DISK][TIER_DEVICE], 1);
	for (int i = 0; i <= DEVICE_TICK_BUCKETS; i++)
		returns += s.returns[i];
	assert_int_equal(returns, 1);
	assert_true(s.return_seconds > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(sessions_in_memory_write_what_they_write_in_a_slot, setup, teardown),
	    cmocka_unit_test_setup_teardown(sessions_on_the_disk_write_what_they_write_in_a_slot, setup, teardown),
	    cmocka_unit_test_setup_teardown(some_sessions_stay_in_memory_and_others_go_to_the_disk, setup, teardown),
	    cmocka_unit_test_setup_teardown(durable_sessions_in_memory_and_on_the_disk_write_what_they_write_in_a_slot,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(the_session_that_is_idle_longest_moves, setup, teardown),
	    cmocka_unit_test_setup_teardown(an_engine_that_stops_writes_no_idle_session, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_refused_interval_takes_no_slot, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_busy_session_keeps_its_slot, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_request_waits_for_a_session_that_moves, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_request_waits_for_the_slot_of_a_large_session, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_that_moves_can_be_deleted, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_keeps_its_log_and_snapshots, setup, teardown),
	    cmocka_unit_test_setup_teardown(host_memory_counts_all_that_a_session_takes, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_durable_session_in_memory_is_rolled_back, setup, teardown),
	    cmocka_unit_test_setup_teardown(sessions_expire_wherever_they_are, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_start_removes_the_files, setup, teardown),
	    cmocka_unit_test_setup_teardown(sessions_stay_when_no_place_has_room, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_full_disk_refuses_the_next_session_and_keeps_the_others, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_disk_that_fails_is_a_storage_error, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_damaged_file_is_an_error_of_its_session_alone, setup, teardown),
	    cmocka_unit_test_setup_teardown(sessions_without_a_slot_survive_their_device, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_session_that_is_lost_when_it_would_move_is_removed, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_return_that_fails_leaves_the_session_where_it_was, setup, teardown),
	    cmocka_unit_test(a_return_without_a_model_leaves_the_state),
	    cmocka_unit_test_setup_teardown(moves_and_returns_are_counted, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
