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
	/* sha256sum */
	assert_string_equal(auth_find(a, "Bearer one"), "key-7692c3ad3540bb803c020b3aee66cd88");
	assert_string_equal(auth_find(a, "bearer  two-keys"), "key-d5ce974514bdc898e7dc1bf3311be0d6");
	assert_string_equal(auth_find(a, "Bearer last"), "key-3547cb112ac4489af2310c0626cdba6f");
	static const char *const wrong[] = {
	    "",           "Bearer",    "Bearer ", "Bearer on", "Bearer onee",      "Bearer oneone",
	    "Bearer One", "Basic one", "one",     "Bearer #",  "Bearer # comment", "Bearer one "};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (auth_find(a, wrong[i]))
			fail_msg("let in: %s", wrong[i]);
	assert_null(auth_find(a, NULL));
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
