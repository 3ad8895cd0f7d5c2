/* A device that fails: every waiting task gets the error, and everything that can continue does. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"
#include "engine/daemon/dispatch.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/sessions/sessions.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

/* The CPU backend with a linear layer that fails once, `countdown` layers from now (0: never). The device is then lost,
 * unless it only `refuses` the call. */
static backend_kernel real_linear;
static int countdown;
static bool refuses, broken;

static bool is_lost(const backend *b)
{
	(void)b;
	return broken;
}

static status fail_call(void)
{
	broken = !refuses;
	return STATUS_DEVICE;
}

static status failing_linear(backend *b, const op_call *call)
{
	if (countdown > 0 && --countdown == 0)
		return fail_call();
	return real_linear(b, call);
}

/* Number of large downloads, as of weights, before one fails (-1: never). */
static status (*real_download)(backend *b, void *host, const void *device, size_t bytes);
static int downloads_left;

static status failing_download(backend *b, void *host, const void *data, size_t bytes)
{
	enum { LARGE = 1024 };
	if (bytes >= LARGE && downloads_left >= 0 && downloads_left-- == 0)
		return fail_call();
	return real_download(b, host, data, bytes);
}

static status open_failing(backend **out, int threads, error *err)
{
	broken = false;
	TRY(cpu_open(out, threads, err));
	real_linear = (*out)->kernel[OP_linear];
	(*out)->kernel[OP_linear] = failing_linear;
	(*out)->lost = is_lost;
	real_download = (*out)->download;
	(*out)->download = failing_download;
	return STATUS_OK;
}

typedef struct fixture {
	engine *engine;
	char folder[64], file[STORE_ID_BYTES];
} fixture;

