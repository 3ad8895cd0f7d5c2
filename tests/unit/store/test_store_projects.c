/* Lists of one project read no rows of another one, also after an upgrade from the first version of the ledger. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "engine/store/store_private.h"
#include "tests/unit/store/fixture.h"
#include "tests/unit/support/disk.h"

enum { OTHERS = 2000, OWN = 5, SPARE_STEPS = 200, EVERY = 100, UPGRADED = 200 };

/* Takes the ledger back to version 1, without the column. */
static const char downgrade[] = "DROP INDEX objects_project; ALTER TABLE objects DROP COLUMN project;"
                                "PRAGMA user_version=1; PRAGMA application_id=182255617;";

/* Add responses PROJECT-0, PROJECT-1, … of a project; NULL: the default. */
static void add_responses(fixture *f, const char *project, int n)
{
	char id[32];
	assert_int_equal(store_begin(f->store, NULL), STATUS_OK);
	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof id, "%s-%d", project ? project : "none", i);
		json_t *document = json_pack("{s:s, s:s*}", "id", id, "project", project);
		assert_int_equal(store_response_put(f->store, id, document, NULL), STATUS_OK);
		json_decref(document);
	}
	assert_int_equal(store_commit(f->store, NULL), STATUS_OK);
}

static bool count_row(void *context, const json_t *object)
{
	(void)object;
	++*(int *)context;
	return true;
}

static int count_responses(const fixture *f, const char *project)
{
	int n = 0;
	bool more;
	const store_page page = {.project = project};
	assert_int_equal(store_list(f->store, STORE_RESPONSES, &page, count_row, &n, &more, NULL), STATUS_OK);
	return n;
}

/* --- the work of a statement -------------------------------------------------- */

static int add_steps(unsigned event, void *context, void *statement, void *time)
{
	(void)event;
	(void)time;
	*(int64_t *)context += sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 0);
	return 0;
}

/* Steps of SQLite's machine for one page of the project "small" after the row `after`, and for the bytes of its files.
 */
static int64_t steps_of_lists(const fixture *f, const char *after, const char *filter)
{
	int64_t steps = 0, bytes;
	for (int ascending = 0; ascending < 2; ascending++) {
		int n = 0;
		bool more;
		const store_page page = {
		    .project = "small", .after = after, .filter = filter, .limit = 100, .ascending = ascending};
		sqlite3_trace_v2(f->store->db, SQLITE_TRACE_PROFILE, add_steps, &steps);
		assert_int_equal(store_list(f->store, STORE_RESPONSES, &page, count_row, &n, &more, NULL), STATUS_OK);
		sqlite3_trace_v2(f->store->db, 0, NULL, NULL);
		assert_int_equal(n, after ? OWN - 1 - (ascending ? 0 : OWN - 1) : OWN);
	}
	sqlite3_trace_v2(f->store->db, SQLITE_TRACE_PROFILE, add_steps, &steps);
	assert_int_equal(store_file_bytes(f->store, "small", &bytes, NULL), STATUS_OK);
	sqlite3_trace_v2(f->store->db, 0, NULL, NULL);
	assert_true(steps > 0);
	return steps;
}

static void a_list_of_one_project_reads_no_rows_of_another(void **state)
{
	fixture *f = *state;
	store_file file;
	add_file(f, &file, "a", "fine-tune", "text");
	add_responses(f, "small", OWN);
	const int64_t first = steps_of_lists(f, NULL, NULL), next = steps_of_lists(f, "small-0", NULL),
	              filtered = steps_of_lists(f, NULL, "");
	add_responses(f, "large", OTHERS);
	add_responses(f, NULL, OTHERS);
	for (int i = 0; i < 20; i++)
		add_file(f, &file, "a", "fine-tune", "text");
	assert_true(steps_of_lists(f, NULL, NULL) <= first + SPARE_STEPS);
	assert_true(steps_of_lists(f, "small-0", NULL) <= next + SPARE_STEPS);
	assert_true(steps_of_lists(f, NULL, "") <= filtered + SPARE_STEPS);
	assert_int_equal(count_responses(f, "large"), OTHERS);
	assert_int_equal(count_responses(f, ""), OTHERS);
	assert_int_equal(count_responses(f, NULL), 2 * OTHERS + OWN);
	assert_int_equal(count_responses(f, "none"), 0);
}

static void a_row_is_listed_under_the_project_of_its_latest_document(void **state)
{
	fixture *f = *state;
	add_responses(f, "small", 1);
	json_t *moved = json_pack("{s:s, s:s}", "id", "small-0", "project", "default");
	assert_int_equal(store_response_put(f->store, "small-0", moved, NULL), STATUS_OK);
	json_decref(moved);
	assert_int_equal(count_responses(f, "small"), 0);
	assert_int_equal(count_responses(f, ""), 1);
}

/* --- from version 1 ------------------------------------------------------------- */

