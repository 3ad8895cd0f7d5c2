/* Jobs on a disk that is full for a while, in an engine without its sockets whose loop the test turns. In every turn a
 * job is "running" exactly while it runs. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/sessions/sessions.h"
#include "tests/unit/support/disk.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

enum { STEPS = 24, PATIENCE_SECONDS = 60 };

typedef struct fixture {
	engine *engine;
	char folder[64], file[STORE_ID_BYTES], job[STORE_ID_BYTES];
} fixture;

static int setup(void **state)
{
	static const engine_options options = {.limits = {2, 4, 4, 2}};
	device_options on = {.backend = "cpu", .threads = 1, .limits = options.limits};
	fixture *f = calloc(1, sizeof *f);
	engine *e = f->engine = memory_new(1, sizeof *e);
	char path[PATH_MAX], words[4000];
	store_file text = {.filename = "text", .purpose = "fine-tune"};
	log_init("test", LOG_ERROR);
	folder_new(f->folder);
	e->options = &options;
	assert_int_equal(uv_loop_init(&e->loop), 0);
	assert_int_equal(store_open(&e->store, f->folder, NULL), STATUS_OK);
	assert_int_equal(fleet_open(&e->fleet, &on, 1, NULL), STATUS_OK);
	assert_int_equal(fleet_start(e->fleet, &e->loop, NULL), STATUS_OK);
	assert_int_equal(catalog_new(&e->catalog, e->store), STATUS_OK);
	parts_open_sessions(e);
	parts_open_kind(e, &training_jobs);
	store_temporary_path(e->store, path);
	for (size_t i = 0; i < sizeof words; i++)
		words[i] = (char)('a' + i * i % 23);
	assert_int_equal(file_write(path, &(file_part){words, sizeof words}, 1, NULL), STATUS_OK);
	assert_int_equal(store_file_add(e->store, &text, path, NULL), STATUS_OK);
	strcpy(f->file, text.id);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	engine *e = f->engine;
	disk_fail(NULL, 0);
	fleet_stop(e->fleet);
	uv_run(&e->loop, UV_RUN_DEFAULT);
	job_machine_free(e->job_machine);
	sessions_free(e->sessions);
	catalog_free(e->catalog);
	fleet_free(e->fleet);
	store_close(e->store);
	assert_int_equal(uv_loop_close(&e->loop), 0);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(e);
	free(f);
	return 0;
}

/* The job as the API shows it (borrowed until the next change). */
static const json_t *look(const fixture *f)
{
	json_t *document;
	const bool ended = !job_table_find(jobs_of(f->engine->job_machine), f->job);
	assert_int_equal(job_queue_document(&jobs_of(f->engine->job_machine)->queue, f->job, &document, NULL),
	                 STATUS_OK);
	json_decref(document);
	if (!ended)
		return document;
	static json_t *kept;
	json_decref(kept);
	assert_int_equal(store_job_get(f->engine->store, f->job, &kept, NULL), STATUS_OK);
	return kept;
}

static const char *status_now(const fixture *f)
{
	return json_string_value(json_object_get(look(f), "status"));
}

static bool is(const fixture *f, const char *expected)
{
	return strcmp(status_now(f), expected) == 0;
}

static const json_t *reason(const fixture *f)
{
	return json_object_get(json_object_get(look(f), "additive"), "paused_reason");
}

static void turn(const fixture *f)
{
	uv_run(&f->engine->loop, UV_RUN_NOWAIT);
	job_machine_tick(f->engine->job_machine);
	assert_int_equal(is(f, "running"), jobs_running(jobs_of(f->engine->job_machine)));
	if (json_is_object(reason(f))) {
		assert_true(is(f, "paused"));
		assert_string_not_equal(json_string_value(json_object_get(reason(f), "message")), "success");
		assert_true(json_integer_value(json_object_get(reason(f), "retry_at")) > 0);
	}
}

