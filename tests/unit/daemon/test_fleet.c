/* test_fleet.c - an engine with two devices: what is placed where, and what the loss of one means for the other. Both
 * are CPU backends. */
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

enum { DEVICES = 2, STEPS = 12 };

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

static status failing_linear(backend *b, const op_call *call)
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

static status refusing_allocate(backend *b, size_t bytes, void **out)
{
	if (refusing < 0 || opened[refusing] != b)
		return real_allocate(b, bytes, out);
	refusing = -1;
	*out = NULL;
	return STATUS_NOMEM;
}

static status open_numbered(backend **out, int threads, error *err)
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

static int setup(void **state)
{
	ahead = 0;
	n_opened = 0;
	failing = lost = refusing = -1;
	repaired = false;
	*state = rig_new_fleet(open_numbered, DEVICES);
	log_init("test", LOG_NOTHING);
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

static device_stats stats_of(rig *d, int at)
{
	device_stats now;
	rig_settle(d);
	device_snapshot(fleet_device(d->engine.fleet, at), &now);
	return now;
}

/* --- clients' requests ------------------------------------------------------------------ */

static json_t *only(const char *id)
{
	return json_pack("{s:s}", "id", id);
}

/* Create a session that has read `prompt`. */
static void create(rig *d, const char *prompt, bool durable, char id[STORE_ID_BYTES])
{
	rig_keep_id(rig_ask(d, 0, "session.create",
	                    json_pack("{s:s, s:s, s:b}", "model", "m", "prompt", prompt, "durable", durable)),
	            id);
}

static json_t *generating(const char *id, int max_tokens)
{
	return json_pack("{s:s, s:i, s:f, s:i}", "id", id, "max_tokens", max_tokens, "temperature", 0.0, "seed", 1);
}

static json_t *tokens_in(const rig_call *c)
{
	size_t i, k;
	json_t *event, *token, *ids = json_array();
	json_array_foreach(c->events, i, event) json_array_foreach(json_object_get(event, "tokens"), k, token)
	    json_array_append(ids, token);
	return ids;
}

/* The next tokens of the session, as ids. */
static json_t *says(rig *d, const char *id)
{
	rig_call *c = rig_begin(d, "session.generate", generating(id, 8), 100);
	rig_wait(c);
	assert_false(c->failed);
	json_t *ids = tokens_in(c);
	rig_call_free(c);
	assert_int_equal(json_array_size(ids), 8);
	return ids;
}

static void assert_equal_answers(rig *d, const char *a, const char *b)
{
	json_t *one = says(d, a), *other = says(d, b);
	assert_true(json_equal(one, other));
	json_decref(one);
	json_decref(other);
}

static void append(rig *d, int http, const char *id, const char *text)
{
	json_decref(rig_ask(d, http, "session.append", json_pack("{s:s, s:s}", "id", id, "text", text)));
}

/* Begin a completion of a's that waits for credit after two events of each choice. */
static rig_call *begin_stream(rig *d, int n)
{
	return rig_begin(d, "completion.create",
	                 json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "model", "m", "prompt", "word", "max_tokens", 40,
	                           "n", n, "logit_bias", "100", 100),
	                 2 * n);
}

static void the_cpu_is_one_device(void **state)
{
	const device_options on[2] = {{.backend = "cpu", .threads = 1, .limits = {1, 1, 1, 1}},
	                              {.backend = "cpu", .threads = 1, .limits = {1, 1, 1, 1}, .device = 1}};
	error err = ERROR_INIT;
	fleet *f;
	(void)state;
	assert_int_equal(fleet_open(&f, on, 2, &err), STATUS_INVALID);
	assert_null(f);
	assert_non_null(strstr(err.message, "--device"));
}