static int setup(void **state)
{
	static const engine_options options = {.limits = {2, 4, 4, 2}};
	device_options on = {.backend = "cpu", .threads = 1, .limits = options.limits, .cpu = open_failing};
	fixture *f = calloc(1, sizeof *f);
	engine *e = f->engine = memory_new(1, sizeof *e);
	char path[PATH_MAX];
	store_file text = {.filename = "text", .purpose = "fine-tune"};
	countdown = 0;
	refuses = false;
	downloads_left = -1;
	log_init("test", LOG_ERROR);
	folder_new(f->folder);
	e->options = &options;
	assert_int_equal(uv_loop_init(&e->loop), 0);
	assert_int_equal(store_open(&e->store, f->folder, NULL), STATUS_OK);
	assert_int_equal(fleet_open(&e->fleet, &on, 1, NULL), STATUS_OK);
	assert_int_equal(fleet_start(e->fleet, &e->loop, NULL), STATUS_OK);
	assert_int_equal(catalog_new(&e->catalog, e->store), STATUS_OK);
	parts_open_sessions(e);
	parts_open_jobs(e, dispatch_job_kinds);
	store_temporary_path(e->store, path);
	char words[4000];
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

/* Create a job for a client that does not listen. */
static void create_job(fixture *f)
{
	stream *s = stream_new(&f->engine->net, NULL, 0, 0);
	s->params = json_pack("{s:s, s:s, s:i, s:{s:{s:i, s:i, s:i, s:i}, s:i, s:i, s:i, s:i}}", "model", "additive",
	                      "training_file", f->file, "seed", 3, "additive", "config", "hidden_size", 16, "n_heads",
	                      2, "n_layer", 2, "n_positions", 32, "sequence_length", 32, "batch_size", 2, "max_steps",
	                      12, "checkpoint_every", 4);
	parts_begin_method(f->engine, s, "job.create");
	while (f->engine->net.streams)
		uv_run(&f->engine->loop, UV_RUN_ONCE);
}

static bool keep_newest(void *context, const json_t *row)
{
	*(json_t **)context = json_deep_copy(row);
	return false;
}

/* Run the loop until the newest job has ended; returns its document. */
static json_t *run_to_end(engine *e)
{
	for (uint64_t began = clock_ns(); clock_ns() - began < 30000000000u;) {
		json_t *row = NULL;
		bool more;
		uv_run(&e->loop, UV_RUN_NOWAIT);
		job_machine_tick(e->job_machine);
		assert_int_equal(
		    store_list(e->store, STORE_JOBS, &(store_page){.limit = 1}, keep_newest, &row, &more, NULL),
		    STATUS_OK);
		const char *now = json_string_value(json_object_get(row, "status"));
		if (now && (strcmp(now, "succeeded") == 0 || strcmp(now, "failed") == 0))
			return row;
		json_decref(row);
	}
	fail_msg("the job does not end");
	return NULL;
}

static void read_weights(engine *e, const json_t *ended, char **out, size_t *bytes)
{
	char path[PATH_MAX + 32];
	assert_string_equal(json_string_value(json_object_get(ended, "status")), "succeeded");
	store_model_folder(e->store, json_string_value(json_object_get(ended, "fine_tuned_model")), path);
	strcat(path, "/model.safetensors");
	assert_int_equal(file_read(path, 1 << 20, out, bytes, NULL), STATUS_OK);
}

enum { FAIL_LAYER = 100 /* some steps after the first checkpoint */ };

/* A job whose device fails at this layer or download has the weights of a job without a fault. */
static void expect_the_same_weights(fixture *f, int layers, int downloads, uint64_t restarts)
{
	char *expected, *got;
	size_t expected_bytes, got_bytes;
	device_stats stats;
	create_job(f);
	json_t *ended = run_to_end(f->engine);
	read_weights(f->engine, ended, &expected, &expected_bytes);
	json_decref(ended);
	fleet_snapshot(f->engine->fleet, &stats);
	assert_int_equal(stats.restarts, 0);
	countdown = layers;
	downloads_left = downloads;
	create_job(f);
	ended = run_to_end(f->engine);
	assert_true(countdown == 0 && downloads_left == -1); /* the fault has happened */
	read_weights(f->engine, ended, &got, &got_bytes);
	json_decref(ended);
	fleet_snapshot(f->engine->fleet, &stats);
	assert_int_equal(stats.restarts, restarts);
	assert_int_equal(got_bytes, expected_bytes);
	assert_memory_equal(got, expected, got_bytes);
	free(got);
	free(expected);
}

static void a_job_on_a_failing_device_ends_with_the_same_weights(void **state)
{
	expect_the_same_weights(*state, FAIL_LAYER, -1, 1);
}

/* The job is paused and continues from its checkpoint. */
static void a_job_whose_step_is_refused_ends_with_the_same_weights(void **state)
{
	refuses = true;
	expect_the_same_weights(*state, FAIL_LAYER, -1, 0);
}

/* The last large downloads are those of the last checkpoint and of the finished model. */
static void a_job_whose_checkpoint_is_refused_ends_with_the_same_weights(void **state)
{
	enum { MANY = 1 << 20, LAST = 4 };
	refuses = true;
	downloads_left = MANY;
	create_job(*state);
	json_decref(run_to_end(((fixture *)*state)->engine));
	const int downloads = MANY - downloads_left;
	downloads_left = -1;
	for (int i = 1; i <= LAST; i++)
		expect_the_same_weights(*state, 0, downloads - i, 0);
}

/* --- a generation, with a device that the test runs itself ---------------------------------------- */

typedef struct outcome {
	int events, finished;
	status status;
} outcome;

static int64_t on_event(void *context, const generation_event *e)
{
	(void)e;
	((outcome *)context)->events++;
	return 1000;
}

static void on_finished(void *context, const generation_result *r)
{
	outcome *o = context;
	o->finished++;
	o->status = r->status;
}

static void generate(device *d, const char *folder, outcome *o)
{
	served_model *m;
	generation *g;
	int32_t prompt[] = {5, 6, 7};
	generation_request r = {.prompt = prompt,
	                        .n_prompt = 3,
	                        .max_tokens = 10,
	                        .n_logprobs = -1,
	                        .event = on_event,
	                        .finished = on_finished,
	                        .context = o,
	                        .credit = 1000};
	sampling_default(&r.sampling);
	*o = (outcome){0};
	assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	assert_int_equal(scheduler_generate(device_scheduler(d), m, NULL, &r, &g, NULL), STATUS_OK);
	while (!o->finished)
		assert_true(device_work.foreground(d));
}

static void a_generation_on_a_failing_device_gets_the_error_and_the_next_one_works(void **state)
{
	fixture *f = *state;
	device_options on = {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}, .cpu = open_failing};
	device *d;
	char folder[PATH_MAX];
	outcome o;
	device_stats stats;
	create_job(f);
	json_t *ended = run_to_end(f->engine);
	store_model_folder(f->engine->store, json_string_value(json_object_get(ended, "fine_tuned_model")), folder);
	json_decref(ended);
	assert_int_equal(device_open(&d, &on, NULL), STATUS_OK);
	generate(d, folder, &o);
	assert_int_equal(o.status, STATUS_OK);
	countdown = 60;
	generate(d, folder, &o);
	assert_int_equal(o.status, STATUS_DEVICE);
	assert_int_equal(o.finished, 1);
	device_snapshot(d, &stats);
	assert_int_equal(stats.restarts, 1);
	assert_int_equal(stats.n_loaded, 0);
	generate(d, folder, &o);
	assert_int_equal(o.status, STATUS_OK);
	assert_true(o.events > 0);
	device_close(d);
}

