/* The job machine, with a kind of jobs that is this file: its jobs count the letters of a file. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/queue/job_draft.h"
#include "tests/unit/support/parts.h"
#include "tests/unit/support/rig.h"

enum { MAX_TURNS = 100000 };

/* --- the kind -------------------------------------------------------------------------------------------- */

typedef struct count_draft {
	job_draft draft;
	char path[PATH_MAX];
	int64_t letters;
} count_draft;

static status check_request(job_draft *d, error *err)
{
	TRY(catalog_open(d->queue->parts->catalog, "m", &d->model, err));
	return job_draft_find_file(d, ((count_draft *)d)->path, err);
}

static status read_file(job_draft *d, error *err)
{
	count_draft *c = (count_draft *)d;
	char *text;
	size_t bytes;
	TRY(file_read(c->path, 100, &text, &bytes, err));
	c->letters = (int64_t)bytes;
	free(text);
	return STATUS_OK;
}

static json_t *new_document(job_draft *d, const char *id)
{
	return job_queue_document_new(d->queue, id, d->stream->params,
	                              json_pack("{s:I, s:i, s:i}", "letters", (json_int_t)((count_draft *)d)->letters,
	                                        "counted", 0, "secret", 1));
}

/* Shared with the tests: status of the next step, and the step after which a run waits. */
static status next_result;
static int64_t wait_at;

typedef struct count_run {
	queued_run base;
	uv_work_t work;
	int64_t letters, counted;
	bool waits;
} count_run;

static void count_letter(uv_work_t *work)
{
	((count_run *)work->data)->counted++;
}

static void letter_counted(uv_work_t *work, int cancelled);

static bool queue_letter(count_run *r)
{
	r->work.data = r;
	return uv_queue_work(r->base.queue->parts->loop, &r->work, count_letter, letter_counted) == 0;
}

static void letter_counted(uv_work_t *work, int cancelled)
{
	count_run *r = work->data;
	job_queue *q = r->base.queue;
	queued_job *j = job_queue_find(q, r->base.id);
	error err = ERROR_INIT;
	(void)cancelled;
	status s = !j || r->base.cancelled ? STATUS_CANCELLED : next_result;
	next_result = STATUS_OK;
	if (s == STATUS_OK) {
		json_t *next = json_copy(j->document);
		json_object_set_new(next, "counted", json_integer(r->counted));
		s = job_queue_progress(q, j, next, json_pack("{s:I}", "counted", (json_int_t)r->counted), &err);
	}
	if (s == STATUS_OK && r->counted < r->letters) {
		r->waits = r->counted == wait_at;
		if (!r->waits)
			assert_true(queue_letter(r));
		return;
	}
	json_t *result = json_integer(r->counted);
	if (s == STATUS_OK)
		s = job_queue_succeed(q, j, json_incref(j->document), result, &err);
	json_decref(result);
	job_queue_end_run(&r->base, s, &err);
}

static status open_run(queued_run *base, queued_job *j, error *err)
{
	count_run *r = (count_run *)base;
	(void)err;
	r->letters = json_integer_value(json_object_get(j->document, "letters"));
	r->counted = json_integer_value(json_object_get(j->document, "counted"));
	return STATUS_OK;
}

static status start_run(queued_run *base, queued_job *j)
{
	(void)j;
	return queue_letter((count_run *)base) ? STATUS_OK : STATUS_NOMEM;
}

static void cancel_run(queued_run *base)
{
	error err = ERROR_INIT;
	if (((count_run *)base)->waits)
		job_queue_end_run(base, STATUS_CANCELLED, &err);
}

static void fini_run(queued_run *base)
{
	(void)base;
}

static void answer_secret(stream *s, job_queue *q)
{
	stream_result(s, json_incref(job_queue_find(q, s->target)->document));
}

static const job_draft_steps draft_steps = {
    .bytes = sizeof(count_draft), .check = check_request, .read = read_file, .document = new_document};
static const queued_run_steps run_steps = {sizeof(count_run), open_run, start_run, cancel_run, fini_run};
static const job_method methods[] = {{"count.secret", answer_secret, false}, {0}};
static const job_kind count_kind = {
    .name = "count",
    .object = "count",
    .noun = "count",
    .prefix = "count-",
    .use = "it is counted",
    .hidden = {"request", "secret"},
    .max_active = 2,
    .max_drafts = 2,
    .job_bytes = sizeof(queued_job),
    .methods = methods,
    .draft = &draft_steps,
    .run = &run_steps,
};

