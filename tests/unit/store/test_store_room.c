/* Room on the disk: the budget, and the reserve with which a full disk can be emptied. */
#include "engine/store/store_private.h"
#include "tests/unit/store/fixture.h"

static void a_budget_refuses_what_does_not_fit(void **state)
{
	fixture *f = *state;
	store_file file = {0};
	error err = ERROR_INIT;
	char path[PATH_MAX];
	store_set_budget(f->store, 100);
	store_temporary_path(f->store, path);
	write_text(path, "123456789 123456789 123456789 123456789 123456789 123456789 ");
	assert_int_equal(store_file_add(f->store, &file, path, NULL), STATUS_OK);
	file = (store_file){0};
	write_text(path, "123456789 123456789 123456789 123456789 123456789 123456789 ");
	assert_int_equal(store_file_add(f->store, &file, path, &err), STATUS_FULL);
	assert_string_equal(err.message, "the data budget of 100 bytes does not hold 60 more: 60 are in use");
	assert_int_equal(access(path, F_OK), 0);
	json_t *usage = store_usage(f->folder, 100);
	assert_true(json_integer_value(json_object_get(usage, "data_bytes")) > 60);
	assert_int_equal(json_integer_value(json_object_get(usage, "budget_bytes")), 100);
	json_decref(usage);
}

static int removals_tried;

/* As on a disk that is full until the reserve is given up. */
static status remove_on_a_full_disk(store *s, const char *id, int64_t number, error *err)
{
	char path[PATH_MAX];
	removals_tried++;
	(void)number;
	snprintf(path, sizeof path, "%s/reserve", s->folder);
	return access(path, F_OK) == 0 ? error_set(err, STATUS_FULL, NULL, "%s: the disk is full", id) : STATUS_OK;
}

static void a_full_disk_can_be_emptied_with_the_reserve(void **state)
{
	fixture *f = *state;
	error err = ERROR_INIT;
	must_exist(f, "reserve", true);
	assert_int_equal(store_with_reserve(f->store, remove_on_a_full_disk, "x", 0, &err), STATUS_OK);
	assert_int_equal(removals_tried, 2);
	assert_int_equal(err.status, STATUS_OK);
	must_exist(f, "reserve", false);
	store_tick(f->store);
	must_exist(f, "reserve", true);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(a_budget_refuses_what_does_not_fit),
	    CASE(a_full_disk_can_be_emptied_with_the_reserve),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
