/* The states of a job: every action in every state, and the effect of a restart on each. The job table is stopped
 * immediately, so no job runs and states change only by actions. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/jobs/job_removal.h"
#include "engine/daemon/jobs/job_state.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/sessions/sessions.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

typedef struct fixture {
	engine *engine;
	char folder[64];
} fixture;

static void open_tables(engine *e)
{
	job_queue_stop(parts_open_kind(e, &training_jobs));
}

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	f->engine = memory_new(1, sizeof *f->engine);
	folder_new(f->folder);
	log_init("test", LOG_ERROR);
	assert_int_equal(store_open(&f->engine->store, f->folder, NULL), STATUS_OK);
	assert_int_equal(catalog_new(&f->engine->catalog, f->engine->store), STATUS_OK);
	parts_open_sessions(f->engine);
	open_tables(f->engine);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	job_machine_free(f->engine->job_machine);
	sessions_free(f->engine->sessions);
	catalog_free(f->engine->catalog);
	store_close(f->engine->store);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f->engine);
	free(f);
	return 0;
}

static json_t *document(const char *id)
{
	return json_pack("{s:s, s:s, s:s, s:{s:s, s:s, s:s, s:i}}", "id", id, "status", "queued", "model", "additive",
	                 "request", "training_file", "file-1", "base", "some-model", "result", "ft:additive:1",
	                 "keep_checkpoints", 2);
}

static void add(engine *e, const char *id)
{
	json_t *row = document(id);
	assert_int_equal(job_state_add(jobs_of(e->job_machine), id, row, json_array(), NULL), STATUS_OK);
	json_decref(row);
}

/* Perform a request for a client that does not read; true if it was answered with RESULT. */
static bool ask(engine *e, const char *method, const char *id)
{
	uint64_t before = e->net.requests, failed = e->net.failures;
	stream *s = stream_new(&e->net, NULL, 0, 0);
	s->params = json_object();
	strcpy(s->target, id);
	parts_begin_method(e, s, method);
	assert_int_equal(e->net.requests + e->net.failures, before + failed + 1); /* answered exactly once */
	assert_int_equal(e->net.streams, 0);
	return e->net.requests == before + 1;
}

static void is(engine *e, const char *id, const char *expected)
{
	json_t *row;
	const bool ended = !job_table_find(jobs_of(e->job_machine), id);
	assert_int_equal(job_queue_document(&jobs_of(e->job_machine)->queue, id, &row, NULL), STATUS_OK);
	assert_string_equal(json_string_value(json_object_get(row, "status")), expected);
	assert_int_equal(ended, strcmp(expected, "cancelled") == 0);
	json_decref(row);
	assert_int_equal(store_job_get(e->store, id, &row, NULL), STATUS_OK); /* the ledger agrees */
	assert_string_equal(json_string_value(json_object_get(row, "status")), expected);
	json_decref(row);
}

static void every_action_in_every_state_does_what_the_table_says(void **state)
{
	static const struct {
		const char *state;
		const char *cancel, *pause, *resume; /* state after the action; NULL: refused */
	} table[] = {{"queued", "cancelled", "paused", NULL},
	             {"paused", "cancelled", NULL, "queued"},
	             {"cancelled", NULL, NULL, NULL}};
	engine *e = ((fixture *)*state)->engine;
	for (int i = 0; i < 9; i++) {
		const char *const actions[] = {"job.cancel", "job.pause", "job.resume"};
		const char *const after[] = {table[i / 3].cancel, table[i / 3].pause, table[i / 3].resume};
		char id[32];
		snprintf(id, sizeof id, "ftjob-%d", i);
		add(e, id);
		if (i / 3 == 1)
			assert_true(ask(e, "job.pause", id));
		if (i / 3 == 2)
			assert_true(ask(e, "job.cancel", id));
		assert_int_equal(ask(e, actions[i % 3], id), after[i % 3] != NULL);
		is(e, id, after[i % 3] ? after[i % 3] : table[i / 3].state);
	}
}