/* --- the engine ------------------------------------------------------------------------------------------ */

typedef struct fixture {
	rig *rig;
	store_file file;
	json_t *answer; /* to the last request */
	int events;     /* received by a watch */
	stream_peer peer;
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	char path[PATH_MAX];
	f->rig = rig_new(NULL);
	job_machine_free(f->rig->engine.job_machine);
	parts_open_kind(&f->rig->engine, &count_kind);
	f->file = (store_file){.filename = "text", .purpose = "fine-tune"};
	store_temporary_path(f->rig->engine.store, path);
	assert_int_equal(file_write(path, &(file_part){"four", 4}, 1, NULL), STATUS_OK);
	assert_int_equal(store_file_add(f->rig->engine.store, &f->file, path, NULL), STATUS_OK);
	next_result = STATUS_OK;
	wait_at = -1;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	rig_free(f->rig);
	json_decref(f->answer);
	free(f);
	return 0;
}

static void read_frame(stream_peer *p, const frame *f, const char *json)
{
	fixture *x = (fixture *)((char *)p - offsetof(fixture, peer));
	if (f->type == FRAME_EVENT) {
		x->events++;
	} else {
		assert_null(x->answer);
		x->answer = json_loadb(json, f->json_bytes, 0, NULL);
	}
}

static void receive(stream_peer *p, const frame *f, char *json, void *payload)
{
	read_frame(p, f, json);
	reserve_free(json);
	free(payload);
}

static void receive_copy(stream_peer *p, const frame *f)
{
	read_frame(p, f, f->json);
}

static void forget(stream_peer *p, stream *s)
{
	(void)p;
	(void)s;
}

static void turn(engine *e)
{
	uv_run(&e->loop, UV_RUN_NOWAIT);
	uv_sleep(0);
}

