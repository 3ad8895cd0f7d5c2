/* backends.h - a fixture for tests that must pass on the reference and on the fast kernels. Include after cmocka.h. */
#ifndef TESTS_UNIT_SUPPORT_BACKENDS_H
#define TESTS_UNIT_SUPPORT_BACKENDS_H

#include <stdlib.h>

#include "engine/cpu/cpu.h"

typedef struct backends {
	backend *each[2]; /* reference, fast */
} backends;

static inline int open_backends(void **state)
{
	backends *b = calloc(1, sizeof *b);
	*state = b;
	return !b || cpu_reference_open(&b->each[0], 0, NULL) != STATUS_OK ||
	       cpu_open(&b->each[1], 0, NULL) != STATUS_OK;
}

static inline int close_backends(void **state)
{
	backends *b = *state;
	backend_close(b->each[0]);
	backend_close(b->each[1]);
	free(b);
	return 0;
}

#endif
