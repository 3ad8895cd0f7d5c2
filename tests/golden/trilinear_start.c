#include "tests/golden/trilinear_start.h"

#include <math.h>
#include <string.h>

#include "tests/golden/matrix_codes.h"
#include "engine/tensor/ops/quantize.h"

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
		return p->bits && p->bits != 32 ? matrix_codes_read(t->g, values, count, p->bits, err) : STATUS_OK;
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

/* N(x), in place. */
static void normalize_fixed(const trilinear_texts *t, double *x, int64_t n)
{
	normalize(x, n);
	for (int64_t i = 0; i < n && t->vector_bits == 8; i++)
		x[i] = (double)quantize_value((float)x[i], QUANTIZE_FIXED_STEP, 8);
}

/* Quantise raw products in place. */
static void quantize_key(const trilinear_texts *t, double *x, int64_t n)
{
	double square = 0;
	for (int64_t i = 0; i < n; i++)
		square += x[i] * x[i];
	const float step = quantize_step(square, n);
	for (int64_t i = 0; i < n && t->vector_bits == 8; i++)
		x[i] = (double)quantize_value((float)x[i], step, 8);
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

/* y [rows] = W n, of the parameter of our name. */
static status multiply(const trilinear_texts *t, const char *matrix, const double *n, double **y, int64_t *rows,
                       error *err)
{
	const int64_t d = model_dimensions(t->m)->hidden;
	const float *w;
	void *memory;
	TRY(download(t, matrix, &w, rows, err));
	TRY(golden_memory(t->g, *rows, sizeof(double), &memory, err));
	*y = memory;
	for (int64_t r = 0; r < *rows; r++)
		for (int64_t i = 0; i < d; i++)
			(*y)[r] += (double)w[r * d + i] * n[i];
	return STATUS_OK;
}

static void fill(const trilinear_texts *t, const double *row, int64_t width, float *values)
{
	for (int64_t b = 0; b < t->texts; b++)
		for (int64_t i = 0; i < width; i++)
			values[t->first[b] * width + i] = (float)row[i];
}

/* N(state), as the layers read it where they do. */
static status read_normed(const trilinear_texts *t, bool layers, double **out, error *err)
{
	const int64_t d = model_dimensions(t->m)->hidden;
	void *memory;
	TRY(golden_memory(t->g, d, sizeof(double), &memory, err));
	*out = memory;
	TRY(trilinear_start_state(t, *out, err));
	if (layers)
		normalize_fixed(t, *out, d);
	else
		normalize(*out, d);
	return STATUS_OK;
}

status trilinear_start_product(const trilinear_texts *t, const char *matrix, bool normal, float *values, error *err)
{
	double *n, *y;
	int64_t rows;
	TRY(read_normed(t, true, &n, err));
	TRY(multiply(t, matrix, n, &y, &rows, err));
	if (normal)
		normalize_fixed(t, y, rows);
	else
		quantize_key(t, y, rows);
	fill(t, y, rows, values);
	return STATUS_OK;
}

status trilinear_start_normed(const trilinear_texts *t, float *values, error *err)
{
	double *n;
	TRY(read_normed(t, true, &n, err));
	fill(t, n, model_dimensions(t->m)->hidden, values);
	return STATUS_OK;
}

status trilinear_start_key_steps(const trilinear_texts *t, const char *matrix, const float *normed, float *steps,
                                 error *err)
{
	const int64_t d = model_dimensions(t->m)->hidden;
	const float *w;
	int64_t rows;
	TRY(download(t, matrix, &w, &rows, err));
	for (int64_t node = 0; node < t->nodes; node++) {
		double square = 0;
		for (int64_t r = 0; r < rows; r++) {
			double y = 0;
			for (int64_t i = 0; i < d; i++)
				y += (double)w[r * d + i] * (double)normed[node * d + i];
			square += y * y;
		}
		steps[node] = quantize_step(square, rows);
	}
	return STATUS_OK;
}

status trilinear_start_logits(const trilinear_texts *t, float *values, error *err)
{
	const model_dims *d = model_dimensions(t->m);
	const double scale = 4 * sqrt(1 / (double)d->hidden) / 0.693147;
	const float *bias;
	double *n, *y;
	int64_t rows;
	TRY(download(t, "head.bias", &bias, &rows, err));
	TRY(read_normed(t, false, &n, err));
	TRY(multiply(t, "head.weight", n, &y, &rows, err));
	for (int64_t v = 0; v < d->outputs; v++)
		y[v] = M_LN2 * (scale * y[v] + (double)bias[v]);
	fill(t, y, d->outputs, values);
	return STATUS_OK;
}
