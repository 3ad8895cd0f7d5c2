/* The store returns exactly what was added, in order. */
#include <fcntl.h>
#include <sqlite3.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/base/clock.h"
#include "engine/store/store_private.h"
#include "tests/unit/store/fixture.h"

typedef struct collected {
	int count, stop_after;
	char id[64][STORE_ID_BYTES];
} collected;

static bool collect(void *context, const json_t *object)
{
	collected *c = context;
	snprintf(c->id[c->count++], STORE_ID_BYTES, "%s", json_string_value(json_object_get(object, "id")));
	return c->count != c->stop_after;
}

static void a_file_is_complete_after_reopening(void **state)
{
	fixture *f = *state;
	store_file added, got;
	char path[PATH_MAX], *text;
	size_t bytes;
	add_file(f, &added, "näme.txt", "fine-tune", "some text");
	reopen(f);
	assert_int_equal(store_file_get(f->store, added.id, &got, NULL), STATUS_OK);
	assert_string_equal(got.filename, "näme.txt");
	assert_string_equal(got.purpose, "fine-tune");
	assert_int_equal(got.bytes, 9);
	assert_true(got.created > 0);
	store_blob_path(f->store, added.id, path);
	assert_int_equal(file_read(path, 100, &text, &bytes, NULL), STATUS_OK);
	assert_string_equal(text, "some text");
	free(text);
}

static void a_deleted_file_is_gone_with_its_blob(void **state)
{
	fixture *f = *state;
	store_file added, got;
	char path[PATH_MAX];
	add_file(f, &added, "a", "p", "x");
	store_blob_path(f->store, added.id, path);
	assert_int_equal(store_file_delete(f->store, added.id, NULL), STATUS_OK);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(store_file_get(f->store, added.id, &got, NULL), STATUS_NOT_FOUND);
	assert_int_equal(store_file_delete(f->store, added.id, NULL), STATUS_NOT_FOUND);
}

static void a_model_added_again_under_a_deleted_name_survives_the_sweep(void **state)
{
	fixture *f = *state;
	char folder[PATH_MAX];
	assert_int_equal(add_model(f, "again"), STATUS_OK);
	assert_int_equal(store_model_delete(f->store, "again", NULL), STATUS_OK);
	assert_int_equal(add_model(f, "again"), STATUS_OK);
	store_tick(f->store);
	reopen(f);
	store_model_folder(f->store, "again", folder);
	assert_int_equal(access(folder, F_OK), 0);
	assert_int_equal(store_check_blob(f->store, STORE_MODELS, "again", true, NULL), STATUS_OK);
}

/* Take the lock under which a backup keeps blobs from being unlinked. */
static int begin_backup(const fixture *f)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/backup.lock", f->folder);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0 && flock(fd, LOCK_SH) == 0);
	return fd;
}

/* Lock the ledger for writing, as another process would. */
static sqlite3 *lock_ledger(const fixture *f)
{
	char path[PATH_MAX];
	sqlite3 *db;
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->folder);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
	return db;
}

static void a_sweep_that_cannot_begin_is_a_problem_until_one_begins(void **state)
{
	fixture *f = *state;
	store_file added;
	char path[PATH_MAX];
	int backup = begin_backup(f);
	add_file(f, &added, "a", "p", "x");
	store_blob_path(f->store, added.id, path);
	assert_int_equal(store_file_delete(f->store, added.id, NULL), STATUS_OK);
	close(backup);
	sqlite3 *other = lock_ledger(f);
	store_tick(f->store);
	assert_non_null(strstr(store_problem(f->store), "locked"));
	assert_int_equal(access(path, F_OK), 0);
	sqlite3_close(other);
	store_tick(f->store);
	assert_null(store_problem(f->store));
	assert_int_equal(access(path, F_OK), -1);
}

static void a_tick_during_a_backup_does_not_end_the_retries(void **state)
{
	fixture *f = *state;
	store_file added;
	char path[PATH_MAX];
	int backup = begin_backup(f);
	add_file(f, &added, "a", "p", "x");
	store_blob_path(f->store, added.id, path);
	assert_int_equal(store_file_delete(f->store, added.id, NULL), STATUS_OK);
	store_tick(f->store);
	assert_int_equal(access(path, F_OK), 0);
	close(backup);
	store_tick(f->store);
	assert_int_equal(access(path, F_OK), -1);
}

