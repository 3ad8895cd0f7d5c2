/* A backup holds the acknowledged objects of one moment, whatever the engine does meanwhile; damaged objects are
 * named. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/maintenance.h"
#include "engine/store/store_private.h"
#include "tests/unit/support/data_folder.h"

enum { ROUNDS = 12 };

typedef struct fixture {
	char root[64], data[96], backup[96], restored[96];
	store *store;
	data_objects objects;
} fixture;

/* A disk on which a sync is free, if there is one; else NULL. */
static const char *memory_disk(void)
{
	return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	data_folder_new(memory_disk(), f->root);
	snprintf(f->data, sizeof f->data, "%s/data", f->root);
	snprintf(f->backup, sizeof f->backup, "%s/backup", f->root);
	snprintf(f->restored, sizeof f->restored, "%s/restored", f->root);
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
	assert_int_equal(file_remove_tree(f->root, NULL), STATUS_OK);
	free(f);
	return 0;
}

static json_t *back_up(const fixture *f, bool copy)
{
	json_t *report;
	error err = ERROR_INIT;
	if (backup_make(f->data, f->backup, copy, &report, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return report;
}

static size_t count(const json_t *report, const char *list)
{
	return json_array_size(json_object_get(report, list));
}

static int64_t number(const json_t *report, const char *key)
{
	return json_integer_value(json_object_get(report, key));
}

static void restore(const fixture *f, bool partial, store **out)
{
	json_t *report;
	error err = ERROR_INIT;
	if (backup_restore(f->backup, f->restored, partial, &report, &err) != STATUS_OK ||
	    store_open(out, f->restored, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(report);
}

static bool exists(const char *folder, const char *path)
{
	char whole[2 * PATH_MAX];
	struct stat st;
	snprintf(whole, sizeof whole, "%s/%s", folder, path);
	return lstat(whole, &st) == 0;
}

/* --- calm ------------------------------------------------------------------------------------ */

static bool count_one(void *context, const json_t *object)
{
	(void)object;
	++*(int *)context;
	return true;
}

static void a_backup_restores_every_kind_of_object(void **state)
{
	fixture *f = *state;
	store *s;
	json_t *report = back_up(f, false);
	assert_int_equal(count(report, "damaged"), 0);
	assert_true(number(report, "linked_bytes") >= 4 * DATA_FOLDER_BLOB);
	json_decref(report);
	restore(f, false, &s);
	data_folder_check(s, &f->objects);
	bool more;
	int events = 0;
	assert_int_equal(
	    store_list(s, STORE_EVENTS, &(store_page){.parent = f->objects.job}, count_one, &events, &more, NULL),
	    STATUS_OK);
	assert_int_equal(events, 1);
	store_close(s);
}

static void objects_deleted_after_a_backup_stay_in_it(void **state)
{
	fixture *f = *state;
	store *s;
	json_decref(back_up(f, false));
	assert_int_equal(store_file_delete(f->store, f->objects.file, NULL), STATUS_OK);
	assert_int_equal(store_model_delete(f->store, f->objects.model, NULL), STATUS_OK);
	assert_int_equal(store_job_delete(f->store, f->objects.job, NULL), STATUS_OK);
	assert_int_equal(store_session_delete(f->store, f->objects.session, NULL), STATUS_OK);
	store_tick(f->store);
	restore(f, false, &s);
	data_folder_check(s, &f->objects);
	store_close(s);
}

static void objects_that_wait_for_removal_are_not_in_a_backup(void **state)
{
	fixture *f = *state;
	store *s;
	char lock[128];
	snprintf(lock, sizeof lock, "%s/backup.lock", f->data);
	int other = open(lock, O_RDONLY | O_CLOEXEC);
	assert_int_equal(flock(other, LOCK_SH), 0);
	assert_int_equal(store_file_delete(f->store, f->objects.file, NULL), STATUS_OK);
	data_folder_put_model(f->store, f->objects.model, 2);
	json_decref(back_up(f, false));
	close(other);
	char blob[PATH_MAX];
	data_folder_blob(&f->objects, "file", blob);
	assert_true(exists(f->data, blob));
	assert_false(exists(f->backup, blob));
	restore(f, false, &s);
	store_tick(s);
	assert_int_equal(store_check_blob(s, STORE_MODELS, f->objects.model, true, NULL), STATUS_OK);
	store_close(s);
}

static void a_backup_on_another_disk_is_a_copy(void **state)
{
	fixture *f = *state;
	struct stat here, target;
	if (stat("/tmp", &target) != 0 || stat(f->data, &here) != 0 || here.st_dev == target.st_dev)
		skip();
	char root[64];
	store *s;
	data_folder_new("/tmp", root);
	snprintf(f->backup, sizeof f->backup, "%s/backup", root);
	json_t *report = back_up(f, false);
	assert_int_equal(number(report, "linked_bytes"), 0);
	assert_true(number(report, "copied_bytes") >= 4 * DATA_FOLDER_BLOB);
	json_decref(report);
	restore(f, false, &s);
	data_folder_check(s, &f->objects);
	store_close(s);
	assert_int_equal(file_remove_tree(root, NULL), STATUS_OK);
}

static void a_copied_backup_shares_no_file_with_the_data_folder(void **state)
{
	fixture *f = *state;
	json_t *report = back_up(f, true);
	struct stat a, b;
	char blob[PATH_MAX], path[PATH_MAX];
	assert_int_equal(number(report, "linked_bytes"), 0);
	json_decref(report);
	for (int i = 0; i < DATA_FOLDER_KINDS; i++) {
		data_folder_blob(&f->objects, data_folder_kinds[i], blob);
		snprintf(path, sizeof path, "%.90s/%.500s", f->data, blob);
		assert_int_equal(stat(path, &a), 0);
		snprintf(path, sizeof path, "%.90s/%.500s", f->backup, blob);
		assert_int_equal(stat(path, &b), 0);
		assert_true(a.st_ino != b.st_ino);
	}
}

static void a_backup_never_replaces_files(void **state)
{
	fixture *f = *state;
	json_t *report;
	char among[128];
	json_decref(back_up(f, false));
	assert_int_equal(backup_make(f->data, f->backup, false, &report, NULL), STATUS_CONFLICT);
	snprintf(among, sizeof among, "%s/models/backup", f->data);
	assert_int_equal(backup_make(f->data, among, false, &report, NULL), STATUS_CONFLICT);
	assert_int_equal(backup_make(f->root, f->restored, false, &report, NULL), STATUS_NOT_FOUND);
	assert_null(report);
	assert_false(exists(f->root, "restored"));
}

/* --- damage ------------------------------------------------------------------------------------- */

static const json_t *find_damage(const json_t *report, const char *kind, const char *id)
{
	const json_t *one;
	size_t i;
	json_array_foreach(json_object_get(report, "damaged"), i,
	                   one) if (strcmp(json_string_value(json_object_get(one, "kind")), kind) == 0 &&
	                            strcmp(json_string_value(json_object_get(one, "id")), id) == 0) return one;
	return NULL;
}

/* Damage one blob and back up. The damaged object is named, the others are kept, and it is restored on request. */
static void damage_and_back_up(fixture *f, const char *kind, data_damage how)
{
	char blob[PATH_MAX];
	json_t *report, *none;
	store *s;
	data_objects second;
	data_folder_fill(f->store, 2, &second);
	data_folder_blob(&f->objects, kind, blob);
	data_folder_damage(f->data, blob, how);
	report = back_up(f, false);
	if (strcmp(kind, "job") == 0) { /* job.json is a copy of the row, and the backup makes it from the row */
		assert_int_equal(count(report, "damaged"), 0);
	} else {
		assert_int_equal(count(report, "damaged"), 1);
		assert_non_null(find_damage(report, kind, data_folder_id(&f->objects, kind)));
		assert_int_equal(backup_restore(f->backup, f->restored, false, &none, NULL), STATUS_STORAGE);
		assert_non_null(find_damage(none, kind, data_folder_id(&f->objects, kind)));
		json_decref(none);
		assert_false(exists(f->root, "restored"));
	}
	json_decref(report);
	restore(f, true, &s);
	data_folder_check(s, &second);
	if (strcmp(kind, "job") == 0)
		data_folder_check(s, &f->objects);
	store_close(s);
}

static void all_damage_in_the_source_is_named_and_the_rest_is_kept(void **state)
{
	(void)state;
	for (int i = 0; i < DATA_FOLDER_KINDS; i++) {
		for (int how = 0; how < DATA_DAMAGES; how++) {
			void *own;
			setup(&own);
			damage_and_back_up(own, data_folder_kinds[i], (data_damage)how);
			teardown(&own);
		}
	}
}

static void a_backup_has_valid_manifests_where_the_source_has_damaged_ones(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	store *s;
	snprintf(path, sizeof path, "blobs/%s.manifest", f->objects.file);
	data_folder_damage(f->data, path, DATA_FLIPPED);
	snprintf(path, sizeof path, "models/%s/manifest.json", f->objects.model);
	data_folder_damage(f->data, path, DATA_MISSING);
	json_t *report = back_up(f, false);
	assert_int_equal(count(report, "damaged"), 0);
	json_decref(report);
	restore(f, false, &s);
	data_folder_check(s, &f->objects);
	store_close(s);
}

static void a_damaged_backup_is_restored_only_on_request(void **state)
{
	fixture *f = *state;
	char blob[PATH_MAX];
	json_t *report;
	for (int i = -1; i < DATA_FOLDER_KINDS; i++) {
		const char *kind = i < 0 ? "ledger" : data_folder_kinds[i];
		json_decref(back_up(f, true));
		if (i < 0)
			strcpy(blob, "ledger.sqlite");
		else
			data_folder_blob(&f->objects, kind, blob);
		data_folder_damage(f->backup, blob, DATA_FLIPPED);
		assert_int_equal(backup_restore(f->backup, f->restored, false, &report, NULL), STATUS_STORAGE);
		assert_non_null(find_damage(report, kind, i < 0 ? "ledger.sqlite" : data_folder_id(&f->objects, kind)));
		json_decref(report);
		assert_false(exists(f->root, "restored"));
		assert_int_equal(file_remove_tree(f->backup, NULL), STATUS_OK);
	}
}

static void a_backup_without_its_ledger_is_restored_from_its_blobs_on_request(void **state)
{
	fixture *f = *state;
	json_t *report;
	store *s;
	json_decref(back_up(f, true));
	data_folder_damage(f->backup, "ledger.sqlite", DATA_MISSING);
	assert_int_equal(backup_restore(f->backup, f->restored, false, &report, NULL), STATUS_STORAGE);
	json_decref(report);
	restore(f, true, &s);
	data_folder_check(s, &f->objects);
	store_close(s);
}

static void a_restore_never_replaces_files(void **state)
{
	fixture *f = *state;
	json_t *report;
	json_decref(back_up(f, false));
	assert_int_equal(backup_restore(f->backup, f->data, true, &report, NULL), STATUS_CONFLICT);
	assert_int_equal(backup_restore(f->root, f->restored, true, &report, NULL), STATUS_NOT_FOUND);
	assert_null(report);
	data_folder_check(f->store, &f->objects);
}

static void a_folder_without_a_usable_ledger_is_not_backed_up(void **state)
{
	fixture *f = *state;
	json_t *report;
	store_close(f->store);
	f->store = NULL;
	data_folder_damage(f->data, "ledger.sqlite", DATA_TRUNCATED);
	assert_int_equal(backup_make(f->data, f->backup, false, &report, NULL), STATUS_STORAGE);
	data_folder_damage(f->data, "ledger.sqlite", DATA_MISSING);
	assert_int_equal(backup_make(f->data, f->backup, false, &report, NULL), STATUS_NOT_FOUND);
	assert_false(exists(f->root, "backup"));
}

/* --- while an engine works -------------------------------------------------------------------------- */

/* Shared with the writing process: its last started and its last acknowledged iteration. */
typedef struct progress {
	_Atomic int64_t started, acknowledged;
} progress;

enum { KEPT = 3, MODEL_EVERY = 40, FILES = 200 };

static void write_for_ever(const char *folder, progress *p)
{
	store *s;
	if (store_open(&s, folder, NULL) != STATUS_OK)
		_exit(3);
	for (int64_t n = 2;; n++) {
		char id[STORE_ID_BYTES];
		atomic_store(&p->started, n);
		data_folder_put_session(s, "sess-1", n);
		data_folder_put_session(s, "sess-other", n);
		if (n % MODEL_EVERY == 0)
			data_folder_put_model(s, "model-1", n);
		snprintf(id, sizeof id, "ckpt-n%lld", (long long)n);
		data_folder_put_checkpoint(s, "ftjob-1", 10 + n, id, n);
		if (n - KEPT >= 2)
			store_checkpoint_delete(s, "ftjob-1", 10 + n - KEPT, NULL);
		atomic_store(&p->acknowledged, n);
		if (n % 3 == 0)
			store_tick(s);
		usleep(3000);
	}
}

static int64_t session_number(store *s, const char *id)
{
	char path[PATH_MAX];
	void *blob;
	size_t bytes;
	error err = ERROR_INIT;
	assert_int_equal(store_session_path(s, id, path, NULL), STATUS_OK);
	if (store_session_read(path, id, &blob, &bytes, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	int64_t n = data_folder_number(blob, bytes);
	free(blob);
	return n;
}

static bool collect_steps(void *context, const json_t *checkpoint)
{
	int64_t *newest = context, step = json_integer_value(json_object_get(checkpoint, "step_number"));
	*newest = step > *newest ? step : *newest;
	return true;
}

/* An iteration writes all kinds in turn, so at any moment no object is more than one iteration ahead of the session. */
static void check_moment(const fixture *f, int64_t first, int64_t last)
{
	store *s;
	store_model m;
	int64_t newest = 0;
	bool more;
	restore(f, false, &s);
	int64_t n = session_number(s, "sess-1"), other = session_number(s, "sess-other");
	assert_true(n >= first && n <= last);
	assert_true(other == n || other == n - 1);
	if (store_model_get(s, "model-1", &m, NULL) == STATUS_OK) {
		assert_true(m.parameters == 1 || m.parameters == n - n % MODEL_EVERY ||
		            m.parameters == n - MODEL_EVERY);
		assert_int_equal(store_check_blob(s, STORE_MODELS, "model-1", true, NULL), STATUS_OK);
	}
	assert_int_equal(
	    store_list(s, STORE_CHECKPOINTS, &(store_page){.parent = "ftjob-1"}, collect_steps, &newest, &more, NULL),
	    STATUS_OK);
	assert_true(newest == 10 + n || newest == 10 + n - 1);
	store_close(s);
	json_t *report;
	assert_int_equal(fsck_check(f->restored, &report, NULL), STATUS_OK);
	assert_true(json_is_true(json_object_get(report, "clean")));
	json_decref(report);
	assert_int_equal(file_remove_tree(f->restored, NULL), STATUS_OK);
}

static void wait_for(const progress *p, int64_t n)
{
	for (int i = 0; i < 2000 && atomic_load(&p->acknowledged) < n; i++)
		usleep(5000);
	assert_true(atomic_load(&p->acknowledged) >= n);
}

static void a_backup_during_writes_holds_the_objects_of_one_moment(void **state)
{
	fixture *f = *state;
	int made = 0;
	progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(p != MAP_FAILED);
	for (int i = 0; i < FILES; i++) /* sessions are linked last, so some are saved meanwhile */
		data_folder_put_file(f->store, i, (char[STORE_ID_BYTES]){0});
	store_close(f->store);
	f->store = NULL;
	pid_t writer = fork();
	if (writer == 0)
		write_for_ever(f->data, p);
	wait_for(p, 5);
	for (int i = 0; i < ROUNDS; i++) {
		json_t *report;
		error err = ERROR_INIT;
		int64_t first = atomic_load(&p->acknowledged);
		status result = backup_make(f->data, f->backup, i % 3 == 2, &report, &err);
		int64_t last = atomic_load(&p->started);
		if (result == STATUS_BUSY) /* the model was replaced during every attempt */
			continue;
		if (result != STATUS_OK)
			fail_msg("%s", error_message(&err));
		made++;
		if (count(report, "damaged") != 0)
			json_dumpf(report, stderr, JSON_INDENT(1));
		assert_int_equal(count(report, "damaged"), 0);
		json_decref(report);
		check_moment(f, first, last);
		assert_int_equal(file_remove_tree(f->backup, NULL), STATUS_OK);
	}
	int how;
	assert_int_equal(waitpid(writer, &how, WNOHANG), 0); /* the writer was still at work */
	kill(writer, SIGKILL);
	waitpid(writer, &how, 0);
	assert_true(made > ROUNDS / 2);
	munmap(p, sizeof *p);
}

/* The retries of a backup depend on this. */
static void a_replaced_object_is_distinguished_from_a_damaged_one(void **state)
{
	fixture *f = *state;
	char ledger[128], blob[PATH_MAX];
	store *copy;
	json_t *report = json_object();
	bool stale;
	snprintf(ledger, sizeof ledger, "%s/ledger.sqlite", f->data);
	data_folder_blob(&f->objects, "file", blob);
	data_folder_damage(f->data, blob, DATA_FLIPPED);
	assert_int_equal(verify_open(&copy, f->data, ledger, ":memory:", NULL), STATUS_OK);
	assert_int_equal(verify_all(copy, report, NULL), STATUS_OK);
	assert_int_equal(count(report, "damaged"), 1);
	assert_int_equal(verify_is_stale(copy, ledger, &stale, NULL), STATUS_OK);
	assert_false(stale);
	data_folder_put_model(f->store, f->objects.model, 2);
	assert_int_equal(verify_all(copy, report, NULL), STATUS_OK);
	assert_int_equal(count(report, "damaged"), 2);
	assert_int_equal(verify_is_stale(copy, ledger, &stale, NULL), STATUS_OK);
	assert_true(stale);
	store_close(copy);
	json_decref(report);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(a_backup_restores_every_kind_of_object),
	    CASE(objects_deleted_after_a_backup_stay_in_it),
	    CASE(objects_that_wait_for_removal_are_not_in_a_backup),
	    CASE(a_backup_on_another_disk_is_a_copy),
	    CASE(a_copied_backup_shares_no_file_with_the_data_folder),
	    CASE(a_backup_never_replaces_files),
	    CASE(all_damage_in_the_source_is_named_and_the_rest_is_kept),
	    CASE(a_backup_has_valid_manifests_where_the_source_has_damaged_ones),
	    CASE(a_damaged_backup_is_restored_only_on_request),
	    CASE(a_backup_without_its_ledger_is_restored_from_its_blobs_on_request),
	    CASE(a_restore_never_replaces_files),
	    CASE(a_folder_without_a_usable_ledger_is_not_backed_up),
	    CASE(a_replaced_object_is_distinguished_from_a_damaged_one),
	    CASE(a_backup_during_writes_holds_the_objects_of_one_moment),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
