/* test_session_task.c - create, append, generate, fork, export and import of sessions that are busy, lost, expired or
 * without a slot. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/cpu/cpu.h"
#include "engine/daemon/sessions/sessions.h"
#include "tests/unit/support/disk.h"
#include "tests/unit/support/rig.h"

/* Seconds by which the monotonic clock is set forward. */
static _Atomic int64_t ahead;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, clock, t);
	t->tv_sec += clock == CLOCK_MONOTONIC ? ahead : 0;
	return (int)rc;
}

static int setup(void **state)
{
	*state = rig_new(rig_open_failing);
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

static void nothing(task *t, device *d)
{
	(void)t;
	(void)d;
}

static void nothing_done(task *t)
{
	(void)t;
}

/* --- clients' requests ------------------------------------------------------------------ */

static json_t *only(const char *id)
{
	return json_pack("{s:s}", "id", id);
}

static json_t *list(rig *d)
{
	json_t *all = rig_ask(d, 0, "session.list", json_object());
	json_t *data = json_incref(json_object_get(all, "data"));
	json_decref(all);
	return data;
}

static size_t count(rig *d)
{
	json_t *data = list(d);
	size_t n = json_array_size(data);
	json_decref(data);
	return n;
}

/* Each test starts without sessions, on a working device. */
static int clean(void **state)
{
	rig *d = *state;
	size_t i;
	json_t *one;
	ahead = 0;
	rig_fails = false;
	disk_fail(NULL, 0);
	rig_drop_calls(d);
	rig_settle(d);
	json_t *data = list(d);
	json_array_foreach(data, i, one)
	    json_decref(rig_ask(d, 0, "session.delete", only(json_string_value(json_object_get(one, "id")))));
	json_decref(data);
	return 0;
}

/* Create a session that has read `prompt`. */
static void create(rig *d, const char *prompt, bool durable, char id[STORE_ID_BYTES])
{
	json_t *made = rig_ask(d, 0, "session.create",
	                       json_pack("{s:s, s:s, s:b}", "model", "m", "prompt", prompt, "durable", durable));
	assert_int_equal(json_integer_value(json_object_get(made, "tokens")), strlen(prompt));
	snprintf(id, STORE_ID_BYTES, "%s", json_string_value(json_object_get(made, "id")));
	json_decref(made);
}

static json_int_t tokens_of(rig *d, const char *id)
{
	json_t *shown = rig_ask(d, 0, "session.get", only(id));
	json_int_t tokens = json_integer_value(json_object_get(shown, "tokens"));
	json_decref(shown);
	return tokens;
}

static json_t *asking(const char *id, int max_tokens)
{
	return json_pack("{s:s, s:i, s:f, s:i}", "id", id, "max_tokens", max_tokens, "temperature", 0.0, "seed", 1);
}

/* Next tokens of the session, as ids, because its bytes may not be text. */
static json_t *says(rig *d, const char *id)
{
	size_t i, k;
	json_t *event, *token, *ids = json_array();
	rig_call *c = rig_begin(d, "session.generate", asking(id, 8), 100);
	rig_wait(c);
	assert_false(c->failed);
	json_array_foreach(c->events, i, event) json_array_foreach(json_object_get(event, "tokens"), k, token)
	    json_array_append(ids, token);
	rig_call_free(c);
	return ids;
}

static void assert_equal_answers(rig *d, const char *a, const char *b)
{
	json_t *one = says(d, a), *other = says(d, b);
	assert_true(json_array_size(one) > 0 && json_equal(one, other));
	json_decref(one);
	json_decref(other);
}

/* Check that every request that uses the session is refused with this error. */
static void is_refused(rig *d, const char *id, int http, const char *code)
{
	for (int i = 0; i < 4; i++) {
		static const char *const methods[] = {"session.append", "session.fork", "session.export",
		                                      "session.generate"};
		json_t *params = i == 0   ? json_pack("{s:s, s:s}", "id", id, "text", "x")
		                 : i == 3 ? asking(id, 1)
		                          : only(id);
		json_t *refusal = rig_ask(d, http, methods[i], params);
		assert_string_equal(json_string_value(json_object_get(refusal, "code")), code);
		json_decref(refusal);
	}
}

static void append(rig *d, int http, const char *id, const char *text)
{
	json_decref(rig_ask(d, http, "session.append", json_pack("{s:s, s:s}", "id", id, "text", text)));
}

static void fork_of(rig *d, const char *id, char copy[STORE_ID_BYTES])
{
	json_t *made = rig_ask(d, 0, "session.fork", only(id));
	snprintf(copy, STORE_ID_BYTES, "%s", json_string_value(json_object_get(made, "id")));
	json_decref(made);
}

/* --- the state of a session --------------------------------------------------------------- */

static void a_prompt_in_pieces_gives_the_same_session(void **state)
{
	rig *d = *state;
	char whole[STORE_ID_BYTES], pieces[STORE_ID_BYTES];
	create(d, "one two three", false, whole);
	create(d, "one ", false, pieces);
	append(d, 0, pieces, "two");
	append(d, 0, pieces, " three");
	assert_int_equal(tokens_of(d, pieces), 13);
	assert_equal_answers(d, whole, pieces);
}

static void a_fork_and_an_import_continue_as_the_session_and_independently(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES], copy[STORE_ID_BYTES], moved[STORE_ID_BYTES];
	create(d, "some words", false, id);
	fork_of(d, id, copy);
	rig_call *from = rig_begin(d, "session.export", only(id), 100);
	rig_wait(from);
	rig_call *to = rig_begin(d, "session.import", json_pack("{s:s}", "model", "m"), 100);
	rig_send(to, "state", from->data, from->bytes);
	rig_wait(to);
	assert_false(to->failed);
	snprintf(moved, sizeof moved, "%s", json_string_value(json_object_get(to->answer, "id")));
	rig_call_free(from);
	rig_call_free(to);
	assert_int_equal(tokens_of(d, copy), 10);
	assert_int_equal(tokens_of(d, moved), 10);
	json_t *said[] = {says(d, id), says(d, copy), says(d, moved)};
	assert_int_equal(json_array_size(said[0]), 8);
	assert_true(json_equal(said[0], said[1]) && json_equal(said[0], said[2]));
	for (int i = 0; i < 3; i++)
		json_decref(said[i]);
}

