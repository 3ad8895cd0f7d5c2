/* Several owners: none waits for another's requests longer than the shares say. */
#include "engine/serve/shares.h"
#include "tests/unit/serve/fixture.h"

static const uint64_t KEPT_NS = (uint64_t)SHARES_KEPT_SECONDS * 1000000000u;

static void a_step_is_divided_by_the_fewest_streams(void **state)
{
	owner_shares s = {0};
	share *a = shares_enter(&s, "a", 0), *b = shares_enter(&s, "b", 0), *c = shares_enter(&s, NULL, 0);
	(void)state;
	assert_ptr_equal(shares_enter(&s, "", 0), c);
	assert_true(shares_are_several(&s));
	shares_begin(&s, 0);
	a->streams = 50;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 50); /* alone */
	b->streams = 1;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 5);
	b->streams = 9;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 18);
	c->streams = 2;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 10);
	assert_int_equal(shares_divide(&s, NULL, 4, 12), 10);
	b->streams = c->streams = 50;
	assert_int_equal(shares_divide(&s, NULL, 4, 30), 30);
	for (int i = 0; i < 10; i++)
		assert_true(share_take(a));
	assert_false(share_take(a));
	assert_int_equal(a->served, 10);
	share_leave(a, 1);
	share_leave(b, 2);
	share_leave(c, 3);
	shares_begin(&s, 1 + KEPT_NS);
	assert_int_equal(s.table.count, 3);
	shares_begin(&s, 3 + KEPT_NS);
	assert_false(shares_are_several(&s));
	share_leave(c, 4);
	shares_fini(&s);
}

static void rows_and_turns_are_divided_by_weight(void **state)
{
	owner_shares s = {0};
	share *a = shares_enter(&s, "a", 1), *b = shares_enter(&s, "b", 3);
	(void)state;
	a->streams = b->streams = 50;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 64);
	assert_int_equal(a->rows, 16);
	assert_int_equal(b->rows, 48);
	b->streams = 15; /* the fewest for its weight: 5 rows for each unit */
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 20);
	assert_int_equal(a->rows, 5);
	assert_int_equal(b->rows, 15);
	b->streams = 1;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 5);
	assert_int_equal(a->rows, 4); /* the minimum */
	assert_ptr_equal(shares_enter(&s, "a", 3), a);
	a->streams = b->streams = 50;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 64); /* equal weights are as none */
	assert_int_equal(a->rows, 32);
	share_charge(a, 30);
	share_charge(b, 60);
	assert_true(a->served == 10 && b->served == 20);
	share_leave(a, 1);
	share_leave(a, 1);
	share_leave(b, 1);
	shares_fini(&s);
}

static void an_owner_cannot_save_up_turns(void **state)
{
	owner_shares s = {0};
	share *a = shares_enter(&s, "a", 0), *b = shares_enter(&s, "b", 0);
	(void)state;
	share_charge(a, 100);
	share_charge(b, 70);
	shares_chosen(&s, b);
	share *c = shares_enter(&s, "c", 0);
	assert_int_equal(c->served, 70);
	shares_chosen(&s, a);
	assert_ptr_equal(shares_enter(&s, "b", 0), b); /* it has had a stream all the time */
	assert_int_equal(b->served, 100);
	shares_chosen(&s, c); /* the floor never falls */
	assert_ptr_equal(shares_enter(&s, "c", 0), c);
	assert_int_equal(c->served, 100);
	for (int i = 0; i < 2; i++) {
		share_leave(b, 1);
		share_leave(c, 1);
	}
	share_leave(a, 1);
	shares_begin(&s, 2 + KEPT_NS);
	assert_int_equal(s.table.count, 0);
	shares_fini(&s);
}

static void owners_that_are_gone_are_limited(void **state)
{
	owner_shares s = {0};
	char name[16];
	(void)state;
	share *lasting = shares_enter(&s, "lasting", 0);
	for (int i = 0; i < 2 * SHARES_IDLE; i++) {
		snprintf(name, sizeof name, "%d", i);
		share_leave(shares_enter(&s, name, 0), (uint64_t)i + 1);
	}
	assert_int_equal(s.table.count, SHARES_IDLE + 1);
	assert_ptr_equal(shares_enter(&s, "lasting", 0), lasting);
	share_charge(shares_enter(&s, name, 0), 5); /* the latest is kept */
	assert_int_equal(s.table.count, SHARES_IDLE + 1);
	share_leave(shares_enter(&s, name, 0), 1);
	shares_fini(&s);
}

