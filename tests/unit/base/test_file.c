#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "tests/unit/support/folder.h"

/* A new folder for every test; path() joins it with a name. */
static char folder[64];

static const char *path(char *buf, const char *name)
{
	sprintf(buf, "%s/%s", folder, name);
	return buf;
}

static int make_folder(void **state)
{
	(void)state;
	folder_new(folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return file_remove_tree(folder, NULL) != STATUS_OK;
}

static int entries(const char *name)
{
	DIR *d = opendir(name);
	assert_non_null(d);
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2; /* . and .. */
}

static void expect_content(const char *name, const char *want)
{
	char *data;
	size_t bytes;
	assert_int_equal(file_read(name, 100, &data, &bytes, NULL), STATUS_OK);
	assert_int_equal(bytes, strlen(want));
	assert_string_equal(data, want);
	free(data);
}

static void parts_are_written_one_after_another(void **state)
{
	(void)state;
	char p[128];
	const file_part parts[] = {{"one ", 4}, {"", 0}, {"two", 3}};
	assert_int_equal(file_write(path(p, "f"), parts, 3, NULL), STATUS_OK);
	expect_content(p, "one two");
	assert_int_equal(file_write(p, NULL, 0, NULL), STATUS_OK);
	expect_content(p, "");
}

static void a_write_leaves_no_other_file(void **state)
{
	(void)state;
	char p[128];
	struct stat st;
	for (int i = 0; i < 3; i++)
		assert_int_equal(file_write(path(p, "f"), &(file_part){"x", 1}, 1, NULL), STATUS_OK);
	assert_int_equal(entries(folder), 1);
	assert_int_equal(stat(p, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0644);
}

/* A reader that has opened the old file keeps reading the old file: the name was moved to a new one. */
static void a_write_replaces_the_file_and_does_not_overwrite_it(void **state)
{
	(void)state;
	char p[128], old[4] = "";
	assert_int_equal(file_write(path(p, "f"), &(file_part){"old", 3}, 1, NULL), STATUS_OK);
	FILE *reader = fopen(p, "r");
	assert_non_null(reader);
	assert_int_equal(file_write(p, &(file_part){"new", 3}, 1, NULL), STATUS_OK);
	assert_int_equal(fread(old, 1, 3, reader), 3);
	fclose(reader);
	assert_string_equal(old, "old");
	expect_content(p, "new");
}

static void a_write_that_fails_keeps_the_old_content(void **state)
{
	(void)state;
	char p[128], inside[160];
	error err = ERROR_INIT;
	assert_int_equal(mkdir(path(p, "folder"), 0755), 0); /* a file cannot be renamed over a folder */
	sprintf(inside, "%s/kept", p);
	assert_int_equal(file_write(inside, &(file_part){"kept", 4}, 1, NULL), STATUS_OK);
	assert_int_equal(file_write(p, &(file_part){"x", 1}, 1, &err), STATUS_IO);
	assert_null(strstr(err.message, folder)); /* messages do not show absolute paths */
	expect_content(inside, "kept");
	assert_int_equal(entries(folder), 1); /* no temporary file is left */
}

static void a_missing_file_is_not_found(void **state)
{
	(void)state;
	char p[128], *data = p;
	size_t bytes = 1;
	file_map map = {(const unsigned char *)p, 1};
	assert_int_equal(file_read(path(p, "none"), 100, &data, &bytes, NULL), STATUS_NOT_FOUND);
	assert_null(data);
	assert_int_equal(bytes, 0);
	assert_int_equal(file_map_open(&map, p, NULL), STATUS_NOT_FOUND);
	assert_null(map.data);
	assert_int_equal(file_write(path(p, "none/f"), NULL, 0, NULL), STATUS_NOT_FOUND);
	assert_int_equal(file_remove_tree(path(p, "none"), NULL), STATUS_OK);
}

static void a_file_over_the_limit_is_not_read(void **state)
{
	(void)state;
	char p[128], *data;
	size_t bytes;
	assert_int_equal(file_write(path(p, "f"), &(file_part){"12345", 5}, 1, NULL), STATUS_OK);
	assert_int_equal(file_read(p, 4, &data, &bytes, NULL), STATUS_TOO_LARGE);
	assert_null(data);
	assert_int_equal(file_read(p, 5, &data, &bytes, NULL), STATUS_OK);
	free(data);
	assert_int_equal(file_read(folder, 100, &data, &bytes, NULL), STATUS_IO);
}

static void a_map_has_the_content_of_the_file(void **state)
{
	(void)state;
	char p[128];
	file_map map;
	assert_int_equal(file_write(path(p, "f"), &(file_part){"map\0me", 6}, 1, NULL), STATUS_OK);
	assert_int_equal(file_map_open(&map, p, NULL), STATUS_OK);
	assert_int_equal(map.bytes, 6);
	assert_memory_equal(map.data, "map\0me", 6);
	file_map_close(&map);
	assert_null(map.data);
	assert_int_equal(file_write(p, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(file_map_open(&map, p, NULL), STATUS_OK);
	assert_null(map.data);
	file_map_close(&map);
}

static void folders_are_made_with_their_parents(void **state)
{
	(void)state;
	char p[128];
	struct stat st;
	assert_int_equal(file_make_folders(path(p, "a/b//c/"), NULL), STATUS_OK);
	assert_int_equal(file_make_folders(p, NULL), STATUS_OK);
	assert_int_equal(stat(path(p, "a/b/c"), &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	assert_int_equal(file_sync_folder(p, NULL), STATUS_OK);
}

static void a_file_in_the_way_of_a_folder_is_an_error(void **state)
{
	(void)state;
	char p[128];
	assert_int_equal(file_write(path(p, "f"), NULL, 0, NULL), STATUS_OK);
	assert_int_not_equal(file_make_folders(path(p, "f/below"), NULL), STATUS_OK);
	assert_int_not_equal(file_make_folders(path(p, "f"), NULL), STATUS_OK);
}

static void removing_a_tree_does_not_follow_links(void **state)
{
	(void)state;
	char p[128], target[128], link[160];
	assert_int_equal(file_make_folders(path(p, "outside"), NULL), STATUS_OK);
	assert_int_equal(file_write(path(target, "outside/precious"), &(file_part){"x", 1}, 1, NULL), STATUS_OK);
	assert_int_equal(file_make_folders(path(p, "tree/deep"), NULL), STATUS_OK);
	sprintf(link, "%s/to_folder", p);
	assert_int_equal(symlink("../../outside", link), 0);
	sprintf(link, "%s/to_file", p);
	assert_int_equal(symlink(target, link), 0);
	assert_int_equal(file_remove_tree(path(p, "tree"), NULL), STATUS_OK);
	expect_content(target, "x");
	assert_int_equal(entries(folder), 1);
}

static void removing_a_link_keeps_its_target(void **state)
{
	(void)state;
	char p[128], target[128];
	assert_int_equal(file_make_folders(path(p, "outside"), NULL), STATUS_OK);
	assert_int_equal(file_write(path(target, "outside/precious"), &(file_part){"x", 1}, 1, NULL), STATUS_OK);
	assert_int_equal(symlink("outside", path(p, "link")), 0);
	assert_int_equal(file_remove_tree(p, NULL), STATUS_OK);
	assert_int_not_equal(access(p, F_OK), 0);
	expect_content(target, "x");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
	const struct CMUnitTest tests[] = {
	    TEST(parts_are_written_one_after_another),
	    TEST(a_write_leaves_no_other_file),
	    TEST(a_write_replaces_the_file_and_does_not_overwrite_it),
	    TEST(a_write_that_fails_keeps_the_old_content),
	    TEST(a_missing_file_is_not_found),
	    TEST(a_file_over_the_limit_is_not_read),
	    TEST(a_map_has_the_content_of_the_file),
	    TEST(folders_are_made_with_their_parents),
	    TEST(a_file_in_the_way_of_a_folder_is_an_error),
	    TEST(removing_a_tree_does_not_follow_links),
	    TEST(removing_a_link_keeps_its_target),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
