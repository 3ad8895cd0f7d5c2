/* Folders that are synced: a name is on the disk once the folder that contains it is synced. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "tests/unit/support/disk.h"
#include "tests/unit/support/folder.h"

static char synced[16][PATH_MAX];
static int n_synced;

static void note(const char *path)
{
	if (n_synced < 16)
		snprintf(synced[n_synced++], PATH_MAX, "%s", path);
}

static bool was_synced(const char *folder, const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s%s", folder, name);
	for (int i = 0; i < n_synced; i++)
		if (strcmp(synced[i], path) == 0)
			return true;
	return false;
}

static void the_parents_of_new_folders_are_synced(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES], path[PATH_MAX];
	folder_new(folder);
	snprintf(path, sizeof path, "%s/data/models", folder);
	n_synced = 0;
	assert_int_equal(file_make_folders(path, NULL), STATUS_OK);
	assert_true(was_synced(folder, ""));
	assert_true(was_synced(folder, "/data"));
	n_synced = 0;
	assert_int_equal(file_make_folders(path, NULL), STATUS_OK);
	assert_int_equal(n_synced, 0); /* no folder is new */
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void a_written_file_and_its_folder_are_synced(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES], path[PATH_MAX];
	folder_new(folder);
	snprintf(path, sizeof path, "%s/file", folder);
	n_synced = 0;
	assert_int_equal(file_write(path, &(file_part){"x", 1}, 1, NULL), STATUS_OK);
	assert_int_equal(n_synced, 2);
	assert_non_null(strstr(synced[0], "/file" FILE_TEMPORARY)); /* synced before it is renamed */
	assert_true(was_synced(folder, ""));
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	disk_watch(note);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_parents_of_new_folders_are_synced),
	    cmocka_unit_test(a_written_file_and_its_folder_are_synced),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