static void a_device_that_trains_counts_double(void **state)
{
	const device_options on[DEVICES] = {
	    {.backend = "cpu", .threads = 1, .limits = {1, 1, 1, 1}, .cpu = cpu_open},
	    {.backend = "cpu", .threads = 1, .limits = {1, 1, 1, 1}, .device = 1, .cpu = cpu_open}};
	fleet *f;
	(void)state;
	assert_int_equal(fleet_open(&f, on, DEVICES, NULL), STATUS_OK);
	assert_int_equal(fleet_enter_training(f), 0);
	assert_int_equal(fleet_emptiest(f), 1);
	for (int i = 0; i < 6; i++) /* the second device gets two of three */
		assert_int_equal(fleet_enter(f, FLEET_ANY, 1), i % 3 != 1);
	assert_int_equal(fleet_enter_training(f), 0); /* fewer requests */
	fleet_leave_training(f, 0);
	fleet_leave_training(f, 0);
	fleet_leave(f, 1, 4);
	assert_int_equal(fleet_enter(f, FLEET_ANY, 1), 1);
	fleet_count_sessions(f, 1, 2);
	assert_int_equal(fleet_enter_training(f), 0);
	assert_int_equal(fleet_emptiest(f), 0);
	fleet_free(f);
}

/* --- placement --------------------------------------------------------------------------------- */

static void sessions_are_spread_and_answer_alike(void **state)
{
	rig *d = *state;
	char ids[2 * RIG_SESSIONS][STORE_ID_BYTES];
	for (int i = 0; i < 2 * RIG_SESSIONS; i++) {
		create(d, "some words", false, ids[i]);
		assert_int_equal(stats_of(d, 0).scheduler.sessions, (i + 2) / 2);
		assert_int_equal(stats_of(d, 1).scheduler.sessions, (i + 1) / 2);
	}
	json_decref(rig_ask(d, 429, "session.create", json_pack("{s:s}", "model", "m"))); /* both are full */
	for (int i = 1; i < 2 * RIG_SESSIONS; i++) {
		json_decref(rig_ask(d, 0, "session.get", only(ids[i])));
		if (i > 1)
			continue;
		assert_equal_answers(d, ids[0], ids[i]);
	}
	json_decref(rig_ask(d, 0, "session.delete", only(ids[3]))); /* the next one takes its slot */
	create(d, "x", false, ids[3]);
	assert_int_equal(stats_of(d, 1).scheduler.sessions, RIG_SESSIONS);
}

static void generations_go_to_the_least_loaded_device(void **state)
{
	rig *d = *state;
	rig_call *two = begin_stream(d, 2);
	assert_int_equal(stats_of(d, 0).scheduler.running, 2);
	rig_call *one = begin_stream(d, 1), *another = begin_stream(d, 1);
	assert_int_equal(stats_of(d, 0).scheduler.running, 2);
	assert_int_equal(stats_of(d, 1).scheduler.running, 2);
	rig_grant(two, 1000);
	rig_wait(two);
	rig_call *next = begin_stream(d, 1);
	assert_int_equal(stats_of(d, 0).scheduler.running, 1);
	rig_call *const all[] = {one, another, next};
	for (int i = 0; i < 3; i++) {
		rig_grant(all[i], 1000);
		rig_wait(all[i]);
		assert_false(all[i]->failed);
		rig_call_free(all[i]);
	}
	rig_call_free(two);
	assert_int_equal(stats_of(d, 0).scheduler.running + stats_of(d, 1).scheduler.running, 0);
}

static void a_fork_stays_with_its_session_while_there_is_a_slot(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES], copies[RIG_SESSIONS][STORE_ID_BYTES];
	create(d, "some words", true, id);
	for (int i = 0; i < RIG_SESSIONS; i++) {
		const bool stays = i < RIG_SESSIONS - 1;
		rig_keep_id(rig_ask(d, 0, "session.fork", only(id)), copies[i]);
		assert_int_equal(stats_of(d, 0).scheduler.sessions, stays ? i + 2 : RIG_SESSIONS);
		assert_int_equal(stats_of(d, 1).scheduler.sessions, stays ? 0 : 1);
	}
	json_t *expected = says(d, id);
	for (int i = 0; i < RIG_SESSIONS; i++) {
		json_t *said = says(d, copies[i]);
		assert_true(json_equal(said, expected));
		json_decref(said);
	}
	json_decref(expected);
}

