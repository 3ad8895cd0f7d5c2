#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/base/device_list.h"

static void the_option_names_different_devices(void **state)
{
	static const char *const wrong[] = {"",
	                                    ",",
	                                    "0,",
	                                    "0,,1",
	                                    "a",
	                                    "0,-1",
	                                    "0, 1",
	                                    "1024",
	                                    "0,0",
	                                    "3,2,3",
	                                    "99999999999999999999",
	                                    "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
	int devices[DEVICE_LIST_MAX], n;
	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error err = ERROR_INIT;
		assert_int_equal(device_list_parse(wrong[i], devices, &n, &err), STATUS_INVALID);
		assert_non_null(strstr(err.message, "--device"));
	}
	assert_int_equal(device_list_parse("3,1023,0", devices, &n, NULL), STATUS_OK);
	assert_int_equal(n, 3);
	assert_true(devices[0] == 3 && devices[1] == 1023 && devices[2] == 0);
	assert_int_equal(device_list_parse("0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", devices, &n, NULL), STATUS_OK);
	assert_int_equal(n, DEVICE_LIST_MAX);
}

static void a_list_is_written_as_it_is_read(void **state)
{
	static const char *const lists[] = {
	    "0", "3,1023,0", "1023,1022,1021,1020,1019,1018,1017,1016,1015,1014,1013,1012,1011,1010,1009,1008"};
	int devices[DEVICE_LIST_MAX], n;
	char out[DEVICE_LIST_BYTES];
	(void)state;
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		assert_int_equal(device_list_parse(lists[i], devices, &n, NULL), STATUS_OK);
		device_list_write(devices, n, out);
		assert_string_equal(out, lists[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_option_names_different_devices),
	    cmocka_unit_test(a_list_is_written_as_it_is_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
