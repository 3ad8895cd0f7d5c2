/* test_fleet_models.c - models of an engine with two devices: a change happens on every device or on none. */
#include "tests/unit/daemon/fleet.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    FLEET_TEST(a_model_is_loaded_and_unloaded_on_every_device),
	    FLEET_TEST(weights_that_one_device_cannot_change_stay),
	    FLEET_TEST(weights_that_one_device_has_no_room_for_are_loaded_on_none),
	    FLEET_TEST(requests_that_come_during_a_change_use_the_new_weights),
	    FLEET_TEST(a_request_that_comes_during_a_deletion_loads_nothing),
	    FLEET_TEST(a_model_that_is_being_changed_is_not_changed_by_another_request),
	    FLEET_TEST(a_model_whose_load_waits_is_not_unloaded_or_deleted),
	    FLEET_TEST(a_load_of_a_type_that_another_request_has_changed_is_refused),
	    FLEET_TEST(a_round_happens_on_every_device_or_is_undone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