static void a_fork_of_a_snapshot_begins_at_it_on_any_device(void **state)
{
	rig *d = *state;
	for (int durable = 0; durable < 2; durable++) {
		char id[STORE_ID_BYTES], from[STORE_ID_BYTES], copies[RIG_SESSIONS][STORE_ID_BYTES];
		create(d, "some words", durable, id);
		rig_keep_id(rig_ask(d, 0, "snapshot.create", only(id)), from);
		json_t *expected = says(d, id);
		for (int i = 0; i < RIG_SESSIONS; i++)
			rig_keep_id(rig_ask(d, 0, "session.fork", json_pack("{s:s, s:s}", "id", id, "snapshot", from)),
			            copies[i]);
		assert_true(stats_of(d, 1).scheduler.sessions > 0);
		for (int i = 0; i < RIG_SESSIONS; i++) {
			json_t *said = says(d, copies[i]);
			assert_true(json_equal(said, expected));
			json_decref(said);
			json_decref(rig_ask(d, 0, "session.delete", only(copies[i])));
		}
		json_decref(expected);
		json_decref(rig_ask(d, 0, "session.rollback", json_pack("{s:s, s:s}", "id", id, "snapshot", from)));
		json_decref(rig_ask(d, 0, "session.delete", only(id)));
	}
}

static void a_model_is_loaded_and_unloaded_on_every_device(void **state)
{
	rig *d = *state;
	for (int i = 0; i < 2; i++) {
		json_decref(rig_ask(d, 0, "model.load", only("m")));
		for (int at = 0; at < DEVICES; at++)
			assert_int_equal(stats_of(d, at).n_loaded, 1);
		if (i > 0) { /* in use on the second device only */
			rig_call *first = begin_stream(d, 1), *second = begin_stream(d, 1);
			rig_settle(d);
			rig_grant(first, 1000);
			rig_wait(first);
			json_decref(rig_ask(d, 409, "model.unload", only("m")));
			assert_int_equal(stats_of(d, 0).n_loaded, 1);
			rig_grant(second, 1000);
			rig_wait(second);
			rig_call_free(first);
			rig_call_free(second);
		}
		json_decref(rig_ask(d, 0, "model.unload", only("m")));
		for (int at = 0; at < DEVICES; at++)
			assert_int_equal(stats_of(d, at).n_loaded, 0);
	}
}

static const char *weights_of(rig *d, char out[16])
{
	json_t *m = rig_ask(d, 0, "model.get", only("m"));
	snprintf(out, 16, "%s", json_string_value(json_object_get(json_object_get(m, "additive"), "dtype")));
	json_decref(m);
	return out;
}

static void weights_that_one_device_cannot_change_stay(void **state)
{
	rig *d = *state;
	char name[16];
	rig_call *first = begin_stream(d, 1), *second = begin_stream(d, 1);
	rig_settle(d);
	rig_grant(first, 1000);
	rig_wait(first);
	json_decref(rig_ask(d, 409, "model.load", json_pack("{s:s, s:s}", "id", "m", "dtype", "int8")));
	assert_string_equal(weights_of(d, name), "fp32");
	rig_grant(second, 1000);
	rig_wait(second);
	assert_false(second->failed);
	json_decref(rig_ask(d, 0, "model.load", json_pack("{s:s, s:s}", "id", "m", "dtype", "int8")));
	assert_string_equal(weights_of(d, name), "int8");
	rig_call_free(first);
	rig_call_free(second);
}

/* --- a change on every device or on none ------------------------------------------------------ */

static void assert_loaded(rig *d, int at, dtype weights)
{
	rig_settle(d);
	const served_model *m = device_scheduler(fleet_device(d->engine.fleet, at))->models;
	assert_true(m && !m->next && m->weights == weights);
}

static json_t *load_int8(void)
{
	return json_pack("{s:s, s:s}", "id", "m", "dtype", "int8");
}

static void weights_that_one_device_has_no_room_for_are_loaded_on_none(void **state)
{
	rig *d = *state;
	char name[16];
	json_decref(rig_ask(d, 0, "model.load", only("m")));
	refusing = 1;
	json_t *refused = rig_ask(d, 503, "model.load", load_int8());
	assert_int_equal(refusing, -1);
	assert_non_null(strstr(json_string_value(json_object_get(refused, "message")), "(device 1)"));
	json_decref(refused);
	assert_string_equal(weights_of(d, name), "fp32");
	for (int at = 0; at < DEVICES; at++)
		assert_loaded(d, at, DTYPE_PANEL_F32);
	json_decref(rig_ask(d, 0, "model.load", load_int8()));
	assert_string_equal(weights_of(d, name), "int8");
	for (int at = 0; at < DEVICES; at++)
		assert_loaded(d, at, DTYPE_PANEL_INT8);
}