static void an_unknown_job_is_refused_by_every_method(void **state)
{
	const char *const methods[] = {"job.get",    "job.cancel",      "job.pause", "job.resume",
	                               "job.events", "job.checkpoints", "job.watch"};
	engine *e = ((fixture *)*state)->engine;
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		assert_false(ask(e, methods[i], "ftjob-none"));
}

static void a_restart_keeps_queued_paused_and_cancelled_jobs(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	add(e, "ftjob-2");
	add(e, "ftjob-3");
	assert_true(ask(e, "job.pause", "ftjob-2"));
	assert_true(ask(e, "job.cancel", "ftjob-3"));
	job_machine_free(e->job_machine);
	open_tables(e);
	is(e, "ftjob-1", "queued");
	is(e, "ftjob-2", "paused");
	is(e, "ftjob-3", "cancelled");
	assert_int_equal(jobs_waiting(jobs_of(e->job_machine)), 1);
	assert_true(ask(e, "job.resume", "ftjob-2"));
	assert_int_equal(jobs_waiting(jobs_of(e->job_machine)), 2);
}

static void a_job_that_was_running_waits_to_run_again_after_a_restart(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	json_t *row = document("ftjob-1");
	json_object_set_new(row, "status", json_string("running"));
	assert_int_equal(store_job_put(e->store, "ftjob-1", "running", row, NULL), STATUS_OK);
	json_decref(row);
	job_machine_free(e->job_machine);
	open_tables(e);
	is(e, "ftjob-1", "running");
	assert_int_equal(jobs_waiting(jobs_of(e->job_machine)), 1);
	assert_true(ask(e, "job.pause", "ftjob-1"));
	is(e, "ftjob-1", "paused");
}

static void a_jobs_files_and_models_are_in_use_until_it_has_ended(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	assert_true(job_machine_uses_file(e->job_machine, "file-1"));
	assert_false(job_machine_uses_file(e->job_machine, "file-2"));
	assert_non_null(job_machine_use_of_model(e->job_machine, "some-model"));
	assert_true(job_table_name_taken(jobs_of(e->job_machine), "ft:additive:1"));
	assert_true(ask(e, "job.cancel", "ftjob-1"));
	assert_false(job_machine_uses_file(e->job_machine, "file-1"));
	assert_null(job_machine_use_of_model(e->job_machine, "some-model"));
	assert_false(job_table_name_taken(jobs_of(e->job_machine), "ft:additive:1"));
}

static bool count(void *context, const json_t *row)
{
	assert_non_null(json_object_get(row, "message"));
	++*(int *)context;
	return true;
}

static void every_change_adds_an_event(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	int events = 0;
	bool more;
	add(e, "ftjob-1");
	assert_true(ask(e, "job.pause", "ftjob-1"));
	assert_true(ask(e, "job.resume", "ftjob-1"));
	assert_true(ask(e, "job.cancel", "ftjob-1"));
	store_page page = {.parent = "ftjob-1"};
	assert_int_equal(store_list(e->store, STORE_EVENTS, &page, count, &events, &more, NULL), STATUS_OK);
	assert_int_equal(events, 3);
}

/* --- failures ----------------------------------------------------------------------------- */

static const json_t *member(engine *e, const char *id, const char *name)
{
	const json_t *document = job_table_find(jobs_of(e->job_machine), id)->base.document;
	return json_object_get(json_object_get(document, "additive"), name);
}

static void machine_failures_pause_a_job_and_its_own_failures_end_it(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	for (int code = STATUS_OK; code < STATUS_COUNT; code++) {
		static const status passing[] = {STATUS_IO,      STATUS_FULL, STATUS_NOMEM,      STATUS_DEVICE,
		                                 STATUS_STORAGE, STATUS_BUSY, STATUS_UNAVAILABLE};
		char id[32];
		bool passes = false;
		json_t *row;
		snprintf(id, sizeof id, "ftjob-%d", code);
		add(e, id);
		job_state_fail(jobs_of(e->job_machine), job_table_find(jobs_of(e->job_machine), id),
		               &(error){.status = (status)code});
		for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
			passes |= passing[i] == (status)code;
		assert_int_equal(store_job_get(e->store, id, &row, NULL), STATUS_OK);
		const json_t *reason = passes ? member(e, id, "paused_reason") : json_object_get(row, "error");
		assert_string_equal(json_string_value(json_object_get(row, "status")), passes ? "paused" : "failed");
		assert_string_equal(json_string_value(json_object_get(reason, "code")),
		                    status_name(code ? (status)code : STATUS_INTERNAL));
		assert_string_not_equal(json_string_value(json_object_get(reason, "message")), status_text(STATUS_OK));
		json_decref(row);
	}
}

