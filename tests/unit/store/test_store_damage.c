/* Damage to the data folder: at most the damaged object is lost, it is named, and nothing is deleted. */
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/base/manifest.h"
#include "tests/unit/store/fixture.h"

static const char *at(const fixture *f, const char *name)
{
	static char path[4][PATH_MAX];
	static int turn;
	turn = (turn + 1) % 4;
	snprintf(path[turn], PATH_MAX, "%s/%s", f->folder, name);
	return path[turn];
}

static char *read_all(const char *path, size_t *bytes)
{
	char *data;
	assert_int_equal(file_read(path, 64 << 20, &data, bytes, NULL), STATUS_OK);
	return data;
}

static void write_all(const char *path, const void *data, size_t bytes)
{
	assert_int_equal(file_write(path, &(file_part){data, bytes}, 1, NULL), STATUS_OK);
}

static void flip(const char *path, size_t byte, int bit)
{
	FILE *f = fopen(path, "r+b");
	assert_non_null(f);
	fseek(f, (long)byte, SEEK_SET);
	int c = fgetc(f);
	fseek(f, (long)byte, SEEK_SET);
	fputc(c ^ 1 << bit, f);
	fclose(f);
}

static size_t size_of(const char *path)
{
	struct stat st;
	assert_int_equal(stat(path, &st), 0);
	return (size_t)st.st_size;
}

static void add_events(fixture *f, int n)
{
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	for (int i = 0; i < n; i++) {
		json_t *event = json_pack("{s:s, s:i}", "message",
		                          "a metrics event of some length, as a job writes many", "step", i);
		assert_int_equal(store_event_add(f->store, "ftjob-1", event, NULL), STATUS_OK);
		json_decref(event);
	}
	assert_int_equal(store_commit(f->store, NULL), STATUS_OK);
}

static void close_it(fixture *f)
{
	store_close(f->store);
	f->store = NULL;
}