typedef struct turn {
	task task;
	bool done;
} turn;

static void run_nothing(task *t, device *d)
{
	(void)t, (void)d;
}

static void turn_done(task *t)
{
	((turn *)t)->done = true;
}

/* Give device `at` a few turns after the tasks submitted so far, with those that the pool still prepares. */
static void pass(rig *d, int at)
{
	for (int i = 0; i < 8; i++) {
		turn one = {.task = {.run = run_nothing, .done = turn_done}};
		while (d->engine.loop.active_reqs.count > 0)
			uv_run(&d->engine.loop, UV_RUN_NOWAIT);
		executor_control(fleet_executor(d->engine.fleet, at), &one.task);
		while (!one.done)
			uv_run(&d->engine.loop, UV_RUN_NOWAIT);
	}
}

static void requests_that_come_during_a_change_use_the_new_weights(void **state)
{
	rig *d = *state;
	json_decref(rig_ask(d, 0, "model.load", only("m")));
	rig_hold_device(d, 0);
	rig_call *change = rig_begin(d, "model.load", load_int8(), 0);
	rig_call *both[] = {begin_stream(d, 1), begin_stream(d, 1)}; /* one on each device */
	pass(d, 1);
	rig_release(d);
	rig_wait(change);
	assert_false(change->failed);
	json_t *said[DEVICES];
	for (int i = 0; i < DEVICES; i++) {
		assert_loaded(d, i, DTYPE_PANEL_INT8);
		rig_grant(both[i], 1000);
		rig_wait(both[i]);
		assert_false(both[i]->failed);
		said[i] = tokens_in(both[i]);
		rig_call_free(both[i]);
	}
	assert_true(json_equal(said[0], said[1]));
	json_decref(said[0]);
	json_decref(said[1]);
	rig_call_free(change);
}

/* The request has found the model before the deletion, and reaches the first device after it. */
static void a_request_that_comes_during_a_deletion_loads_nothing(void **state)
{
	rig *d = *state;
	json_decref(rig_ask(d, 0, "model.load", only("m")));
	rig_hold_device(d, 1);
	rig_call *late = rig_begin(d, "completion.create",
	                           json_pack("{s:s, s:s, s:i, s:{s:s}}", "model", "m", "prompt", "word", "max_tokens",
	                                     4, "response_format", "type", "json_object"),
	                           1000);
	rig_call *deletion = rig_begin(d, "model.delete", only("m"), 0);
	pass(d, 0);
	rig_release(d);
	rig_wait(deletion);
	assert_false(deletion->failed);
	rig_wait(late);
	assert_true(late->failed);
	assert_int_equal(json_integer_value(json_object_get(late->answer, "status")), 404);
	for (int at = 0; at < DEVICES; at++)
		assert_int_equal(stats_of(d, at).n_loaded, 0);
	rig_call_free(late);
	rig_call_free(deletion);
}

static void a_model_that_is_being_changed_is_not_changed_by_another_request(void **state)
{
	static const char *const methods[] = {"model.unload", "model.delete", "model.load"};
	rig *d = *state;
	rig_hold_device(d, 1);
	rig_call *change = rig_begin(d, "model.load", load_int8(), 0);
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		json_decref(rig_ask(d, 409, methods[i], i < 2 ? only("m") : load_int8()));
	rig_release(d);
	rig_wait(change);
	assert_false(change->failed);
	rig_call_free(change);
	json_decref(rig_ask(d, 0, "model.unload", only("m")));
	json_decref(rig_ask(d, 0, "model.delete", only("m")));
	json_decref(rig_ask(d, 404, "model.load", only("m")));
}

/* The load has been accepted; no device has begun it. */
static void a_model_whose_load_waits_is_not_unloaded_or_deleted(void **state)
{
	rig *d = *state;
	rig_hold_device(d, 0);
	rig_call *load = rig_begin(d, "model.load", only("m"), 0);
	json_decref(rig_ask(d, 409, "model.unload", only("m")));
	json_decref(rig_ask(d, 409, "model.delete", only("m")));
	rig_call *change = rig_begin(d, "model.load", load_int8(), 0);
	rig_release(d);
	rig_wait(load);
	rig_wait(change);
	assert_false(load->failed || change->failed);
	for (int at = 0; at < DEVICES; at++)
		assert_loaded(d, at, DTYPE_PANEL_INT8);
	rig_call_free(load);
	rig_call_free(change);
	json_decref(rig_ask(d, 0, "model.delete", only("m")));
}

