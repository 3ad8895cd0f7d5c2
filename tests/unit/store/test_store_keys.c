/* Keys are rows alone. That a service has had one outlives its rows. */
#include <fcntl.h>
#include <sys/resource.h>

#include "engine/store/maintenance.h"
#include "tests/unit/store/fixture.h"

static void put(fixture *f, const char *id, const char *name)
{
	json_t *key = json_pack("{s:s, s:s}", "id", id, "name", name);
	assert_int_equal(store_key_put(f->store, key, NULL), STATUS_OK);
	json_decref(key);
}

static bool append(void *context, const json_t *object)
{
	char *names = context;
	strcat(names, json_string_value(json_object_get(object, "name")));
	return true;
}

static void must_list(store *s, const char *expected)
{
	char names[64] = "";
	bool more;
	assert_int_equal(store_list(s, STORE_KEYS, &(store_page){.ascending = true}, append, names, &more, NULL),
	                 STATUS_OK);
	assert_string_equal(names, expected);
}

static void must_have_had(store *s, bool expected)
{
	bool had;
	assert_int_equal(store_keys_had(s, &had, NULL), STATUS_OK);
	assert_int_equal(had, expected);
}

static void keys_are_listed_in_order_and_replaced_by_id(void **state)
{
	fixture *f = *state;
	must_have_had(f->store, false);
	put(f, "key-1", "a");
	put(f, "key-2", "b");
	put(f, "key-1", "c");
	reopen(f);
	must_list(f->store, "cb");
	assert_int_equal(store_key_delete(f->store, "key-1", NULL), STATUS_OK);
	assert_int_equal(store_key_delete(f->store, "key-1", NULL), STATUS_NOT_FOUND);
	reopen(f);
	must_list(f->store, "b");
}

static void a_service_that_had_keys_needs_them_when_the_rows_are_lost(void **state)
{
	fixture *f = *state;
	char ledger[PATH_MAX];
	log_init("test", LOG_ERROR + 1);
	put(f, "key-1", "a");
	store_close(f->store);
	snprintf(ledger, sizeof ledger, "%s/ledger.sqlite", f->folder);
	write_text(ledger, "damaged");
	assert_int_equal(store_open(&f->store, f->folder, NULL), STATUS_OK);
	must_list(f->store, "");
	must_have_had(f->store, true);
}

static void a_backup_has_the_keys_and_needs_them(void **state)
{
	fixture *f = *state;
	char folder[64], backup[PATH_MAX], restored[PATH_MAX];
	store *s;
	json_t *report = NULL;
	error err = ERROR_INIT;
	folder_new(folder);
	snprintf(backup, sizeof backup, "%s/backup", folder);
	snprintf(restored, sizeof restored, "%s/restored", folder);
	put(f, "key-1", "a");
	if (backup_make(f->folder, backup, false, &report, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(report);
	if (backup_restore(backup, restored, false, &report, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(report);
	assert_int_equal(store_open(&s, restored, NULL), STATUS_OK);
	must_list(s, "a");
	must_have_had(s, true);
	assert_int_equal(store_key_delete(s, "key-1", NULL), STATUS_OK);
	must_have_had(s, true);
	store_close(s);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static bool mark_exists(const fixture *f)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/keys", f->folder);
	return access(path, F_OK) == 0;
}

static void a_key_that_cannot_be_stored_locks_nothing(void **state)
{
	fixture *f = *state;
	char ledger[PATH_MAX];
	json_t *key = json_pack("{s:s, s:s}", "id", "key-1", "name", "a");
	snprintf(ledger, sizeof ledger, "%s/ledger.sqlite", f->folder);
	assert_int_equal(truncate(ledger, 4096), 0);
	assert_int_equal(store_key_put(f->store, key, NULL), STATUS_STORAGE);
	assert_false(mark_exists(f));
	json_decref(key);
}

static void a_key_without_the_mark_is_a_key(void **state)
{
	fixture *f = *state;
	struct rlimit limit;
	log_init("test", LOG_ERROR + 1);
	const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest, limit.rlim_max}), 0);
	put(f, "key-1", "a");
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_false(mark_exists(f));
	reopen(f);
	must_have_had(f->store, true);
	assert_true(mark_exists(f));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(keys_are_listed_in_order_and_replaced_by_id),
	    CASE(a_service_that_had_keys_needs_them_when_the_rows_are_lost),
	    CASE(a_backup_has_the_keys_and_needs_them),
	    CASE(a_key_that_cannot_be_stored_locks_nothing),
	    CASE(a_key_without_the_mark_is_a_key),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
