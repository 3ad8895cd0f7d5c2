#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/daemon/keys/keys_private.h"

static void a_key_gets_defaults_for_what_it_lacks(void **state)
{
	json_t *document = json_pack("{s:s, s:s, s:i}", "id", "key-1", "role", "trainer", "weight", 7);
	json_t *expected = json_loads("{\"id\":\"key-1\",\"role\":\"trainer\",\"weight\":7,\"name\":\"\","
	                              "\"project\":\"default\",\"models\":null,\"requests_per_minute\":0,"
	                              "\"tokens_per_minute\":0,\"max_sessions\":0,\"max_session_bytes\":0,"
	                              "\"max_file_bytes\":0,\"max_jobs\":0,\"min_priority\":0,\"expires_at\":null,"
	                              "\"last_used_at\":null,\"revoked_at\":null}",
	                              0, NULL);
	(void)state;
	assert_non_null(expected);
	assert_int_equal(keys_complete(document), STATUS_OK);
	assert_true(json_equal(document, expected));
	json_decref(document);
	json_decref(expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_key_gets_defaults_for_what_it_lacks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
