/* test_thread_choice.c - a plan's choice of threads on machines with given step times. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/serve/thread_choice.h"

enum { MANY = 20000, WORK = 64 };

/* Nanoseconds of a step; one in `rare` takes ten times as long. */
typedef struct machine {
	uint64_t one, all; /* all: in loops, or in parts */
	int rare;
} machine;

typedef struct account {
	int steps, with_all; /* steps of the last run */
	uint64_t ns, ns_all;
} account;

static account run(thread_choice *c, const machine *m, int steps)
{
	account a = {0};
	uint32_t random = 1;
	for (int i = 1; i <= steps; i++) {
		random = random * 1664525u + 1013904223u;
		bool all = thread_choice_way(c) != THREADS_ONE;
		uint64_t ns = (all ? m->all : m->one) * (m->rare && (random >> 8) % (uint32_t)m->rare == 0 ? 10 : 1);
		thread_choice_took(c, ns, WORK);
		a.steps++;
		a.with_all += all;
		a.ns += ns;
		a.ns_all += all ? ns : 0;
	}
	return a;
}

static const machine idle = {2000000, 1200000, 0}, busy = {2000000, 7000000, 0}, serial = {80000, 80000, 0};

static void a_plan_starts_with_one_thread(void **state)
{
	(void)state;
	thread_choice c = {0};
	assert_int_equal(thread_choice_way(&c), THREADS_ONE);
}

static void an_idle_machine_gives_all_threads_to_a_plan_they_make_faster_within_37_steps(void **state)
{
	(void)state;
	thread_choice c = {0};
	run(&c, &idle, 2 + 7 * THREAD_CHOICE_PAIRS);
	assert_int_equal(c.way, THREADS_LOOPS);
	account a = run(&c, &idle, MANY);
	assert_true(a.ns - a.ns_all <= a.ns * 2 / THREAD_CHOICE_SHARE); /* the first trials are early */
}

static void a_busy_machine_computes_on_one_thread_and_trials_take_little(void **state)
{
	(void)state;
	thread_choice c = {0};
	run(&c, &busy, 2 + 7 * THREAD_CHOICE_PAIRS);
	assert_int_equal(thread_choice_way(&c), THREADS_ONE);
	account a = run(&c, &busy, MANY);
	assert_true(a.with_all > 0 && a.ns_all <= 2 * a.ns / THREAD_CHOICE_SHARE); /* the first trials are early */
}

static void a_step_without_gain_from_threads_stays_on_one(void **state)
{
	(void)state;
	thread_choice c = {0};
	account a = run(&c, &serial, MANY);
	assert_true(a.ns_all <= 5 * a.ns / THREAD_CHOICE_SHARE); /* 1.6 s in total, including the early trials */
}

static void the_choice_follows_the_machine_both_ways(void **state)
{
	(void)state;
	thread_choice c = {0};
	for (int turn = 0; turn < 3; turn++) {
		run(&c, &idle, MANY);
		assert_int_equal(c.way, THREADS_LOOPS);
		run(&c, &busy, MANY);
		assert_int_equal(c.way, THREADS_ONE);
	}
}

static void a_small_gain_does_not_change_the_use_of_threads(void **state)
{
	(void)state;
	const machine small = {1100000, 1000000, 0};
	thread_choice c = {0};
	run(&c, &small, MANY);
	assert_int_equal(c.way, THREADS_ONE);
	run(&c, &idle, MANY);
	run(&c, &small, MANY);
	assert_int_equal(c.way, THREADS_LOOPS);
}

static void single_slow_steps_have_little_effect(void **state)
{
	(void)state;
	for (int rare = 17; rare < 24; rare++) {
		const machine idle_at_times = {idle.one, idle.all, rare}, busy_at_times = {busy.one, busy.all, rare};
		thread_choice c = {0};
		account a = run(&c, &idle_at_times, MANY);
		assert_true(a.with_all > a.steps * 8 / 10);
		c = (thread_choice){0};
		a = run(&c, &busy_at_times, MANY);
		assert_true(a.with_all < a.steps * 2 / 100);
	}
}

/* The other core is free in half of the steps. */
static void a_machine_that_is_busy_half_of_the_time_computes_on_one_thread(void **state)
{
	(void)state;
	thread_choice c = {0};
	uint32_t random = 1;
	int with_all = 0;
	for (int i = 0; i < MANY; i++) {
		bool all = thread_choice_way(&c) != THREADS_ONE;
		random = random * 1664525u + 1013904223u;
		with_all += all;
		thread_choice_took(&c, !all ? idle.one : random >> 31 ? idle.all : busy.all, WORK);
	}
	assert_true(with_all < MANY / 20);
}

static void a_wrong_choice_is_corrected_within_a_hundred_steps(void **state)
{
	(void)state;
	thread_choice c = {0};
	run(&c, &idle, 2 + 7 * THREAD_CHOICE_PAIRS);
	assert_int_equal(c.way, THREADS_LOOPS);
	run(&c, &busy, 100);
	assert_int_equal(c.way, THREADS_ONE);
}

