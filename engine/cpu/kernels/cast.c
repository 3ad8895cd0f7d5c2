/* cast: between f32 and bf16 (nearest even). On the CPU it only converts copies: no kernel computes in bf16. */
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

#include "engine/tensor/panel.h"

static void cast_narrow(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	uint16_t *y = call->out[0].data;
	for (int64_t i = first; i < last; i++)
		y[i] = panel_bf16(x[i]);
}

static void widen(const op_call *call, int64_t first, int64_t last)
{
	const uint16_t *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = first; i < last; i++)
		y[i] = panel_f32(x[i]);
}

static void cast_same(const op_call *call, int64_t first, int64_t last)
{
	const size_t bytes = dtype_bytes(call->in[0].type);
	memcpy((char *)call->out[0].data + (size_t)first * bytes,
	       (const char *)call->in[0].data + (size_t)first * bytes, (size_t)(last - first) * bytes);
}

status KERNEL(cast)(backend *b, const op_call *call)
{
	const dtype from = call->in[0].type, to = call->out[0].type;
	return kernel_elements(b, call, 1, from == to ? cast_same : to == DTYPE_BF16 ? cast_narrow : widen);
}
