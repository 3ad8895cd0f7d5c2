/* A generation whose time is over ends in the next tick, keeps what it has generated, and no part of it stays. */
#include "tests/unit/serve/fixture.h"

enum { TOKENS = 30, AFTER = 9 };

static int expire_at; /* the token in whose event a client's time is over */

static void expire(client *c)
{
	if (c->n_tokens == expire_at && c->generation)
		generation_expire(c->generation);
}

static void assert_nothing_is_left(fixture *f)
{
	scheduler_stats stats;
	scheduler_stats_read(f->scheduler, &stats);
	assert_int_equal(stats.running + stats.waiting, 0);
	assert_false(scheduler_runnable(f->scheduler));
	assert_int_equal(f->scheduler->n_cancelled + f->scheduler->n_prompts, 0);
}

static void one_that_has_generated_nothing_fails(void **state)
{
	fixture *f = *state;
	client waiting, started;
	int32_t ids[40];
	random_tokens(ids, 40, 1);
	f->model->chunk = 10;
	generation_request r = request(&started, ids, 40, TOKENS);
	start(f, NULL, &started, &r);
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK); /* reads a part of the prompt */
	r = request(&waiting, ids, 30, TOKENS);
	start(f, NULL, &waiting, &r);
	generation_expire(waiting.generation);
	generation_expire(started.generation);
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_int_equal(waiting.finished, 1);
	assert_int_equal(waiting.result.status, STATUS_TIMEOUT);
	assert_int_equal(started.finished, 1);
	assert_int_equal(started.result.status, STATUS_TIMEOUT);
	assert_int_equal(started.result.finish, FINISH_NONE);
	assert_nothing_is_left(f);
}

static void one_that_runs_keeps_its_tokens_and_the_text_held_back(void **state)
{
	fixture *f = *state;
	client whole, c;
	int32_t ids[8];
	char stop[8];
	const char *stops[] = {stop};
	random_tokens(ids, 8, 2);
	generation_request r = request(&whole, ids, 8, TOKENS);
	expire_at = AFTER;
	whole.on_event = expire;
	start(f, NULL, &whole, &r);
	drain(f);
	assert_int_equal(whole.n_tokens, AFTER);
	assert_true(whole.text_bytes > 0);
	/* The stop sequence begins with the end of the text, so that is held back. */
	snprintf(stop, sizeof stop, "%c\x01\x02\x03", whole.text[whole.text_bytes - 1]);
	r = request(&c, ids, 8, TOKENS);
	r.stops[0] = stops[0];
	r.n_stops = 1;
	c.on_event = expire;
	start(f, NULL, &c, &r);
	drain(f);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_TIMEOUT);
	assert_int_equal(c.result.completion_tokens, AFTER);
	assert_int_equal(c.n_tokens, AFTER);
	assert_int_equal(c.text_bytes, whole.text_bytes);
	assert_memory_equal(c.text, whole.text, whole.text_bytes);
	assert_nothing_is_left(f);
}

static void one_without_credit_ends_too(void **state)
{
	fixture *f = *state;
	client c;
	int32_t ids[8];
	random_tokens(ids, 8, 2);
	generation_request r = request(&c, ids, 8, TOKENS);
	r.credit = 4;
	start(f, NULL, &c, &r);
	drain(f);
	assert_int_equal(c.finished, 0);
	generation_expire(c.generation);
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_int_equal(c.result.finish, FINISH_TIMEOUT);
	assert_int_equal(c.n_tokens, 4);
	assert_nothing_is_left(f);
}

static void its_session_continues_after_the_tokens_delivered(void **state)
{
	fixture *f = *state;
	client whole, c, rest;
	int32_t ids[8];
	random_tokens(ids, 8, 3);
	generation_request r = request(&whole, ids, 8, TOKENS);
	run(f, NULL, &whole, &r);
	session *x = open_session(f, "s", POSITION_ERROR, false);
	r = request(&c, ids, 8, TOKENS);
	expire_at = AFTER;
	c.on_event = expire;
	run(f, x, &c, &r);
	assert_int_equal(c.result.finish, FINISH_TIMEOUT);
	assert_int_equal(c.n_tokens, AFTER);
	r = request(&rest, NULL, 0, TOKENS - AFTER);
	run(f, x, &rest, &r);
	assert_memory_equal(whole.tokens + AFTER, rest.tokens, (TOKENS - AFTER) * sizeof(int32_t));
	drop(f, x);
	assert_nothing_is_left(f);
}

static void a_search_fails_as_a_whole(void **state)
{
	fixture *f = *state;
	client c[2];
	int32_t ids[8];
	random_tokens(ids, 8, 4);
	const beam_options o = {.beams = 3, .length_penalty = 1};
	const generation_request r = search_request(ids, 8, TOKENS);
	start_search(f, &o, &r, c, 2);
	for (int i = 0; i < 6; i++)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	generation_expire(c[1].generation);
	drain(f);
	for (int i = 0; i < 2; i++)
		assert_int_equal(c[i].result.status, STATUS_TIMEOUT);
	assert_nothing_is_left(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(one_that_has_generated_nothing_fails, setup, teardown),
	    cmocka_unit_test_setup_teardown(one_that_runs_keeps_its_tokens_and_the_text_held_back, setup, teardown),
	    cmocka_unit_test_setup_teardown(one_without_credit_ends_too, setup, teardown),
	    cmocka_unit_test_setup_teardown(its_session_continues_after_the_tokens_delivered, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_search_fails_as_a_whole, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
