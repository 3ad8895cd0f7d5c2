/* lora: z = y + B (A x), with matrices that each row chooses.
 *
 * Every row is computed by itself, so its bits do not depend on others. The work is 2 rank (K + N) products a row
 * beside the 2 K N of the layer, so a prompt gains little from a product over its rows. */
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

static float lora_dot(const float *a, const float *b, int64_t n)
{
	float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* a: a row of A, and after it one of Bᵀ. */
static void add_strip(float *z, const float *x, int64_t n, int64_t k, const float *a)
{
	const float inner = lora_dot(a, x, k), *w = a + k;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		z[i] += w[i] * inner;
}

static void lora_rows(const op_call *call, int64_t first, int64_t last)
{
	const lora_params *p = call->params;
	const int64_t n = shape_last(call->in[0].shape), k = shape_last(call->in[1].shape);
	const int64_t entries = call->in[3].shape.dim[0], parts = call->in[3].shape.dim[1];
	const int64_t strips = call->in[5].shape.dim[0], floats = call->in[5].shape.dim[1];
	const int32_t *entry = call->in[2].data, *ranks = call->in[3].data, *strip = call->in[4].data;
	const float *bank = call->in[5].data;
	for (int64_t r = first; r < last; r++) {
		const float *y = (const float *)call->in[0].data + r * n, *x = (const float *)call->in[1].data + r * k;
		float *z = (float *)call->out[0].data + r * n;
		const int64_t e = entry[r];
		const int32_t rank = e < 0 || e >= entries ? 0 : ranks[e * parts + p->part];
		if (z != y)
			memcpy(z, y, (size_t)n * sizeof *z);
		for (int64_t j = 0; j < rank && rank <= LORA_MAX_RANK; j++) {
			const int64_t s = strip[e * call->in[4].shape.dim[1] + j];
			if (s >= 0 && s < strips)
				add_strip(z, x, n, k, bank + s * floats + p->offset);
		}
	}
}

/* Rows of a decode step are few, and mostly have none. */
status KERNEL(lora)(backend *b, const op_call *call)
{
	enum { TYPICAL_RANK = 8 };
	const int64_t rows = shape_rows(call->in[0].shape);
	const int64_t row = shape_last(call->in[0].shape) + shape_last(call->in[1].shape);
	return kernel_for(b, call, rows, rows * row * TYPICAL_RANK / 4, lora_rows);
}