static void commits_together_wait_for_a_locked_ledger_for_a_bounded_time(void **state)
{
	fixture *f = *state;
	error err = ERROR_INIT;
	sqlite3 *other = lock_ledger(f);
	const uint64_t began = clock_ns();
	for (int i = 0; i < 50; i++)
		assert_int_equal(store_begin(f->store, &err), STATUS_UNAVAILABLE);
	assert_true(clock_ns() - began < 500000000);
	assert_non_null(strstr(error_message(&err), "locked by another process"));
	sqlite3_close(other);
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(store_commit(f->store, NULL), STATUS_OK);
}

static void a_truncated_ledger_is_a_problem(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->folder);
	assert_null(store_problem(f->store));
	assert_int_equal(truncate(path, 4096), 0);
	assert_non_null(strstr(store_problem(f->store), "the ledger is shorter than it was"));
}

enum { NOT_PERMITTED = 77 };

/* Open the folder in a child process, on a read-only mount. */
static int problem_on_a_read_only_disk(const fixture *f)
{
	if (unshare(getuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount(f->folder, f->folder, NULL, MS_BIND, NULL) != 0 ||
	    mount(NULL, f->folder, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0)
		return NOT_PERMITTED;
	const char *problem = store_problem(f->store);
	return problem && strstr(problem, "the data folder is on a read-only disk") ? 0 : 1;
}

static void a_read_only_disk_is_a_problem(void **state)
{
	const fixture *f = *state;
	int ended;
	assert_null(store_problem(f->store));
	pid_t child = fork();
	if (child == 0)
		_exit(problem_on_a_read_only_disk(f));
	assert_int_equal(waitpid(child, &ended, 0), child);
	assert_true(WIFEXITED(ended));
	if (WEXITSTATUS(ended) == NOT_PERMITTED)
		skip();
	assert_int_equal(WEXITSTATUS(ended), 0);
}

static void a_data_folder_that_must_exist_is_not_created(void **state)
{
	fixture *f = *state;
	store *none;
	error err = ERROR_INIT;
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/vanished", f->folder);
	assert_int_equal(store_open_existing(&none, path, NULL, &err), STATUS_STORAGE);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(store_open_existing(&none, path, NULL, &err), STATUS_STORAGE);
	assert_int_equal(rmdir(path), 0); /* the folder is still empty */
	store_close(f->store);
	assert_int_equal(store_open_existing(&f->store, f->folder, NULL, NULL), STATUS_OK);
}

static void read_text(const char *folder, const char *name, char out[STORE_ID_BYTES])
{
	char path[PATH_MAX], *text;
	size_t bytes;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(file_read(path, STORE_ID_BYTES, &text, &bytes, NULL), STATUS_OK);
	snprintf(out, STORE_ID_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
	free(text);
}

static void a_data_folder_keeps_its_identity_and_another_one_is_refused(void **state)
{
	fixture *f = *state;
	store *other;
	error err = ERROR_INIT;
	char folder[64], mine[STORE_ID_BYTES], others[STORE_ID_BYTES], again[STORE_ID_BYTES];
	folder_new(folder);
	assert_int_equal(store_open(&other, folder, NULL), STATUS_OK);
	store_close(other);
	read_text(f->folder, "identity", mine);
	read_text(folder, "identity", others);
	assert_string_not_equal(mine, others);
	assert_int_equal(store_open_existing(&other, folder, mine, &err), STATUS_STORAGE);
	assert_non_null(strstr(err.message, folder));
	assert_non_null(strstr(err.message, mine));
	assert_int_equal(store_open_existing(&other, folder, others, NULL), STATUS_OK);
	store_close(other);
	reopen(f);
	read_text(f->folder, "identity", again);
	assert_string_equal(mine, again);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void objects_deleted_during_a_backup_stay_deleted_after_a_restart_and_a_rebuild(void **state)
{
	fixture *f = *state;
	store_file file;
	char blob[PATH_MAX], path[PATH_MAX];
	add_file(f, &file, "a", "p", "x");
	store_blob_path(f->store, file.id, blob);
	int backup = begin_backup(f);
	assert_int_equal(store_file_delete(f->store, file.id, NULL), STATUS_OK);
	reopen(f);
	store_close(f->store);
	assert_int_equal(store_rebuild(&f->store, f->folder, NULL), STATUS_OK);
	assert_int_equal(store_file_get(f->store, file.id, &(store_file){0}, NULL), STATUS_NOT_FOUND);
	assert_int_equal(access(blob, F_OK), 0);
	snprintf(path, sizeof path, "%s/lost/file/%s", f->folder, file.id);
	assert_int_equal(access(path, F_OK), -1);
	close(backup);
	reopen(f);
	assert_int_equal(access(blob, F_OK), -1);
	assert_int_equal(access(path, F_OK), -1);
}

static void an_id_that_leaves_the_folder_is_not_found(void **state)
{
	static const char *const ids[] = {
	    "", ".", "..", "../ledger.sqlite", "/etc/passwd", "file-%2e%2e", "a/b", "' OR 1=1 --", "file-\n"};
	fixture *f = *state;
	store_file file;
	store_model model;
	json_t *job;
	char path[PATH_MAX];
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		assert_false(store_valid_name(ids[i]));
		assert_int_equal(store_file_get(f->store, ids[i], &file, NULL), STATUS_NOT_FOUND);
		assert_int_equal(store_file_delete(f->store, ids[i], NULL), STATUS_NOT_FOUND);
		assert_int_equal(store_model_get(f->store, ids[i], &model, NULL), STATUS_NOT_FOUND);
		assert_int_equal(store_model_delete(f->store, ids[i], NULL), STATUS_NOT_FOUND);
		assert_int_equal(store_job_get(f->store, ids[i], &job, NULL), STATUS_NOT_FOUND);
		assert_int_equal(store_session_delete(f->store, ids[i], NULL), STATUS_NOT_FOUND);
		assert_int_equal(store_session_path(f->store, ids[i], path, NULL), STATUS_OK);
		assert_string_equal(path, "");
		assert_int_equal(add_model(f, ids[i]), STATUS_INVALID);
	}
}

static void names_of_models_have_a_limited_length_and_alphabet(void **state)
{
	(void)state;
	char longest[65];
	memset(longest, 'a', sizeof longest);
	longest[63] = 0;
	assert_true(store_valid_name(longest));
	longest[63] = 'a', longest[64] = 0;
	assert_false(store_valid_name(longest));
	assert_true(store_valid_name("a"));
	assert_true(store_valid_name("ft:additive:my.model_2-x"));
	assert_false(store_valid_name("-rf"));
	assert_false(store_valid_name(".hidden"));
	assert_false(store_valid_name("ünï"));
	assert_false(store_valid_name("with space"));
}

static void a_model_cannot_be_added_twice(void **state)
{
	fixture *f = *state;
	store_model m;
	assert_int_equal(add_model(f, "m"), STATUS_OK);
	assert_int_equal(add_model(f, "m"), STATUS_CONFLICT);
	assert_int_equal(store_model_get(f->store, "m", &m, NULL), STATUS_OK);
	assert_string_equal(m.architecture, "additive");
	assert_int_equal(m.parameters, 7);
	assert_int_equal(store_model_delete(f->store, "m", NULL), STATUS_OK);
	assert_int_equal(add_model(f, "m"), STATUS_OK);
}

static void add_checkpoint(fixture *f, const char *id, int64_t step)
{
	char path[PATH_MAX];
	json_t *object = json_pack("{s:s}", "id", id);
	store_checkpoint_folder(f->store, "ftjob-1", step, path);
	assert_int_equal(file_make_folders(path, NULL), STATUS_OK);
	assert_int_equal(store_checkpoint_add(f->store, "ftjob-1", step, object, NULL), STATUS_OK);
	json_decref(object);
}

static void must_have_dtype(fixture *f, const char *id, const char *expected)
{
	char got[STORE_DTYPE_BYTES];
	assert_int_equal(store_dtype_get(f->store, id, got, NULL), STATUS_OK);
	assert_string_equal(got, expected);
}

static void a_dtype_is_kept_with_its_model_or_checkpoint(void **state)
{
	fixture *f = *state;
	char got[STORE_DTYPE_BYTES];
	assert_int_equal(add_model(f, "m"), STATUS_OK);
	assert_int_equal(add_model(f, "other"), STATUS_OK);
	add_checkpoint(f, "ckpt-1", 10);
	must_have_dtype(f, "m", "fp32");
	must_have_dtype(f, "ckpt-1", "fp32");
	assert_int_equal(store_dtype_put(f->store, "m", "int8", NULL), STATUS_OK);
	assert_int_equal(store_dtype_put(f->store, "ckpt-1", "bf16", NULL), STATUS_OK);
	reopen(f);
	must_have_dtype(f, "m", "int8");
	must_have_dtype(f, "other", "fp32");
	must_have_dtype(f, "ckpt-1", "bf16");
	add_checkpoint(f, "ckpt-1", 10); /* written again, as after a crash */
	must_have_dtype(f, "ckpt-1", "bf16");
	assert_int_equal(store_model_delete(f->store, "m", NULL), STATUS_OK);
	assert_int_equal(store_dtype_get(f->store, "m", got, NULL), STATUS_NOT_FOUND);
	assert_int_equal(store_dtype_put(f->store, "m", "int8", NULL), STATUS_NOT_FOUND);
	assert_int_equal(add_model(f, "m"), STATUS_OK);
	must_have_dtype(f, "m", "fp32");
}

static void a_job_is_replaced_by_its_next_version(void **state)
{
	fixture *f = *state;
	json_t *job = json_pack("{s:s, s:s}", "id", "ftjob-1", "status", "queued"), *got;
	assert_int_equal(store_job_put(f->store, "ftjob-1", "queued", job, NULL), STATUS_OK);
	json_object_set_new(job, "status", json_string("running"));
	assert_int_equal(store_job_put(f->store, "ftjob-1", "running", job, NULL), STATUS_OK);
	reopen(f);
	assert_int_equal(store_job_get(f->store, "ftjob-1", &got, NULL), STATUS_OK);
	assert_true(json_equal(got, job));
	json_decref(got);
	collected c = {0};
	bool more;
	store_page page = {.filter = "queued"};
	assert_int_equal(store_list(f->store, STORE_JOBS, &page, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 0);
	page.filter = "running";
	assert_int_equal(store_list(f->store, STORE_JOBS, &page, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 1);
	json_decref(job);
}

static void add_events(fixture *f, const char *job, int count)
{
	for (int i = 0; i < count; i++) {
		json_t *event = json_pack("{s:i}", "number", i);
		assert_int_equal(store_event_add(f->store, job, event, NULL), STATUS_OK);
		assert_non_null(json_object_get(event, "id"));
		json_decref(event);
	}
}

static void pages_cover_a_list_once_in_both_directions(void **state)
{
	fixture *f = *state;
	add_events(f, "ftjob-a", 7);
	add_events(f, "ftjob-b", 3);
	for (int ascending = 0; ascending < 2; ascending++) {
		char after[STORE_ID_BYTES] = "";
		int seen = 0;
		bool more = true;
		while (more) {
			collected c = {0};
			store_page page = {
			    .parent = "ftjob-a", .after = after[0] ? after : NULL, .limit = 3, .ascending = ascending};
			assert_int_equal(store_list(f->store, STORE_EVENTS, &page, collect, &c, &more, NULL),
			                 STATUS_OK);
			seen += c.count;
			assert_int_equal(more, seen < 7);
			strcpy(after, c.id[c.count - 1]);
		}
		assert_int_equal(seen, 7);
	}
}

static void a_page_after_an_unknown_or_foreign_row_is_not_found(void **state)
{
	fixture *f = *state;
	bool more;
	collected c = {0};
	add_events(f, "ftjob-a", 1);
	add_events(f, "ftjob-b", 1);
	store_page page = {.parent = "ftjob-b"};
	assert_int_equal(store_list(f->store, STORE_EVENTS, &page, collect, &c, &more, NULL), STATUS_OK);
	page.parent = "ftjob-a", page.after = c.id[0];
	assert_int_equal(store_list(f->store, STORE_EVENTS, &page, collect, &c, &more, NULL), STATUS_NOT_FOUND);
	page.after = "nonsense";
	assert_int_equal(store_list(f->store, STORE_EVENTS, &page, collect, &c, &more, NULL), STATUS_NOT_FOUND);
}

static void a_list_stops_when_its_reader_has_enough(void **state)
{
	fixture *f = *state;
	bool more;
	collected c = {.stop_after = 2};
	store_page page = {.parent = "ftjob-a"};
	add_events(f, "ftjob-a", 5);
	assert_int_equal(store_list(f->store, STORE_EVENTS, &page, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 2);
}

static void files_are_listed_by_purpose(void **state)
{
	fixture *f = *state;
	store_file a, b;
	bool more;
	collected c = {0};
	add_file(f, &a, "a", "fine-tune", "x");
	add_file(f, &b, "b", "other", "y");
	store_page page = {.filter = "other", .limit = 1};
	assert_int_equal(store_list(f->store, STORE_FILES, &page, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 1);
	assert_false(more);
	assert_string_equal(c.id[0], b.id);
}

static void a_checkpoint_disappears_with_its_folder(void **state)
{
	fixture *f = *state;
	char folder[PATH_MAX];
	json_t *object = json_pack("{s:s}", "id", "ckpt-1");
	store_checkpoint_folder(f->store, "ftjob-1", 20, folder);
	assert_int_equal(file_make_folders(folder, NULL), STATUS_OK);
	assert_int_equal(store_checkpoint_add(f->store, "ftjob-1", 20, object, NULL), STATUS_OK);
	assert_int_equal(store_checkpoint_add(f->store, "ftjob-1", 20, object, NULL), STATUS_OK);
	assert_int_equal(store_checkpoint_delete(f->store, "ftjob-1", 20, NULL), STATUS_OK);
	assert_int_equal(access(folder, F_OK), -1);
	assert_int_equal(store_checkpoint_delete(f->store, "ftjob-1", 20, NULL), STATUS_NOT_FOUND);
	json_decref(object);
}

static void a_sessions_document_and_state_change_together(void **state)
{
	fixture *f = *state;
	char first[PATH_MAX], second[PATH_MAX];
	void *blob;
	size_t bytes;
	json_t *object = json_pack("{s:s}", "id", "sess-1");
	assert_int_equal(save_session(f->store, object, "one", 3), STATUS_OK);
	assert_int_equal(store_session_path(f->store, "sess-1", first, NULL), STATUS_OK);
	assert_int_equal(save_session(f->store, object, "two\0x", 5), STATUS_OK);
	assert_int_equal(store_session_path(f->store, "sess-1", second, NULL), STATUS_OK);
	assert_string_not_equal(first, second);
	assert_int_equal(access(first, F_OK), -1);
	reopen(f);
	assert_int_equal(store_session_read(second, "sess-1", &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(bytes, 5);
	assert_memory_equal(blob, "two\0x", 5);
	free(blob);
	assert_int_equal(store_session_delete(f->store, "sess-1", NULL), STATUS_OK);
	assert_int_equal(access(second, F_OK), -1);
	json_decref(object);
}

static void opening_unlinks_only_temporary_files_and_moves_strays_to_lost(void **state)
{
	static const char *const temporary[] = {"tmp/1", "jobs/ftjob-1/step-20.tmp-a1B2c3",
	                                        "jobs/ftjob-1/job.json.tmp-abcdef", "sessions/sess-1.7.tmp-000000"};
	static const struct {
		const char *at, *kept;
	} strays[] = {
	    {"blobs/file-1", "lost/file/file-1"},           {"models/half", "lost/model/half"},
	    {"adapters/half", "lost/adapter/half"},
	    {"jobs/ftjob-9", "lost/job/ftjob-9"},           {"jobs/ftjob-1/step-3", "lost/checkpoint/ftjob-1.step-3"},
	    {"sessions/sess-1.7", "lost/session/sess-1.7"}, {"sessions/sess-2.1", "lost/session/sess-2.1"}};
	fixture *f = *state;
	store_file kept;
	char name[PATH_MAX];
	add_one_of_each(f, &kept);
	for (size_t i = 0; i < sizeof temporary / sizeof *temporary; i++) {
		snprintf(name, sizeof name, "%s/x", temporary[i]);
		put_text(f, name, "x");
	}
	for (int again = 0; again < 2; again++) { /* the second time, the names in lost/ already exist */
		for (size_t i = 0; i < sizeof strays / sizeof *strays; i++)
			put_text(f, strays[i].at, "x");
		log_init("test", LOG_ERROR);
		reopen(f);
		for (size_t i = 0; i < sizeof temporary / sizeof *temporary; i++)
			must_exist(f, temporary[i], false);
		for (size_t i = 0; i < sizeof strays / sizeof *strays; i++) {
			must_exist(f, strays[i].at, false);
			snprintf(name, sizeof name, "%s%s", strays[i].kept, again ? "~1" : "");
			must_exist(f, name, true);
		}
		must_have_one_of_each(f, &kept);
		count_damaged(f, 0);
	}
}

static void a_finished_checkpoint_without_a_row_is_kept_after_a_crash(void **state)
{
	fixture *f = *state;
	store_file kept;
	char folder[PATH_MAX];
	json_t *checkpoint = json_pack("{s:s, s:i}", "id", "ckpt-30", "step_number", 30);
	add_one_of_each(f, &kept);
	put_text(f, "jobs/ftjob-1/step-30/config.json", "{}");
	store_checkpoint_folder(f->store, "ftjob-1", 30, folder);
	assert_int_equal(store_checkpoint_seal(folder, checkpoint, NULL), STATUS_OK);
	json_decref(checkpoint);
	reopen(f);
	assert_int_equal(store_check_blob(f->store, STORE_CHECKPOINTS, "ckpt-30", true, NULL), STATUS_OK);
	must_have_dtype(f, "ckpt-30", "fp32");
}

static void deleted_objects_do_not_come_back(void **state)
{
	fixture *f = *state;
	store_file file;
	add_one_of_each(f, &file);
	assert_int_equal(store_model_delete(f->store, "m", NULL), STATUS_OK);
	assert_int_equal(store_adapter_delete(f->store, "adapter-1", NULL), STATUS_OK);
	assert_int_equal(store_adapter_delete(f->store, "adapter-1", NULL), STATUS_NOT_FOUND);
	assert_int_equal(store_job_delete(f->store, "ftjob-1", NULL), STATUS_OK);
	assert_int_equal(store_session_delete(f->store, "sess-1", NULL), STATUS_OK);
	assert_int_equal(store_file_delete(f->store, file.id, NULL), STATUS_OK);
	store_close(f->store);
	assert_int_equal(store_rebuild(&f->store, f->folder, NULL), STATUS_OK);
	static const store_table tables[] = {STORE_FILES,       STORE_MODELS,   STORE_JOBS,     STORE_EVENTS,
	                                     STORE_CHECKPOINTS, STORE_SESSIONS, STORE_RESPONSES, STORE_ADAPTERS};
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
		collected c = {0};
		bool more;
		assert_int_equal(store_list(f->store, tables[i], &(store_page){0}, collect, &c, &more, NULL),
		                 STATUS_OK);
		assert_int_equal(c.count, 0);
	}
	must_exist(f, "models/m", false);
	must_exist(f, "adapters/adapter-1", false);
	must_exist(f, "jobs/ftjob-1", false);
	must_exist(f, "lost/model", false);
}

static void a_response_has_its_latest_document_until_it_is_deleted(void **state)
{
	fixture *f = *state;
	json_t *first = json_pack("{s:s, s:i}", "id", "resp_1", "x", 1), *second = json_pack("{s:s}", "id", "resp_1");
	collected c = {0};
	bool more;
	assert_int_equal(store_response_put(f->store, "../resp", first, NULL), STATUS_INVALID);
	assert_int_equal(store_response_put(f->store, "resp_1", first, NULL), STATUS_OK);
	assert_int_equal(store_response_put(f->store, "resp_1", second, NULL), STATUS_OK);
	json_decref(first);
	json_decref(second);
	reopen(f);
	assert_int_equal(store_list(f->store, STORE_RESPONSES, &(store_page){0}, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 1);
	assert_int_equal(store_response_delete(f->store, "resp_1", NULL), STATUS_OK);
	assert_int_equal(store_response_delete(f->store, "resp_1", NULL), STATUS_OK);
	reopen(f);
	c = (collected){0};
	assert_int_equal(store_list(f->store, STORE_RESPONSES, &(store_page){0}, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 0);
}

static void a_rolled_back_deletion_unlinks_nothing(void **state)
{
	fixture *f = *state;
	store_file file;
	add_one_of_each(f, &file);
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(store_model_delete(f->store, "m", NULL), STATUS_OK);
	json_t *session = json_pack("{s:s}", "id", "sess-1");
	assert_int_equal(save_session(f->store, session, "t", 1), STATUS_OK);
	json_decref(session);
	store_rollback(f->store);
	must_have_one_of_each(f, &file);
	reopen(f);
	must_have_one_of_each(f, &file);
}

static void an_inner_commit_fails_alone(void **state)
{
	fixture *f = *state;
	json_t *event = json_pack("{s:s}", "message", "a");
	collected c = {0};
	bool more;
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(store_event_add(f->store, "ftjob-1", event, NULL), STATUS_OK);
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(store_event_add(f->store, "ftjob-1", event, NULL), STATUS_OK);
	assert_int_equal(store_end(f->store, STATUS_INVALID, NULL), STATUS_INVALID);
	assert_int_equal(store_end(f->store, STATUS_OK, NULL), STATUS_OK);
	json_decref(event);
	reopen(f);
	assert_int_equal(store_list(f->store, STORE_EVENTS, &(store_page){0}, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 1);
}

/* As after a read error, for which SQLite rolls back the transaction: releasing a savepoint would then commit. */
static void nothing_is_written_in_a_commit_that_has_ended_by_itself(void **state)
{
	fixture *f = *state;
	json_t *event = json_pack("{s:s}", "message", "a");
	collected c = {0};
	bool more;
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	assert_int_equal(sqlite3_exec(f->store->db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(store_begin(f->store, NULL), STATUS_IO);
	assert_int_equal(store_event_add(f->store, "ftjob-1", event, NULL), STATUS_IO);
	assert_int_not_equal(store_end(f->store, STATUS_OK, NULL), STATUS_OK);
	assert_int_equal(store_list(f->store, STORE_EVENTS, &(store_page){0}, collect, &c, &more, NULL), STATUS_OK);
	assert_int_equal(c.count, 0);
	assert_int_equal(store_event_add(f->store, "ftjob-1", event, NULL), STATUS_OK);
	json_decref(event);
}

static void a_folder_in_use_cannot_be_opened_again(void **state)
{
	fixture *f = *state;
	store *second;
	assert_int_equal(store_open(&second, f->folder, NULL), STATUS_CONFLICT);
	assert_null(second);
}

static void a_ledger_of_a_newer_program_is_refused_and_unchanged(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	sqlite3 *db;
	store *refused;
	store_close(f->store);
	f->store = NULL;
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->folder);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(
	    sqlite3_exec(db, "PRAGMA user_version=1000; PRAGMA application_id=182256616", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	assert_int_equal(store_open(&refused, f->folder, NULL), STATUS_UNSUPPORTED);
	assert_null(refused);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(a_file_is_complete_after_reopening),
	    CASE(a_deleted_file_is_gone_with_its_blob),
	    CASE(a_model_added_again_under_a_deleted_name_survives_the_sweep),
	    CASE(commits_together_wait_for_a_locked_ledger_for_a_bounded_time),
	    CASE(a_tick_during_a_backup_does_not_end_the_retries),
	    CASE(a_sweep_that_cannot_begin_is_a_problem_until_one_begins),
	    CASE(a_truncated_ledger_is_a_problem),
	    CASE(a_read_only_disk_is_a_problem),
	    CASE(a_data_folder_that_must_exist_is_not_created),
	    CASE(a_data_folder_keeps_its_identity_and_another_one_is_refused),
	    CASE(objects_deleted_during_a_backup_stay_deleted_after_a_restart_and_a_rebuild),
	    CASE(an_id_that_leaves_the_folder_is_not_found),
	    CASE(names_of_models_have_a_limited_length_and_alphabet),
	    CASE(a_model_cannot_be_added_twice),
	    CASE(a_dtype_is_kept_with_its_model_or_checkpoint),
	    CASE(a_job_is_replaced_by_its_next_version),
	    CASE(pages_cover_a_list_once_in_both_directions),
	    CASE(a_page_after_an_unknown_or_foreign_row_is_not_found),
	    CASE(a_list_stops_when_its_reader_has_enough),
	    CASE(files_are_listed_by_purpose),
	    CASE(a_checkpoint_disappears_with_its_folder),
	    CASE(a_sessions_document_and_state_change_together),
	    CASE(opening_unlinks_only_temporary_files_and_moves_strays_to_lost),
	    CASE(a_finished_checkpoint_without_a_row_is_kept_after_a_crash),
	    CASE(deleted_objects_do_not_come_back),
	    CASE(a_response_has_its_latest_document_until_it_is_deleted),
	    CASE(a_rolled_back_deletion_unlinks_nothing),
	    CASE(an_inner_commit_fails_alone),
	    CASE(nothing_is_written_in_a_commit_that_has_ended_by_itself),
	    CASE(a_folder_in_use_cannot_be_opened_again),
	    CASE(a_ledger_of_a_newer_program_is_refused_and_unchanged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
