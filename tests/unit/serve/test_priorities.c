/* Priority orders the requests of one owner, starves none of them, and changes nothing for other owners. */
#include "tests/unit/serve/fixture.h"

enum { MANY = 7, OTHERS = 9, PROMPT = 40 };

static void begin(fixture *f, client *c, const char *owner, int priority, int64_t n_prompt, int64_t max_tokens)
{
	int32_t ids[POSITIONS];
	random_tokens(ids, n_prompt, 7);
	generation_request r = request(c, ids, n_prompt, max_tokens);
	r.owner = owner;
	r.priority = priority;
	start(f, NULL, c, &r);
}

/* A step has one row, so it reads one prompt. */
static int setup_narrow(void **state)
{
	scheduler_limits limits = roomy;
	fixture *f = *state = calloc(1, sizeof *f);
	limits.max_batch = 1;
	fixture_open(f, &limits);
	return 0;
}

static void tick(fixture *f)
{
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
}

static void prompts_are_read_in_order_of_priority_before_length(void **state)
{
	fixture *f = *state;
	static const int priorities[] = {0, 5, -1, -1000000, 2, 1000000, -1};
	static const int order[] = {3, 2, 6, 0, 4, 1, 5};
	enum { N = sizeof priorities / sizeof *priorities };
	client c[N];
	int read = 0;
	for (int i = 0; i < N; i++) /* the latest are the shortest */
		begin(f, &c[i], "a", priorities[i], PROMPT - i * (priorities[i] >= 0), 2);
	for (int ticks = 0; read < N; ticks++) {
		assert_true(ticks < 1000);
		tick(f);
		read += c[order[read]].n_tokens > 0;
		for (int i = read; i < N; i++)
			assert_int_equal(c[order[i]].n_tokens, 0);
	}
	drain(f);
}

/* Run streams of three owners beside those of "a", and note the tick of each of their tokens. A step has not enough
 * rows for all owners, so it takes those that come first. */
static void run_beside(fixture *f, const int *priorities, int ticks[OTHERS][16])
{
	static const char *const owners[] = {"b", "c", "d"};
	client a[MANY], b[OTHERS];
	for (int i = 0; i < MANY; i++)
		begin(f, &a[i], "a", priorities ? priorities[i % 4] : 0, 6, 40);
	for (int i = 0; i < OTHERS; i++)
		begin(f, &b[i], owners[i % 3], 0, 8, 16);
	memset(ticks, 0, OTHERS * sizeof *ticks);
	for (int t = 1, left = OTHERS; left > 0; t++) {
		assert_true(t < 10000);
		set_times(f->model, 100);
		tick(f);
		left = 0;
		for (int i = 0; i < OTHERS; i++) {
			if (b[i].n_tokens > 0 && ticks[i][b[i].n_tokens - 1] == 0)
				ticks[i][b[i].n_tokens - 1] = t;
			left += !b[i].finished;
		}
	}
	drain(f);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(a[i].n_tokens, 40);
}

static void the_priorities_of_an_owner_change_no_turn_of_another(void **state)
{
	fixture *f = *state;
	static const int priorities[] = {-1000000, 3, 0, -5};
	int without[OTHERS][16], with[OTHERS][16];
	run_beside(f, NULL, without);
	scheduler_free(f->scheduler);
	fixture_serve(f, &roomy);
	run_beside(f, priorities, with);
	assert_memory_equal(with, without, sizeof with);
}

static void rows_are_given_by_priority_and_every_stream_gets_some(void **state)
{
	fixture *f = *state;
	client first[8], last[4];
	for (int i = 0; i < 8; i++)
		begin(f, &first[i], "a", -1, 2, 46);
	for (int i = 0; i < 4; i++)
		begin(f, &last[i], "a", 1, 2, 46);
	for (int i = 0; i < 4; i++)
		while (last[i].n_tokens < 2) /* they precede all that decoded while their prompts waited */
			tick(f);
	const int read = first[0].n_tokens;
	while (first[0].n_tokens < read + 20)
		tick(f);
	for (int i = 0; i < 4; i++)
		assert_int_equal(last[i].n_tokens, 2);
	for (int i = 0; i < 4; i++)
		while (last[i].n_tokens < 3)
			tick(f);
	assert_in_range(first[0].n_tokens, read + SCHEDULER_OVERTAKES / 8, 45); /* each step overtakes them 8 times */
	drain(f);
	for (int i = 0; i < 4; i++)
		assert_int_equal(last[i].n_tokens, 46);
}

static void a_prompt_is_overtaken_a_limited_number_of_times(void **state)
{
	fixture *f = *state;
	client late, c[4];
	int started = 0;
	f->model->chunk = 2; /* the late prompt is read in many steps, and after the limit in one run */
	for (int i = 0; i < 4; i++, started++)
		begin(f, &c[i], "a", -1, 2, 1);
	begin(f, &late, "a", 1, PROMPT, 1);
	while (!late.finished) {
		assert_true(started < 10 * SCHEDULER_OVERTAKES);
		for (int i = 0; i < 4; i++)
			if (c[i].finished) {
				begin(f, &c[i], "a", -1, 2, 1);
				started++;
			}
		tick(f);
	}
	assert_in_range(started, SCHEDULER_OVERTAKES, SCHEDULER_OVERTAKES + 32);
	drain(f);
}

static void the_oldest_prompt_of_each_owner_has_its_turn(void **state)
{
	fixture *f = *state;
	client longest[2], c[2];
	static const char *const owners[] = {"a", "b"};
	int started = 0;
	f->model->chunk = 10;
	for (int i = 0; i < 2; i++)
		begin(f, &longest[i], owners[i], 0, PROMPT, 1);
	for (int i = 0; i < 2; i++)
		begin(f, &c[i], owners[i], 0, 10, 1);
	while (!longest[0].finished || !longest[1].finished) { /* with equal turns of both owners */
		assert_true(started < 200);
		tick(f);
		for (int i = 0; i < 2; i++)
			if (c[i].finished) {
				begin(f, &c[i], owners[i], 0, 10, 1);
				started++;
			}
	}
	drain(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(prompts_are_read_in_order_of_priority_before_length, setup_narrow, teardown),
	    cmocka_unit_test_setup_teardown(the_priorities_of_an_owner_change_no_turn_of_another, setup, teardown),
	    cmocka_unit_test_setup_teardown(rows_are_given_by_priority_and_every_stream_gets_some, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_prompt_is_overtaken_a_limited_number_of_times, setup_narrow, teardown),
	    cmocka_unit_test_setup_teardown(the_oldest_prompt_of_each_owner_has_its_turn, setup_narrow, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