static void a_job_is_retried_with_growing_delays_until_it_makes_progress(void **state)
{
	static const int seconds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300};
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	job *j = job_table_find(jobs_of(e->job_machine), "ftjob-1");
	for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
		uint64_t before = clock_ns();
		job_state_fail(jobs_of(e->job_machine), j, &(error){.status = STATUS_FULL});
		uint64_t wait = j->base.retry_ns - before;
		assert_true(wait >= seconds[i] * 1000000000ull && wait < (seconds[i] + 5) * 1000000000ull);
		job_state_tick(jobs_of(e->job_machine));
		is(e, "ftjob-1", "paused"); /* not yet */
		j->base.retry_ns = 1;
		job_state_tick(jobs_of(e->job_machine));
		is(e, "ftjob-1", "queued");
		assert_true(json_is_null(member(e, "ftjob-1", "paused_reason")));
	}
	job_state_progress(jobs_of(e->job_machine), j, 1);
	job_state_fail(jobs_of(e->job_machine), j, &(error){.status = STATUS_FULL});
	assert_true(j->base.retry_ns - clock_ns() <= 1000000000u);
}

static void four_device_failures_without_progress_end_the_job(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	job *j = job_table_find(jobs_of(e->job_machine), "ftjob-1");
	for (int i = 1; i <= 7; i++) {
		assert_ptr_equal(job_table_find(jobs_of(e->job_machine), "ftjob-1"), j);
		job_state_fail(jobs_of(e->job_machine), j, &(error){.status = STATUS_DEVICE});
		if (i == 3)
			job_state_progress(jobs_of(e->job_machine), j, 10);
	}
	assert_null(job_table_find(jobs_of(e->job_machine), "ftjob-1"));
}

static void reopen_tables(engine *e)
{
	job_machine_free(e->job_machine);
	open_tables(e);
}

static void failures_of_the_device_are_counted_over_processes(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	for (int i = 1; i <= 4; i++) {
		job *j = job_table_find(jobs_of(e->job_machine), "ftjob-1");
		assert_non_null(j);
		job_state_fail(jobs_of(e->job_machine), j, &(error){.status = STATUS_DEVICE});
		assert_int_equal(job_table_find(jobs_of(e->job_machine), "ftjob-1") == NULL, i == 4);
		reopen_tables(e); /* paused when the process ends, */
		job_state_tick(jobs_of(e->job_machine));
		if (i == 2)
			reopen_tables(e); /* or queued again */
	}
	add(e, "ftjob-2");
	for (int i = 1; i <= 8; i++) {
		job_state_fail(jobs_of(e->job_machine), job_table_find(jobs_of(e->job_machine), "ftjob-2"),
		               &(error){.status = STATUS_DEVICE});
		if (i % 2 == 0)
			assert_true(ask(e, "job.resume", "ftjob-2")); /* resume resets the count */
		reopen_tables(e);
		assert_non_null(job_table_find(jobs_of(e->job_machine), "ftjob-2"));
	}
}

static void a_pause_by_a_failure_survives_a_restart_and_is_retried_immediately(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	add(e, "ftjob-2");
	job_state_fail(jobs_of(e->job_machine), job_table_find(jobs_of(e->job_machine), "ftjob-1"),
	               &(error){.status = STATUS_FULL});
	assert_true(ask(e, "job.pause", "ftjob-2"));
	job_machine_free(e->job_machine);
	open_tables(e);
	is(e, "ftjob-1", "paused");
	job_state_tick(jobs_of(e->job_machine));
	is(e, "ftjob-1", "queued");
	is(e, "ftjob-2", "paused"); /* a client's pause is kept */
}

