/* linear_cross_entropy: a chunk of rows at a time goes through
 *
 *   z = alpha (h Eᵀ + b)            a product
 *   the loss of each row, z -> dz   in passes over one row, which stays in the first cache
 *   dh = alpha dz E, dE += alpha dzᵀ h, db += alpha Σ_rows dz
 *
 * so that logits are in the cache when they are read again, and e^z is taken once. Without gradients
 * z is only read. A chunk must be large enough for its products, each of which reads all of E or dE, and
 * small enough for the cache. Loss and gradients of 4096 x 128 by 8192 x 128, ms on two threads:
 *
 *   rows of a chunk    128    256    512   1024   4096
 *   ms                  61     60     58     60     62
 *
 * The three products alone take 57 to 58 ms; separate ops, with all logits in memory, took 85 to 90. */
#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels/linear.h"
#include "engine/cpu/kernels/math.h"

#include <string.h>

enum {
	COST = 4,
	LANES = 16,
	CHUNK_ROWS = 512,
	CHUNK_MIN_ROWS = 64,
	CHUNK_FLOATS = 1 << 24, /* maximum logits, unless that is fewer rows */
	PART_ROWS = 32,         /* rows that one thread processes at a time; each part has its own sum of dz */
};

/* Return the rows of a chunk, at least one, so that chunks are as equal as possible. Depends on the shapes alone. */
static int64_t chunk_rows(int64_t rows, int64_t classes)
{
	int64_t most = kernel_min(CHUNK_FLOATS / classes, CHUNK_ROWS);
	if (most < CHUNK_MIN_ROWS)
		most = CHUNK_MIN_ROWS;
	return rows ? kernel_parts(rows, kernel_parts(rows, most)) : 1;
}

/* Inputs of the passes over a row. With gradients z becomes dz. */
typedef struct chunk {
	int64_t rows, classes;
	const int32_t *label;
	const float *bias, *weight; /* or NULL; weight: of each row */
	float alpha, smoothing, factor /* 1 / count */;
	bool gradients;
	float *z, *loss, *hit, *log_probability; /* the last two may be NULL */
	float *sums;                             /* sums of dz, [parts, classes], or NULL */
} chunk;

static inline bool linear_cross_entropy_counts(int32_t label, int64_t classes)
{
	return label >= 0 && label < classes;
}

/* Adds alpha bias and returns the largest. LANES running maxima: compilers do not turn a single one into
 * vectors without fast-math. */
static inline float linear_cross_entropy_complete(float *z, const float *bias, float alpha, int64_t n)
{
	float top[LANES];
	for (int l = 0; l < LANES; l++)
		top[l] = -INFINITY;
	if (bias) {
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			z[j] += alpha * bias[j];
	}
	int64_t j = 0;
	for (; j + LANES <= n; j += LANES) {
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			top[l] = z[j + l] > top[l] ? z[j + l] : top[l];
	}
	for (; j < n; j++)
		top[0] = z[j] > top[0] ? z[j] : top[0];
	for (int l = 1; l < LANES; l++)
		top[0] = top[l] > top[0] ? top[l] : top[0];
	return top[0];
}

/* Σ_j (top - z_j) */
static inline float sum_below(const float *z, float top, int64_t n)
{
	float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
	for (int64_t j = 0; j < n; j++)
		sum += top - z[j];
	return sum;
}

/* Σ_j e^{z_j - top}, each kept in out if that is not NULL. */
static inline float sum_exp(const float *z, float top, int64_t n, float *out)
{
	float sum = 0.0f;
	if (!out) {
#pragma omp simd reduction(+ : sum)
		for (int64_t j = 0; j < n; j++)
			sum += math_exp(z[j] - top);
		return sum;
	}
#pragma omp simd reduction(+ : sum)
	for (int64_t j = 0; j < n; j++) {
		out[j] = math_exp(z[j] - top);
		sum += out[j];
	}
	return sum;
}