static void a_prompt_takes_a_row_of_its_owner(void **state)
{
	owner_shares s = {0};
	share *a = shares_enter(&s, "a", 1), *b = shares_enter(&s, "b", 3);
	(void)state;
	a->streams = 50;
	assert_int_equal(shares_divide(&s, a, 4, 64), 50);
	assert_int_equal(shares_divide(&s, b, 4, 64), 4); /* b has no stream, and is waiting for this step */
	b->streams = 35;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 11 + 35);
	assert_int_equal(shares_divide(&s, b, 4, 64), 12 + 35);
	share_leave(a, 1);
	share_leave(b, 1);
	shares_fini(&s);
}

static void prompts_add_the_time_that_a_less_served_owner_takes_alone(void **state)
{
	enum { STEP = 100, ROW = 10, MOST = 1000 };
	owner_shares s = {0};
	share *a = shares_enter(&s, "a", 1), *b = shares_enter(&s, "b", 1), *c = shares_enter(&s, "c", 1);
	(void)state;
	a->streams = 50;
	b->streams = 1;
	share_charge(a, 100);
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 5);
	assert_int_equal(shares_prompt_ns(&s, a, STEP, ROW, MOST), STEP + ROW - 4 * ROW);
	assert_int_equal(shares_prompt_ns(&s, a, STEP, ROW, 50), 50);
	assert_int_equal(shares_prompt_ns(&s, b, STEP, ROW, MOST), MOST); /* a has been served more */
	assert_int_equal(shares_prompt_ns(&s, c, STEP, ROW, MOST), MOST); /* so has a; b as much */
	share_charge(c, 10);
	assert_int_equal(shares_prompt_ns(&s, c, STEP, ROW, MOST), STEP + ROW - 4 * ROW);
	a->weight = 3;
	assert_int_equal(shares_prompt_ns(&s, a, STEP, ROW, MOST), 3 * (STEP + ROW) - 4 * ROW);
	a->weight = 1;
	b->weight = 10; /* its share is so large that the rows of the others fill theirs */
	assert_int_equal(shares_prompt_ns(&s, a, STEP, ROW, MOST), 0);
	b->weight = 1;
	c->streams = 2; /* b has fewer rows */
	c->served = 0;
	assert_int_equal(shares_divide(&s, NULL, 4, 64), 7);
	assert_int_equal(shares_prompt_ns(&s, a, STEP, ROW, MOST), STEP + ROW - 6 * ROW);
	share_leave(a, 1);
	share_leave(b, 1);
	share_leave(c, 1);
	shares_fini(&s);
}

static void times_of_steps_are_noted_for_rows_and_tokens(void **state)
{
	served_model m = {0};
	(void)state;
	scheduler_note_decode(&m, 1, 2000);
	scheduler_note_decode(&m, 4, 1000);
	scheduler_note_decode(&m, 1, 1000000); /* another program has run */
	assert_in_range(m.step_ns, 1000, 1100);
	m = (served_model){.step_ns = 1000};
	scheduler_note_decode(&m, 40, 5000);
	assert_int_equal(m.row_ns, 100);
	scheduler_note_prompts(&m, 10, 40, 4000);
	assert_int_equal(m.token_ns, 50);
	scheduler_note_decode(&m, 2000, 1000000000);
	assert_in_range(m.row_ns, 101, 104);
	for (int i = 0; i < 200; i++)
		scheduler_note_decode(&m, 2000, 1000 + 2000 * 150);
	assert_in_range(m.row_ns, 145, 155);
	for (int i = 0; i < 200; i++)
		scheduler_note_decode(&m, 5, 1000000); /* far fewer rows than the limit */
	assert_in_range(m.row_ns, 145, 155);
	for (int i = 0; i < 200; i++)
		scheduler_note_prompts(&m, 2000, 1, 1000 + 50 + 2000 * 120);
	assert_in_range(m.row_ns, 115, 125);
	assert_in_range(m.token_ns, 45, 55);
	m.token_ns = 1000000; /* so that steps read the fewest tokens, beside more rows */
	for (int i = 0; i < 400; i++)
		scheduler_note_prompts(&m, 10, SHARES_HOST_ROWS, 1000 + 10 * 120 + SHARES_HOST_ROWS * 50);
	assert_true(m.token_ns < 500);
	assert_in_range(m.row_ns, 115, 125);
}

