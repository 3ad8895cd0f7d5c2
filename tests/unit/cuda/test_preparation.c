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
		assert_int_equal(served_model_plan(f.model, n, 0, false, 0, &p, NULL), STATUS_OK);
		assert_int_equal(calls.allocated, 0);
	}
	run_requests(&f, 8, 3);
	run_requests(&f, 8, 3);
	reset_calls();
	run_requests(&f, 8, 3);
	assert_int_equal(calls.recorded, 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(first_requests_compile_and_record_nothing),
	    cmocka_unit_test(decode_steps_of_any_number_of_rows_record_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
