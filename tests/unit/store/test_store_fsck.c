/* Checking names all damage and changes nothing; objects that were set aside are adopted complete. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/maintenance.h"
#include "tests/unit/support/data_folder.h"

typedef struct fixture {
	char data[64];
	store *store;
	data_objects objects;
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	data_folder_new(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", f->data);
	log_init("test", LOG_NOTHING);
	assert_int_equal(store_open(&f->store, f->data, NULL), STATUS_OK);
	data_folder_fill(f->store, 1, &f->objects);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	store_close(f->store);
	assert_int_equal(file_remove_tree(f->data, NULL), STATUS_OK);
	free(f);
	return 0;
}

static void stop(fixture *f)
{
	store_close(f->store);
	f->store = NULL;
}

static void start(fixture *f)
{
	error err = ERROR_INIT;
	stop(f);
	if (store_open(&f->store, f->data, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
}

static json_t *check(const fixture *f)
{
	json_t *report;
	error err = ERROR_INIT;
	if (fsck_check(f->data, &report, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return report;
}

static bool is(const json_t *report, const char *key)
{
	return json_is_true(json_object_get(report, key));
}

static size_t count(const json_t *report, const char *list)
{
	return json_array_size(json_object_get(report, list));
}

static const char *text_at(const json_t *report, const char *list, size_t i, const char *key)
{
	const char *text = json_string_value(json_object_get(json_array_get(json_object_get(report, list), i), key));
	return text ? text : "";
}

static void need_clean(const fixture *f)
{
	json_t *report = check(f);
	if (!is(report, "clean"))
		json_dumpf(report, stderr, JSON_INDENT(1));
	assert_true(is(report, "clean"));
	json_decref(report);
}

static void adopt(const fixture *f, const char *kind, const char *name)
{
	error err = ERROR_INIT;
	if (lost_adopt(f->store, kind, name, &err) != STATUS_OK)
		fail_msg("%s/%s: %s", kind, name, error_message(&err));
}

/* --- checking ---------------------------------------------------------------------------------- */

static void an_undamaged_folder_is_clean_while_an_engine_runs_and_after(void **state)
{
	fixture *f = *state;
	json_t *report = check(f);
	assert_true(is(report, "clean") && is(report, "running"));
	assert_int_equal(json_integer_value(json_object_get(json_object_get(report, "objects"), "checkpoint")), 1);
	json_decref(report);
	stop(f);
	report = check(f);
	assert_true(is(report, "clean") && !is(report, "running"));
	json_decref(report);
}

static void only_the_damaged_blob_is_named(void **state)
{
	(void)state;
	for (int i = 0; i < DATA_FOLDER_KINDS; i++) {
		for (int how = 0; how < DATA_DAMAGES; how++) {
			void *own;
			char blob[PATH_MAX];
			setup(&own);
			fixture *f = own;
			data_folder_blob(&f->objects, data_folder_kinds[i], blob);
			data_folder_damage(f->data, blob, (data_damage)how);
			json_t *report = check(f);
			assert_false(is(report, "clean"));
			assert_int_equal(count(report, "damaged"), 1);
			assert_string_equal(text_at(report, "damaged", 0, "kind"), data_folder_kinds[i]);
			assert_string_equal(text_at(report, "damaged", 0, "id"),
			                    data_folder_id(&f->objects, data_folder_kinds[i]));
			json_decref(report);
			teardown(&own);
		}
	}
}

static void a_changed_row_is_named(void **state)
{
	fixture *f = *state;
	char path[128];
	sqlite3 *db;
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->data);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(
	    sqlite3_exec(db, "UPDATE objects SET document=replace(document, 'user', 'usar') WHERE kind='model'", NULL,
	                 NULL, NULL),
	    SQLITE_OK);
	sqlite3_close(db);
	json_t *report = check(f);
	assert_int_equal(count(report, "damaged"), 1);
	assert_string_equal(text_at(report, "damaged", 0, "id"), f->objects.model);
	json_decref(report);
}

static void a_damaged_manifest_is_named_and_removed_at_the_next_start(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	snprintf(path, sizeof path, "models/%s/manifest.json", f->objects.model);
	data_folder_damage(f->data, path, DATA_FLIPPED);
	json_t *report = check(f);
	assert_int_equal(count(report, "damaged"), 1);
	json_decref(report);
	start(f);
	need_clean(f);
}

static void a_missing_ledger_is_a_problem_and_can_be_rebuilt(void **state)
{
	fixture *f = *state;
	stop(f);
	data_folder_damage(f->data, "ledger.sqlite", DATA_MISSING);
	json_t *report = check(f);
	assert_false(is(report, "clean"));
	assert_non_null(json_string_value(json_object_get(report, "problem")));
	json_decref(report);
	assert_int_equal(store_open(&f->store, f->data, NULL), STATUS_STORAGE);
	assert_int_equal(store_rebuild(&f->store, f->data, NULL), STATUS_OK);
	data_folder_check(f->store, &f->objects);
	need_clean(f);
}