enum { MANY = 12 };

/* Tick with known times. Returns the tokens of prompts, and sets *rows to the rows of streams. */
static int tick_with_times(fixture *f, uint64_t row_ns, int *rows)
{
	scheduler_stats before, after;
	set_times(f->model, row_ns);
	scheduler_stats_read(f->scheduler, &before);
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	scheduler_stats_read(f->scheduler, &after);
	*rows = (int)(after.batched_sequences - before.batched_sequences);
	return (int)(after.prompt_tokens - before.prompt_tokens);
}

/* Start MANY generations of owner "many", and run until all decode. */
static void start_many(fixture *f, client c[MANY], const int32_t *ids)
{
	for (int i = 0; i < MANY; i++) {
		generation_request r = request(&c[i], ids, 2, 40);
		r.owner = "many";
		start(f, NULL, &c[i], &r);
	}
	for (int i = 0; i < MANY; i++)
		while (c[i].n_tokens == 0)
			assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
}

static void a_stream_beside_many_of_another_owner_is_in_every_step(void **state)
{
	fixture *f = *state;
	client many[MANY], one;
	int32_t ids[2];
	random_tokens(ids, 2, 1);
	start_many(f, many, ids);
	generation_request r = request(&one, ids, 2, 20);
	r.owner = "one";
	start(f, NULL, &one, &r);
	while (one.n_tokens < 3)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	for (int i = 3; i < 16; i++) {
		scheduler_stats before, after;
		assert_int_equal(one.n_tokens, i);
		scheduler_stats_read(f->scheduler, &before);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
		scheduler_stats_read(f->scheduler, &after);
		assert_int_equal(after.batched_sequences - before.batched_sequences, 1 + SHARES_HOST_ROWS);
	}
	int least = many[0].n_tokens, most = least;
	for (int i = 0; i < MANY; i++) {
		least = many[i].n_tokens < least ? many[i].n_tokens : least;
		most = many[i].n_tokens > most ? many[i].n_tokens : most;
	}
	assert_true(most - least <= 8); /* they take turns */
	drain(f);
	assert_int_equal(one.n_tokens, 20);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(many[i].n_tokens, 40);
}

static void a_prompt_is_read_before_the_waiting_ones_of_another_owner(void **state)
{
	fixture *f = *state;
	client many[MANY], one;
	int32_t ids[45];
	int rows;
	random_tokens(ids, 45, 2);
	for (int i = 0; i < MANY; i++) {
		generation_request r = request(&many[i], ids, 40, 2);
		r.owner = "many";
		start(f, NULL, &many[i], &r);
	}
	assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	generation_request r = request(&one, ids, 45, 2);
	r.owner = "one";
	start(f, NULL, &one, &r);
	scheduler_stats before, after;
	scheduler_stats_read(f->scheduler, &before);
	while (one.n_tokens == 0)
		tick_with_times(f, 100, &rows);
	scheduler_stats_read(f->scheduler, &after);
	assert_int_equal(after.prompt_tokens - before.prompt_tokens, 45); /* those of the others wait */
	drain(f);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(many[i].n_tokens, 2);
}

static void start_of(fixture *f, client *c, const char *owner, const int32_t *ids, int64_t n, int64_t max_tokens)
{
	generation_request r = request(c, ids, n, max_tokens);
	r.owner = owner;
	start(f, NULL, c, &r);
}

static void prompts_beside_a_less_served_owners_stream_are_read_in_pieces(void **state)
{
	enum { PROMPTS = 3, LENGTH = 40 };
	fixture *f = *state;
	client many[MANY], prompts[PROMPTS], one;
	int32_t ids[LENGTH];
	int rows, read = 0;
	random_tokens(ids, LENGTH, 3);
	start_many(f, many, ids);
	start_of(f, &one, "one", ids, 2, 30);
	while (one.n_tokens == 0)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	for (int i = 0; i < PROMPTS; i++)
		start_of(f, &prompts[i], "many", ids, LENGTH, 2);
	while (one.n_tokens < 20) {
		const int n = tick_with_times(f, 100, &rows);
		assert_true(n <= (1100 - 4 * 100) / 50);
		read += n;
	}
	assert_true(read > LENGTH);
	drain(f);
	for (int i = 0; i < PROMPTS; i++)
		assert_int_equal(prompts[i].n_tokens, 2);
}

