#include "engine/cpu/reference/reference.h"

#include <stdio.h>

#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/host.h"

static void reference_close(backend *b)
{
	free(b);
}

status cpu_reference_open(backend **out, int threads, error *err)
{
	(void)threads; /* always one */
	backend *b = *out = memory_new(1, sizeof *b);
	if (!b)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory for the reference backend");
	b->name = "cpu";
	snprintf(b->device, sizeof b->device, "reference kernels, 1 thread");
#define OP(name, ...)                                                                                                  \
	b->kernel[OP_##name] = reference_##name;                                                                       \
	b->scratch[OP_##name] = reference_##name##_scratch;
#include "engine/tensor/ops.def"
#undef OP
	b->maxima = true;
	host_init(b);
	b->close = reference_close;
	return STATUS_OK;
}
