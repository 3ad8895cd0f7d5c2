/* Loading a model compiles, runs and records the plans of usual sizes, so that no first request waits for that. */
#include "tests/unit/serve/fixture.h"

#include "tests/unit/cuda/device.h"

/* Calls passed on to the backend since the last reset. */
static struct {
	int recorded, replayed, allocated;
	status (*record_begin)(backend *b);
	status (*replay)(backend *b, void *recording);
	status (*allocate)(backend *b, size_t bytes, void **out);
} calls;

static status count_record_begin(backend *b)
{
	calls.recorded++;
	return calls.record_begin(b);
}

static status count_replay(backend *b, void *recording)
{
	calls.replayed++;
	return calls.replay(b, recording);
}

/* Each plan has an arena of its own. */
static status count_allocate(backend *b, size_t bytes, void **out)
{
	calls.allocated++;
	return calls.allocate(b, bytes, out);
}

static void reset_calls(void)
{
	calls.recorded = calls.replayed = calls.allocated = 0;
}

static void open_counted(fixture *f, const char *kind)
{
	fixture_folder(f);
	if (strcmp(kind, "gpt2") == 0)
		write_gpt2(f->folder, f->backend, 1);
	backend_close(f->backend);
	f->backend = open_device();
	calls.record_begin = f->backend->record_begin;
	calls.replay = f->backend->replay;
	calls.allocate = f->backend->allocate;
	f->backend->record_begin = count_record_begin;
	f->backend->replay = count_replay;
	f->backend->allocate = count_allocate;
	fixture_serve(f, &roomy);
}

/* Start `n` requests with prompts of different lengths at once, and run them. */
static void run_requests(fixture *f, int n, int64_t first_length)
{
	client clients[8];
	int32_t ids[8][64];
	for (int i = 0; i < n; i++) {
		random_tokens(ids[i], 64, (uint64_t)i);
		generation_request r = request(&clients[i], ids[i], first_length + i, 6);
		r.sampling.temperature = (float)(i % 2);
		start(f, NULL, &clients[i], &r);
	}
	drain(f);
	for (int i = 0; i < n; i++)
		assert_int_equal(clients[i].n_tokens, 6);
}

static void first_requests_compile_and_record_nothing(void **state)
{
	static const char *const kinds[] = {"additive", "gpt2"};
	(void)state;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		fixture f;
		open_counted(&f, kinds[k]);
		assert_true(calls.recorded >= 7); /* 1, 2, 4 and 8 rows; 16, 64 and 256 tokens */
		for (int64_t length = 3; length < 40; length += 30) {
			reset_calls();
			run_requests(&f, 1, length);
			assert_int_equal(calls.recorded, 0);
			assert_int_equal(calls.allocated, 0);
			assert_true(calls.replayed >= 6);
		}
		fixture_close(&f);
	}
}

/* Several prompts in one step have plans of their own; all decode steps are prepared. */
static void decode_steps_of_any_number_of_rows_record_nothing(void **state)
{
	fixture f;
	(void)state;
	open_counted(&f, "additive");
	for (int n = 1; n <= 8; n++) {
		served_plan *p;
		reset_calls();
		assert_int_equal(served_model_plan(f.model, n, 0, false, false, 0, &p, NULL), STATUS_OK);
		assert_int_equal(calls.allocated, 0);
	}
	run_requests(&f, 8, 3);
	run_requests(&f, 8, 3);
	reset_calls();
	run_requests(&f, 8, 3);
	assert_int_equal(calls.recorded, 0);
	fixture_close(&f);
}

/* Prompts beside streams: after the idle turns that follow a load, no step of theirs waits for a plan. */
static void the_first_joined_step_after_idle_turns_records_nothing(void **state)
{
	static const struct {
		int rows;
		int64_t tokens;
	} sizes[] = {{2, 2}, {4, 16}, {5, 6}, {8, 16}, {2, 17}, {8, 64}, {3, 65}, {5, 256}};
	enum { REQUESTS = 4 };
	fixture f;
	client clients[REQUESTS];
	int32_t ids[REQUESTS][64];
	served_plan *p;
	(void)state;
	open_counted(&f, "additive");
	reset_calls();
	while (scheduler_prepare(f.scheduler))
		assert_false(scheduler_runnable(f.scheduler));
	assert_int_equal(calls.recorded, 6); /* 4 and 8 rows of 16, 64 and 256 tokens */
	reset_calls();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		assert_int_equal(served_model_plan(f.model, sizes[i].rows, sizes[i].tokens, false, false, 0, &p, NULL),
		                 STATUS_OK);
	for (int i = 0; i < REQUESTS; i++) { /* each prompt is read beside the streams before it */
		random_tokens(ids[i], 64, (uint64_t)i);
		const generation_request r = request(&clients[i], ids[i], 5 + 10 * i, 12);
		start(&f, NULL, &clients[i], &r);
		assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
	}
	drain(&f);
	for (int i = 0; i < REQUESTS; i++)
		assert_int_equal(clients[i].n_tokens, 12);
	assert_int_equal(calls.recorded, 0);
	assert_int_equal(calls.allocated, 0);
	fixture_close(&f);
}

/* A plan that a request has used holds logits that may still be needed. */
static void a_plan_in_use_is_not_run_by_its_preparation(void **state)
{
	fixture f;
	client c[2];
	int32_t ids[8];
	(void)state;
	open_counted(&f, "additive");
	assert_true(scheduler_prepare(f.scheduler)); /* compiled, not run */
	served_plan *p = f.model->joined.plan;
	random_tokens(ids, 8, 1);
	for (int i = 0; i < 2; i++) { /* two prompts share a step on it */
		const generation_request r = request(&c[i], ids, 3 + i, 1);
		start(&f, NULL, &c[i], &r);
	}
	drain(&f);
	assert_int_equal(f.model->joined.runs, 2);
	reset_calls();
	assert_true(scheduler_prepare(f.scheduler)); /* compiles the next one */
	assert_ptr_not_equal(f.model->joined.plan, p);
	assert_int_equal(calls.replayed, 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(first_requests_compile_and_record_nothing),
	    cmocka_unit_test(decode_steps_of_any_number_of_rows_record_nothing),
	    cmocka_unit_test(the_first_joined_step_after_idle_turns_records_nothing),
	    cmocka_unit_test(a_plan_in_use_is_not_run_by_its_preparation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
