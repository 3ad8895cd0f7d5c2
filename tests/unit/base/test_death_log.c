/* The death log: a child process works and dies of a signal, and the log is opened again. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/file.h"
#include "tests/unit/support/folder.h"

static char folder[64], path[PATH_MAX];
static death_log *l;

static int setup(void **state)
{
	(void)state;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/deaths", folder);
	return death_log_open(&l, path, NULL) == STATUS_OK ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	death_log_close(l);
	return file_remove_tree(folder, NULL) == STATUS_OK ? 0 : -1;
}

static void reopen(void)
{
	death_log_close(l); /* no work has ended */
	assert_int_equal(death_log_open(&l, path, NULL), STATUS_OK);
}

/* Run `work` up to `place` in a process that dies of `number` after `seconds`. */
static void die_at(const char *work, int64_t place, int number, int seconds)
{
	death_log_close(l);
	pid_t child = fork();
	if (child == 0) {
		signal(number, SIG_DFL); /* cmocka handles some signals */
		if (death_log_open(&l, path, NULL) != STATUS_OK)
			_exit(1);
		death_log_begin(l, "harmless");
		death_log_end(l, "harmless");
		death_log_begin(l, work);
		if (place)
			death_log_progress(l, work, place);
		death_log_alive(l, clock_ns() + (uint64_t)seconds * 1000000000u);
		raise(number);
		_exit(1);
	}
	int end;
	assert_int_equal(waitpid(child, &end, 0), child);
	assert_true(WIFSIGNALED(end) && WTERMSIG(end) == number);
	assert_int_equal(death_log_open(&l, path, NULL), STATUS_OK);
}

static void die(const char *work, int64_t place)
{
	die_at(work, place, SIGABRT, 0);
}

static void work_that_ran_at_three_crashes_is_refused(void **state)
{
	(void)state;
	for (int i = 1; i <= DEATH_LOG_LIMIT; i++) {
		assert_false(death_log_refuses(l, "poison"));
		die("poison", 0);
		assert_int_equal(death_log_count(l, "poison"), i);
	}
	assert_true(death_log_refuses(l, "poison") && death_log_poison(l, "poison"));
	assert_int_equal(death_log_count(l, "harmless"), 0);
	death_log_forget(l, "poison");
	assert_false(death_log_refuses(l, "poison") || death_log_poison(l, "poison"));
}

static void progress_past_the_place_of_the_previous_death_resets_the_count(void **state)
{
	(void)state;
	static const struct {
		int64_t place;
		int deaths;
	} runs[] = {{10, 1}, {10, 2}, {7, 3}, {11, 1}, {11, 2}};
	for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
		die("job", runs[i].place);
		assert_int_equal(death_log_count(l, "job"), runs[i].deaths);
	}
}

/* Number of equal deaths until the work is poison. */
static int deaths_until_poison(int64_t place, int number, int seconds)
{
	int n = 0;
	die("job", 10); /* the furthest place of this job */
	while (!death_log_poison(l, "job") && n < 100) {
		die_at("job", place, number, seconds);
		n++;
	}
	death_log_forget(l, "job");
	return n;
}

