/* Room on the disk: the budget, and the reserve that allows a full disk to be emptied. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "engine/store/store_private.h"
#include "tests/unit/store/fixture.h"

static void a_budget_refuses_files_that_do_not_fit(void **state)
{
	fixture *f = *state;
	store_file file = {0};
	error err = ERROR_INIT;
	char path[PATH_MAX];
	store_set_budget(f->store, 100);
	store_temporary_path(f->store, path);
	write_text(path, "123456789 123456789 123456789 123456789 123456789 123456789 ");
	assert_int_equal(store_file_add(f->store, &file, path, NULL), STATUS_OK);
	file = (store_file){0};
	write_text(path, "123456789 123456789 123456789 123456789 123456789 123456789 ");
	assert_int_equal(store_file_add(f->store, &file, path, &err), STATUS_FULL);
	assert_string_equal(err.message, "the data budget of 100 bytes does not hold 60 more: 60 are in use");
	assert_int_equal(access(path, F_OK), 0);
	json_t *usage = store_usage(f->folder, 100);
	assert_true(json_integer_value(json_object_get(usage, "data_bytes")) > 60);
	assert_int_equal(json_integer_value(json_object_get(usage, "budget_bytes")), 100);
	json_decref(usage);
}

/* Make a cached file of 50 bytes that was last used `age` seconds ago. Returns the descriptor, whose lock marks it as
 * in use. */
static int cache_file(const fixture *f, const char *name, int age, bool in_use)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];
	struct timespec times[2] = {{time(NULL) - age, 0}, {time(NULL) - age, 0}};
	store_cache_folder(f->store, folder);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	write_text(path, "123456789 123456789 123456789 123456789 123456789 ");
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(futimens(fd, times), 0);
	assert_int_equal(flock(fd, in_use ? LOCK_SH : LOCK_UN), 0);
	return fd;
}

static void the_cache_counts_and_unused_files_are_evicted_before_a_refusal(void **state)
{
	fixture *f = *state;
	error err = ERROR_INIT;
	int64_t room;
	int used = cache_file(f, "used", 90, true), oldest = cache_file(f, "oldest", 60, false),
	    older = cache_file(f, "older", 40, false), newest = cache_file(f, "newest", 20, false);
	store_set_budget(f->store, 210);
	assert_int_equal(store_check_room(f->store, 10, NULL), STATUS_OK);
	must_exist(f, "cache/oldest", true);
	assert_int_equal(store_check_room(f->store, 11, NULL), STATUS_OK);
	must_exist(f, "cache/oldest", false);
	must_exist(f, "cache/older", true);
	assert_int_equal(store_check_room(f->store, 161, &err), STATUS_FULL);
	assert_string_equal(err.message, "the data budget of 210 bytes does not hold 161 more: 50 are in use");
	must_exist(f, "cache/used", true);
	must_exist(f, "cache/older", false);
	must_exist(f, "cache/newest", false);
	assert_int_equal(store_check_room(f->store, 160, NULL), STATUS_OK);
	assert_int_equal(store_cache_room(f->store, &room, NULL), STATUS_OK);
	assert_true(room == 210);
	store_set_budget(f->store, 0);
	assert_int_equal(store_cache_room(f->store, &room, NULL), STATUS_OK);
	assert_true(room == INT64_MAX);
	int fds[] = {used, oldest, older, newest};
	for (int i = 0; i < 4; i++)
		close(fds[i]);
}

static int removals_tried;

/* Remove a file as on a disk that is full until the reserve is freed. */
static status remove_on_a_full_disk(store *s, const char *id, int64_t number, error *err)
{
	char path[PATH_MAX];
	removals_tried++;
	(void)number;
	snprintf(path, sizeof path, "%s/reserve", s->folder);
	return access(path, F_OK) == 0 ? error_set(err, STATUS_FULL, NULL, "%s: the disk is full", id) : STATUS_OK;
}

static void a_full_disk_can_be_emptied_with_the_reserve(void **state)
{
	fixture *f = *state;
	error err = ERROR_INIT;
	must_exist(f, "reserve", true);
	assert_int_equal(store_with_reserve(f->store, remove_on_a_full_disk, "x", 0, &err), STATUS_OK);
	assert_int_equal(removals_tried, 2);
	assert_int_equal(err.status, STATUS_OK);
	must_exist(f, "reserve", false);
	store_tick(f->store);
	must_exist(f, "reserve", true);
}