static void turn_until(const fixture *f, const char *awaited)
{
	uint64_t began = clock_ns();
	while (!is(f, awaited)) {
		assert_false(is(f, "failed"));
		assert_true(clock_ns() - began < (uint64_t)PATIENCE_SECONDS * 1000000000u);
		turn(f);
	}
}

/* Perform a request for a client that does not read; true if it was answered with RESULT. */
static bool ask(fixture *f, const char *method, const char *id, json_t *params)
{
	engine *e = f->engine;
	uint64_t before = e->net.requests;
	stream *s = stream_new(&e->net, NULL, 0, 0);
	s->params = params;
	strcpy(s->target, id);
	parts_begin_method(f->engine, s, method);
	while (e->net.streams)
		uv_run(&e->loop, UV_RUN_ONCE);
	return e->net.requests > before;
}

static bool keep_id(void *context, const json_t *row)
{
	strcpy(context, json_string_value(json_object_get(row, "id")));
	return false;
}

static void create_job(fixture *f)
{
	bool more;
	assert_true(ask(f, "job.create", "",
	                json_pack("{s:s, s:s, s:i, s:{s:{s:i, s:i, s:i, s:i}, s:i, s:i, s:i, s:i, s:i}}", "model",
	                          "additive", "training_file", f->file, "seed", 3, "additive", "config", "hidden_size",
	                          16, "n_heads", 2, "n_layer", 2, "n_positions", 32, "sequence_length", 32,
	                          "batch_size", 2, "max_steps", STEPS, "checkpoint_every", 4, "eval_every", 1)));
	assert_int_equal(
	    store_list(f->engine->store, STORE_JOBS, &(store_page){.limit = 1}, keep_id, f->job, &more, NULL),
	    STATUS_OK);
}

static int64_t step_now(const fixture *f)
{
	return json_integer_value(json_object_get(json_object_get(look(f), "additive"), "step"));
}

static void turn_to_step(const fixture *f, int64_t step)
{
	while (step_now(f) < step)
		turn(f);
}

static void read_weights(const fixture *f, char **out, size_t *bytes)
{
	char path[PATH_MAX + 32];
	store_model_folder(f->engine->store, json_string_value(json_object_get(look(f), "fine_tuned_model")), path);
	strcat(path, "/model.safetensors");
	assert_int_equal(file_read(path, 1 << 20, out, bytes, NULL), STATUS_OK);
}

/* Compare with the result of the job without faults. */
static void assert_same_as_undisturbed(fixture *f)
{
	char *expected, *got;
	size_t expected_bytes, got_bytes;
	read_weights(f, &got, &got_bytes);
	create_job(f);
	turn_until(f, "succeeded");
	read_weights(f, &expected, &expected_bytes);
	assert_int_equal(got_bytes, expected_bytes);
	assert_memory_equal(got, expected, got_bytes);
	free(expected);
	free(got);
}

typedef struct count {
	const char *words;
	int found, metrics;
	int64_t last;
} count;

static bool count_event(void *context, const json_t *event)
{
	count *c = context;
	const json_t *step = json_object_get(json_object_get(event, "data"), "step");
	c->found += strstr(json_string_value(json_object_get(event, "message")), c->words) != NULL;
	if (step) {
		c->metrics++;
		assert_true(json_integer_value(step) > c->last); /* each step once, in order */
		c->last = json_integer_value(step);
	}
	return true;
}

static count events(const fixture *f, const char *words)
{
	count c = {.words = words};
	bool more;
	store_page page = {.parent = f->job, .ascending = true};
	assert_int_equal(store_list(f->engine->store, STORE_EVENTS, &page, count_event, &c, &more, NULL), STATUS_OK);
	return c;
}

/* --- the tests ------------------------------------------------------------------------------- */