static void a_refused_call_ends_a_generation_and_leaves_the_sessions(void **state)
{
	fixture *f = *state;
	device_options on = {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}, .cpu = open_failing};
	const session_options plain = {.policy = POSITION_ERROR};
	device *d;
	char folder[PATH_MAX];
	outcome o;
	device_stats stats;
	served_model *m;
	session *x;
	create_job(f);
	json_t *ended = run_to_end(f->engine);
	store_model_folder(f->engine->store, json_string_value(json_object_get(ended, "fine_tuned_model")), folder);
	json_decref(ended);
	assert_int_equal(device_open(&d, &on, NULL), STATUS_OK);
	assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_new(device_scheduler(d), m, "x", &plain, &x, NULL), STATUS_OK);
	refuses = true;
	countdown = 60;
	generate(d, folder, &o);
	assert_int_equal(o.status, STATUS_DEVICE);
	device_snapshot(d, &stats);
	assert_int_equal(stats.restarts, 0);
	assert_int_equal(stats.n_loaded, 1);
	assert_ptr_equal(scheduler_session_find(device_scheduler(d), "x"), x);
	generate(d, folder, &o);
	assert_int_equal(o.status, STATUS_OK);
	device_close(d);
}

/* --- a device that does not open again: a GPU's missing plug-in, played by a CPU under its name
 * -------------------- */

static status open_as_cuda(backend **out, int threads, error *err)
{
	TRY(open_failing(out, threads, err));
	(*out)->name = "cuda";
	return STATUS_OK;
}

static uint64_t seconds_until_left(device *d)
{
	device_stats now;
	device_snapshot(d, &now);
	return now.left_ns > clock_ns() ? (now.left_ns - clock_ns() + 500000000u) / 1000000000u : 0;
}

static void a_device_that_does_not_recover_is_left_to_another_process(void **state)
{
	fixture *f = *state;
	device_options on = {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}, .cpu = open_as_cuda};
	device *d;
	char folder[PATH_MAX];
	outcome o;
	device_stats stats;
	device_history next;
	served_model *m;
	error err = ERROR_INIT;
	create_job(f);
	json_t *ended = run_to_end(f->engine);
	store_model_folder(f->engine->store, json_string_value(json_object_get(ended, "fine_tuned_model")), folder);
	json_decref(ended);
	assert_int_equal(device_open(&d, &on, NULL), STATUS_OK);
	assert_false(device_is_left(d));
	countdown = 60;
	generate(d, folder, &o);
	assert_int_equal(o.status, STATUS_DEVICE);
	assert_true(device_is_left(d)); /* immediately */
	device_snapshot(d, &stats);
	assert_int_equal(stats.restarts, 1);
	assert_non_null(strstr(stats.problem, "additive-cuda.so"));
	assert_true(device_work.foreground(d)); /* it waits and does not try again */
	assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, &err), STATUS_DEVICE);
	assert_non_null(strstr(err.message, "until the engine has restarted"));
	device_hand_over(d, &next);
	assert_int_equal(next.restarts, 1);
	assert_int_equal(next.processes, 1);
	assert_int_equal(next.in_vain, 1);
	assert_string_equal(next.name, "cuda");
	assert_non_null(strstr(next.description, "thread"));
	device_close(d);
}