/* Return the answer, which the fixture owns. */
static const json_t *ask(fixture *f, const char *name, const char *id, json_t *params)
{
	engine *e = &f->rig->engine;
	stream *s = stream_new(&e->net, &f->peer, 0, 100);
	json_decref(f->answer);
	f->answer = NULL;
	f->peer = (stream_peer){.send = receive, .send_copy = receive_copy, .forget = forget};
	s->params = params ? params : json_object();
	snprintf(s->target, sizeof s->target, "%s", id ? id : "");
	parts_begin_method(e, s, name);
	for (int i = 0; !f->answer && i < MAX_TURNS; i++)
		turn(e);
	assert_non_null(f->answer);
	return f->answer;
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static void create(fixture *f, char id[STORE_ID_BYTES])
{
	const json_t *job = ask(f, "count.create", NULL, json_pack("{s:s, s:s}", "model", "m", "file", f->file.id));
	assert_string_equal(text_of(job, "status"), "queued");
	assert_null(json_object_get(job, "secret"));
	assert_null(json_object_get(job, "request"));
	snprintf(id, STORE_ID_BYTES, "%s", text_of(job, "id"));
	assert_true(strncmp(id, "count-", 6) == 0);
}

static void wait_for(fixture *f, const char *id, const char *state)
{
	for (int i = 0; strcmp(text_of(ask(f, "count.get", id, NULL), "status"), state) != 0; i++) {
		assert_true(i < MAX_TURNS);
		turn(&f->rig->engine);
	}
}

static void wait_for_the_run_to_pause(fixture *f)
{
	const job_queue *q = job_machine_queue(f->rig->engine.job_machine, &count_kind);
	for (int i = 0; !q->run || !((const count_run *)q->run)->waits; i++) {
		assert_true(i < MAX_TURNS);
		turn(&f->rig->engine);
	}
}

/* --- the tests ------------------------------------------------------------------------------------------- */

static void a_new_kind_has_all_common_methods_and_its_own(void **state)
{
	fixture *f = *state;
	char id[STORE_ID_BYTES];
	job_queue *q;
	create(f, id);
	wait_for(f, id, "succeeded");
	assert_int_equal(json_integer_value(json_object_get(f->answer, "result")), 4);
	const json_t *events = ask(f, "count.events", id, json_pack("{s:s}", "order", "asc"));
	assert_int_equal(json_array_size(json_object_get(events, "data")), 4);
	assert_int_equal(json_array_size(json_object_get(ask(f, "count.list", NULL, NULL), "data")), 1);
	assert_string_equal(text_of(ask(f, "count.watch", id, NULL), "status"), "succeeded");
	assert_int_equal(f->events, 4);
	assert_string_equal(text_of(ask(f, "count.cancel", id, NULL), "code"), "invalid_job_state");
	const json_t *deleted = json_object_get(ask(f, "count.delete", id, NULL), "deleted");
	assert_true(json_is_true(deleted));
	assert_string_equal(text_of(ask(f, "count.get", "x", NULL), "message"), "there is no count \"x\"");
	assert_non_null(job_machine_method(f->rig->engine.job_machine, "count.secret", &q));
	assert_null(job_machine_method(f->rig->engine.job_machine, "count.nothing", &q));
	assert_null(job_machine_method(f->rig->engine.job_machine, "counted.get", &q));
}

static void a_stopped_job_continues_with_the_next_letter_after_a_restart(void **state)
{
	fixture *f = *state;
	engine *e = &f->rig->engine;
	char id[STORE_ID_BYTES];
	wait_at = 3;
	create(f, id);
	wait_for_the_run_to_pause(f);
	job_machine_stop(e->job_machine);
	assert_true(job_machine_stopped(e->job_machine));
	job_machine_free(e->job_machine);
	parts_open_kind(&f->rig->engine, &count_kind);
	assert_string_equal(text_of(ask(f, "count.get", id, NULL), "status"), "running");
	job_machine_tick(e->job_machine);
	wait_for(f, id, "succeeded");
	/* Each letter has one event, whatever the stop. */
	assert_int_equal(json_array_size(json_object_get(ask(f, "count.events", id, NULL), "data")), 4);
}

static void a_failure_of_the_machine_queues_a_job_again_and_its_own_failure_ends_it(void **state)
{
	fixture *f = *state;
	char id[STORE_ID_BYTES];
	next_result = STATUS_FULL;
	create(f, id);
	const job_queue *q = job_machine_queue(f->rig->engine.job_machine, &count_kind);
	while (q->run)
		turn(&f->rig->engine);
	assert_string_equal(text_of(ask(f, "count.get", id, NULL), "status"), "queued");
	assert_non_null(json_object_get(f->answer, "error"));
	assert_int_equal(job_queue_find(q, id)->failures, 1);
	job_queue_find(q, id)->retry_ns = 0;
	next_result = STATUS_INVALID;
	job_machine_tick(f->rig->engine.job_machine);
	wait_for(f, id, "failed");
	assert_null(job_queue_find(q, id));
}

static void a_job_holds_its_file_and_model_until_it_is_cancelled(void **state)
{
	fixture *f = *state;
	const job_machine *m = f->rig->engine.job_machine;
	char id[STORE_ID_BYTES], second[STORE_ID_BYTES];
	wait_at = 1;
	create(f, id);
	create(f, second);
	assert_string_equal(text_of(ask(f, "count.create", NULL, json_pack("{s:s}", "file", f->file.id)), "message"),
	                    "too many counts are waiting");
	wait_for_the_run_to_pause(f);
	assert_true(job_machine_uses_file(m, f->file.id));
	assert_string_equal(job_machine_use_of_model(m, "m"), "it is counted");
	assert_string_equal(text_of(ask(f, "count.delete", id, NULL), "message"),
	                    "a job that is running cannot be deleted before it has ended");
	assert_string_equal(text_of(ask(f, "count.cancel", second, NULL), "status"), "cancelled");
	assert_string_equal(text_of(ask(f, "count.cancel", id, NULL), "status"), "cancelled");
	assert_false(job_machine_uses_file(m, f->file.id));
	assert_null(job_machine_use_of_model(m, "m"));
	assert_true(job_machine_stopped(m));
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(a_new_kind_has_all_common_methods_and_its_own),
	    CASE(a_stopped_job_continues_with_the_next_letter_after_a_restart),
	    CASE(a_failure_of_the_machine_queues_a_job_again_and_its_own_failure_ends_it),
	    CASE(a_job_holds_its_file_and_model_until_it_is_cancelled),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
