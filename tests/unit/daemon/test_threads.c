/* test_threads.c - work that grows with a request runs on the pool, never on the loop or on the executor. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/daemon/jobs/jobs.h"
#include "tests/unit/support/disk.h"
#include "tests/unit/support/rig.h"

enum { LONG = 4 << 20, READ = 9000, DURABLE = 8 };

/* --- which thread touches which files -------------------------------------------------------------- */

static pthread_t loop_thread, executor_thread;
static _Atomic bool watching;
static _Atomic int on_pool, elsewhere, texts_read;

static void note(const char *path)
{
	bool pool = !pthread_equal(pthread_self(), loop_thread) && !pthread_equal(pthread_self(), executor_thread);
	if (watching && strstr(path, "/sessions"))
		*(pool ? &on_pool : &elsewhere) += 1;
}

int open(const char *path, int flags, ...)
{
	va_list arguments;
	va_start(arguments, flags);
	int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
	va_end(arguments);
	note(path);
	/* A text is opened by its name. Its verification, with which each run of a job begins, opens with
	 * O_NOFOLLOW. */
	const char *blob = watching && !(flags & (O_CREAT | O_NOFOLLOW)) ? strstr(path, "/blobs/") : NULL;
	texts_read += blob && !strchr(blob, '.'); /* not counting its manifest */
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void run_name(task *t, device *d)
{
	(void)t;
	(void)d;
	executor_thread = pthread_self();
}

static void watch(rig *d)
{
	static task name;
	name = (task){.run = run_name};
	executor_control(fleet_executor(d->engine.fleet, 0), &name);
	rig_settle(d);
	loop_thread = pthread_self();
	on_pool = elsewhere = texts_read = 0;
	disk_watch(note);
	watching = true;
}

static int setup(void **state)
{
	*state = rig_new(NULL);
	return 0;
}

static int teardown(void **state)
{
	watching = false;
	disk_watch(NULL);
	rig_free(*state);
	return 0;
}

/* --- prompts -------------------------------------------------------------------------------- */

static char *text_of(size_t bytes)
{
	char *text = malloc(bytes + 1);
	for (size_t i = 0; i < bytes; i++)
		text[i] = (char)('a' + i * i % 23);
	text[bytes] = 0;
	return text;
}

static unsigned at_the_pool(const rig *d)
{
	return d->engine.loop.active_reqs.count;
}

static json_t *asking(const char *key, const char *name, const char *part, const char *text)
{
	json_t *params = json_pack("{s:s, s:s}", key, name, part, text);
	assert_non_null(params);
	return params;
}

/* The executor is blocked, and the loop turns only when this test turns it. */
static void a_long_prompt_is_read_on_the_pool_and_a_short_one_immediately(void **state)
{
	static const struct {
		const char *method, *field;
	} cases[] = {{"completion.create", "prompt"},
	             {"session.create", "prompt"},
	             {"session.append", "text"},
	             {"explain", "input"}};
	rig *d = *state;
	char *text = text_of(LONG);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		bool append = strcmp(cases[i].method, "session.append") == 0;
		json_t *made = rig_ask(d, 0, "session.create", asking("model", "m", "position_policy", "error"));
		const char *id = json_string_value(json_object_get(made, "id"));
		const char *key = append ? "id" : "model", *name = append ? id : "m";
		rig_hold(d);
		rig_call *c = rig_begin(d, cases[i].method, asking(key, name, cases[i].field, text), 100);
		assert_int_equal(at_the_pool(d), 1);
		assert_int_equal(fleet_pending(d->engine.fleet), 0);
		while (at_the_pool(d))
			uv_run(&d->engine.loop, UV_RUN_ONCE);
		assert_int_equal(fleet_pending(d->engine.fleet), 1);
		assert_int_equal(c->answers, 0);
		rig_release(d);
		rig_wait(c); /* it has more tokens than the model has positions */
		assert_true(c->failed);
		assert_string_equal(json_string_value(json_object_get(c->answer, "param")), cases[i].field);
		rig_call_free(c);
		rig_hold(d);
		c = rig_begin(d, cases[i].method, asking(key, name, cases[i].field, "short"), 100);
		assert_int_equal(at_the_pool(d), 0);
		assert_int_equal(fleet_pending(d->engine.fleet), 1);
		rig_release(d);
		rig_wait(c);
		assert_false(c->failed);
		if (strcmp(cases[i].method, "session.create") == 0)
			json_decref(rig_ask(d, 0, "session.delete",
			                    json_pack("{s:O}", "id", json_object_get(c->answer, "id"))));
		rig_call_free(c);
		json_decref(rig_ask(d, 0, "session.delete", json_pack("{s:s}", "id", id)));
		json_decref(made);
	}
	free(text);
}