/* Before the device is left there are pauses of 1 s, 2 s, …; at the limit it is not left and is tried again. */
static void failed_restarts_are_limited(void **state)
{
	device_options on = {.backend = "auto", .threads = 1, .limits = {2, 4, 4, 2}};
	device_stats stats;
	device *d;
	(void)state;
	log_init("test", LOG_NOTHING);
	on.history =
	    (device_history){.restarts = 3, .processes = 7, .name = "cuda", .description = "a GPU", .bf16 = true};
	for (on.history.in_vain = 1; on.history.in_vain <= DEVICE_MAX_PROCESSES; on.history.in_vain++) {
		error err = ERROR_INIT;
		served_model *m;
		assert_int_equal(device_open(&d, &on, &err), STATUS_OK); /* neither with the device nor on the CPU */
		assert_string_equal(device_backend_name(d), "cuda");
		assert_string_equal(device_description(d), "a GPU");
		assert_true(device_bf16(d));
		assert_null(device_training_backend(d));
		assert_false(device_is_left(d));
		device_snapshot(d, &stats);
		assert_int_equal(stats.restarts, 3);
		assert_int_equal(stats.processes, 7);
		const bool last = on.history.in_vain == DEVICE_MAX_PROCESSES;
		assert_int_equal(seconds_until_left(d), last ? 0 : 1 << (on.history.in_vain - 1));
		assert_true(device_work.foreground(d));
		assert_int_equal(device_model(d, "m", "/", DTYPE_PANEL_F32, &m, &err), STATUS_DEVICE);
		device_close(d);
	}
}

static void a_first_process_without_its_device_does_not_start(void **state)
{
	const device_options on = {.backend = "cuda", .threads = 1, .limits = {2, 4, 4, 2}};
	device *d;
	error err = ERROR_INIT;
	(void)state;
	assert_int_equal(device_open(&d, &on, &err), STATUS_UNAVAILABLE);
	assert_null(d);
	assert_non_null(strstr(err.message, "additive-cuda.so"));
}

/* --- loading ------------------------------------------------------------------------------------- */

/* A model folder that takes several turns to load, and a device without its thread. */
static device *loading_setup(char folder[64])
{
	static const device_options on = {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}};
	device *d;
	backend *b;
	model *m;
	json_t *config = json_pack("{s:i, s:i, s:i, s:i, s:i}", "hidden_size", 512, "n_heads", 4, "n_layer", 4,
	                           "vocab_size", 259, "n_positions", 32);
	folder_new(folder);
	log_init("test", LOG_ERROR + 1);
	assert_int_equal(cpu_open(&b, 1, NULL), STATUS_OK);
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 1, b, NULL), STATUS_OK);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	model_free(m);
	backend_close(b);
	json_decref(config);
	assert_int_equal(device_open(&d, &on, NULL), STATUS_OK);
	return d;
}

static void loading_teardown(device *d, const char *folder)
{
	device_close(d);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void a_load_continues_each_turn_and_is_abandoned_when_no_task_asks(void **state)
{
	(void)state;
	char folder[64];
	int turns = 0;
	served_model *m;
	device_stats stats;
	device *d = loading_setup(folder);
	assert_false(device_prepare(d, "m", folder, DTYPE_PANEL_F32));
	uint64_t began = clock_ns();
	assert_false(device_prepare(d, "m", folder, DTYPE_PANEL_F32)); /* at most once per turn */
	assert_true(clock_ns() - began < DEVICE_LOAD_NS);
	assert_false(device_prepare(d, "other", folder, DTYPE_PANEL_F32));
	device_work.foreground(d);
	assert_true(scheduler_model_loading(device_scheduler(d), "m"));
	device_work.foreground(d); /* no task asks in this turn */
	assert_false(scheduler_model_loading(device_scheduler(d), "m"));
	for (; !device_prepare(d, "m", folder, DTYPE_PANEL_F32); turns++)
		device_work.foreground(d);
	assert_true(turns > 1);
	assert_true(device_prepare(d, "m", folder, DTYPE_PANEL_F32));
	assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	device_snapshot(d, &stats);
	assert_int_equal(stats.n_loaded, 1);
	loading_teardown(d, folder);
}

/* Begin to load the model in a process that crashes during the load. */
static void crash_in_load(const char *log, const char *folder)
{
	int end;
	pid_t child = fork();
	if (child == 0) {
		device_options on = {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}};
		device *d;
		signal(SIGABRT, SIG_DFL);
		if (death_log_open(&on.deaths, log, NULL) != STATUS_OK || device_open(&d, &on, NULL) != STATUS_OK ||
		    device_prepare(d, "m", folder, DTYPE_PANEL_F32))
			_exit(1);
		abort();
	}
	assert_int_equal(waitpid(child, &end, 0), child);
	assert_true(WIFSIGNALED(end));
}

