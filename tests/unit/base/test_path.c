#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/path.h"

static void a_path_is_joined_or_extended(void **state)
{
	(void)state;
	char out[PATH_MAX];
	error err = ERROR_INIT;
	assert_int_equal(path_join(out, "/data", "ledger", &err), STATUS_OK);
	assert_string_equal(out, "/data/ledger");
	assert_int_equal(path_extend(out, "/data", ".json", &err), STATUS_OK);
	assert_string_equal(out, "/data.json");
}

static void a_path_that_does_not_fit_is_refused(void **state)
{
	(void)state;
	char out[PATH_MAX], name[PATH_MAX];
	error err = ERROR_INIT;
	memset(name, 'x', sizeof name);
	name[PATH_MAX - 3] = 0;
	assert_int_equal(path_join(out, "a", name, &err), STATUS_OK);
	assert_int_equal(strlen(out), PATH_MAX - 1);
	assert_int_equal(path_join(out, "ab", name, &err), STATUS_INVALID);
	assert_string_equal(error_message(&err), "path too long");
	assert_int_equal(path_extend(out, name, "ab", NULL), STATUS_OK);
	assert_int_equal(path_extend(out, name, "abc", NULL), STATUS_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_path_is_joined_or_extended),
	    cmocka_unit_test(a_path_that_does_not_fit_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