/* Includes the hash of the params under their idempotency key. */
static void large_params_are_checked_on_the_pool_and_small_ones_immediately(void **state)
{
	rig *d = *state;
	char *text = text_of(STREAM_LARGE);
	json_t *made[2];
	for (int i = 0; i < 2; i++) {
		json_t *params = asking("model", "m", "prompt", i == 0 ? text : "short");
		json_object_set_new(params, "wrong", json_true());
		rig_call *c = rig_begin(d, "session.create", params, 100);
		assert_int_equal(at_the_pool(d), i == 0);
		assert_int_equal(c->answers, i == 0 ? 0 : 1);
		rig_wait(c);
		assert_string_equal(json_string_value(json_object_get(c->answer, "param")), "wrong");
		rig_call_free(c);
		rig_settle(d);
	}
	for (int i = 0; i < 2; i++) {
		json_t *params = asking("model", "m", "prompt", text);
		json_object_set_new(params, "idempotency_key", json_string("k"));
		json_object_set_new(params, "position_policy", json_string("wrap"));
		made[i] = rig_ask(d, 0, "session.create", params);
	}
	assert_true(json_equal(made[0], made[1]));
	text[7]++;
	json_t *params = asking("model", "m", "prompt", text);
	json_object_set_new(params, "idempotency_key", json_string("k"));
	json_object_set_new(params, "position_policy", json_string("wrap"));
	json_decref(rig_ask(d, 409, "session.create", params));
	json_decref(made[0]);
	json_decref(made[1]);
	free(text);
}

static void a_request_cancelled_while_its_params_are_checked_never_starts(void **state)
{
	rig *d = *state;
	char *text = text_of(STREAM_LARGE);
	rig_call *c = rig_begin(d, "session.create", asking("model", "m", "prompt", text), 100);
	rig_cancel(c);
	rig_wait(c);
	assert_string_equal(json_string_value(json_object_get(c->answer, "code")), "cancelled");
	assert_int_equal(fleet_pending(d->engine.fleet), 0);
	rig_call_free(c);
	free(text);
}

static json_t *says(rig *d, const char *id)
{
	rig_call *c =
	    rig_begin(d, "session.generate",
	              json_pack("{s:s, s:i, s:f, s:i}", "id", id, "max_tokens", 8, "temperature", 0.0, "seed", 1), 100);
	rig_wait(c);
	assert_false(c->failed);
	json_t *tokens = json_array();
	size_t i;
	json_t *event;
	json_array_foreach(c->events, i, event) json_array_extend(tokens, json_object_get(event, "tokens"));
	rig_call_free(c);
	return tokens;
}

static void appends_to_one_session_keep_their_order(void **state)
{
	rig *d = *state;
	char *text = text_of(READ);
	json_t *made = rig_ask(d, 0, "session.create", asking("model", "m", "position_policy", "wrap"));
	json_t *other = rig_ask(d, 0, "session.create", asking("model", "m", "position_policy", "wrap"));
	const char *id = json_string_value(json_object_get(made, "id"));
	rig_call *c = rig_begin(d, "session.append", asking("id", id, "text", text), 100);
	json_decref(rig_ask(d, 409, "session.append", asking("id", id, "text", "and more")));
	rig_wait(c);
	assert_int_equal(json_integer_value(json_object_get(c->answer, "tokens")), READ);
	rig_call_free(c);
	const char *same = json_string_value(json_object_get(other, "id"));
	for (size_t at = 0; at < READ; at += 3000) /* short texts */
		json_decref(rig_ask(d, 0, "session.append",
		                    json_pack("{s:s, s:s%}", "id", same, "text", text + at, (size_t)3000)));
	json_t *one = says(d, id), *two = says(d, same);
	assert_true(json_array_size(one) > 0 && json_equal(one, two));
	json_decref(one);
	json_decref(two);
	json_decref(rig_ask(d, 0, "session.delete", json_pack("{s:s}", "id", id)));
	json_decref(rig_ask(d, 0, "session.delete", json_pack("{s:s}", "id", same)));
	json_decref(made);
	json_decref(other);
	free(text);
}

