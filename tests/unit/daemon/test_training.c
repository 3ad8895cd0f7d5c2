/* test_training.c - a job's writes beside serving. The test holds the thread that writes when it syncs a
 * file. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/jobs/jobs.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/queue/job_trace.h"
#include "tests/unit/support/disk.h"
#include "tests/unit/support/rig.h"

enum { STEPS = 12, EVERY = 4, PATIENCE_SECONDS = 30 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static enum held { NOTHING, CHECKPOINT, MODEL } held;
static bool is_held;

static bool is_of(const char *path, enum held what)
{
	return strstr(path, "/manifest.json") && what == (strstr(path, "/jobs/") ? CHECKPOINT : MODEL);
}

static void synced(const char *path)
{
	pthread_mutex_lock(&mutex);
	while (is_of(path, held)) {
		is_held = true;
		pthread_cond_wait(&released, &mutex);
	}
	pthread_mutex_unlock(&mutex);
}

/* NOTHING: release the thread. */
static void hold(enum held what)
{
	pthread_mutex_lock(&mutex);
	held = what;
	is_held = false;
	pthread_cond_broadcast(&released);
	pthread_mutex_unlock(&mutex);
}

static bool holds(void)
{
	pthread_mutex_lock(&mutex);
	const bool is = is_held;
	pthread_mutex_unlock(&mutex);
	return is;
}

static int setup(void **state)
{
	rig_fails = false;
	hold(NOTHING);
	disk_watch(synced);
	*state = rig_new(rig_open_failing);
	log_init("test", LOG_NOTHING);
	return 0;
}

static int teardown(void **state)
{
	hold(NOTHING);
	rig_free(*state);
	disk_watch(NULL);
	return 0;
}

/* --- clients' requests ------------------------------------------------------------------ */

static json_t *only(const char *id)
{
	return json_pack("{s:s}", "id", id);
}

static void turn(rig *d)
{
	uv_run(&d->engine.loop, UV_RUN_NOWAIT);
	job_machine_tick(d->engine.job_machine);
}

static void await_hold(rig *d)
{
	for (int64_t began = clock_unix(); !holds(); assert_true(clock_unix() - began < PATIENCE_SECONDS))
		turn(d);
}

/* The caller frees the result. */
static char *status_of(rig *d, const char *id)
{
	json_t *now = rig_ask(d, 0, "job.get", only(id));
	char *is = strdup(json_string_value(json_object_get(now, "status")));
	json_decref(now);
	return is;
}

static void await_status(rig *d, const char *id, const char *final)
{
	char *is = NULL;
	for (int64_t began = clock_unix(); !is || strcmp(is, final) != 0;) {
		assert_true(clock_unix() - began < PATIENCE_SECONDS);
		free(is);
		turn(d);
		is = status_of(d, id);
	}
	free(is);
}

/* Wait for the end of a job; return its weights, which the caller frees. */
static char *weights_of(rig *d, const char *id, size_t *bytes)
{
	char path[PATH_MAX + 32], *weights;
	await_status(d, id, "succeeded");
	json_t *now = rig_ask(d, 0, "job.get", only(id));
	store_model_folder(d->engine.store, json_string_value(json_object_get(now, "fine_tuned_model")), path);
	json_decref(now);
	strcat(path, "/model.safetensors");
	assert_int_equal(file_read(path, 1 << 20, &weights, bytes, NULL), STATUS_OK);
	return weights;
}

static size_t count_checkpoints(rig *d, const char *id)
{
	json_t *list = rig_ask(d, 0, "job.checkpoints", only(id));
	const size_t n = json_array_size(json_object_get(list, "data"));
	json_decref(list);
	return n;
}

static void serve(rig *d)
{
	json_decref(rig_ask(d, 0, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "some words")));
}

/* The weights of an undisturbed job, and a second one with the same weights, of which the test holds a write. */
typedef struct pair {
	char file[STORE_ID_BYTES], first[STORE_ID_BYTES], second[STORE_ID_BYTES];
	char *weights;
	size_t bytes;
} pair;

static pair begin_pair(rig *d, enum held what)
{
	pair p;
	rig_add_text(d, p.file);
	rig_create_job(d, p.file, STEPS, EVERY, p.first);
	p.weights = weights_of(d, p.first, &p.bytes);
	assert_int_equal(count_checkpoints(d, p.first), STEPS / EVERY);
	hold(what);
	rig_create_job(d, p.file, STEPS, EVERY, p.second);
	await_hold(d);
	return p;
}

