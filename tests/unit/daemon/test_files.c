/* Files that expire, and kept statistics, in an engine without its sockets and its device. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/daemon/dispatch.h"
#include "engine/daemon/library/files.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/rooms.h"
#include "engine/recipe/file_statistics.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/parts.h"

enum { HOUR = 3600 };

typedef struct fixture {
	engine engine;
	char folder[64];
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	log_init("test", LOG_ERROR);
	folder_new(f->folder);
	assert_int_equal(store_open(&f->engine.store, f->folder, NULL), STATUS_OK);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	job_machine_free(f->engine.job_machine);
	store_close(f->engine.store);
	assert_int_equal(file_remove_tree(f->folder, NULL), STATUS_OK);
	free(f);
	return 0;
}

static store_file add(fixture *f, int64_t lifetime)
{
	store_file file = {.filename = "text", .purpose = "fine-tune", .lifetime = lifetime};
	char path[PATH_MAX];
	store_temporary_path(f->engine.store, path);
	assert_int_equal(file_write(path, &(file_part){"text", 4}, 1, NULL), STATUS_OK);
	assert_int_equal(store_file_add(f->engine.store, &file, path, NULL), STATUS_OK);
	assert_true(file.expires == (lifetime ? file.created + lifetime : 0));
	return file;
}

static bool is_there(fixture *f, const store_file *file)
{
	store_file found;
	status s = store_file_get(f->engine.store, file->id, &found, NULL);
	assert_true(s == STATUS_OK || s == STATUS_NOT_FOUND);
	assert_true(s != STATUS_OK || found.expires == file->expires);
	return s == STATUS_OK;
}

static status expire(const fixture *f, int64_t now)
{
	const library lib = {.store = f->engine.store, .jobs = f->engine.job_machine};
	return files_expire(&lib, now, NULL);
}

static void an_expired_file_is_deleted_and_others_are_kept(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	store_file first = add(f, HOUR), later = add(f, 2 * HOUR), lasting = add(f, 0);
	parts_open_jobs(&f->engine, dispatch_job_kinds);
	assert_int_equal(expire(f, first.expires - 1), STATUS_OK);
	assert_true(is_there(f, &first) && is_there(f, &later) && is_there(f, &lasting));
	assert_int_equal(expire(f, first.expires), STATUS_OK);
	assert_false(is_there(f, &first));
	assert_true(is_there(f, &later) && is_there(f, &lasting));
	store_blob_path(f->engine.store, first.id, path);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_int_equal(expire(f, INT64_MAX), STATUS_OK);
	assert_false(is_there(f, &later));
	assert_true(is_there(f, &lasting));
}

static void a_file_is_kept_while_a_job_needs_it(void **state)
{
	fixture *f = *state;
	store_file file = add(f, HOUR);
	json_t *paused =
	    json_pack("{s:s, s:s, s:{s:s}}", "id", "ftjob-1", "status", "paused", "request", "training_file", file.id);
	assert_int_equal(store_job_put(f->engine.store, "ftjob-1", "paused", paused, NULL), STATUS_OK);
	json_decref(paused);
	parts_open_jobs(&f->engine, dispatch_job_kinds);
	assert_int_equal(expire(f, file.expires), STATUS_OK);
	assert_true(is_there(f, &file));
	job_machine_free(f->engine.job_machine);
	assert_int_equal(store_job_delete(f->engine.store, "ftjob-1", NULL), STATUS_OK);
	parts_open_jobs(&f->engine, dispatch_job_kinds);
	assert_int_equal(expire(f, file.expires), STATUS_OK);
	assert_false(is_there(f, &file));
}

static void a_rebuilt_ledger_keeps_the_expiry_of_files(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	store_file file = add(f, HOUR);
	store_close(f->engine.store);
	for (size_t i = 0; i < 3; i++) {
		static const char *const ends[] = {"", "-wal", "-shm"};
		snprintf(path, sizeof path, "%s/ledger.sqlite%s", f->folder, ends[i]);
		unlink(path);
	}
	assert_int_equal(store_rebuild(&f->engine.store, f->folder, NULL), STATUS_OK);
	assert_true(is_there(f, &file));
	parts_open_jobs(&f->engine, dispatch_job_kinds);
	assert_int_equal(expire(f, file.expires), STATUS_OK);
	assert_false(is_there(f, &file));
}

static void statistics_of_a_file_without_a_hash_are_found_by_make_alone(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX], cache[PATH_MAX];
	tokenizer *bytes;
	json_t *first, *second, *found;
	atomic_bool cancel = false;
	snprintf(path, sizeof path, "%s/text", f->folder);
	snprintf(cache, sizeof cache, "%s/cache", f->folder);
	assert_int_equal(file_make_folders(cache, NULL), STATUS_OK);
	assert_int_equal(file_write(path, &(file_part){"text", 4}, 1, NULL), STATUS_OK); /* no manifest */
	assert_int_equal(tokenizer_new(&bytes, NULL, NULL), STATUS_OK);
	const file_statistics_source from = {.path = path,
	                                     .id = "text",
	                                     .tokenizer = bytes,
	                                     .cache = {cache, 1 << 20, INT64_MAX},
	                                     .cancel = &cancel};
	assert_int_equal(file_statistics_make(&first, &from, NULL), STATUS_OK);
	assert_int_equal(file_statistics_find(&found, &from, NULL), STATUS_OK);
	assert_null(found);
	atomic_store(&cancel, true); /* ends a count */
	assert_int_equal(file_statistics_make(&second, &from, NULL), STATUS_OK);
	assert_true(json_equal(first, second));
	json_decref(first);
	json_decref(second);
	tokenizer_free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(an_expired_file_is_deleted_and_others_are_kept, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_file_is_kept_while_a_job_needs_it, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_rebuilt_ledger_keeps_the_expiry_of_files, setup, teardown),
	    cmocka_unit_test_setup_teardown(statistics_of_a_file_without_a_hash_are_found_by_make_alone, setup,
	                                    teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