static void a_client_can_pause_and_resume_a_job_that_a_failure_paused(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add(e, "ftjob-1");
	job *j = job_table_find(jobs_of(e->job_machine), "ftjob-1");
	job_state_fail(jobs_of(e->job_machine), j, &(error){.status = STATUS_FULL});
	assert_true(ask(e, "job.resume", "ftjob-1"));
	is(e, "ftjob-1", "queued");
	job_state_fail(jobs_of(e->job_machine), j, &(error){.status = STATUS_FULL});
	assert_true(ask(e, "job.pause", "ftjob-1"));
	assert_int_equal(j->base.retry_ns, 0);
	assert_false(ask(e, "job.pause", "ftjob-1"));
	is(e, "ftjob-1", "paused");
}

/* --- checkpoints of jobs that have ended ----------------------------------------------------- */

enum { HOUR = 3600, DAY = 24 * HOUR };

/* A job that ended `seconds_ago`, with checkpoints of that age at steps 1, 2, …, each of 100 bytes. */
static void add_ended(engine *e, const char *id, const char *ended_as, int checkpoints, int64_t seconds_ago)
{
	json_t *row = document(id);
	json_object_set_new(row, "status", json_string(ended_as));
	json_object_set_new(row, "finished_at", json_integer(clock_unix() - seconds_ago));
	assert_int_equal(store_job_put(e->store, id, ended_as, row, NULL), STATUS_OK);
	json_decref(row);
	for (int step = 1; step <= checkpoints; step++) {
		char folder[PATH_MAX + 16], name[STORE_ID_BYTES], bytes[100] = "";
		store_checkpoint_folder(e->store, id, step, folder);
		assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
		strcat(folder, "/weights");
		assert_int_equal(file_write(folder, &(file_part){bytes, sizeof bytes}, 1, NULL), STATUS_OK);
		job_document_checkpoint_name(id, step, name);
		json_t *checkpoint = json_pack("{s:s, s:s, s:i, s:I}", "id", name, "fine_tuning_job_id", id,
		                               "step_number", step, "created_at", clock_unix() - seconds_ago);
		assert_int_equal(store_checkpoint_add(e->store, id, step, checkpoint, NULL), STATUS_OK);
		json_decref(checkpoint);
	}
}

static bool count_row(void *context, const json_t *row)
{
	(void)row;
	++*(int *)context;
	return true;
}

static int checkpoints_left(engine *e, const char *id)
{
	int n = 0;
	bool more;
	assert_int_equal(
	    store_list(e->store, STORE_CHECKPOINTS, &(store_page){.parent = id}, count_row, &n, &more, NULL),
	    STATUS_OK);
	return n;
}

static void sweep(engine *e, int days, int64_t bytes)
{
	engine_options options = {.retain_days = days, .retain_bytes = bytes};
	e->options = &options;
	assert_int_equal(
	    fleet_open(&e->fleet, &(device_options){.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}}, 1, NULL),
	    STATUS_OK);
	jobs *all = jobs_of(e->job_machine);
	const job_parts parts = rooms_jobs(e), *before = all->queue.parts;
	all->queue.parts = &parts;
	all->sweep_ns = 0;
	for (int i = 0; i < 20; i++)
		job_removal_sweep(all);
	all->queue.parts = before;
	e->options = NULL;
	fleet_free(e->fleet);
}

#define SUCCEEDED "ftjob-000000000000000000000001"
#define FAILED "ftjob-000000000000000000000002"
#define RUNNING "ftjob-000000000000000000000003"