static void an_invalid_state_creates_no_session(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, "some words", false, id);
	rig_call *from = rig_begin(d, "session.export", only(id), 100);
	rig_wait(from);
	const size_t sizes[] = {0, 1, from->bytes / 2, from->bytes - 1};
	for (size_t i = 0; i <= sizeof sizes / sizeof *sizes; i++) {
		bool cut = i < sizeof sizes / sizeof *sizes;
		rig_call *to = rig_begin(d, "session.import", json_pack("{s:s}", "model", "m"), 100);
		if (!cut)
			from->data[from->bytes / 2] ^= 1;
		rig_send(to, "state", from->data, cut ? sizes[i] : from->bytes);
		rig_wait(to);
		assert_true(to->failed);
		assert_int_equal(json_integer_value(json_object_get(to->answer, "status")), 400);
		assert_int_equal(count(d), 1);
		rig_call_free(to);
	}
	rig_call_free(from);
	assert_int_equal(tokens_of(d, id), 10);
}

/* --- busy -------------------------------------------------------------------------------- */

static void a_busy_session_refuses_every_other_request_and_is_free_afterwards(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES], copy[STORE_ID_BYTES];
	create(d, "some words", false, id);
	rig_call *c = rig_begin(d, "session.generate", asking(id, 5), 2); /* waits for credit */
	rig_settle(d);
	assert_int_equal(json_array_size(c->events), 2);
	is_refused(d, id, 409, "session_busy");
	json_decref(rig_ask(d, 409, "session.delete", only(id)));
	assert_int_equal(count(d), 1);
	rig_grant(c, 100);
	rig_wait(c);
	assert_false(c->failed);
	rig_call_free(c);
	fork_of(d, id, copy);
	assert_equal_answers(d, id, copy);
}

static void a_session_is_busy_while_it_is_created_or_forked(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, "some words", false, id);
	rig_hold(d);
	rig_call *fork = rig_begin(d, "session.fork", only(id), 1);
	is_refused(d, id, 409, "session_busy");
	rig_release(d);
	rig_wait(fork);
	assert_false(fork->failed);
	rig_call_free(fork);
	append(d, 0, id, "!");
}

static void a_cancelled_generation_keeps_the_tokens_that_were_sent(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES], same[STORE_ID_BYTES];
	create(d, "some words", false, id);
	fork_of(d, id, same);
	rig_call *c = rig_begin(d, "session.generate", asking(id, 20), 3);
	rig_settle(d);
	rig_cancel(c);
	rig_wait(c);
	assert_int_equal(json_integer_value(json_object_get(c->answer, "status")), 499);
	rig_call_free(c);
	json_int_t tokens = tokens_of(d, id);
	assert_in_range(tokens, 11, 13);
	rig_call *other = rig_begin(d, "session.generate", asking(same, (int)tokens - 10), 100);
	rig_wait(other);
	rig_call_free(other);
	assert_equal_answers(d, id, same);
}