/* z_j = factor z_j - even, added to sum if that is not NULL. */
static inline void scale(float *z, float factor, float even, int64_t n, float *sum)
{
	if (!sum) {
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			z[j] = factor * z[j] - even;
		return;
	}
#pragma omp simd
	for (int64_t j = 0; j < n; j++) {
		z[j] = factor * z[j] - even;
		sum[j] += z[j];
	}
}

/* True if z[label] is the largest, the first of equals. Counts are int, because compilers do not vectorise bool. */
static inline bool is_first(const float *z, int64_t label)
{
	const float own = z[label];
	int32_t equals = 0;
#pragma omp simd reduction(+ : equals)
	for (int64_t j = 0; j < label; j++)
		equals += z[j] == own ? 1 : 0;
	return equals == 0;
}

/* The loss of row r, whose z becomes dz = w (softmax - (1-ε) onehot - ε/V) / count. */
static float linear_cross_entropy_row(const chunk *c, int64_t r, float *sum)
{
	const int64_t n = c->classes, label = c->label[r];
	const float smoothing = c->smoothing, even = smoothing / (float)n, weight = c->weight ? c->weight[r] : 1.0f;
	const float factor = c->factor * weight;
	float *z = c->z + r * n;
	const float top = linear_cross_entropy_complete(z, c->bias, c->alpha, n), miss = top - z[label];
	if (c->hit)
		c->hit[r] = z[label] == top && is_first(z, label) ? 1.0f : 0.0f;
	const float spread = smoothing != 0.0f ? sum_below(z, top, n) : 0.0f;
	const float total = sum_exp(z, top, n, c->gradients ? z : NULL);
	if (c->gradients) {
		const float hit = factor * (1.0f - smoothing);
		scale(z, factor / total, factor * even, n, sum);
		z[label] -= hit;
		if (sum)
			sum[label] -= hit;
	}
	const float log_total = total < INFINITY ? math_log(total) : total; /* NaN stays NaN */
	if (c->log_probability)
		c->log_probability[r] = -(log_total + miss);
	return weight * (log_total + ((1.0f - smoothing) * miss + even * spread));
}

static void part(const chunk *c, int64_t i)
{
	float *sum = c->sums ? c->sums + i * c->classes : NULL;
	if (sum)
		memset(sum, 0, (size_t)c->classes * sizeof *sum);
	for (int64_t r = i * PART_ROWS; r < kernel_min((i + 1) * PART_ROWS, c->rows); r++) {
		if (linear_cross_entropy_counts(c->label[r], c->classes))
			c->loss[r] = linear_cross_entropy_row(c, r, sum);
		else if (c->gradients)
			memset(c->z + r * c->classes, 0, (size_t)c->classes * sizeof *c->z);
	}
}

static void passes(const backend *b, const chunk *c)
{
	const int threads = kernel_threads(b, c->rows * c->classes * COST);
	const int64_t parts = kernel_parts(c->rows, PART_ROWS);
	if (threads == 1) {
		for (int64_t i = 0; i < parts; i++)
			part(c, i);
		return;
	}
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t i = 0; i < parts; i++)
		part(c, i);
}

/* out = beta out + alpha Σ_parts sums */
static void linear_cross_entropy_add_sums(float *out, const chunk *c, float beta)
{
	if (beta == 0.0f)
		memset(out, 0, (size_t)c->classes * sizeof *out);
	for (int64_t i = 0; i < kernel_parts(c->rows, PART_ROWS); i++) {
		const float *sum = c->sums + i * c->classes;
#pragma omp simd
		for (int64_t j = 0; j < c->classes; j++)
			out[j] += c->alpha * sum[j];
	}
}

static int64_t count_labels(const int32_t *label, int64_t rows, int64_t classes)
{
	int64_t count = 0;
	for (int64_t r = 0; r < rows; r++)
		count += linear_cross_entropy_counts(label[r], classes);
	return count;
}

/* Scratch: of the product, a chunk's logits, the loss of each row, a chunk's sums of dz. */
static size_t product_scratch(const backend *b, const op_call *call, int64_t rows)
{
	enum { LINE = 64 };
	return (KERNEL(linear_rows_scratch)(b, &call->in[1], rows) + LINE - 1) / LINE * LINE;
}

