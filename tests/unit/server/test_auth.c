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
	assert_string_equal(auth_find(a, "Bearer one")->name, "key-7692c3ad3540bb803c020b3aee66cd88");
	assert_string_equal(auth_find(a, "bearer  two-keys")->name, "key-d5ce974514bdc898e7dc1bf3311be0d6");
	assert_string_equal(auth_find(a, "Bearer last")->name, "key-3547cb112ac4489af2310c0626cdba6f");
	static const char *const wrong[] = {
	    "",           "Bearer",    "Bearer ", "Bearer on", "Bearer onee",      "Bearer oneone",
	    "Bearer One", "Basic one", "one",     "Bearer #",  "Bearer # comment", "Bearer one "};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (auth_find(a, wrong[i]))
			fail_msg("let in: %s", wrong[i]);
	assert_null(auth_find(a, NULL));
	auth_free(a);
}

/* SHA-256 of "one" and "two" */
#define ONE "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
#define TWO "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"

static auth *parse(const char *text)
{
	json_t *keys = json_loads(text, 0, NULL);
	assert_non_null(keys);
	auth *a = auth_from_json(keys);
	json_decref(keys);
	return a;
}

static void keys_of_the_engine_have_roles_and_ends(void **state)
{
	(void)state;
	auth *a = parse("[{\"id\": \"key-1\", \"hash\": \"" ONE "\", \"role\": \"trainer\", \"expires_at\": null},"
	                " {\"id\": \"key-2\", \"hash\": \"" TWO "\", \"role\": \"user\", \"expires_at\": 1}]");
	assert_non_null(a);
	assert_string_equal(auth_find(a, "Bearer one")->name, "key-1");
	assert_int_equal(auth_find(a, "Bearer one")->role, ROLE_TRAINER);
	assert_null(auth_find(a, "Bearer two"));
	assert_null(auth_find(a, "Bearer " ONE));
	auth_free(a);
	assert_null(auth_find(NULL, "Bearer one"));
	static const char *const malformed[] = {"{}",
	                                        "[1]",
	                                        "[{\"id\": \"a\", \"hash\": \"" ONE "\"}]",
	                                        "[{\"id\": \"a\", \"hash\": \"" ONE "\", \"role\": \"root\"}]",
	                                        "[{\"id\": \"a\", \"hash\": \"7692\", \"role\": \"user\"}]",
	                                        "[{\"id\": \"a\", \"hash\": \"" ONE "00\", \"role\": \"user\"}]",
	                                        "[{\"hash\": \"" ONE "\", \"role\": \"user\"}]"};
	for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
		if ((a = parse(malformed[i])))
			fail_msg("read: %s", malformed[i]);
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
	                                   cmocka_unit_test(keys_of_the_engine_have_roles_and_ends),
	                                   cmocka_unit_test(a_key_file_without_keys_is_refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
