/* Streams that decode in the steps of prompts. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/joined.h"
#include "tests/unit/serve/kinds.h"

enum { STREAMS = 3 };

static void tick(fixture *f)
{
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
}

static scheduler_stats stats_of(const fixture *f)
{
	scheduler_stats stats;
	scheduler_stats_read(f->scheduler, &stats);
	return stats;
}

/* Prompts arrive while streams decode. */
static void streams_and_prompts_have_the_bits_of_each_alone(void **state)
{
	(void)state;
	for (int kind = 0; kind < ENCODER; kind++) {
		fixture f;
		open_named(&f, kind, DTYPE_PANEL_F32, false);
		check_joined(&f, 290, 60);
		fixture_close(&f);
	}
}

/* Each step of the prompt gives every stream a token, and there is no other step. */
static void a_step_of_a_prompt_has_a_token_for_each_stream(void **state)
{
	fixture *f = *state;
	static client c[STREAMS], reader;
	static int32_t ids[20 * SCHEDULER_PREFILL_SHORT];
	random_tokens(ids, sizeof ids / sizeof *ids, 2);
	for (int i = 0; i < STREAMS; i++) {
		generation_request r = request(&c[i], ids, 2, CLIENT_TOKENS);
		start(f, NULL, &c[i], &r);
	}
	while (c[STREAMS - 1].n_tokens < 3)
		tick(f);
	session *y = open_session(f, "y", POSITION_CLAMP, false);
	generation_request r = request(&reader, ids, sizeof ids / sizeof *ids, 1);
	start(f, y, &reader, &r);
	tick(f);
	tick(f); /* a step of streams may have been in flight */
	for (int64_t read = y->tokens; reader.n_tokens == 0; read = y->tokens) {
		const scheduler_stats before = stats_of(f);
		tick(f);
		assert_int_equal(stats_of(f).batched_sequences - before.batched_sequences, STREAMS);
		assert_int_equal(y->tokens - read, SCHEDULER_PREFILL_SHORT);
	}
	assert_int_equal(c[0].n_tokens, c[STREAMS - 1].n_tokens);
	drain(f);
	drop(f, y);
}

/* The log of a stream would make the whole step write one. */
static void beside_a_stream_whose_log_is_kept_streams_decode_apart(void **state)
{
	fixture *f = *state;
	static client c[2], reader;
	static int32_t ids[SCHEDULER_PREFILL_CHUNK];
	random_tokens(ids, SCHEDULER_PREFILL_CHUNK, 3);
	session *x = open_session(f, "x", POSITION_CLAMP, true), *y = open_session(f, "y", POSITION_CLAMP, false);
	for (int i = 0; i < 2; i++) {
		generation_request r = request(&c[i], ids, 2, 100);
		start(f, i ? NULL : x, &c[i], &r);
	}
	while (c[1].n_tokens < 3)
		tick(f);
	generation_request r = request(&reader, ids, SCHEDULER_PREFILL_CHUNK, 1);
	start(f, y, &reader, &r);
	while (reader.n_tokens == 0) {
		const scheduler_stats before = stats_of(f);
		const int64_t read = y->tokens;
		tick(f);
		assert_true(y->tokens == read || stats_of(f).batched_sequences == before.batched_sequences);
	}
	drain(f);
	drop(f, x);
	drop(f, y);
}

/* Without memory for a plan of both, the prompt is read alone, and streams decode between its steps. */
static void short_of_memory_streams_decode_apart_until_the_prompt_is_read(void **state)
{
	(void)state;
	static client expected, c, reader;
	static int32_t ids[6 * SCHEDULER_PREFILL_SHORT];
	fixture f = {0};
	random_tokens(ids, sizeof ids / sizeof *ids, 4);
	fixture_folder(&f);
	fault_backend *device = fault_backend_new(f.backend);
	f.backend = &device->base;
	fixture_serve(&f, &roomy);
	generation_request r = request(&expected, ids, 2, 40);
	run(&f, NULL, &expected, &r);
	r = request(&c, ids, 2, 40);
	start(&f, NULL, &c, &r);
	while (c.n_tokens < 3)
		tick(&f);
	session *y = open_session(&f, "y", POSITION_CLAMP, false);
	r = request(&reader, ids, sizeof ids / sizeof *ids, 1);
	start(&f, y, &reader, &r);
	tick(&f);
	tick(&f); /* a step of streams may have been in flight */
	const int64_t before = y->tokens;
	served_model_free_plans(f.model);
	fault_arm(device, FAULT_ALLOCATE, 0, false);
	tick(&f);
	assert_int_equal(device->struck, true);
	assert_int_equal(y->tokens, before + SCHEDULER_PREFILL_SHORT);
	while (reader.n_tokens == 0) {
		const int64_t read = y->tokens;
		const int said = c.n_tokens;
		tick(&f);
		assert_true((y->tokens > read) != (c.n_tokens > said));
	}
	drain(&f);
	assert_int_equal(c.n_tokens, expected.n_tokens);
	assert_memory_equal(c.tokens, expected.tokens, sizeof c.tokens);
	assert_int_equal(reader.finished, 1);
	fixture_close(&f);
}

/* The prompts that a step has no memory for are not counted in its time. */
static void a_step_that_has_been_halved_has_the_prompts_that_are_left(void **state)
{
	enum { PROMPTS = 2, LENGTH = 20 };
	(void)state;
	static client c[PROMPTS];
	int32_t ids[LENGTH];
	fixture f = {0};
	random_tokens(ids, LENGTH, 5);
	fixture_folder(&f);
	fault_backend *device = fault_backend_new(f.backend);
	f.backend = &device->base;
	fixture_serve(&f, &roomy);
	for (int i = 0; i < PROMPTS; i++) {
		generation_request r = request(&c[i], ids, LENGTH, 1);
		start(&f, NULL, &c[i], &r);
	}
	fault_arm(device, FAULT_ALLOCATE, 0, false);
	scheduler_stats stats;
	do {
		tick(&f);
		scheduler_stats_read(f.scheduler, &stats);
	} while (stats.prompt_tokens == 0);
	assert_true(device->struck);
	assert_int_equal(stats.prompt_tokens, LENGTH);
	assert_int_equal(f.scheduler->inflight[0].n, 1);
	assert_int_equal(f.scheduler->inflight[0].streams_from, 1);
	drain(&f);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(streams_and_prompts_have_the_bits_of_each_alone),
	    cmocka_unit_test_setup_teardown(a_step_of_a_prompt_has_a_token_for_each_stream, setup, teardown),
	    cmocka_unit_test_setup_teardown(beside_a_stream_whose_log_is_kept_streams_decode_apart, setup, teardown),
	    cmocka_unit_test(short_of_memory_streams_decode_apart_until_the_prompt_is_read),
	    cmocka_unit_test(a_step_that_has_been_halved_has_the_prompts_that_are_left),
	};
	return RUN_ALL_WAYS(tests);
}
