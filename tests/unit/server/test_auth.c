#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/auth.h"

static auth *load(const char *text)
{
	char path[] = "/tmp/additive-auth-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	FILE *file = fdopen(fd, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	auth *a = auth_load(path);
	unlink(path);
	return a;
}

static void only_complete_keys_are_accepted(void **state)
{
	(void)state;
	auth *a = load("# comment\n\n  one \r\ntwo-keys\nlast");
	assert_non_null(a);
	assert_int_equal(auth_find(a, "Bearer one"), 1);
	assert_int_equal(auth_find(a, "bearer  two-keys"), 2);
	assert_int_equal(auth_find(a, "Bearer last"), 3);
	static const char *const wrong[] = {
	    "",           "Bearer",    "Bearer ", "Bearer on", "Bearer onee",      "Bearer oneone",
	    "Bearer One", "Basic one", "one",     "Bearer #",  "Bearer # comment", "Bearer one "};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (auth_find(a, wrong[i]))
			fail_msg("let in: %s", wrong[i]);
	assert_int_equal(auth_find(a, NULL), 0);
	auth_free(a);
}

static void a_key_file_without_keys_is_refused(void **state)
{
	(void)state;
	assert_null(load(""));
	assert_null(load("\n# x\n   \n"));
	assert_null(auth_load("/nonexistent/keys"));
	auth_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(only_complete_keys_are_accepted),
	                                   cmocka_unit_test(a_key_file_without_keys_is_refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
