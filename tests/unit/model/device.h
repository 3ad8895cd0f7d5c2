/* device.h - one backend for all tests of a program. Include after cmocka.h. */
#ifndef TESTS_UNIT_MODEL_DEVICE_H
#define TESTS_UNIT_MODEL_DEVICE_H

#include "tests/unit/model/fixture.h"

static backend *device;

static inline int setup(void **state)
{
	(void)state;
	device = fixture_backend();
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

#endif
