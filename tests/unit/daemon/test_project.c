/* test_project.c - projects that a request sees, and the quotas of its key. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/daemon/net/project.h"

static void a_request_sees_its_own_project_alone(void **state)
{
	project_scope x = {0};
	(void)state;
	assert_true(project_sees(&x, NULL) && project_sees(&x, "") && project_sees(&x, "default"));
	assert_false(project_sees(&x, "a"));
	project_set(&x, "a");
	assert_true(project_sees(&x, "a"));
	assert_false(project_sees(&x, NULL) || project_sees(&x, "") || project_sees(&x, "default") ||
	             project_sees(&x, "aa"));
	x.all = true;
	assert_true(project_sees(&x, "b") && project_sees(&x, "default"));
}

static void a_filter_shows_nothing_that_the_request_does_not_see(void **state)
{
	project_scope x = {0};
	(void)state;
	project_set(&x, "a");
	assert_true(project_lists(&x, NULL, "a") && project_lists(&x, "a", "a"));
	assert_false(project_lists(&x, "b", "b") || project_lists(&x, "b", "a") || project_lists(&x, "default", ""));
	x.all = true;
	assert_true(project_lists(&x, "b", "b") && project_lists(&x, "default", ""));
	assert_false(project_lists(&x, "b", "a") || project_lists(&x, "default", "a"));
}

static void only_other_projects_than_the_default_are_in_documents(void **state)
{
	project_scope x = {0};
	json_t *document = json_object();
	(void)state;
	project_set(&x, PROJECT_DEFAULT);
	assert_true(project_mark(&x, document));
	assert_int_equal(json_object_size(document), 0);
	assert_string_equal(project_of(document), "");
	project_set(&x, "a");
	assert_true(project_mark(&x, document));
	assert_string_equal(project_of(document), "a");
	assert_string_equal(project_member(project_of(document)), "a");
	assert_null(project_member(""));
	assert_false(project_mark(&x, NULL));
	json_decref(document);
}

static void a_quota_is_the_most_that_a_project_may_have(void **state)
{
	project_scope x = {0};
	error err = ERROR_INIT;
	(void)state;
	assert_int_equal(project_check_quota(&x, QUOTA_JOBS, INT64_MAX, INT64_MAX, &err), STATUS_OK);
	x.quotas[QUOTA_JOBS] = 3;
	assert_int_equal(project_check_quota(&x, QUOTA_JOBS, 2, 1, &err), STATUS_OK);
	assert_int_equal(project_check_quota(&x, QUOTA_SESSIONS, 2, 2, &err), STATUS_OK);
	assert_int_equal(project_check_quota(&x, QUOTA_JOBS, 3, 1, &err), STATUS_RATE_LIMITED);
	assert_string_equal(err.param, "max_jobs");
	assert_int_equal(project_check_quota(&x, QUOTA_JOBS, 4, 0, NULL), STATUS_RATE_LIMITED);
	assert_int_equal(project_check_quota(&x, QUOTA_JOBS, 1, INT64_MAX, NULL), STATUS_RATE_LIMITED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_request_sees_its_own_project_alone),
	    cmocka_unit_test(a_filter_shows_nothing_that_the_request_does_not_see),
	    cmocka_unit_test(only_other_projects_than_the_default_are_in_documents),
	    cmocka_unit_test(a_quota_is_the_most_that_a_project_may_have),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