static void a_cancelled_append_to_a_durable_session_is_undone(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, "some words", true, id);
	rig_hold(d);
	rig_call *c = rig_begin(d, "session.append", json_pack("{s:s, s:s}", "id", id, "text", "more of them"), 1);
	rig_cancel(c);
	rig_release(d);
	rig_wait(c);
	assert_int_equal(json_integer_value(json_object_get(c->answer, "status")), 499);
	rig_call_free(c);
	assert_int_equal(tokens_of(d, id), 10);
	append(d, 0, id, "!");
	assert_int_equal(tokens_of(d, id), 11);
}

/* --- undone ------------------------------------------------------------------------------ */

/* Number of session states on the disk. */
static int stored_states(const rig *d)
{
	char path[96];
	int n = 0;
	snprintf(path, sizeof path, "%s/sessions", d->folder);
	DIR *folder = opendir(path);
	assert_non_null(folder);
	for (struct dirent *e; (e = readdir(folder));)
		n += e->d_name[0] != '.';
	closedir(folder);
	return n;
}

static int live_sessions(rig *d)
{
	device_stats stats;
	rig_settle(d);
	device_snapshot(fleet_device(d->engine.fleet, 0), &stats);
	return stats.scheduler.sessions;
}

static void a_session_that_cannot_be_stored_leaves_no_slot_and_no_file(void **state)
{
	static const char *const blobs[] = {"/sessions/", NULL}, *const ledger[] = {"ledger.sqlite", NULL};
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, "some words", true, id);
	const int before = stored_states(d);
	for (int i = 0; i < 2; i++) {
		disk_fail(i ? ledger : blobs, ENOSPC);
		append(d, 507, id, "never kept");
		json_decref(rig_ask(d, 507, "session.create", json_pack("{s:s, s:b}", "model", "m", "durable", true)));
		json_decref(rig_ask(d, 507, "session.fork", only(id)));
		disk_fail(NULL, 0);
		assert_int_equal(count(d), 1);
		assert_int_equal(tokens_of(d, id), 10);
		assert_int_equal(stored_states(d), before);
		assert_in_range(live_sessions(d), 0, 1);
	}
	append(d, 0, id, "!");
	assert_int_equal(tokens_of(d, id), 11);
}

static void a_request_that_the_executor_has_no_room_for_changes_nothing(void **state)
{
	static task others[EXECUTOR_MAX_TASKS];
	rig *d = *state;
	char id[STORE_ID_BYTES], copy[STORE_ID_BYTES];
	create(d, "some words", false, id);
	rig_hold(d);
	for (int i = 0; i < EXECUTOR_MAX_TASKS; i++) {
		others[i] = (task){.run = nothing, .done = nothing_done};
		if (!executor_submit(fleet_executor(d->engine.fleet, 0), &others[i]))
			break;
	}
	for (int i = 0; i < 2; i++) { /* a session that stayed busy would be a conflict the second time */
		json_decref(rig_ask(d, 429, "session.fork", only(id)));
		json_decref(rig_ask(d, 429, "session.export", only(id)));
		json_decref(rig_ask(d, 429, "session.create", json_pack("{s:s}", "model", "m")));
	}
	assert_int_equal(count(d), 1);
	rig_release(d);
	for (int i = 1; i < RIG_SESSIONS; i++) /* all slots are free */
		fork_of(d, id, copy);
	assert_int_equal(live_sessions(d), RIG_SESSIONS);
	assert_equal_answers(d, id, copy);
}

/* --- lost -------------------------------------------------------------------------------- */

static void a_session_is_lost_with_the_device_and_a_durable_one_is_restored(void **state)
{
	rig *d = *state;
	char lost[STORE_ID_BYTES], kept[STORE_ID_BYTES], same[STORE_ID_BYTES];
	create(d, "some words", false, lost);
	create(d, "some words", true, kept);
	rig_fails = true;
	append(d, 503, kept, "never read");
	assert_false(rig_fails);
	assert_int_equal(tokens_of(d, kept), 10); /* as acknowledged */
	append(d, 404, lost, "x");
	is_refused(d, lost, 404, "not_found");
	assert_int_equal(count(d), 1);
	create(d, "some words", false, same);
	assert_equal_answers(d, kept, same);
}

static void a_new_session_that_fails_on_the_device_does_not_exist(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	for (int durable = 0; durable < 2; durable++) {
		rig_fails = true;
		json_decref(rig_ask(d, 503, "session.create",
		                    json_pack("{s:s, s:s, s:b}", "model", "m", "prompt", "words", "durable", durable)));
		assert_int_equal(count(d), 0);
	}
	create(d, "words", true, id);
}

/* --- slots --------------------------------------------------------------------------------- */