static void open_it(fixture *f)
{
	error err = ERROR_INIT;
	if (store_open(&f->store, f->folder, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
}

static bool count_one(void *context, const json_t *object)
{
	(void)object;
	++*(int *)context;
	return true;
}

static int count_rows(fixture *f, store_table table)
{
	int n = 0;
	bool more;
	assert_int_equal(store_list(f->store, table, &(store_page){0}, count_one, &n, &more, NULL), STATUS_OK);
	return n;
}

/* --- the ledger -------------------------------------------------------------------------- */

enum { EVENTS = 300, FLIPS = 120 };

static void a_flipped_bit_in_the_ledger_loses_at_most_events(void **state)
{
	fixture *f = *state;
	store_file file;
	size_t bytes;
	int whole = 0;
	log_init("test", LOG_ERROR + 1);
	add_one_of_each(f, &file);
	add_events(f, EVENTS);
	close_it(f);
	char *ledger = read_all(at(f, "ledger.sqlite"), &bytes);
	srandom(7);
	for (int i = 0; i < FLIPS; i++) {
		size_t byte =
		    i < 60 ? 16 + (size_t)i : (size_t)random() % bytes; /* more of the flips are in the header */
		flip(at(f, "ledger.sqlite"), byte, (int)(random() % 8));
		open_it(f);
		must_have_one_of_each(f, &file);
		whole += count_rows(f, STORE_EVENTS) == EVENTS + 1;
		close_it(f);
		must_exist(f, "models/m/config.json", true);
		must_exist(f, "lost/model", false);
		write_all(at(f, "ledger.sqlite"), ledger, bytes);
		file_remove_tree(at(f, "lost"), NULL);
	}
	assert_true(whole > FLIPS / 2);
	free(ledger);
	open_it(f);
}

static void a_truncated_ledger_is_rebuilt_from_the_blobs(void **state)
{
	fixture *f = *state;
	store_file file;
	size_t bytes;
	log_init("test", LOG_ERROR + 1);
	add_one_of_each(f, &file);
	add_events(f, EVENTS);
	close_it(f);
	char *ledger = read_all(at(f, "ledger.sqlite"), &bytes);
	const size_t lengths[] = {1, 99, 4096, 5000, bytes / 2, bytes - 4096, bytes - 1};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		write_all(at(f, "ledger.sqlite"), ledger, lengths[i]);
		open_it(f);
		must_have_one_of_each(f, &file);
		must_exist(f, "lost/ledger", true);
		must_exist(f, "lost/model", false);
		close_it(f);
	}
	free(ledger);
	open_it(f);
}

static void a_missing_or_empty_ledger_beside_blobs_is_refused_with_advice(void **state)
{
	fixture *f = *state;
	store_file file;
	add_one_of_each(f, &file);
	close_it(f);
	for (int empty = 0; empty < 2; empty++) {
		error err = ERROR_INIT;
		unlink(at(f, "ledger.sqlite"));
		if (empty)
			write_all(at(f, "ledger.sqlite"), "", 0);
		assert_int_equal(store_open(&f->store, f->folder, &err), STATUS_STORAGE);
		assert_null(f->store);
		assert_non_null(strstr(err.message, "1 models, 1 jobs, 1 files and 1 session states"));
		assert_non_null(strstr(err.message, "additive fsck --rebuild"));
		assert_int_equal(store_rebuild(&f->store, f->folder, NULL), STATUS_OK);
		must_have_one_of_each(f, &file);
		close_it(f);
	}
	open_it(f);
	must_have_one_of_each(f, &file);
}

/* An earlier ledger is put back: newer objects have no row. */
static void an_older_ledger_loses_no_blob(void **state)
{
	fixture *f = *state;
	store_file file, newer;
	size_t bytes;
	log_init("test", LOG_ERROR + 1);
	add_one_of_each(f, &file);
	close_it(f);
	char *ledger = read_all(at(f, "ledger.sqlite"), &bytes);
	open_it(f);
	json_t *session = json_pack("{s:s}", "id", "sess-1"), *checkpoint = json_pack("{s:s}", "id", "ckpt-30");
	add_file(f, &newer, "b", "p", "newer");
	assert_int_equal(add_model(f, "newer"), STATUS_OK);
	assert_int_equal(save_session(f->store, session, "s", 1), STATUS_OK);
	put_text(f, "jobs/ftjob-1/step-30/config.json", "{}");
	assert_int_equal(store_checkpoint_add(f->store, "ftjob-1", 30, checkpoint, NULL), STATUS_OK);
	json_decref(session);
	json_decref(checkpoint);
	close_it(f);
	write_all(at(f, "ledger.sqlite"), ledger, bytes);
	free(ledger);
	open_it(f);
	must_have_one_of_each(f, &file); /* the session continues from its newer state */
	assert_int_equal(store_check_blob(f->store, STORE_CHECKPOINTS, "ckpt-30", true, NULL), STATUS_OK);
	must_exist(f, "lost/model/newer/config.json", true);
	char kept[128];
	snprintf(kept, sizeof kept, "lost/file/%s", newer.id);
	must_exist(f, kept, true);
}

/* --- the log -------------------------------------------------------------------------------- */

/* A child opens the store, adds a model and a session, and is killed: its writes are in the log. */
static void leave_a_log(fixture *f)
{
	pid_t pid = fork();
	if (pid == 0) {
		json_t *session = json_pack("{s:s}", "id", "sess-1");
		bool ok = store_open(&f->store, f->folder, NULL) == STATUS_OK && add_model(f, "newer") == STATUS_OK &&
		          save_session(f->store, session, "s", 1) == STATUS_OK;
		_exit(ok ? 0 : 1);
	}
	int how;
	waitpid(pid, &how, 0);
	assert_int_equal(how, 0);
}

static void a_damaged_log_loses_no_blob_and_no_earlier_row(void **state)
{
	fixture *f = *state;
	store_file file;
	log_init("test", LOG_ERROR + 1);
	add_one_of_each(f, &file);
	close_it(f);
	srandom(9);
	for (int i = 0; i < 24; i++) {
		leave_a_log(f);
		const char *log = at(f, "ledger.sqlite-wal");
		size_t bytes = size_of(log);
		assert_true(bytes > 4096);
		if (i == 0)
			unlink(log);
		else if (i == 1)
			assert_int_equal(truncate(log, 0), 0);
		else if (i < 8)
			assert_int_equal(truncate(log, (off_t)((size_t)random() % bytes)), 0);
		else
			flip(log, (size_t)random() % bytes, (int)(random() % 8));
		open_it(f);
		must_have_one_of_each(f, &file);
		store_model m;
		bool known = store_model_get(f->store, "newer", &m, NULL) == STATUS_OK;
		must_exist(f, known ? "models/newer/config.json" : "lost/model/newer/config.json", true);
		if (known)
			assert_int_equal(store_model_delete(f->store, "newer", NULL), STATUS_OK);
		close_it(f);
		file_remove_tree(at(f, "lost"), NULL);
	}
	open_it(f);
}

static void the_log_is_emptied_often(void **state)
{
	fixture *f = *state;
	store_file file;
	add_one_of_each(f, &file);
	assert_true(size_of(at(f, "ledger.sqlite-wal")) > 0);
	store_tick(f->store);
	assert_int_equal(size_of(at(f, "ledger.sqlite-wal")), 0);
}

/* --- blobs and manifests ----------------------------------------------------------------------- */

typedef enum damage { MISSING, EMPTY, TRUNCATED, FLIPPED, OLDER, DAMAGES } damage;

static void harm(const char *path, damage how, const char *older)
{
	size_t bytes = size_of(path);
	if (how == MISSING)
		assert_int_equal(unlink(path), 0);
	else if (how == EMPTY)
		assert_int_equal(truncate(path, 0), 0);
	else if (how == TRUNCATED)
		assert_int_equal(truncate(path, (off_t)bytes - 1), 0);
	else if (how == FLIPPED)
		flip(path, bytes / 2, 3);
	else
		write_all(path, older, strlen(older));
}

typedef struct target {
	store_table table;
	const char *id, *path;
	bool manifest; /* the ledger has a copy of this file, so nothing is lost */
} target;

static void only_the_damaged_object_is_lost_and_it_is_named(void **state)
{
	fixture *f = *state;
	store_file file;
	log_init("test", LOG_ERROR + 1);
	for (damage how = 0; how < DAMAGES; how++) {
		for (int i = 0; i < 10; i++) {
			file_remove_tree(f->folder, NULL);
			close_it(f);
			open_it(f);
			add_one_of_each(f, &file);
			char blob[128], beside[160];
			snprintf(blob, sizeof blob, "blobs/%s", file.id);
			snprintf(beside, sizeof beside, "%s" MANIFEST_SUFFIX, blob);
			const target targets[10] = {
			    {STORE_FILES, file.id, blob, false},
			    {STORE_FILES, file.id, beside, true},
			    {STORE_MODELS, "m", "models/m/config.json", false},
			    {STORE_MODELS, "m", "models/m/" MANIFEST_NAME, true},
			    {STORE_ADAPTERS, "adapter-1", "adapters/adapter-1/adapter.safetensors", false},
			    {STORE_ADAPTERS, "adapter-1", "adapters/adapter-1/" MANIFEST_NAME, true},
			    {STORE_CHECKPOINTS, "ckpt-20", "jobs/ftjob-1/step-20/config.json", false},
			    {STORE_CHECKPOINTS, "ckpt-20", "jobs/ftjob-1/step-20/" MANIFEST_NAME, true},
			    {STORE_SESSIONS, "sess-1", "sessions/sess-1.1", false},
			    {STORE_JOBS, "ftjob-1", "jobs/ftjob-1/job.json", true},
			};
			const target *t = &targets[i];
			close_it(f);
			harm(at(f, t->path), how, "{\"older\":1}");
			open_it(f);
			if (t->manifest) {
				must_have_one_of_each(f, &file);
				close_it(f);
				open_it(f);
				count_damaged(f, 0);
				continue;
			}
			error err = ERROR_INIT;
			status s;
			if (t->table == STORE_SESSIONS) {
				char path[PATH_MAX];
				void *data;
				size_t bytes;
				assert_int_equal(store_session_path(f->store, "sess-1", path, NULL), STATUS_OK);
				s = store_session_read(path, "sess-1", &data, &bytes, &err);
			} else {
				s = store_check_blob(f->store, t->table, t->id, true, &err);
			}
			if (s != STATUS_STORAGE)
				fail_msg("damage %d of %s: %s", how, t->path, status_name(s));
			if (t->table != STORE_SESSIONS) /* only reading the state detects it */
				count_damaged(f, 1);
			/* Everything else is undamaged. */
			if (t->table != STORE_MODELS)
				assert_int_equal(store_check_blob(f->store, STORE_MODELS, "m", true, NULL), STATUS_OK);
			if (t->table != STORE_FILES)
				assert_int_equal(store_file_check(f->store, file.id, NULL), STATUS_OK);
			if (t->table != STORE_CHECKPOINTS)
				assert_int_equal(store_check_blob(f->store, STORE_CHECKPOINTS, "ckpt-20", true, NULL),
				                 STATUS_OK);
		}
	}
}

/* A made-up version would be the name of a state that counts. */
static void no_state_is_written_for_a_session_whose_row_cannot_be_read(void **state)
{
	fixture *f = *state;
	store_file file;
	char path[PATH_MAX] = "x";
	int64_t version;
	sqlite3 *db;
	log_init("test", LOG_ERROR + 1);
	add_one_of_each(f, &file);
	assert_int_equal(sqlite3_open(at(f, "ledger.sqlite"), &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "UPDATE objects SET digest=0 WHERE kind='session'", NULL, NULL, NULL),
	                 SQLITE_OK);
	sqlite3_close(db);
	assert_int_equal(store_session_next(f->store, "sess-1", &version, path, NULL), STATUS_STORAGE);
	assert_string_equal(path, "");
	assert_int_equal(store_session_path(f->store, "sess-1", path, NULL), STATUS_STORAGE);
	must_exist(f, "sessions/sess-1.1", true);
	close_it(f);
	open_it(f); /* the row is restored from the state */
	must_have_one_of_each(f, &file);
}

/* --- while it runs ---------------------------------------------------------------------------------- */

static void a_folder_that_disappears_is_a_named_problem(void **state)
{
	fixture *f = *state;
	log_init("test", LOG_ERROR + 1);
	assert_null(store_problem(f->store));
	assert_int_equal(rename(at(f, "models"), at(f, "elsewhere")), 0);
	assert_non_null(strstr(store_problem(f->store), "a folder of the data folder is missing"));
	assert_int_equal(rename(at(f, "elsewhere"), at(f, "models")), 0);
	assert_null(store_problem(f->store));
	assert_int_equal(rename(at(f, "ledger.sqlite"), at(f, "elsewhere")), 0);
	assert_non_null(strstr(store_problem(f->store), "the ledger is missing"));
	write_text(at(f, "ledger.sqlite"), "x");
	assert_non_null(strstr(store_problem(f->store), "the ledger was replaced by another file"));
	assert_int_equal(rename(at(f, "elsewhere"), at(f, "ledger.sqlite")), 0);
	assert_null(store_problem(f->store));
}

static void no_write_is_acknowledged_when_the_ledger_is_missing(void **state)
{
	fixture *f = *state;
	json_t *job = json_pack("{s:s}", "id", "ftjob-1");
	error err = ERROR_INIT;
	log_init("test", LOG_ERROR + 1);
	assert_int_equal(rename(at(f, "ledger.sqlite"), at(f, "elsewhere")), 0);
	assert_int_equal(store_job_put(f->store, "ftjob-1", "queued", job, &err), STATUS_STORAGE);
	assert_int_equal(store_begin(f->store, NULL), STATUS_STORAGE);
	assert_int_equal(rename(at(f, "elsewhere"), at(f, "ledger.sqlite")), 0);
	assert_int_equal(store_job_put(f->store, "ftjob-1", "queued", job, NULL), STATUS_OK);
	json_decref(job);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(a_flipped_bit_in_the_ledger_loses_at_most_events),
	    CASE(a_truncated_ledger_is_rebuilt_from_the_blobs),
	    CASE(a_missing_or_empty_ledger_beside_blobs_is_refused_with_advice),
	    CASE(an_older_ledger_loses_no_blob),
	    CASE(a_damaged_log_loses_no_blob_and_no_earlier_row),
	    CASE(the_log_is_emptied_often),
	    CASE(only_the_damaged_object_is_lost_and_it_is_named),
	    CASE(no_state_is_written_for_a_session_whose_row_cannot_be_read),
	    CASE(a_folder_that_disappears_is_a_named_problem),
	    CASE(no_write_is_acknowledged_when_the_ledger_is_missing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
