/* test_fleet.c - an engine with two devices: what is placed where, and what the loss of one means for the other. */
#include "tests/unit/daemon/fleet.h"

enum { STEPS = 12 };

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
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_cpu_is_one_device),
	    cmocka_unit_test(a_device_that_trains_counts_double),
	    FLEET_TEST(sessions_are_spread_and_answer_alike),
	    FLEET_TEST(generations_go_to_the_least_loaded_device),
	    FLEET_TEST(a_fork_stays_with_its_session_while_there_is_a_slot),
	    FLEET_TEST(a_fork_of_a_snapshot_begins_at_it_on_any_device),
	    FLEET_TEST(a_session_is_explained_on_its_device),
	    FLEET_TEST(a_format_is_compiled_for_each_device),
	    FLEET_TEST(sessions_of_a_lost_device_continue_on_the_other),
	    FLEET_TEST(a_full_device_beside_a_lost_one_gives_up_an_idle_session),
	    FLEET_TEST(the_session_that_is_idle_longest_on_any_device_gives_its_slot),
	    FLEET_TEST(a_lost_device_is_opened_again_and_takes_sessions),
	    FLEET_TEST(a_job_trains_on_the_device_without_sessions),
	    FLEET_TEST(a_job_whose_device_is_lost_ends_on_the_other_with_the_same_weights),
	    cmocka_unit_test(the_process_is_left_only_without_any_open_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