static void a_damaged_ledger_is_never_clean(void **state)
{
	fixture *f = *state;
	char path[128], *whole;
	size_t bytes;
	stop(f);
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->data);
	assert_int_equal(file_read(path, 1 << 24, &whole, &bytes, NULL), STATUS_OK);
	whole[100] ^= 4; /* changes the type of the first page */
	const size_t lengths[] = {0, 1, 100, 511, 512, bytes / 2, bytes - 1, bytes};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		assert_int_equal(file_write(path, &(file_part){whole, lengths[i]}, 1, NULL), STATUS_OK);
		json_t *report = check(f);
		assert_false(is(report, "clean"));
		assert_non_null(json_string_value(json_object_get(report, "problem")));
		json_decref(report);
	}
	free(whole);
}

static void a_temporary_file_is_listed_but_is_no_damage(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	stop(f);
	snprintf(path, sizeof path, "%s/sessions/sess-1.2.tmp-abcdef", f->data);
	assert_int_equal(file_write(path, &(file_part){"x", 1}, 1, NULL), STATUS_OK);
	json_t *report = check(f);
	assert_true(is(report, "clean"));
	assert_int_equal(count(report, "temporary"), 1);
	json_decref(report);
}

/* --- lost and found ------------------------------------------------------------------------------ */

static void keep_ledger(const fixture *f, char **data, size_t *bytes)
{
	char path[128];
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->data);
	assert_int_equal(file_read(path, 1 << 24, data, bytes, NULL), STATUS_OK);
}

/* An object of each kind is newer than the ledger that is put back. */
static void put_back_an_older_ledger(fixture *f, data_objects *newer)
{
	char path[128], *old;
	size_t bytes;
	stop(f);
	keep_ledger(f, &old, &bytes);
	start(f);
	data_folder_fill(f->store, 2, newer);
	stop(f);
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->data);
	assert_int_equal(file_write(path, &(file_part){old, bytes}, 1, NULL), STATUS_OK);
	free(old);
}

static void objects_newer_than_the_ledger_are_set_aside_and_adopted_complete(void **state)
{
	fixture *f = *state;
	data_objects newer;
	char session[STORE_ID_BYTES + 2];
	put_back_an_older_ledger(f, &newer);
	json_t *report = check(f);
	assert_int_equal(count(report, "damaged"), 0);
	assert_int_equal(count(report, "unclaimed"), 6); /* a file and its manifest, a model, an adapter, a job, a session */
	assert_false(is(report, "clean"));
	json_decref(report);
	start(f);
	data_folder_check(f->store, &f->objects);
	report = check(f);
	assert_true(is(report, "clean"));
	assert_int_equal(count(json_object_get(report, "storage"), "lost"), 5);
	json_decref(report);
	snprintf(session, sizeof session, "%s.1", newer.session);
	adopt(f, "file", newer.file);
	adopt(f, "model", newer.model);
	adopt(f, "adapter", newer.adapter);
	adopt(f, "job", newer.job);
	adopt(f, "session", session);
	for (int i = 0; i < 2; i++) {
		data_folder_check(f->store, &newer);
		data_folder_check(f->store, &f->objects);
		store_tick(f->store);
		start(f);
	}
	report = check(f);
	assert_true(is(report, "clean"));
	assert_int_equal(count(json_object_get(report, "storage"), "lost"), 0);
	json_decref(report);
}

static void a_rebuild_completes_an_older_ledger(void **state)
{
	fixture *f = *state;
	data_objects newer;
	put_back_an_older_ledger(f, &newer);
	assert_int_equal(store_rebuild(&f->store, f->data, NULL), STATUS_OK);
	data_folder_check(f->store, &newer);
	data_folder_check(f->store, &f->objects);
	need_clean(f);
}

static void no_object_is_adopted_over_an_existing_one(void **state)
{
	fixture *f = *state;
	data_objects newer;
	put_back_an_older_ledger(f, &newer);
	start(f);
	data_folder_put_model(f->store, newer.model, 3);
	assert_int_equal(lost_adopt(f->store, "model", newer.model, NULL), STATUS_CONFLICT);
	store_model m;
	assert_int_equal(store_model_get(f->store, newer.model, &m, NULL), STATUS_OK);
	assert_int_equal(m.parameters, 3);
	assert_int_equal(store_model_delete(f->store, newer.model, NULL), STATUS_OK);
	adopt(f, "model", newer.model);
	store_tick(f->store); /* sweeps the blobs that the deletion listed */
	start(f);
	assert_int_equal(store_model_get(f->store, newer.model, &m, NULL), STATUS_OK);
	assert_int_equal(m.parameters, 2);
	assert_int_equal(store_check_blob(f->store, STORE_MODELS, newer.model, true, NULL), STATUS_OK);
}

