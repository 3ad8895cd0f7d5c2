#include "engine/cpu/reference/reference.h"
#include "engine/tensor/panel.h"

/* x […] f32 or bf16 -> y […] of params' type; to bf16 rounded to nearest even, NaN stays NaN. */
status reference_cast(backend *b, const op_call *call)
{
	(void)b;
	const bool from_bf16 = call->in[0].type == DTYPE_BF16, to_bf16 = call->out[0].type == DTYPE_BF16;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++) {
		float x = from_bf16 ? panel_f32(((const uint16_t *)call->in[0].data)[i])
		                    : ((const float *)call->in[0].data)[i];
		if (to_bf16)
			((uint16_t *)call->out[0].data)[i] = panel_bf16(x);
		else
			((float *)call->out[0].data)[i] = x;
	}
	return STATUS_OK;
}