/* The load names the type that the model has when it comes. A change is complete before it runs. */
static void a_load_of_a_type_that_another_request_has_changed_is_refused(void **state)
{
	rig *d = *state;
	rig_hold_device(d, 0);
	rig_call *change = rig_begin(d, "model.load", load_int8(), 0);
	rig_call *load = rig_begin(d, "model.load", json_pack("{s:s, s:s}", "id", "m", "dtype", "fp32"), 0);
	rig_release(d);
	rig_wait(change);
	rig_wait(load);
	assert_false(change->failed);
	assert_true(load->failed);
	assert_int_equal(json_integer_value(json_object_get(load->answer, "status")), 409);
	assert_string_equal(json_string_value(json_object_get(load->answer, "param")), "dtype");
	for (int at = 0; at < DEVICES; at++)
		assert_loaded(d, at, DTYPE_PANEL_INT8);
	rig_call_free(change);
	rig_call_free(load);
}

/* --- rounds ------------------------------------------------------------------------------------- */

/* Writes a letter for each call and the number of its device; the call `fails` fails. */
typedef struct diary {
	fleet_round round;
	char calls[32];
	const char *fails;
	bool done;
} diary;

static status note_call(fleet_round *r, char stage)
{
	diary *x = (diary *)r;
	const size_t n = strlen(x->calls);
	snprintf(x->calls + n, sizeof x->calls - n, "%c%d", stage, r->at);
	return strcmp(x->calls + n, x->fails) == 0 ? STATUS_NOMEM : STATUS_OK;
}

static status diary_check(fleet_round *r, device *d)
{
	(void)d;
	return note_call(r, 'c');
}

static status diary_run(fleet_round *r, device *d)
{
	(void)d;
	return note_call(r, 'r');
}

static void diary_undo(fleet_round *r, device *d)
{
	(void)d;
	note_call(r, 'u');
}

static status diary_commit(fleet_round *r)
{
	return note_call(r, '!');
}

static void diary_done(fleet_round *r)
{
	((diary *)r)->done = true;
}

static void a_round_happens_on_every_device_or_is_undone(void **state)
{
	static const struct {
		const char *fails, *calls;
	} cases[] = {
	    {"", "c0c1r0r1!2"}, {"c0", "c0"},           {"c1", "c0c1"},
	    {"r0", "c0c1r0u0"}, {"r1", "c0c1r0r1u0u1"}, {"!2", "c0c1r0r1!2u0u1"},
	};
	rig *d = *state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		diary x = {.fails = cases[i].fails,
		           .round = {.check = diary_check,
		                     .run = diary_run,
		                     .undo = diary_undo,
		                     .commit = diary_commit,
		                     .done = diary_done}};
		assert_true(fleet_begin_round(d->engine.fleet, &x.round));
		while (!x.done)
			uv_run(&d->engine.loop, UV_RUN_NOWAIT);
		assert_string_equal(x.calls, cases[i].calls);
		assert_int_equal(x.round.result, *cases[i].fails ? STATUS_NOMEM : STATUS_OK);
	}
}

static void a_session_is_explained_on_its_device(void **state)
{
	rig *d = *state;
	char id[STORE_ID_BYTES];
	rig_keep_id(rig_ask(d, 0, "session.create",
	                    json_pack("{s:s, s:s, s:b}", "model", "m", "prompt", "some words", "explain", 1)),
	            id);
	rig_call *busy = begin_stream(d, 2);
	json_t *answer = rig_ask(d, 0, "session.alpha", json_pack("{s:s, s:i}", "id", id, "position", 3));
	assert_non_null(json_object_get(answer, "contributions"));
	json_decref(answer);
	assert_int_equal(stats_of(d, 0).scheduler.running, 2);
	assert_int_equal(stats_of(d, 1).n_loaded, 0);
	rig_grant(busy, 1000);
	rig_wait(busy);
	rig_call_free(busy);
}