static void an_idle_durable_session_gives_up_its_slot_and_is_restored_unchanged(void **state)
{
	rig *d = *state;
	char kept[STORE_ID_BYTES], id[STORE_ID_BYTES], same[STORE_ID_BYTES];
	create(d, "some words", true, kept);
	create(d, "some words", false, same);
	for (int i = 2; i <= RIG_SESSIONS; i++) /* one more than there are slots */
		create(d, "other", i < RIG_SESSIONS, id);
	assert_int_equal(count(d), RIG_SESSIONS + 1);
	assert_int_equal(tokens_of(d, kept), 10);
	json_decref(rig_ask(d, 0, "session.delete", only(id)));
	assert_equal_answers(d, kept, same);
}

static void without_a_slot_that_can_be_freed_a_new_session_is_refused(void **state)
{
	rig *d = *state;
	char ids[RIG_SESSIONS][STORE_ID_BYTES];
	for (int i = 0; i < RIG_SESSIONS; i++)
		create(d, "words", false, ids[i]);
	json_decref(rig_ask(d, 429, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "x")));
	json_decref(rig_ask(d, 429, "session.create", json_pack("{s:s}", "model", "m")));
	json_decref(rig_ask(d, 429, "session.fork", only(ids[0])));
	assert_int_equal(count(d), RIG_SESSIONS);
	json_decref(rig_ask(d, 0, "session.delete", only(ids[1])));
	create(d, "x", false, ids[1]);
	assert_equal_answers(d, ids[0], ids[2]);
}

static void a_fork_over_the_limit_leaves_its_session_usable(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, "words", true, id);
	const int most = d->options.max_known_sessions;
	d->options.max_known_sessions = 1;
	rig_reopen(d, rig_open_failing);
	json_decref(rig_ask(d, 429, "session.fork", only(id)));
	append(d, 0, id, "!");
	assert_int_equal(count(d), 1);
	d->options.max_known_sessions = most;
	rig_reopen(d, rig_open_failing);
}

/* --- expired ------------------------------------------------------------------------------- */

static void an_expired_session_is_gone_for_every_method_but_not_while_it_is_busy(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	create(d, "some words", false, id);
	rig_call *c = rig_begin(d, "session.generate", asking(id, 5), 0);
	rig_settle(d);
	ahead = SESSIONS_TTL_SECONDS + 10;
	sessions_tick(d->engine.sessions);
	assert_int_equal(count(d), 1);
	rig_grant(c, 100);
	rig_wait(c);
	assert_false(c->failed);
	rig_call_free(c);
	sessions_tick(d->engine.sessions);
	assert_int_equal(count(d), 1); /* it was just used */
	ahead += SESSIONS_TTL_SECONDS + 10;
	sessions_tick(d->engine.sessions);
	is_refused(d, id, 404, "not_found");
	rig_settle(d);
	device_stats stats;
	device_snapshot(fleet_device(d->engine.fleet, 0), &stats);
	assert_int_equal(stats.scheduler.sessions, 0); /* its slot is free */
}

static void a_restart_keeps_only_durable_sessions(void **state)
{
	rig *d = *state;
	char kept[STORE_ID_BYTES], lost[STORE_ID_BYTES], same[STORE_ID_BYTES];
	create(d, "some words", true, kept);
	create(d, "some words", false, lost);
	append(d, 0, kept, "!");
	rig_reopen(d, rig_open_failing);
	is_refused(d, lost, 404, "not_found");
	assert_int_equal(tokens_of(d, kept), 11);
	create(d, "some words!", false, same);
	assert_equal_answers(d, kept, same);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clean)
	const struct CMUnitTest tests[] = {
	    TEST(a_prompt_in_pieces_gives_the_same_session),
	    TEST(a_fork_and_an_import_continue_as_the_session_and_independently),
	    TEST(an_invalid_state_creates_no_session),
	    TEST(a_busy_session_refuses_every_other_request_and_is_free_afterwards),
	    TEST(a_session_is_busy_while_it_is_created_or_forked),
	    TEST(a_cancelled_generation_keeps_the_tokens_that_were_sent),
	    TEST(a_cancelled_append_to_a_durable_session_is_undone),
	    TEST(a_session_that_cannot_be_stored_leaves_no_slot_and_no_file),
	    TEST(a_request_that_the_executor_has_no_room_for_changes_nothing),
	    TEST(a_session_is_lost_with_the_device_and_a_durable_one_is_restored),
	    TEST(a_new_session_that_fails_on_the_device_does_not_exist),
	    TEST(an_idle_durable_session_gives_up_its_slot_and_is_restored_unchanged),
	    TEST(without_a_slot_that_can_be_freed_a_new_session_is_refused),
	    TEST(a_fork_over_the_limit_leaves_its_session_usable),
	    TEST(an_expired_session_is_gone_for_every_method_but_not_while_it_is_busy),
	    TEST(a_restart_keeps_only_durable_sessions),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