static void a_full_disk_pauses_a_job_until_there_is_room_without_changing_its_weights(void **state)
{
	static const char *const blobs[] = {"/jobs/", "/models/", NULL};
	fixture *f = *state;
	create_job(f);
	disk_fail(blobs, ENOSPC); /* now: the executor may be many steps ahead of its last report */
	turn_until(f, "paused");
	assert_string_equal(json_string_value(json_object_get(reason(f), "code")), "storage_full");
	turn_until(f, "running"); /* retried without success */
	turn_until(f, "paused");
	disk_fail(NULL, 0);
	turn_until(f, "succeeded");
	assert_true(events(f, "could not be saved").found > 0);
	assert_int_equal(events(f, "The job is paused").found, 1); /* for one reason */
	assert_int_equal(events(f, "successfully completed").found, 1);
	assert_int_equal(events(f, "").metrics, STEPS);
	assert_same_as_undisturbed(f);
}

static void while_the_ledger_fails_no_job_is_running_without_a_run(void **state)
{
	static const char *const ledger[] = {"ledger.sqlite", NULL};
	fixture *f = *state;
	create_job(f);
	turn_to_step(f, 6);
	disk_fail(ledger, ENOSPC);
	turn_until(f, "paused");
	assert_int_equal(step_now(f), STEPS);
	assert_true(disk_failures() > 0);
	disk_fail(NULL, 0);
	turn_until(f, "succeeded");
	assert_int_equal(events(f, "Checkpoint created").found, STEPS / 4); /* including those during the failure */
	assert_int_equal(events(f, "").metrics, STEPS);
	assert_same_as_undisturbed(f);
}

static void resume_retries_a_paused_job_immediately_and_reports_a_failing_ledger(void **state)
{
	static const char *const all[] = {"/additive-", NULL};
	fixture *f = *state;
	create_job(f);
	turn_to_step(f, 6);
	disk_fail(all, EIO);
	turn_until(f, "paused");
	assert_string_equal(json_string_value(json_object_get(reason(f), "code")), "io_error");
	assert_false(ask(f, "job.cancel", f->job, json_object()));
	assert_false(ask(f, "job.resume", f->job, json_object()));
	assert_true(is(f, "paused"));
	disk_fail(NULL, 0);
	assert_true(ask(f, "job.resume", f->job, json_object()));
	assert_true(is(f, "running"));
	turn_until(f, "succeeded");
	assert_same_as_undisturbed(f);
}

static void a_disk_that_fails_repeatedly_loses_no_step_and_no_event(void **state)
{
	static const char *const kinds[][3] = {
	    {"ledger.sqlite", NULL}, {"/jobs/", "/models/", NULL}, {"/additive-", NULL}, {"step-", NULL}};
	static const int numbers[] = {ENOSPC, EIO};
	fixture *f = *state;
	unsigned random = 12345;
	create_job(f);
	for (int i = 0; i < 40 && !is(f, "succeeded"); i++) {
		random = random * 1103515245 + 12345;
		disk_fail(kinds[random >> 16 & 3], numbers[random >> 20 & 1]);
		for (uint64_t began = clock_ns(); clock_ns() - began < (random >> 22 & 31) * 1000000;)
			turn(f);
		disk_fail(NULL, 0);
		if (is(f, "paused"))
			assert_true(ask(f, "job.resume", f->job, json_object()));
		for (int turns = random >> 24 & 63; turns > 0; turns--)
			turn(f);
	}
	turn_until(f, "succeeded");
	assert_int_equal(events(f, "").metrics, STEPS);
	assert_int_equal(events(f, "successfully completed").found, 1);
	assert_same_as_undisturbed(f);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(a_full_disk_pauses_a_job_until_there_is_room_without_changing_its_weights),
	    CASE(while_the_ledger_fails_no_job_is_running_without_a_run),
	    CASE(resume_retries_a_paused_job_immediately_and_reports_a_failing_ledger),
	    CASE(a_disk_that_fails_repeatedly_loses_no_step_and_no_event),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
