/* Work in the background runs only while no other can, and gives the same tokens. */
#include "tests/unit/serve/fixture.h"

enum { LONG = 16 };

static void begin(fixture *f, client *c, const int32_t *ids, int64_t n, int64_t tokens, bool background)
{
	generation_request r = request(c, ids, n, tokens);
	r.background = background;
	r.owner = background ? "batch" : "someone";
	start(f, NULL, c, &r);
}

static void a_generation_in_the_background_waits_for_all_others(void **state)
{
	fixture *f = *state;
	client alone, behind, first, second;
	int32_t ids[20];
	random_tokens(ids, 20, 1);
	generation_request r = request(&alone, ids, 20, 20);
	run(f, NULL, &alone, &r);
	begin(f, &behind, ids, 20, 20, true);
	while (behind.n_tokens < 3)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	begin(f, &first, ids, 20, LONG, false);
	begin(f, &second, ids, 5, LONG, false);
	const int before = behind.n_tokens;
	while (!first.finished || !second.finished)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_in_range(behind.n_tokens, before, before + INFLIGHT_STEPS); /* those of steps issued before */
	drain(f);
	assert_int_equal(behind.result.status, STATUS_OK);
	assert_int_equal(behind.n_tokens, alone.n_tokens);
	assert_memory_equal(behind.tokens, alone.tokens, (size_t)alone.n_tokens * sizeof *alone.tokens);
}

static void a_parked_generation_holds_nothing(void **state)
{
	fixture *f = *state;
	client parked, behind;
	int32_t ids[5];
	random_tokens(ids, 5, 2);
	generation_request r = request(&parked, ids, 5, 10);
	r.credit = 1;
	start(f, NULL, &parked, &r);
	drain(f);
	begin(f, &behind, ids, 5, 10, true);
	drain(f);
	assert_int_equal(behind.finished, 1);
	assert_int_equal(parked.finished, 0);
	parked.credit = 10;
	generation_grant(parked.generation, 10);
	drain(f);
	assert_int_equal(parked.finished, 1);
}

static void a_generation_in_the_background_can_be_cancelled_while_it_waits(void **state)
{
	fixture *f = *state;
	client behind, before;
	int32_t ids[5];
	random_tokens(ids, 5, 3);
	begin(f, &behind, ids, 5, 30, true);
	begin(f, &before, ids, 5, 30, false);
	for (int i = 0; i < 5; i++)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	generation_cancel(behind.generation);
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_int_equal(behind.result.status, STATUS_CANCELLED);
	assert_int_equal(before.finished, 0);
	drain(f);
	assert_int_equal(before.n_tokens, 30);
}

typedef struct scoring {
	int32_t ids[40];
	score_sequence sequence;
	score_task_request request;
	score_task *task;
	float out[HIDDEN];
	bool done;
} scoring;

static void scored(void *context, status s, const error *err)
{
	(void)err;
	assert_int_equal(s, STATUS_OK);
	((scoring *)context)->done = true;
}

static void begin_scoring(fixture *f, scoring *x, bool background)
{
	*x = (scoring){.done = false};
	random_tokens(x->ids, 40, 4);
	x->sequence = (score_sequence){.ids = x->ids, .count = 40};
	x->request = (score_task_request){.sequences = &x->sequence,
	                                  .n_sequences = 1,
	                                  .embedding = POOL_MEAN,
	                                  .width = HIDDEN,
	                                  .out = x->out,
	                                  .background = background,
	                                  .finished = scored,
	                                  .context = x};
	assert_int_equal(scheduler_score(f->scheduler, f->model, &x->request, &x->task, NULL), STATUS_OK);
}

static void a_scoring_in_the_background_waits_for_all_others(void **state)
{
	fixture *f = *state;
	scoring behind, first;
	client one;
	int32_t ids[5];
	random_tokens(ids, 5, 5);
	begin_scoring(f, &behind, true);
	begin_scoring(f, &first, false);
	begin(f, &one, ids, 5, LONG, false);
	while (!first.done || !one.finished) {
		assert_false(behind.done);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
	drain(f);
	assert_true(behind.done);
	assert_memory_equal(behind.out, first.out, sizeof first.out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_generation_in_the_background_waits_for_all_others, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_parked_generation_holds_nothing, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_generation_in_the_background_can_be_cancelled_while_it_waits, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_scoring_in_the_background_waits_for_all_others, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