/* Texts of one format share what is known about its tokens, and run on both devices at once. */
static void a_format_is_compiled_for_each_device(void **state)
{
	enum { CALLS = 4 };
	rig *d = *state;
	rig_call *calls[CALLS];
	for (int i = 0; i < CALLS; i++)
		calls[i] = rig_begin(d, "completion.create",
		                     json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "model", "m", "prompt", "word",
		                               "max_tokens", 40, "seed", 7, "response_format", "type", "json_object"),
		                     1000);
	json_t *expected = NULL;
	for (int i = 0; i < CALLS; i++) {
		rig_wait(calls[i]);
		assert_false(calls[i]->failed);
		json_t *ids = tokens_in(calls[i]);
		assert_true(json_array_size(ids) > 0 && (!expected || json_equal(ids, expected)));
		json_decref(expected);
		expected = ids;
		rig_call_free(calls[i]);
	}
	json_decref(expected);
	assert_true(stats_of(d, 0).scheduler.generated_tokens > 0 && stats_of(d, 1).scheduler.generated_tokens > 0);
}

/* --- a lost device ------------------------------------------------------------------------------- */

static void sessions_of_a_lost_device_continue_on_the_other(void **state)
{
	rig *d = *state;
	char kept[STORE_ID_BYTES], other[STORE_ID_BYTES], gone[STORE_ID_BYTES], idle[STORE_ID_BYTES];
	create(d, "some words", true, kept);   /* on the first device */
	create(d, "some words", false, other); /* on the second */
	create(d, "some words", false, gone);
	rig_keep_id(rig_ask(d, 0, "session.fork", only(kept)), idle);
	assert_int_equal(stats_of(d, 0).scheduler.sessions, 3);
	rig_call *quiet = begin_stream(d, 1), *beside = begin_stream(d, 1);
	rig_settle(d);
	rig_grant(quiet, 1000);
	rig_wait(quiet); /* the first device has none left; `beside` runs on the second */
	json_t *expected = tokens_in(quiet);
	assert_int_equal(stats_of(d, 1).scheduler.running, 1);
	failing = 0;
	append(d, 503, kept, "never read");
	assert_int_equal(failing, -1);
	assert_int_equal(stats_of(d, 0).restarts, 1);
	assert_int_equal(stats_of(d, 1).restarts, 0);
	assert_false(device_is_open(fleet_device(d->engine.fleet, 0)));
	assert_true(fleet_is_open(d->engine.fleet));
	assert_false(fleet_wants_process(d->engine.fleet)); /* a CPU */
	append(d, 503, gone, "x");                          /* it was on the first device only */
	json_t *said[] = {says(d, kept), says(d, other), says(d, idle)};
	assert_true(json_equal(said[0], said[1]) && json_equal(said[0], said[2]));
	for (int i = 0; i < 3; i++)
		json_decref(said[i]);
	assert_int_equal(stats_of(d, 1).scheduler.sessions, 3);
	rig_grant(beside, 1000);
	rig_wait(beside);
	assert_false(beside->failed);
	json_t *got = tokens_in(beside);
	assert_true(json_equal(got, expected));
	json_decref(got);
	json_decref(expected);
	rig_call_free(quiet);
	rig_call_free(beside);
}

static void a_full_device_beside_a_lost_one_gives_up_an_idle_session(void **state)
{
	rig *d = *state;
	char ids[2 * RIG_SESSIONS][STORE_ID_BYTES], id[STORE_ID_BYTES];
	for (int i = 0; i < 2 * RIG_SESSIONS; i++)
		create(d, "some words", true, ids[i]);
	failing = 0;
	append(d, 503, ids[0], "never read");
	create(d, "some words", true, id); /* the longest idle sessions are on the lost device */
	assert_int_equal(stats_of(d, 1).scheduler.sessions, RIG_SESSIONS);
	for (int i = 0; i < 2 * RIG_SESSIONS; i++)
		append(d, 0, ids[i], "!");
	assert_equal_answers(d, ids[0], ids[1]);
}