static void a_state_away_leaves_a_part_of_the_disk_to_others(void **state)
{
	const fixture *f = *state;
	error err = ERROR_INIT;
	struct statvfs disk;
	char path[PATH_MAX];
	assert_int_equal(statvfs(f->folder, &disk), 0);
	const uint64_t unused = (uint64_t)disk.f_bavail * disk.f_frsize;
	assert_true(unused > STORE_AWAY_SPARE);
	store_session_away_path(f->store, "sess-1", path);
	/* Refused before the bytes are read, of which there are none. */
	assert_int_equal(store_session_put_away(path, NULL, (size_t)(unused - STORE_AWAY_SPARE / 2), &err),
	                 STATUS_FULL);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_int_equal(store_session_put_away(path, "state", 5, &err), STATUS_OK);
	assert_int_equal(access(path, F_OK), 0);
}

enum { DAY = 24 * 3600, NOW = 1900000000 };

/* A blob of 60 bytes in lost/ that was set aside `days` days before NOW. */
static void lose_file(const fixture *f, const char *name, int days)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];
	const struct timespec times[2] = {{NOW - days * DAY - 1, 0}, {NOW - days * DAY - 1, 0}};
	snprintf(folder, sizeof folder, "%s/lost/file", f->folder);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	write_text(path, "123456789 123456789 123456789 123456789 123456789 123456789 ");
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void lost_blobs_are_removed_after_some_days(void **state)
{
	fixture *f = *state;
	const lost_limits week = {.days = 7};
	lose_file(f, "old", 7);
	lose_file(f, "old.manifest", 7);
	lose_file(f, "new", 6);
	assert_int_equal(store_lost_sweep(f->folder, NOW, &(lost_limits){0}), 2);
	must_exist(f, "lost/file/old", true);
	assert_int_equal(store_lost_sweep(f->folder, NOW, &week), 1);
	must_exist(f, "lost/file/old", false);
	must_exist(f, "lost/file/old.manifest", false);
	must_exist(f, "lost/file/new", true);
}

static void the_oldest_lost_blobs_are_removed_for_space_but_none_within_a_day(void **state)
{
	fixture *f = *state;
	const lost_limits bytes = {.bytes = 150};
	lose_file(f, "oldest", 3);
	lose_file(f, "older", 2);
	lose_file(f, "newer", 1);
	assert_int_equal(store_lost_sweep(f->folder, NOW, &bytes), 2);
	must_exist(f, "lost/file/oldest", false);
	must_exist(f, "lost/file/older", true);
	lose_file(f, "fresh", 0);
	lose_file(f, "fresher", 0);
	lose_file(f, "freshest", 0);
	assert_int_equal(store_lost_sweep(f->folder, NOW, &bytes), 3);
	must_exist(f, "lost/file/newer", false);
	must_exist(f, "lost/file/fresh", true);
}

/* A blob keeps its own modification time until it is set aside. */
static void the_days_of_a_lost_blob_begin_when_it_is_set_aside(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	const struct timespec times[2] = {{1000, 0}, {1000, 0}};
	snprintf(path, sizeof path, "%s/blobs/stray", f->folder);
	write_text(path, "x");
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	reopen(f);
	must_exist(f, "lost/file/stray", true);
	assert_int_equal(store_lost_sweep(f->folder, time(NULL), &(lost_limits){.days = 1, .bytes = 1}), 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(lost_blobs_are_removed_after_some_days),
	    CASE(the_oldest_lost_blobs_are_removed_for_space_but_none_within_a_day),
	    CASE(the_days_of_a_lost_blob_begin_when_it_is_set_aside),
	    CASE(a_budget_refuses_files_that_do_not_fit),
	    CASE(the_cache_counts_and_unused_files_are_evicted_before_a_refusal),
	    CASE(a_full_disk_can_be_emptied_with_the_reserve),
	    CASE(a_state_away_leaves_a_part_of_the_disk_to_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