static void a_less_served_owners_prompt_is_read_whole_beside_few_rows(void **state)
{
	enum { LENGTH = 40 };
	fixture *f = *state;
	client many[MANY], one;
	int32_t ids[LENGTH];
	int rows = 0, read = 0;
	random_tokens(ids, LENGTH, 4);
	start_many(f, many, ids);
	start_of(f, &one, "one", ids, LENGTH, 2);
	for (int i = 0; i < 2 && read == 0; i++) /* a step of streams may be in flight */
		read = tick_with_times(f, 100, &rows);
	assert_int_equal(read, LENGTH);
	assert_true(rows <= SHARES_HOST_ROWS);
	drain(f);
}

/* Another owner may send a request at any time, because it has sent one lately. */
static void a_step_of_one_owner_is_short_if_there_is_another(void **state)
{
	fixture *f = *state;
	client many[MANY], one;
	int32_t ids[2];
	int rows;
	random_tokens(ids, 2, 5);
	start_of(f, &one, "one", ids, 2, 1);
	drain(f);
	start_many(f, many, ids);
	for (int i = 0; i < 4; i++) {
		tick_with_times(f, SHARES_STEP_NS / 7, &rows);
		assert_int_equal(rows, 6); /* beside the time of a step of few rows */
	}
	drain(f);
}

static void beside_another_owner_the_time_of_few_rows_is_measured(void **state)
{
	fixture *f = *state;
	client many[MANY], other[SHARES_HOST_ROWS];
	int32_t ids[2];
	if (f->backend->fetch) /* the times of steps that overlap are not noted */
		return;
	random_tokens(ids, 2, 6);
	start_many(f, many, ids);
	for (int i = 0; i < SHARES_HOST_ROWS; i++)
		start_of(f, &other[i], "other", ids, 2, 40);
	f->model->step_ns = 0;
	for (int i = 0; i < 20 && f->model->step_ns == 0; i++)
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	assert_true(f->model->step_ns > 0);
	drain(f);
}

static void owners_change_no_token(void **state)
{
	fixture *f = *state;
	enum { N = 9 };
	client alone[N], together[N];
	int32_t ids[N][30];
	static const char *const owners[] = {"a", "b", "c", NULL};
	for (int i = 0; i < N; i++) {
		random_tokens(ids[i], 30, (uint64_t)i);
		generation_request r = request(&alone[i], ids[i], 2 + 3 * i, 12);
		r.sampling.temperature = (float)(i % 3);
		r.sampling.seed = (uint64_t)i;
		run(f, NULL, &alone[i], &r);
		r.context = memset(&together[i], 0, sizeof together[i]);
	}
	for (int i = 0; i < N; i++) {
		generation_request r = request(&together[i], ids[i], 2 + 3 * i, 12);
		r.sampling.temperature = (float)(i % 3);
		r.sampling.seed = (uint64_t)i;
		r.owner = owners[i % 4];
		start(f, NULL, &together[i], &r);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
	drain(f);
	for (int i = 0; i < N; i++) {
		assert_int_equal(together[i].n_tokens, alone[i].n_tokens);
		assert_memory_equal(together[i].tokens, alone[i].tokens, (size_t)alone[i].n_tokens * sizeof(int32_t));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_step_is_divided_by_the_fewest_streams),
	    cmocka_unit_test(rows_and_turns_are_divided_by_weight),
	    cmocka_unit_test(a_prompt_takes_a_row_of_its_owner),
	    cmocka_unit_test(prompts_add_the_time_that_a_less_served_owner_takes_alone),
	    cmocka_unit_test(times_of_steps_are_noted_for_rows_and_tokens),
	    cmocka_unit_test(an_owner_cannot_save_up_turns),
	    cmocka_unit_test(owners_that_are_gone_are_limited),
	    cmocka_unit_test_setup_teardown(a_stream_beside_many_of_another_owner_is_in_every_step, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_prompt_is_read_before_the_waiting_ones_of_another_owner, setup, teardown),
	    cmocka_unit_test_setup_teardown(prompts_beside_a_less_served_owners_stream_are_read_in_pieces, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_less_served_owners_prompt_is_read_whole_beside_few_rows, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_step_of_one_owner_is_short_if_there_is_another, setup, teardown),
	    cmocka_unit_test_setup_teardown(beside_another_owner_the_time_of_few_rows_is_measured, setup, teardown),
	    cmocka_unit_test_setup_teardown(owners_change_no_token, setup, teardown),
	};
	return RUN_ALL_WAYS(tests);
}