size_t KERNEL(linear_cross_entropy_scratch)(const backend *b, const op_call *call)
{
	int64_t rows = shape_rows(call->in[0].shape), classes = call->in[1].shape.dim[0];
	int64_t most = chunk_rows(rows, classes);
	int64_t floats = most * classes + rows + (call->out[4].data ? kernel_parts(most, PART_ROWS) * classes : 0);
	return product_scratch(b, call, most) + (size_t)floats * sizeof(float);
}

/* One chunk, from its hidden states on, into every output but loss and count. Row `first` of the call is its
 * first; the chunk of row 0 starts the sums over chunks. */
static status run_chunk(backend *b, const op_call *call, const chunk *c, int64_t first)
{
	const tensor *weight = &call->in[1];
	int64_t d = weight->shape.dim[1];
	const int threads = ((const cpu *)b)->threads;
	const float *hidden = (const float *)call->in[0].data + first * d, beta = first ? 1.0f : 0.0f;
	float *dhidden = call->out[2].data, *dweight = call->out[3].data;
	TRY(KERNEL(linear_rows)(b, weight, hidden, c->rows, c->alpha, NULL, c->z, NULL, call->scratch));
	passes(b, c);
	if (dhidden)
		TRY(gemm(threads, false, false, c->rows, d, c->classes, c->alpha, c->z, weight->data, 0,
		         dhidden + first * d));
	if (dweight)
		TRY(gemm(threads, true, false, c->classes, d, c->rows, c->alpha, c->z, hidden, beta, dweight));
	if (call->out[4].data)
		linear_cross_entropy_add_sums(call->out[4].data, c, beta);
	return STATUS_OK;
}

status KERNEL(linear_cross_entropy)(backend *b, const op_call *call)
{
	const linear_cross_entropy_params *p = call->params;
	const int32_t *label = call->in[3].data;
	const float *weight = kernel_optional(call, 4);
	float *hit = call->out[5].data, *log_probability = call->out[6].data;
	float *mean = call->out[0].data, *counted = call->out[1].data, *dhidden = call->out[2].data;
	int64_t rows = shape_rows(call->in[0].shape), classes = call->in[1].shape.dim[0], d = call->in[1].shape.dim[1];
	int64_t count = count_labels(label, rows, classes), most = chunk_rows(rows, classes);
	void *chunk_scratch = (char *)call->scratch + product_scratch(b, call, most);
	float *z = chunk_scratch, *loss = z + most * classes;
	chunk c = {.classes = classes, .bias = call->in[2].data, .alpha = p->alpha, .smoothing = p->smoothing, .z = z};
	c.factor = count ? 1.0f / (float)count : 0.0f;
	c.gradients = dhidden || call->out[3].data || call->out[4].data;
	c.sums = call->out[4].data ? loss + rows : NULL;
	if (c.gradients && call->in[1].type != DTYPE_F32)
		return STATUS_UNSUPPORTED;
	if (hit)
		memset(hit, 0, (size_t)rows * sizeof *hit); /* ignored rows have no hit */
	if (log_probability)
		memset(log_probability, 0, (size_t)rows * sizeof *log_probability);
	for (int64_t first = 0; first < rows || first == 0; first += most) {
		c.rows = kernel_min(most, rows - first);
		c.label = label + first;
		c.loss = loss + first;
		c.hit = hit ? hit + first : NULL;
		c.weight = weight ? weight + first : NULL;
		c.log_probability = log_probability ? log_probability + first : NULL;
		if (first == 0 || count_labels(c.label, c.rows, classes))
			TRY(run_chunk(b, call, &c, first));
		else if (dhidden)
			memset(dhidden + first * d, 0, (size_t)(c.rows * d) * sizeof *dhidden);
	}
	double total = 0.0;
	for (int64_t r = 0; r < rows; r++)
		total += linear_cross_entropy_counts(label[r], classes) ? (double)loss[r] : 0.0;
	if (mean)
		*mean = count ? (float)(total / (double)count) : 0.0f;
	if (counted)
		*counted = (float)count;
	return STATUS_OK;
}
