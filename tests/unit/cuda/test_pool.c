/* Released memory stays in the device's pool until something else needs it. On the emulated device, with little
 * memory. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/cuda/device.h"

#define MIB ((size_t)1 << 20)
enum { ALL = 80, PART = 24, LARGE = 32 }; /* MiB; a backend's own memory is 32 */

static size_t free_bytes(void)
{
	char path[PATH_MAX];
	size_t left = 0, all = 0;
	int (*ask)(size_t * left, size_t * all);
	snprintf(path, sizeof path, "%s/additive-cuda.so", getenv("ADDITIVE_PLUGIN_DIR"));
	void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(plugin);
	*(void **)&ask = dlsym(plugin, "cudaMemGetInfo");
	assert_non_null((void *)(uintptr_t)ask);
	assert_int_equal(ask(&left, &all), 0);
	dlclose(plugin);
	return left;
}

static int open_small(void **state)
{
	char mib[16];
	snprintf(mib, sizeof mib, "%d", ALL);
	setenv("ADDITIVE_EMULATOR_MEMORY", mib, 1);
	*state = open_device();
	return 0;
}

/* Open the device, or skip on a real one, whose memory cannot be limited. */
static backend *small(void **state)
{
	if (!device_is_emulated(*state))
		skip();
	return *state;
}

static int close_small(void **state)
{
	if (*state)
		backend_close(*state);
	unsetenv("ADDITIVE_EMULATOR_MEMORY");
	return 0;
}

static void use_and_release(backend *b, size_t mib)
{
	void *data;
	assert_int_equal(b->allocate(b, mib * MIB, &data), STATUS_OK);
	b->release(b, data);
	assert_int_equal(b->synchronize(b), STATUS_OK);
}

static void released_memory_is_kept_over_a_wait(void **state)
{
	backend *b = small(state);
	use_and_release(b, PART);
	const size_t left = free_bytes();
	for (int i = 0; i < 3; i++)
		use_and_release(b, PART);
	assert_int_equal(free_bytes(), left);
	assert_true(left <= (ALL - PART) * MIB);
}

static void released_memory_goes_to_a_reservation_that_needs_it(void **state)
{
	backend *b = small(state);
	void *reserved;
	size_t have = 0;
	use_and_release(b, PART);
	assert_true(free_bytes() < LARGE * MIB);
	assert_int_equal(b->reserve(b, LARGE * MIB, &reserved), STATUS_OK);
	assert_int_equal(b->extend(b, reserved, LARGE * MIB, &have), STATUS_OK);
	assert_true(have >= LARGE * MIB);
	b->unreserve(b, reserved, LARGE * MIB);
}

/* A refusal does not change the device. */
static void more_than_the_device_has_is_refused_and_it_continues(void **state)
{
	backend *b = small(state);
	void *data, *reserved;
	size_t have = 0;
	use_and_release(b, PART);
	assert_int_equal(b->allocate(b, ALL * MIB, &data), STATUS_NOMEM);
	assert_int_equal(b->reserve(b, ALL * MIB, &reserved), STATUS_OK);
	assert_int_equal(b->extend(b, reserved, ALL * MIB, &have), STATUS_NOMEM);
	b->unreserve(b, reserved, ALL * MIB);
	use_and_release(b, PART);
}

static void a_backend_that_is_closed_keeps_no_memory(void **state)
{
	backend *b = small(state);
	use_and_release(b, PART);
	backend_close(b);
	*state = NULL;
	assert_int_equal(free_bytes(), ALL * MIB);
}

/* Code, graphs and reservations get memory without an earlier refusal. */
static void the_pool_keeps_no_more_than_its_share(void **state)
{
	backend *b = small(state);
	use_and_release(b, ALL - LARGE); /* the remaining memory */
	assert_true(free_bytes() >= ALL * MIB / 8);
}

int main(void)
{
#define ON_SMALL(test) cmocka_unit_test_setup_teardown(test, open_small, close_small)
	const struct CMUnitTest tests[] = {
	    ON_SMALL(released_memory_is_kept_over_a_wait),
	    ON_SMALL(released_memory_goes_to_a_reservation_that_needs_it),
	    ON_SMALL(more_than_the_device_has_is_refused_and_it_continues),
	    ON_SMALL(a_backend_that_is_closed_keeps_no_memory),
	    ON_SMALL(the_pool_keeps_no_more_than_its_share),
	};
#undef ON_SMALL
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