static void a_model_that_crashes_the_engine_in_three_loads_is_refused(void **state)
{
	(void)state;
	char folder[64], log[96];
	error err = ERROR_INIT;
	served_model *m;
	device *d = loading_setup(folder);
	device_close(d);
	snprintf(log, sizeof log, "%s/deaths", folder);
	for (int i = 0; i < DEATH_LOG_LIMIT; i++)
		crash_in_load(log, folder);
	device_options on = {.backend = "cpu", .threads = 1, .limits = {2, 4, 4, 2}};
	assert_int_equal(death_log_open(&on.deaths, log, NULL), STATUS_OK);
	assert_int_equal(device_open(&d, &on, NULL), STATUS_OK);
	assert_true(device_prepare(d, "m", folder, DTYPE_PANEL_F32));
	assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, &err), STATUS_UNAVAILABLE);
	assert_non_null(strstr(err.message, "died 3 times while it loaded m"));
	assert_false(device_prepare(d, "other", folder, DTYPE_PANEL_F32)); /* the load begins */
	loading_teardown(d, folder);
	death_log_close(on.deaths);
}

static void a_failed_load_is_reported_to_all_tasks_of_the_turn_and_retried_in_the_next(void **state)
{
	(void)state;
	char folder[64], path[96], moved[96];
	served_model *m;
	device *d = loading_setup(folder);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	snprintf(moved, sizeof moved, "%s/elsewhere", folder);
	assert_int_equal(rename(path, moved), 0);
	for (int i = 0; i < 2; i++) {
		error err = ERROR_INIT;
		assert_true(device_prepare(d, "m", folder, DTYPE_PANEL_F32));
		assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, &err), STATUS_STORAGE);
		assert_non_null(strstr(err.message, "\"m\""));
		assert_non_null(strstr(err.message, "model.safetensors"));
		assert_int_equal(rename(i ? path : moved, i ? moved : path),
		                 0); /* repaired, but not tried again in this turn */
	}
	assert_int_equal(rename(moved, path), 0);
	device_work.foreground(d);
	while (!device_prepare(d, "m", folder, DTYPE_PANEL_F32))
		device_work.foreground(d);
	assert_int_equal(device_model(d, "m", folder, DTYPE_PANEL_F32, &m, NULL), STATUS_OK);
	loading_teardown(d, folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_job_on_a_failing_device_ends_with_the_same_weights, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_job_whose_step_is_refused_ends_with_the_same_weights, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_job_whose_checkpoint_is_refused_ends_with_the_same_weights, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_generation_on_a_failing_device_gets_the_error_and_the_next_one_works,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(a_refused_call_ends_a_generation_and_leaves_the_sessions, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_device_that_does_not_recover_is_left_to_another_process, setup, teardown),
	    cmocka_unit_test(failed_restarts_are_limited),
	    cmocka_unit_test(a_first_process_without_its_device_does_not_start),
	    cmocka_unit_test(a_model_that_crashes_the_engine_in_three_loads_is_refused),
	    cmocka_unit_test(a_load_continues_each_turn_and_is_abandoned_when_no_task_asks),
	    cmocka_unit_test(a_failed_load_is_reported_to_all_tasks_of_the_turn_and_retried_in_the_next),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