static void a_request_cancelled_while_its_prompt_is_read_changes_nothing(void **state)
{
	rig *d = *state;
	char *text = text_of(READ);
	/* The text has more tokens than positions, so without the policy it would be refused before it is read. */
	json_t *made =
	    rig_ask(d, 0, "session.create",
	            json_pack("{s:s, s:s, s:s}", "model", "m", "prompt", "some words", "position_policy", "wrap"));
	const char *id = json_string_value(json_object_get(made, "id"));
	for (int i = 0; i < 3; i++) {
		rig_call *c = i == 0   ? rig_begin(d, "session.append", asking("id", id, "text", text), 100)
		              : i == 1 ? rig_begin(d, "session.create",
		                                   json_pack("{s:s, s:s, s:s}", "model", "m", "prompt", text,
		                                             "position_policy", "wrap"),
		                                   100)
		                       : rig_begin(d, "session.generate", asking("id", id, "prompt", text), 100);
		assert_int_equal(at_the_pool(d), 1);
		rig_cancel(c);
		rig_wait(c);
		assert_true(c->failed);
		assert_string_equal(json_string_value(json_object_get(c->answer, "code")), "cancelled");
		rig_call_free(c);
	}
	json_t *list = rig_ask(d, 0, "session.list", json_object());
	assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
	json_t *now = rig_ask(d, 0, "session.get", json_pack("{s:s}", "id", id));
	assert_true(json_equal(json_object_get(now, "tokens"), json_object_get(made, "tokens")));
	json_decref(rig_ask(d, 0, "session.delete", json_pack("{s:s}", "id", id)));
	json_decref(now);
	json_decref(list);
	json_decref(made);
	free(text);
}

/* --- durable sessions ------------------------------------------------------------------------ */

static void states_are_written_synced_and_read_on_the_pool(void **state)
{
	rig *d = *state;
	json_t *made[DURABLE];
	watch(d);
	for (int i = 0; i < DURABLE; i++) { /* more than there are slots */
		json_t *params = asking("model", "m", "prompt", "some words");
		json_object_set_new(params, "durable", json_true());
		made[i] = rig_ask(d, 0, "session.create", params);
	}
	int written = on_pool;
	assert_true(written >= 2 * DURABLE); /* each opened and synced */
	json_decref(rig_ask(d, 0, "session.append",
	                    json_pack("{s:O, s:s}", "id", json_object_get(made[0], "id"), "text", "more")));
	assert_true(on_pool >= written + 3); /* the state is also read */
	rig_call *c = rig_begin(d, "session.export", json_pack("{s:O}", "id", json_object_get(made[1], "id")), 100);
	rig_wait(c);
	assert_false(c->failed);
	rig_call_free(c);
	assert_int_equal(elsewhere, 0);
	for (int i = 0; i < DURABLE; i++)
		json_decref(made[i]);
}

/* --- jobs ----------------------------------------------------------------------------------- */

static bool has_ended(const json_t *job)
{
	const char *now = json_string_value(json_object_get(job, "status"));
	return strcmp(now, "succeeded") == 0 || strcmp(now, "failed") == 0;
}

static void a_jobs_text_is_tokenized_once(void **state)
{
	rig *d = *state;
	char *text = text_of(4000);
	rig_call *c =
	    rig_begin(d, "file.create", json_pack("{s:s, s:s}", "filename", "t", "purpose", "fine-tune"), 100);
	rig_send(c, "file", text, 4000);
	rig_wait(c);
	assert_false(c->failed);
	watch(d);
	json_t *params =
	    json_pack("{s:s, s:O, s:i, s:{s:s, s:s, s:{s:i, s:i, s:i, s:i}, s:i, s:i, s:i}}", "model", "additive",
	              "training_file", json_object_get(c->answer, "id"), "seed", 3, "additive",
	              /* without these two fields, the beginning of the file is read as well */
	              "objective", "next_token", "loss_on", "all", "config", "hidden_size", 16, "n_heads", 2, "n_layer",
	              2, "n_positions", 32, "sequence_length", 32, "batch_size", 2, "max_steps", 2);
	rig_call_free(c);
	json_t *job = rig_ask(d, 0, "job.create", params);
	while (!has_ended(job)) {
		json_t *id = json_pack("{s:O}", "id", json_object_get(job, "id"));
		json_decref(job);
		uv_run(&d->engine.loop, UV_RUN_ONCE);
		job = rig_ask(d, 0, "job.get", id);
	}
	assert_string_equal(json_string_value(json_object_get(job, "status")), "succeeded");
	assert_int_equal(texts_read, 1);
	json_decref(job);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_long_prompt_is_read_on_the_pool_and_a_short_one_immediately, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(large_params_are_checked_on_the_pool_and_small_ones_immediately, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_request_cancelled_while_its_params_are_checked_never_starts, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(appends_to_one_session_keep_their_order, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_request_cancelled_while_its_prompt_is_read_changes_nothing, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(states_are_written_synced_and_read_on_the_pool, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_jobs_text_is_tokenized_once, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
