#include "engine/eval/trilinear_start.h"

#include <math.h>
#include <string.h>

#include "engine/tensor/ops.h"

/* In place, what the forward reads of it. */
static status quantize(const trilinear_texts *t, const parameter_spec *p, float *values, error *err)
{
	plan *made;
	graph *g = graph_new();
	if (!g)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	value x = graph_input(g, "x", DTYPE_F32, p->shape);
	value y = op_quantize(g, x, (quantize_params){QUANTIZE_TENSOR, p->bits});
	graph_output(g, y, "y");
	TRY(golden_plan(t->g, g, NULL, &made, err));
	TRY(plan_write(made, x, values));
	TRY(plan_run(made));
	return plan_read(made, y, values);
}

/* The parameter of our name, as the forward reads it. */
static status download(const trilinear_texts *t, const char *name, const float **out, int64_t *rows, error *err)
{
	for (int i = 0; i < model_tensor_count(t->m); i++) {
		const parameter_spec *p = model_parameter(t->m, i);
		const int64_t count = shape_count(p->shape);
		void *values;
		if (strcmp(p->name, name) != 0)
			continue;
		TRY(golden_memory(t->g, count, sizeof(float), &values, err));
		*out = values;
		*rows = shape_rows(p->shape);
		status s =
		    t->g->backend->download(t->g->backend, values, model_arena(t->m) + model_parameter_offset(t->m, i),
		                            (size_t)count * sizeof(float));
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "cannot read the weights");
		return p->bits && p->bits != 32 ? quantize(t, p, values, err) : STATUS_OK;
	}
	return error_set(err, STATUS_INVALID, name, "the model lacks %s", name);
}

static void normalize(double *x, int64_t n)
{
	double square = 0;
	for (int64_t i = 0; i < n; i++)
		square += x[i] * x[i];
	for (int64_t i = 0; i < n && square > 0; i++)
		x[i] *= sqrt((double)n / square);
}

status trilinear_start_state(const trilinear_texts *t, double *out, error *err)
{
	const int64_t d = model_dimensions(t->m)->hidden;
	const float *words;
	int64_t rows;
	TRY(download(t, "words.weight", &words, &rows, err));
	for (int64_t i = 0; i < d; i++)
		out[i] = (double)words[(rows - 1) * d + i];
	return STATUS_OK;
}

status trilinear_start_fill(const trilinear_texts *t, const char *matrix, bool normal, double factor, float *values,
                            error *err)
{
	const int64_t d = model_dimensions(t->m)->hidden;
	const float *w;
	int64_t rows;
	void *memory;
	TRY(download(t, matrix, &w, &rows, err));
	TRY(golden_memory(t->g, d + rows, sizeof(double), &memory, err));
	double *n = memory, *y = n + d;
	TRY(trilinear_start_state(t, n, err));
	normalize(n, d);
	for (int64_t r = 0; r < rows; r++) {
		for (int64_t i = 0; i < d; i++)
			y[r] += (double)w[r * d + i] * n[i];
		y[r] *= factor;
	}
	if (normal)
		normalize(y, rows);
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t r = 0; r < rows; r++)
			values[t->first[b] * rows + r] = (float)y[r];
	return STATUS_OK;
}

status trilinear_start_normed(const trilinear_texts *t, float *values, error *err)
{
	const int64_t d = model_dimensions(t->m)->hidden;
	void *start;
	TRY(golden_memory(t->g, d, sizeof(double), &start, err));
	TRY(trilinear_start_state(t, start, err));
	normalize(start, d);
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t i = 0; i < d; i++)
			values[t->first[b] * d + i] = (float)((double *)start)[i];
	return STATUS_OK;
}

status trilinear_start_logits(const trilinear_texts *t, float *values, error *err)
{
	const model_dims *d = model_dimensions(t->m);
	const double scale = 4 * sqrt(1 / (double)d->hidden) / 0.693147;
	const float *bias;
	int64_t rows;
	TRY(download(t, "head.bias", &bias, &rows, err));
	TRY(trilinear_start_fill(t, "head.weight", false, scale, values, err));
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t v = 0; v < d->outputs; v++) {
			float *x = &values[t->first[b] * d->outputs + v];
			*x = (float)(M_LN2 * ((double)*x + (double)bias[v]));
		}
	return STATUS_OK;
}
