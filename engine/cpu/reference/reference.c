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
#define OP(name, ...) b->kernel[OP_##name] = reference_##name;
#include "engine/tensor/ops.def"
#undef OP
	b->scratch[OP_gather_grad] = reference_gather_grad_scratch;
	b->scratch[OP_matmul] = reference_matmul_scratch;
	b->scratch[OP_linear] = reference_linear_scratch;
	b->scratch[OP_additive_attention_grad] = reference_additive_attention_grad_scratch;
	b->scratch[OP_additive_stream] = reference_additive_stream_scratch;
	b->scratch[OP_softmax_attention] = reference_softmax_attention_scratch;
	b->scratch[OP_softmax_attention_grad] = reference_softmax_attention_grad_scratch;
	b->scratch[OP_softmax_stream] = reference_softmax_stream_scratch;
	b->scratch[OP_source_attention] = reference_source_attention_scratch;
	b->scratch[OP_dilated_attention] = reference_dilated_attention_scratch;
	b->scratch[OP_dilated_attention_grad] = reference_dilated_attention_grad_scratch;
	b->scratch[OP_dilated_stream] = reference_dilated_stream_scratch;
	b->scratch[OP_linear_attention] = reference_linear_attention_scratch;
	b->scratch[OP_linear_attention_grad] = reference_linear_attention_grad_scratch;
	b->scratch[OP_decay_merge_grad] = reference_decay_merge_grad_scratch;
	b->scratch[OP_attention_weights] = reference_attention_weights_scratch;
	b->scratch[OP_attention_weights_grad] = reference_attention_weights_grad_scratch;
	b->scratch[OP_linear_cross_entropy] = reference_linear_cross_entropy_scratch;
	b->scratch[OP_sample] = reference_sample_scratch;
	b->maxima = true;
	host_init(b);
	b->close = reference_close;
	return STATUS_OK;
}