static void make_version_1(fixture *f, const char *change)
{
	json_t *named = json_pack("{s:s, s:s}", "id", "named", "project", "default");
	add_responses(f, "small", UPGRADED);
	add_responses(f, NULL, UPGRADED);
	assert_int_equal(store_response_put(f->store, "named", named, NULL), STATUS_OK);
	json_decref(named);
	assert_int_equal(sqlite3_exec(f->store->db, downgrade, NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_exec(f->store->db, change, NULL, NULL, NULL), SQLITE_OK);
	store_close(f->store);
	f->store = NULL;
}

static void must_be_upgraded(const fixture *f, bool copied)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/lost/ledger", f->folder);
	assert_int_equal(access(path, F_OK) == 0, copied);
	assert_int_equal(count_responses(f, "small"), UPGRADED);
	assert_int_equal(count_responses(f, ""), UPGRADED + 1);
	assert_int_equal(count_responses(f, NULL), 2 * UPGRADED + 1);
}

static void a_ledger_of_version_1_gets_its_projects(void **state)
{
	fixture *f = *state;
	log_init("test", LOG_ERROR + 1);
	make_version_1(f, "");
	assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
	must_be_upgraded(f, false);
	reopen(f);
	must_be_upgraded(f, false);
}

/* Its rows are copied into a new ledger, after the upgrade and without one. */
static void a_damaged_ledger_of_version_1_gets_its_projects(void **state)
{
	fixture *f = *state;
	static const char *const changes[] = {"INSERT INTO objects SELECT 1000, kind, 'odd', parent, number, state, "
	                                      "bytes, '{\"project\": ', manifest, digest"
	                                      " FROM objects LIMIT 1",
	                                      "PRAGMA application_id=1"};
	log_init("test", LOG_ERROR + 1);
	for (int i = 0; i < 2; i++) {
		if (i > 0)
			reopen(f);
		make_version_1(f, changes[i]);
		assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
		must_be_upgraded(f, true);
	}
}

static int kill_after; /* calls of kill_at_last */

static int kill_at_last(void *context)
{
	(void)context;
	if (--kill_after == 0)
		raise(SIGKILL);
	return 0;
}

static int count_work(sqlite3 *db, char **message, const struct sqlite3_api_routines *api)
{
	(void)message;
	(void)api;
	sqlite3_progress_handler(db, EVERY, kill_at_last, NULL);
	return SQLITE_OK;
}

/* Open the store in a process that is killed after `n` times EVERY steps of SQLite. True: it was killed. */
static bool killed_in_opening(const fixture *f, int n)
{
	int how;
	const pid_t pid = fork();
	if (pid == 0) {
		store *s;
		kill_after = n;
		sqlite3_auto_extension((void (*)(void))count_work);
		_exit(store_open(&s, f->folder, NULL) == STATUS_OK ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &how, 0), pid);
	assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) == 0);
	return WIFSIGNALED(how);
}

static void an_upgrade_that_is_killed_is_completed_by_the_next_start(void **state)
{
	fixture *f = *state;
	char path[PATH_MAX];
	int n = 1;
	bool killed = true;
	log_init("test", LOG_ERROR + 1);
	make_version_1(f, "");
	snprintf(path, sizeof path, "%s/ledger.sqlite", f->folder);
	char *old;
	size_t bytes;
	assert_int_equal(file_read(path, 64 << 20, &old, &bytes, NULL), STATUS_OK);
	for (; killed; n += 1 + n / 16) {
		assert_int_equal(file_write(path, &(file_part){old, bytes}, 1, NULL), STATUS_OK);
		killed = killed_in_opening(f, n);
		assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
		must_be_upgraded(f, false);
		store_close(f->store);
		f->store = NULL;
	}
	free(old);
	assert_true(n > 20);
	assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
}

/* In place of the C library's: the disk has room once the reserve is removed. */
int unlink(const char *path)
{
	const size_t bytes = strlen(path), name = strlen("/reserve");
	if (bytes > name && strcmp(path + bytes - name, "/reserve") == 0)
		disk_fail(NULL, 0);
	return unlinkat(AT_FDCWD, path, 0);
}

static void an_upgrade_on_a_full_disk_uses_the_reserve(void **state)
{
	static const char *const ledger[] = {"/ledger.sqlite", NULL};
	fixture *f = *state;
	error err = ERROR_INIT;
	add_responses(f, "small", OWN);
	assert_int_equal(sqlite3_exec(f->store->db, downgrade, NULL, NULL, NULL), SQLITE_OK);
	store_close(f->store);
	f->store = NULL;
	must_exist(f, "reserve", true);
	disk_fail(ledger, ENOSPC);
	if (store_open(&f->store, f->folder, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(count_responses(f, "small"), OWN);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(a_list_of_one_project_reads_no_rows_of_another),
	    CASE(a_row_is_listed_under_the_project_of_its_latest_document),
	    CASE(a_ledger_of_version_1_gets_its_projects),
	    CASE(a_damaged_ledger_of_version_1_gets_its_projects),
	    CASE(an_upgrade_that_is_killed_is_completed_by_the_next_start),
	    CASE(an_upgrade_on_a_full_disk_uses_the_reserve),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