static void a_kill_from_outside_counts_in_full_only_for_long_work_that_is_as_far_as_before(void **state)
{
	(void)state;
	static const struct {
		int64_t place;
		int number, seconds, deaths;
	} rows[] = {
	    {0, SIGKILL, 0, 8}, /* killed at once: (3 - 1) * 4 */
	    {0, SIGKILL, 2, 2}, {10, SIGKILL, 2, 2}, {5, SIGKILL, 2, 8}, {5, SIGSEGV, 0, 2}, {0, SIGBUS, 0, 2},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_int_equal(deaths_until_poison(rows[i].place, rows[i].number, rows[i].seconds), rows[i].deaths);
}

/* Overflow the stack. */
static int recurse(volatile char *above)
{
	volatile char here[4096];
	here[0] = above[0];
	return above[0] ? 0 : recurse(here) + here[0];
}

static void *overflow(void *guarded)
{
	volatile char first = 0;
	if (guarded)
		death_log_guard_thread();
	recurse(&first);
	return NULL;
}

static void overflow_here(void)
{
	overflow(NULL);
}

static void overflow_in_a_thread(void)
{
	pthread_t thread;
	char guarded;
	pthread_create(&thread, NULL, overflow, &guarded);
	pthread_join(thread, NULL);
}

static void end_by_a_library(void)
{
	exit(1);
}

static void use_freed_memory(void)
{
	char *volatile p = malloc(16);
	free(p);
	*(volatile char *)p = 1;
	_exit(0);
}

/* Begin work in a process that ends by `end`; return the weight of that death in quarters. */
static int weigh(void (*end)(void))
{
	int n = 0;
	for (; !death_log_poison(l, "victim"); n++) {
		death_log_close(l);
		pid_t child = fork();
		if (child == 0) {
			signal(SIGSEGV, SIG_DFL);
			if (death_log_open(&l, path, NULL) != STATUS_OK)
				_exit(1);
			death_log_begin(l, "victim");
			end();
		}
		assert_int_equal(waitpid(child, NULL, 0), child);
		assert_int_equal(death_log_open(&l, path, NULL), STATUS_OK);
		assert_int_equal(death_log_count(l, "victim"), n + 1);
	}
	return n;
}

static void every_crash_of_the_work_itself_counts_in_full(void **state)
{
	(void)state;
	void (*const ways[])(void) = {overflow_here, overflow_in_a_thread, end_by_a_library,
#ifdef __SANITIZE_ADDRESS__
	                              use_freed_memory
#endif
	};
	(void)use_freed_memory;
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		assert_int_equal(weigh(ways[i]), DEATH_LOG_LIMIT);
		death_log_forget(l, "victim");
	}
}

static void a_pardoned_end_is_no_death(void **state)
{
	(void)state;
	death_log_begin(l, "long");
	death_log_pardon(l);
	reopen();
	assert_int_equal(death_log_count(l, "long"), 0);
}

static void work_that_runs_several_times_is_counted_once(void **state)
{
	(void)state;
	death_log_begin(l, "twice");
	death_log_begin(l, "twice");
	death_log_end(l, "twice");
	reopen();
	assert_int_equal(death_log_count(l, "twice"), 1);
	reopen(); /* the work is not running at this moment */
	assert_int_equal(death_log_count(l, "twice"), 1);
}

static void a_full_log_drops_the_oldest_death(void **state)
{
	(void)state;
	char name[32];
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++) {
		snprintf(name, sizeof name, "work %d", i);
		death_log_begin(l, name);
	}
	death_log_begin(l, "one too many"); /* all entries are running, so it is not logged */
	reopen();
	assert_int_equal(death_log_count(l, "one too many"), 0);
	death_log_begin(l, "next");
	reopen();
	assert_int_equal(death_log_count(l, "next"), 1);
}

static void a_file_of_another_kind_becomes_an_empty_log(void **state)
{
	(void)state;
	death_log_close(l);
	assert_int_equal(file_write(path, &(file_part){"garbage", 7}, 1, NULL), STATUS_OK);
	assert_int_equal(death_log_open(&l, path, NULL), STATUS_OK);
	assert_int_equal(death_log_count(l, "anything"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(work_that_ran_at_three_crashes_is_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(progress_past_the_place_of_the_previous_death_resets_the_count, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(
	        a_kill_from_outside_counts_in_full_only_for_long_work_that_is_as_far_as_before, setup, teardown),
	    cmocka_unit_test_setup_teardown(every_crash_of_the_work_itself_counts_in_full, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_pardoned_end_is_no_death, setup, teardown),
	    cmocka_unit_test_setup_teardown(work_that_runs_several_times_is_counted_once, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_full_log_drops_the_oldest_death, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_file_of_another_kind_becomes_an_empty_log, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
