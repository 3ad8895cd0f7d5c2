/* pair.h - a device and the CPU's reference, with which it is compared. Include after cmocka.h; open_pair and
 * close_pair are a group's setup and teardown. */
#ifndef TESTS_UNIT_CUDA_PAIR_H
#define TESTS_UNIT_CUDA_PAIR_H

#include "tests/unit/cuda/device.h"

static backend *device, *cpu;

static inline int open_pair(void **state)
{
	(void)state;
	device = open_device();
	return cpu_reference_open(&cpu, 0, NULL) != STATUS_OK;
}

static inline int close_pair(void **state)
{
	(void)state;
	backend_close(device);
	backend_close(cpu);
	return 0;
}

#endif
