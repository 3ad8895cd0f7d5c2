/* The death log: a process that dies is a log that is opened again without an end. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>

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

static void die(void)
{
	death_log_close(l); /* nothing that runs has ended */
	assert_int_equal(death_log_open(&l, path, NULL), STATUS_OK);
}

static void work_that_ran_at_three_deaths_is_refused(void **state)
{
	(void)state;
	for (int i = 1; i <= DEATH_LOG_LIMIT; i++) {
		assert_false(death_log_refuses(l, "poison"));
		death_log_begin(l, "poison");
		death_log_begin(l, "harmless");
		death_log_end(l, "harmless");
		die();
		assert_int_equal(death_log_count(l, "poison"), i);
	}
	assert_true(death_log_refuses(l, "poison"));
	assert_int_equal(death_log_count(l, "harmless"), 0);
	death_log_forget(l, "poison");
	assert_false(death_log_refuses(l, "poison"));
}

static void progress_past_the_place_of_the_previous_death_resets_the_count(void **state)
{
	(void)state;
	static const struct {
		int64_t place;
		int deaths;
	} runs[] = {{10, 1}, {10, 2}, {7, 3}, {11, 1}, {11, 2}};
	for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
		death_log_begin(l, "job");
		death_log_progress(l, "job", runs[i].place);
		die();
		assert_int_equal(death_log_count(l, "job"), runs[i].deaths);
	}
}

static void work_that_runs_several_times_is_counted_once(void **state)
{
	(void)state;
	death_log_begin(l, "twice");
	death_log_begin(l, "twice");
	death_log_end(l, "twice");
	die();
	assert_int_equal(death_log_count(l, "twice"), 1);
	die(); /* it does not run now */
	assert_int_equal(death_log_count(l, "twice"), 1);
}

static void a_full_log_gives_up_the_oldest_death(void **state)
{
	(void)state;
	char name[32];
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++) {
		snprintf(name, sizeof name, "work %d", i);
		death_log_begin(l, name);
	}
	death_log_begin(l, "one too many"); /* all run: it is not counted */
	die();
	assert_int_equal(death_log_count(l, "one too many"), 0);
	death_log_begin(l, "next");
	die();
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
	    cmocka_unit_test_setup_teardown(work_that_ran_at_three_deaths_is_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(progress_past_the_place_of_the_previous_death_resets_the_count, setup, teardown),
	    cmocka_unit_test_setup_teardown(work_that_runs_several_times_is_counted_once, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_full_log_gives_up_the_oldest_death, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_file_of_another_kind_becomes_an_empty_log, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
