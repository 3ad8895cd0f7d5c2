/* dilated_attention: for every span of tokens of every head, all branches one after another (dilated_attention.h).
 * Units are handed out as threads become free, all heads of a span one after another, so that its rows come from memory
 * once. */
#include "engine/cpu/kernels/dilated_attention.h"

#include <stdatomic.h>

typedef struct forward {
	const op_call *call;
	int64_t batch, length, span, spans;
	float *y;
	float mixture[DILATED_MAX_BRANCHES];
} forward;

static void forward_unit(const forward *f, float *scratch, int64_t unit)
{
	const int64_t heads = ((const dilated_params *)f->call->params)->heads;
	const int64_t begin = unit / heads % f->spans * f->span, sequence = unit / heads / f->spans;
	const int64_t token = sequence * f->length + begin;
	const dilated_head a = dilated_head_of(f->call, sequence * heads + unit % heads);
	const softmax_block w = softmax_block_in(scratch, a.dh, a.dh);
	float *log_normalizer = f->call->out[1].data;
	dilated_span o = {.begin = begin,
	                  .end = kernel_min(begin + f->span, f->length),
	                  .y = f->y + token * a.d + a.head * a.dh,
	                  .top = scratch + softmax_block_floats(a.dh, a.dh, false),
	                  .mixture = kernel_optional(f->call, 4) ? f->mixture : NULL,
	                  .log_normalizer = log_normalizer ? log_normalizer + token * a.heads + a.head : NULL,
	                  .branch_floats = f->batch * f->length * a.heads};
	o.total = o.top + f->span;
	dilated_attend(&a, &o, &w);
}

size_t KERNEL(dilated_attention_scratch)(const backend *b, const op_call *call)
{
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t floats = dilated_floats(&p->pattern, s.dim[2] / p->heads, s.dim[1]);
	return (size_t)(((const cpu *)b)->threads * floats + kernel_spare_floats(call, 0)) * sizeof(float);
}

status KERNEL(dilated_attention)(backend *b, const op_call *call)
{
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t floats = dilated_floats(&p->pattern, s.dim[2] / p->heads, s.dim[1]);
	float *scratch = call->scratch;
	forward f = {.call = call, .batch = s.dim[0], .length = s.dim[1]};
	if (shape_count(s) == 0)
		return STATUS_OK;
	f.y = kernel_output(call, 0, &scratch);
	f.span = dilated_span_tokens(&p->pattern, f.length);
	f.spans = kernel_parts(f.length, f.span);
	if (kernel_optional(call, 4))
		dilated_weights(call->in[4].data, p->pattern.branches, f.mixture);
	const int64_t units = f.batch * p->heads * f.spans;
	/* A product's step costs a quarter of an addition that comes from memory. */
	const int threads = kernel_threads(b, shape_count(s) * dilated_work(&p->pattern, f.length) / 4);
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		for (;;) {
			const int64_t unit = atomic_fetch_add(&next, 1);
			if (unit >= units)
				break;
			forward_unit(&f, scratch + thread * floats, unit);
		}
	}
	return STATUS_OK;
}
