/* test_store_snapshots.c - versions of a session's state that stay while its document names them. */
#include <sqlite3.h>
#include <sys/stat.h>

#include "engine/store/maintenance.h"
#include "tests/unit/store/fixture.h"

enum { VERSIONS = 4 };

/* Save a session of this text, with snapshots of the versions. */
static void save(fixture *f, const char *text, const int64_t *snapshots, int n)
{
	json_t *list = json_array();
	for (int i = 0; i < n; i++) {
		char path[PATH_MAX];
		struct stat st;
		store_session_version_path(f->store, "sess-1", snapshots[i], path);
		assert_int_equal(stat(path, &st), 0);
		json_array_append_new(list, json_pack("{s:I, s:I}", "version", (json_int_t)snapshots[i], "bytes",
		                                      (json_int_t)st.st_size));
	}
	json_t *document = json_pack("{s:s, s:o}", "id", "sess-1", "snapshots", list);
	assert_int_equal(save_session(f->store, document, text, strlen(text)), STATUS_OK);
	json_decref(document);
}

static void must_hold(fixture *f, int64_t version, const char *text)
{
	char path[PATH_MAX];
	void *blob;
	size_t bytes;
	if (version)
		store_session_version_path(f->store, "sess-1", version, path);
	else
		assert_int_equal(store_session_path(f->store, "sess-1", path, NULL), STATUS_OK);
	assert_int_equal(store_session_read(path, "sess-1", &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(bytes, strlen(text));
	assert_memory_equal(blob, text, bytes);
	free(blob);
}

static void must_have_files(fixture *f, const bool exists[VERSIONS + 1])
{
	char path[64];
	for (int v = 1; v <= VERSIONS; v++) {
		snprintf(path, sizeof path, "sessions/sess-1.%d", v);
		must_exist(f, path, exists[v]);
		snprintf(path, sizeof path, "lost/session/sess-1.%d", v);
		must_exist(f, path, false);
	}
}

/* Versions 1 and 3 are snapshots, 4 is current. */
static void make(fixture *f)
{
	save(f, "one", NULL, 0);
	save(f, "two", (int64_t[]){1}, 1);
	save(f, "three", (int64_t[]){1}, 1);
	save(f, "four", (int64_t[]){1, 3}, 2);
}

static const bool made[VERSIONS + 1] = {[1] = true, [3] = true, [4] = true};

static void must_be_made(fixture *f)
{
	must_have_files(f, made);
	must_hold(f, 1, "one");
	must_hold(f, 3, "three");
	must_hold(f, 0, "four");
}

static void a_version_stays_while_the_document_names_it(void **state)
{
	fixture *f = *state;
	int64_t version, bytes, all;
	make(f);
	must_be_made(f);
	assert_int_equal(store_session_current(f->store, "sess-1", &version, &bytes, NULL), STATUS_OK);
	assert_int_equal(version, 4);
	assert_int_equal(store_bytes(f->store, &all, NULL), STATUS_OK);
	assert_true(all > 2 * bytes && all < 4 * bytes);
	reopen(f);
	must_be_made(f);
	json_t *document =
	    json_pack("{s:s, s:[{s:i, s:I}]}", "id", "sess-1", "snapshots", "version", 3, "bytes", (json_int_t)bytes);
	assert_int_equal(store_session_keep(f->store, "sess-1", 4, document, NULL), STATUS_OK);
	json_decref(document);
	must_have_files(f, (bool[]){[3] = true, [4] = true});
	assert_int_equal(store_session_delete(f->store, "sess-1", NULL), STATUS_OK);
	must_have_files(f, (bool[VERSIONS + 1]){false});
	assert_int_equal(store_bytes(f->store, &all, NULL), STATUS_OK);
	assert_int_equal(all, 0);
	assert_int_equal(store_session_current(f->store, "sess-1", &version, &bytes, NULL), STATUS_STORAGE);
}

static void a_commit_that_is_rolled_back_removes_no_version(void **state)
{
	fixture *f = *state;
	make(f);
	json_t *document = json_pack("{s:s}", "id", "sess-1");
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(store_session_keep(f->store, "sess-1", 4, document, NULL), STATUS_OK);
	store_rollback(f->store);
	json_decref(document);
	must_be_made(f);
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(store_session_delete(f->store, "sess-1", NULL), STATUS_OK);
	store_rollback(f->store);
	reopen(f);
	must_be_made(f);
}

static void damage_row(fixture *f)
{
	char path[PATH_MAX];
	sqlite3 *db;
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->folder);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "UPDATE objects SET digest=0 WHERE kind='session'", NULL, NULL, NULL),
	                 SQLITE_OK);
	sqlite3_close(db);
}

static void a_damaged_row_is_made_again_with_its_snapshots(void **state)
{
	fixture *f = *state;
	log_init("test", LOG_ERROR + 1);
	make(f);
	damage_row(f);
	reopen(f);
	must_be_made(f);
	/* A snapshot that was deleted since the newest version was written stays deleted. */
	json_t *document = json_pack("{s:s}", "id", "sess-1");
	assert_int_equal(store_session_keep(f->store, "sess-1", 4, document, NULL), STATUS_OK);
	json_decref(document);
	damage_row(f);
	reopen(f);
	must_have_files(f, (bool[]){[4] = true, [3] = false});
	must_hold(f, 0, "four");
	assert_int_equal(store_damaged_count(f->store), 0);
}

static bool fsck_is_clean(const fixture *f)
{
	json_t *report;
	assert_int_equal(fsck_check(f->folder, &report, NULL), STATUS_OK);
	const bool clean = json_is_true(json_object_get(report, "clean"));
	json_decref(report);
	return clean;
}

static void checks_and_backups_include_snapshots(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX], to[80], restored[64];
	json_t *report;
	make(f);
	store_close(f->store);
	f->store = NULL;
	assert_true(fsck_is_clean(f));
	snprintf(to, sizeof to, "%s-backup", f->folder);
	snprintf(restored, sizeof restored, "%.50s-restored", f->folder);
	assert_int_equal(backup_make(f->folder, to, false, &report, NULL), STATUS_OK);
	json_decref(report);
	assert_int_equal(backup_restore(to, restored, false, &report, NULL), STATUS_OK);
	json_decref(report);
	fixture other = *f;
	snprintf(other.folder, sizeof other.folder, "%s", restored);
	assert_int_equal(store_open(&other.store, restored, NULL), STATUS_OK);
	must_be_made(&other);
	store_close(other.store);
	snprintf(path, sizeof path, "%s/sessions/sess-1.3", f->folder);
	FILE *file = fopen(path, "r+b");
	fseek(file, -1, SEEK_END);
	fputc('X', file);
	fclose(file);
	assert_false(fsck_is_clean(f));
	assert_int_equal(file_remove_tree(to, NULL), STATUS_OK);
	assert_int_equal(file_remove_tree(restored, NULL), STATUS_OK);
	assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
}

static void a_missing_snapshot_is_recorded_and_affects_no_other_version(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	log_init("test", LOG_ERROR + 1);
	make(f);
	store_session_version_path(f->store, "sess-1", 1, path);
	assert_int_equal(unlink(path), 0);
	reopen(f);
	assert_int_equal(store_damaged_count(f->store), 1);
	must_hold(f, 3, "three");
	must_hold(f, 0, "four");
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(a_version_stays_while_the_document_names_it),
	    CASE(a_commit_that_is_rolled_back_removes_no_version),
	    CASE(a_damaged_row_is_made_again_with_its_snapshots),
	    CASE(checks_and_backups_include_snapshots),
	    CASE(a_missing_snapshot_is_recorded_and_affects_no_other_version),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
