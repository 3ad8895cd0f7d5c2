/* Scores of prompts. */
#include "tests/unit/serve/fixture.h"

#include <math.h>

/* A fixture with a model for longer texts. */
static int setup_long(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	fixture_folder(f);
	write_model(f->folder, f->backend, 1, 600, POSITION_ERROR);
	fixture_serve(f, &roomy);
	*state = f;
	return 0;
}

enum { SCORED = SCHEDULER_PREFILL_CHUNK + 1, TOPS = 3 }; /* two pieces; the second has one token */

static void note_tops(client *c)
{
	token_logprob *tops = c->context;
	memcpy(tops + (c->n_tokens - 1) * TOPS, c->top, TOPS * sizeof *tops);
}

static void assert_near(const token_logprob *a, const token_logprob *b, int n)
{
	for (int i = 0; i < n; i++)
		if (a[i].token != b[i].token || !(fabsf(a[i].logprob - b[i].logprob) < 1e-5f))
			fail_msg("%d: token %d %g, not %d %g", i, a[i].token, (double)a[i].logprob, b[i].token,
			         (double)b[i].logprob);
}

static void tokens_of_a_prompt_have_the_log_probabilities_of_sampled_tokens(void **state)
{
	fixture *f = *state;
	enum { FIRST = 6, SAMPLED = SCORED - FIRST };
	static int32_t ids[SCORED];
	static token_logprob tops[SAMPLED * TOPS];
	static client sampled, c;
	random_tokens(ids, FIRST, 16);
	generation_request r = request(&sampled, ids, FIRST, SAMPLED);
	r.n_logprobs = TOPS;
	sampled.on_event = note_tops;
	sampled.context = tops;
	run(f, NULL, &sampled, &r);
	assert_int_equal(sampled.n_tokens, SAMPLED);
	memcpy(ids + FIRST, sampled.tokens, SAMPLED * sizeof *ids);
	for (int more = 0; more <= 3; more += 3) { /* first only read, then also generate */
		r = request(&c, ids, SCORED - more, more);
		r.n_logprobs = TOPS;
		r.score_prompt = true;
		run(f, NULL, &c, &r);
		assert_int_equal(c.result.status, STATUS_OK);
		assert_int_equal(c.result.prompt_tokens, SCORED - more);
		assert_int_equal(c.result.completion_tokens, more);
		assert_int_equal(c.result.finish, FINISH_LENGTH);
		assert_int_equal(c.n_tokens, SCORED - 1);
		assert_memory_equal(c.tokens, ids + 1, (SCORED - 1) * sizeof *ids);
		assert_near(c.logprobs + FIRST - 1, sampled.logprobs, SAMPLED);
		assert_near(c.top, tops + (SAMPLED - 1) * TOPS, TOPS);
	}
	r = request(&c, ids, 1, 0); /* a single token has no score */
	r.n_logprobs = 0;
	r.score_prompt = true;
	run(f, NULL, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.n_tokens, 0);
}

static void a_prompt_is_scored_in_turns_with_streams_within_its_credit(void **state)
{
	fixture *f = *state;
	static int32_t ids[SCORED];
	static client stream, c;
	random_tokens(ids, SCORED, 18);
	generation_request r = request(&stream, ids, 4, 500);
	start(f, NULL, &stream, &r);
	while (stream.n_tokens == 0)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	r = request(&c, ids, SCORED, 0);
	r.n_logprobs = 0;
	r.score_prompt = true;
	r.credit = 2;
	start(f, NULL, &c, &r);
	const int before = stream.n_tokens;
	int events = 0;
	while (c.generation) {
		const int scored = c.n_tokens;
		for (int i = 0; i < 100 && c.generation && c.credit > 0; i++)
			assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
		assert_true(c.n_tokens > scored || !c.generation);
		events++;
		c.credit++;
		if (c.generation)
			generation_grant(c.generation, 1);
	}
	assert_true(events >= SCORED / 8 && stream.n_tokens - before >= events / 2);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_int_equal(c.n_tokens, SCORED - 1);
	generation_cancel(stream.generation);
	drain(f);
}

static void scoring_of_a_prompt_can_be_cancelled(void **state)
{
	fixture *f = *state;
	static int32_t ids[SCORED];
	static client c;
	random_tokens(ids, SCORED, 19);
	for (int after = 0; after <= 1; after++) { /* before its first score, and in an event with scores */
		generation_request r = request(&c, ids, SCORED, 4);
		r.n_logprobs = 0;
		r.score_prompt = true;
		c.cancel_after = after * 8;
		start(f, NULL, &c, &r);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
		if (after == 0)
			generation_cancel(c.generation);
		drain(f);
		assert_int_equal(c.result.status, STATUS_CANCELLED);
		assert_int_equal(f->model->users, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(tokens_of_a_prompt_have_the_log_probabilities_of_sampled_tokens, setup_long,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_prompt_is_scored_in_turns_with_streams_within_its_credit, setup_long,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(scoring_of_a_prompt_can_be_cancelled, setup_long, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
