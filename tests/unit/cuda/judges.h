/* judges.h - a device and the backends that it is compared with: the CPU's reference, alone and rounded to bf16.
 * Include after cmocka.h; open_judges and close_judges are a group's setup and teardown. */
#ifndef TESTS_UNIT_CUDA_JUDGES_H
#define TESTS_UNIT_CUDA_JUDGES_H

#include "tests/unit/cuda/device.h"
#include "tests/unit/support/bf16_backend.h"

static backend *reference, *narrow, *device;

static inline int open_judges(void **state)
{
	(void)state;
	backend *inner;
	device = open_device();
	if (cpu_reference_open(&reference, 0, NULL) != STATUS_OK || cpu_reference_open(&inner, 0, NULL) != STATUS_OK)
		return 1;
	narrow = bf16_backend_new(inner);
	return 0;
}

static inline int close_judges(void **state)
{
	(void)state;
	backend_close(reference);
	backend_close(narrow);
	backend_close(device);
	return 0;
}

#endif