static void the_session_that_is_idle_longest_on_any_device_gives_its_slot(void **state)
{
	rig *d = *state;
	char ids[2 * RIG_SESSIONS][STORE_ID_BYTES], id[STORE_ID_BYTES];
	for (int i = 0; i < 2 * RIG_SESSIONS; i++)
		create(d, "x", true, ids[i]); /* on the devices in turn */
	append(d, 0, ids[0], "!");
	create(d, "x", true, id);
	assert_int_equal(stats_of(d, 1).scheduler.sessions, RIG_SESSIONS);
	for (int i = 0; i < 2 * RIG_SESSIONS; i++) {
		scheduler *s = device_scheduler(fleet_device(d->engine.fleet, i % DEVICES));
		assert_true((scheduler_session_find(s, ids[i]) == NULL) == (i == 1));
	}
	append(d, 0, ids[1], "!"); /* takes the slot of the next one */
	rig_settle(d);
	assert_null(scheduler_session_find(device_scheduler(fleet_device(d->engine.fleet, 0)), ids[2]));
	assert_true(sessions_are_stored(d->engine.sessions));
	json_decref(rig_ask(d, 0, "session.delete", only(id)));
	create(d, "x", false, id);
	assert_false(sessions_are_stored(d->engine.sessions));
}

static void a_lost_device_is_opened_again_and_takes_sessions(void **state)
{
	rig *d = *state;
	char kept[STORE_ID_BYTES], gone[STORE_ID_BYTES], next[STORE_ID_BYTES];
	create(d, "some words", true, kept);
	create(d, "x", false, next);
	create(d, "x", false, gone);
	failing = 0;
	append(d, 503, kept, "never read");
	json_t *before = says(d, kept); /* moved */
	repaired = true;
	ahead += 2;
	for (uint64_t began = clock_ns(); !device_is_open(fleet_device(d->engine.fleet, 0));)
		assert_true(clock_ns() - began < 30000000000u);
	append(d, 404, gone, "x");
	create(d, "some words", true, next); /* on the first device again */
	assert_int_equal(stats_of(d, 0).scheduler.sessions, 1);
	json_t *after = says(d, next);
	assert_true(json_equal(before, after));
	json_decref(before);
	json_decref(after);
	assert_false(fleet_is_left(d->engine.fleet));
}

/* --- training ------------------------------------------------------------------------------------- */

/* Turn the loop until the job has succeeded, and read its weights. */
static void run_job(rig *d, const char *id, char **weights, size_t *bytes)
{
	char path[PATH_MAX + 32] = "";
	for (int64_t began = clock_unix(); !path[0]; assert_true(clock_unix() - began < 30)) {
		uv_run(&d->engine.loop, UV_RUN_NOWAIT);
		job_machine_tick(d->engine.job_machine);
		json_t *now = rig_ask(d, 0, "job.get", only(id));
		const char *is = json_string_value(json_object_get(now, "status"));
		assert_string_not_equal(is, "failed");
		if (strcmp(is, "succeeded") == 0)
			store_model_folder(d->engine.store, json_string_value(json_object_get(now, "fine_tuned_model")),
			                   path);
		else if (strcmp(is, "running") != 0)
			ahead++; /* it may be waiting to be tried again */
		json_decref(now);
	}
	strcat(path, "/model.safetensors");
	assert_int_equal(file_read(path, 1 << 20, weights, bytes, NULL), STATUS_OK);
}

static void a_job_trains_on_the_device_without_sessions(void **state)
{
	rig *d = *state;
	char file[STORE_ID_BYTES], job[STORE_ID_BYTES], id[STORE_ID_BYTES], *weights;
	size_t bytes;
	rig_add_text(d, file);
	create(d, "words", false, id); /* on the first device */
	rig_create_job(d, file, STEPS, 4, job);
	run_job(d, job, &weights, &bytes);
	free(weights);
	assert_int_equal(stats_of(d, 0).training_steps, 0);
	assert_int_equal(stats_of(d, 1).training_steps, STEPS);
	device_stats all;
	fleet_snapshot(d->engine.fleet, &all);
	assert_int_equal(all.training_steps, STEPS);
	assert_false(fleet_trains(d->engine.fleet, 0) || fleet_trains(d->engine.fleet, 1));
}

static void a_job_whose_device_is_lost_ends_on_the_other_with_the_same_weights(void **state)
{
	rig *d = *state;
	char file[STORE_ID_BYTES], job[STORE_ID_BYTES], id[STORE_ID_BYTES], *expected, *weights;
	size_t expected_bytes, bytes;
	rig_add_text(d, file);
	rig_create_job(d, file, STEPS, 4, job);
	run_job(d, job, &expected, &expected_bytes);
	assert_int_equal(stats_of(d, 0).training_steps, STEPS);
	create(d, "words", false, id); /* on the first device, so the job begins on the second */
	rig_create_job(d, file, STEPS, 4, job);
	failing = 1;
	run_job(d, job, &weights, &bytes);
	assert_int_equal(lost, 1);
	assert_in_range(stats_of(d, 0).training_steps, STEPS + 1, 2 * STEPS);
	assert_int_equal(stats_of(d, 1).restarts, 1);
	assert_int_equal(bytes, expected_bytes);
	assert_memory_equal(weights, expected, bytes);
	free(weights);
	free(expected);
}