static void retention_by_age_spares_running_jobs_and_failed_ones_for_a_day(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add_ended(e, SUCCEEDED, "succeeded", 3, 3 * DAY);
	add_ended(e, FAILED, "failed", 3, 23 * HOUR);
	add_ended(e, RUNNING, "paused", 3, 30 * DAY);
	job_machine_free(e->job_machine);
	open_tables(e);
	sweep(e, 0, 0);
	assert_int_equal(checkpoints_left(e, SUCCEEDED), 3);
	sweep(e, 2, 0);
	assert_int_equal(checkpoints_left(e, SUCCEEDED), 0);
	assert_int_equal(checkpoints_left(e, FAILED), 3);
	assert_int_equal(checkpoints_left(e, RUNNING), 3);
	jobs_of(e->job_machine)->began_unix -= 40 * DAY; /* the table uses its own clock */
	sweep(e, 1, 0);
	assert_int_equal(checkpoints_left(e, FAILED), 3);
	jobs_of(e->job_machine)->began_unix += 40 * DAY + 2 * HOUR;
	sweep(e, 1, 0);
	assert_int_equal(checkpoints_left(e, FAILED), 0);
}

static void retention_by_bytes_removes_the_oldest_until_the_rest_fits(void **state)
{
	engine *e = ((fixture *)*state)->engine;
	add_ended(e, SUCCEEDED, "succeeded", 3, 2 * HOUR);
	add_ended(e, FAILED, "cancelled", 3, HOUR);
	sweep(e, 0, 1 << 20);
	assert_int_equal(checkpoints_left(e, SUCCEEDED) + checkpoints_left(e, FAILED), 6);
	sweep(e, 0, 1500); /* each checkpoint has about 400 with its manifest */
	assert_int_equal(checkpoints_left(e, SUCCEEDED), 0);
	assert_int_equal(checkpoints_left(e, FAILED), 3);
	sweep(e, 0, 1);
	assert_int_equal(checkpoints_left(e, FAILED), 1); /* kept to resume from */
}

static void a_checkpoints_name_contains_its_job_and_step(void **state)
{
	static const char *const others[] = {"ckpt-",
	                                     "ckpt-0123456789abcdef01234567",
	                                     "ckpt-0123456789abcdef01234567-",
	                                     "ftjob-1",
	                                     "ckpt-0123456789ABCDEF01234567-1",
	                                     "ckpt-0123456789abcdef01234567--1",
	                                     "ckpt-0123456789abcdef01234567-1x",
	                                     "ckpt-0123456789abcdef01234567-99999999999999999999",
	                                     "ckpt-0123456789abcdef0123456-12"};
	char name[STORE_ID_BYTES], of[STORE_ID_BYTES];
	int64_t step;
	(void)state;
	job_document_checkpoint_name("ftjob-0123456789abcdef01234567", 1000000000, name);
	assert_true(store_valid_name(name));
	assert_true(catalog_parse_checkpoint(name, of, &step));
	assert_string_equal(of, "ftjob-0123456789abcdef01234567");
	assert_int_equal(step, 1000000000);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		assert_false(catalog_parse_checkpoint(others[i], of, &step));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(every_action_in_every_state_does_what_the_table_says),
	    CASE(an_unknown_job_is_refused_by_every_method),
	    CASE(a_restart_keeps_queued_paused_and_cancelled_jobs),
	    CASE(a_job_that_was_running_waits_to_run_again_after_a_restart),
	    CASE(a_jobs_files_and_models_are_in_use_until_it_has_ended),
	    CASE(every_change_adds_an_event),
	    CASE(machine_failures_pause_a_job_and_its_own_failures_end_it),
	    CASE(a_job_is_retried_with_growing_delays_until_it_makes_progress),
	    CASE(four_device_failures_without_progress_end_the_job),
	    CASE(failures_of_the_device_are_counted_over_processes),
	    CASE(a_pause_by_a_failure_survives_a_restart_and_is_retried_immediately),
	    CASE(a_client_can_pause_and_resume_a_job_that_a_failure_paused),
	    CASE(retention_by_age_spares_running_jobs_and_failed_ones_for_a_day),
	    CASE(retention_by_bytes_removes_the_oldest_until_the_rest_fits),
	    cmocka_unit_test(a_checkpoints_name_contains_its_job_and_step),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