static void end_pair(rig *d, pair *p)
{
	size_t bytes;
	char *weights = weights_of(d, p->second, &bytes);
	assert_int_equal(bytes, p->bytes);
	assert_memory_equal(weights, p->weights, bytes);
	assert_int_equal(count_checkpoints(d, p->second), STEPS / EVERY);
	free(weights);
	free(p->weights);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void clients_are_served_while_a_checkpoint_is_written(void **state)
{
	rig *d = *state;
	pair p = begin_pair(d, CHECKPOINT);
	serve(d);
	char *is = status_of(d, p.second);
	assert_string_equal(is, "running");
	free(is);
	assert_int_equal(count_checkpoints(d, p.second), 0);
	hold(NOTHING);
	end_pair(d, &p);
}

static void clients_are_served_while_the_finished_model_is_written(void **state)
{
	rig *d = *state;
	pair p = begin_pair(d, MODEL);
	serve(d);
	assert_int_equal(count_checkpoints(d, p.second), STEPS / EVERY);
	hold(NOTHING);
	end_pair(d, &p);
}

static void a_job_that_is_paused_during_a_write_continues_from_what_was_written(void **state)
{
	rig *d = *state;
	pair p = begin_pair(d, CHECKPOINT);
	json_decref(rig_ask(d, 0, "job.pause", only(p.second)));
	hold(NOTHING);
	rig_settle(d);
	await_status(d, p.second, "paused");
	assert_int_equal(count_checkpoints(d, p.second), 1);
	json_decref(rig_ask(d, 0, "job.resume", only(p.second)));
	end_pair(d, &p);
}

static void a_job_that_is_cancelled_during_a_write_ends_after_it(void **state)
{
	rig *d = *state;
	pair p = begin_pair(d, CHECKPOINT);
	json_decref(rig_ask(d, 0, "job.cancel", only(p.second)));
	serve(d);
	hold(NOTHING);
	await_status(d, p.second, "cancelled");
	rig_settle(d);
	free(p.weights);
}

/* The executor, which has lost its device, waits for the thread that uses it. */
static void a_device_lost_during_a_write_is_opened_again_after_it(void **state)
{
	rig *d = *state;
	pair p = begin_pair(d, CHECKPOINT);
	rig_fails = true;
	rig_call *c =
	    rig_begin(d, "session.create", json_pack("{s:s, s:s}", "model", "m", "prompt", "some words"), 1000);
	while (rig_fails)
		turn(d);
	hold(NOTHING);
	rig_wait(c);
	assert_true(c->failed);
	rig_call_free(c);
	end_pair(d, &p);
}

/* The start of its run is reported after the pause. */
static void a_job_that_is_paused_while_its_run_starts_is_not_traced_as_training(void **state)
{
	rig *d = *state;
	const stream traced = {.trace = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"};
	char file[STORE_ID_BYTES], id[STORE_ID_BYTES];
	rig_add_text(d, file);
	rig_hold(d);
	rig_create_job(d, file, STEPS, EVERY, id);
	const job *j = job_table_find(jobs_of(d->engine.job_machine), id);
	job_trace_begin(j->base.document, &traced);
	for (int64_t began = clock_unix(); !fleet_trains(d->engine.fleet, 0);
	     assert_true(clock_unix() - began < PATIENCE_SECONDS))
		turn(d);
	json_decref(rig_ask(d, 0, "job.pause", only(id)));
	rig_release(d);
	const json_t *spans = json_object_get(json_object_get(j->base.document, JOB_TRACE), "spans");
	const json_t *last = json_array_get(spans, json_array_size(spans) - 1);
	assert_string_equal(json_string_value(json_object_get(last, "name")), "paused");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    TEST(clients_are_served_while_a_checkpoint_is_written),
	    TEST(clients_are_served_while_the_finished_model_is_written),
	    TEST(a_job_that_is_paused_during_a_write_continues_from_what_was_written),
	    TEST(a_job_that_is_cancelled_during_a_write_ends_after_it),
	    TEST(a_device_lost_during_a_write_is_opened_again_after_it),
	    TEST(a_job_that_is_paused_while_its_run_starts_is_not_traced_as_training),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