static void a_large_model_reads_the_fourth_chunk_of_its_first_prompt_with_all_threads(void **state)
{
	(void)state;
	const machine large = {230000000, 110000000, 0};
	thread_choice c = {0};
	run(&c, &large, 4);
	assert_int_equal(thread_choice_way(&c), THREADS_LOOPS);
	account a = run(&c, &large, 100);
	assert_true(a.with_all >= a.steps * 95 / 100);
}

static void a_process_that_was_stopped_for_an_hour_tries_again_within_a_minute_of_work(void **state)
{
	(void)state;
	thread_choice c = {0};
	run(&c, &busy, 1);
	thread_choice_took(&c, 3600 * UINT64_C(1000000000), WORK);
	run(&c, &idle, 60000);
	assert_int_equal(c.way, THREADS_LOOPS);
}

static void steps_of_different_work_are_compared_by_time_per_unit(void **state)
{
	(void)state;
	thread_choice c = {0};
	for (int i = 0; i < MANY; i++) {
		int64_t work = 1 + i % 97;
		thread_choice_took(&c, (uint64_t)work * (thread_choice_way(&c) != THREADS_ONE ? 30000 : 10000), work);
	}
	assert_int_equal(c.way, THREADS_ONE);
}

/* 32 decoding rows: waking a sleeping thread takes time, so the first step in parts is slow. */
static void parts_are_judged_by_consecutive_steps(void **state)
{
	(void)state;
	thread_choice c = thread_choice_initial(true, false);
	thread_way before = THREADS_ONE;
	int in_parts = 0;
	for (int i = 0; i < MANY; i++) {
		thread_way way = thread_choice_way(&c);
		uint64_t ns = way == THREADS_PARTS   ? (way == before ? 600000 : 1200000)
		              : way == THREADS_LOOPS ? 900000
		                                     : 950000;
		in_parts += way == THREADS_PARTS;
		before = way;
		thread_choice_took(&c, ns, WORK);
	}
	assert_int_equal(c.way, THREADS_PARTS);
	assert_true(in_parts > MANY * 9 / 10);
}

static void the_better_way_to_use_all_threads_is_found_from_the_other(void **state)
{
	(void)state;
	for (int parts_first = 0; parts_first < 2; parts_first++) {
		thread_choice c = thread_choice_initial(true, false);
		for (int i = 0; i < MANY; i++) {
			bool parts_are_best = parts_first == (i < MANY / 2);
			thread_way way = thread_choice_way(&c);
			uint64_t best = 1000000, other = 1300000;
			thread_choice_took(&c,
			                   way == THREADS_ONE                         ? 2000000
			                   : (way == THREADS_PARTS) == parts_are_best ? best
			                                                              : other,
			                   WORK);
			if (i == MANY / 2 - 1 || i == MANY - 1)
				assert_int_equal(c.way, parts_are_best ? THREADS_PARTS : THREADS_LOOPS);
		}
	}
}

static void a_plan_that_starts_in_parts_leaves_them_on_a_busy_machine(void **state)
{
	(void)state;
	thread_choice c = thread_choice_initial(true, true);
	assert_int_equal(thread_choice_way(&c), THREADS_PARTS);
	run(&c, &idle, MANY);
	assert_int_not_equal(c.way, THREADS_ONE);
	run(&c, &busy, MANY);
	assert_int_equal(c.way, THREADS_ONE);
}

static void a_plan_that_cannot_be_divided_never_runs_in_parts(void **state)
{
	(void)state;
	thread_choice c = thread_choice_initial(false, false);
	for (int i = 0; i < MANY; i++) {
		assert_int_not_equal(thread_choice_way(&c), THREADS_PARTS);
		thread_choice_took(&c, i / 100 % 2 ? idle.one : idle.all, WORK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_plan_starts_with_one_thread),
	    cmocka_unit_test(an_idle_machine_gives_all_threads_to_a_plan_they_make_faster_within_37_steps),
	    cmocka_unit_test(a_busy_machine_computes_on_one_thread_and_trials_take_little),
	    cmocka_unit_test(a_step_without_gain_from_threads_stays_on_one),
	    cmocka_unit_test(the_choice_follows_the_machine_both_ways),
	    cmocka_unit_test(a_small_gain_does_not_change_the_use_of_threads),
	    cmocka_unit_test(single_slow_steps_have_little_effect),
	    cmocka_unit_test(a_machine_that_is_busy_half_of_the_time_computes_on_one_thread),
	    cmocka_unit_test(a_wrong_choice_is_corrected_within_a_hundred_steps),
	    cmocka_unit_test(a_large_model_reads_the_fourth_chunk_of_its_first_prompt_with_all_threads),
	    cmocka_unit_test(a_process_that_was_stopped_for_an_hour_tries_again_within_a_minute_of_work),
	    cmocka_unit_test(steps_of_different_work_are_compared_by_time_per_unit),
	    cmocka_unit_test(parts_are_judged_by_consecutive_steps),
	    cmocka_unit_test(the_better_way_to_use_all_threads_is_found_from_the_other),
	    cmocka_unit_test(a_plan_that_starts_in_parts_leaves_them_on_a_busy_machine),
	    cmocka_unit_test(a_plan_that_cannot_be_divided_never_runs_in_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