static void damaged_objects_stay_in_lost(void **state)
{
	fixture *f = *state;
	data_objects newer;
	char path[PATH_MAX];
	put_back_an_older_ledger(f, &newer);
	start(f);
	snprintf(path, sizeof path, "lost/model/%s/model.safetensors", newer.model);
	data_folder_damage(f->data, path, DATA_FLIPPED);
	assert_int_equal(lost_adopt(f->store, "model", newer.model, NULL), STATUS_STORAGE);
	assert_int_equal(store_model_get(f->store, newer.model, &(store_model){0}, NULL), STATUS_NOT_FOUND);
	snprintf(path, sizeof path, "lost/file/%s.manifest", newer.file);
	data_folder_damage(f->data, path, DATA_MISSING);
	assert_int_equal(lost_adopt(f->store, "file", newer.file, NULL), STATUS_STORAGE);
	json_t *report = check(f);
	assert_int_equal(count(json_object_get(report, "storage"), "lost"), 5);
	json_decref(report);
}

static void a_checkpoint_is_adopted_only_with_its_job(void **state)
{
	fixture *f = *state;
	char from[PATH_MAX], to[PATH_MAX];
	snprintf(to, sizeof to, "%s/lost/checkpoint", f->data);
	assert_int_equal(file_make_folders(to, NULL), STATUS_OK);
	store_checkpoint_folder(f->store, f->objects.job, 10, from);
	snprintf(to, sizeof to, "%s/lost/checkpoint/%s.step-10~1", f->data, f->objects.job);
	assert_int_equal(rename(from, to), 0);
	assert_int_equal(lost_adopt(f->store, "checkpoint", strrchr(to, '/') + 1, NULL), STATUS_OK);
	data_folder_check(f->store, &f->objects);
	assert_int_equal(rename(from, to), 0);
	assert_int_equal(store_job_delete(f->store, f->objects.job, NULL), STATUS_OK);
	assert_int_equal(lost_adopt(f->store, "checkpoint", strrchr(to, '/') + 1, NULL), STATUS_CONFLICT);
}

static void a_lost_blob_is_removed_by_name_and_no_other_is(void **state)
{
	static const char *const hostile[][2] = {{"..", "models"}, {"model", ".."},  {"model", "."}, {"", ""},
	                                         {"model", ""},    {"../..", "tmp"}, {".", "model"}, {"model", "../x"}};
	fixture *f = *state;
	data_objects newer;
	put_back_an_older_ledger(f, &newer);
	start(f);
	for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
		assert_int_equal(lost_remove(f->data, hostile[i][0], hostile[i][1], NULL), STATUS_NOT_FOUND);
		assert_int_equal(lost_adopt(f->store, hostile[i][0], hostile[i][1], NULL), STATUS_NOT_FOUND);
	}
	assert_int_equal(lost_remove(f->data, "model", newer.model, NULL), STATUS_OK);
	assert_int_equal(lost_remove(f->data, "model", newer.model, NULL), STATUS_NOT_FOUND);
	assert_int_equal(lost_remove(f->data, "file", newer.file, NULL), STATUS_OK);
	json_t *report = check(f);
	assert_int_equal(count(json_object_get(report, "storage"), "lost"), 3);
	json_decref(report);
	data_folder_check(f->store, &f->objects);
}

static void rows_are_not_changed_while_an_engine_runs(void **state)
{
	fixture *f = *state;
	store *second;
	assert_int_equal(store_open(&second, f->data, NULL), STATUS_CONFLICT);
	assert_int_equal(store_rebuild(&second, f->data, NULL), STATUS_CONFLICT);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(an_undamaged_folder_is_clean_while_an_engine_runs_and_after),
	    CASE(only_the_damaged_blob_is_named),
	    CASE(a_changed_row_is_named),
	    CASE(a_damaged_manifest_is_named_and_removed_at_the_next_start),
	    CASE(a_missing_ledger_is_a_problem_and_can_be_rebuilt),
	    CASE(a_damaged_ledger_is_never_clean),
	    CASE(a_temporary_file_is_listed_but_is_no_damage),
	    CASE(objects_newer_than_the_ledger_are_set_aside_and_adopted_complete),
	    CASE(a_rebuild_completes_an_older_ledger),
	    CASE(no_object_is_adopted_over_an_existing_one),
	    CASE(damaged_objects_stay_in_lost),
	    CASE(a_checkpoint_is_adopted_only_with_its_job),
	    CASE(a_lost_blob_is_removed_by_name_and_no_other_is),
	    CASE(rows_are_not_changed_while_an_engine_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