/* --- leaving the process -------------------------------------------------------------------------- */

/* A GPU that does not open again, played by a CPU under its name: opening it again needs the plug-in, which is
 * missing. */
static status open_as_cuda(backend **out, int threads, error *err)
{
	TRY(open_numbered(out, threads, err));
	(*out)->name = "cuda";
	return STATUS_OK;
}

static bool always(const backend *b)
{
	(void)b;
	return true;
}

static void the_process_is_left_only_without_any_open_device(void **state)
{
	const device_options on[DEVICES] = {
	    {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}, .cpu = open_as_cuda},
	    {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}, .device = 1, .cpu = open_as_cuda}};
	device_history next[FLEET_MAX];
	device_stats stats;
	fleet *f;
	(void)state;
	n_opened = 0;
	failing = -1;
	ahead = 0;
	assert_int_equal(fleet_open(&f, on, DEVICES, NULL), STATUS_OK);
	opened[0]->lost = always;
	assert_true(device_work.foreground(fleet_device(f, 0)));
	assert_false(device_is_open(fleet_device(f, 0)) || device_is_left(fleet_device(f, 0)));
	assert_true(fleet_is_open(f));
	device_snapshot(fleet_device(f, 0), &stats);
	assert_int_equal(stats.left_ns, 0);
	fleet_snapshot(f, &stats);
	assert_string_equal(stats.problem, ""); /* one device suffices */
	assert_true(fleet_wants_process(f));
	opened[1]->lost = always;
	assert_true(device_work.foreground(fleet_device(f, 1)));
	assert_false(fleet_is_open(f) || fleet_wants_process(f));
	assert_true(fleet_is_left(f));
	fleet_snapshot(f, &stats);
	assert_non_null(strstr(stats.problem, "additive-cuda.so"));
	assert_int_equal(stats.restarts, 2);
	fleet_hand_over(f, next);
	for (int i = 0; i < DEVICES; i++) {
		assert_int_equal(next[i].processes, 1);
		assert_int_equal(next[i].restarts, 1);
	}
	fleet_free(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_cpu_is_one_device),
	    cmocka_unit_test(a_device_that_trains_counts_double),
	    TEST(sessions_are_spread_and_answer_alike),
	    TEST(generations_go_to_the_least_loaded_device),
	    TEST(a_fork_stays_with_its_session_while_there_is_a_slot),
	    TEST(a_fork_of_a_snapshot_begins_at_it_on_any_device),
	    TEST(a_model_is_loaded_and_unloaded_on_every_device),
	    TEST(weights_that_one_device_cannot_change_stay),
	    TEST(weights_that_one_device_has_no_room_for_are_loaded_on_none),
	    TEST(requests_that_come_during_a_change_use_the_new_weights),
	    TEST(a_request_that_comes_during_a_deletion_loads_nothing),
	    TEST(a_model_that_is_being_changed_is_not_changed_by_another_request),
	    TEST(a_model_whose_load_waits_is_not_unloaded_or_deleted),
	    TEST(a_load_of_a_type_that_another_request_has_changed_is_refused),
	    TEST(a_round_happens_on_every_device_or_is_undone),
	    TEST(a_session_is_explained_on_its_device),
	    TEST(a_format_is_compiled_for_each_device),
	    TEST(sessions_of_a_lost_device_continue_on_the_other),
	    TEST(a_full_device_beside_a_lost_one_gives_up_an_idle_session),
	    TEST(the_session_that_is_idle_longest_on_any_device_gives_its_slot),
	    TEST(a_lost_device_is_opened_again_and_takes_sessions),
	    TEST(a_job_trains_on_the_device_without_sessions),
	    TEST(a_job_whose_device_is_lost_ends_on_the_other_with_the_same_weights),
	    cmocka_unit_test(the_process_is_left_only_without_any_open_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
