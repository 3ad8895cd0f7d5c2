/* Matrix products on a CPU. Operands are widened to floats and laid out in panels; then tiles of ROWS x COLUMNS sums
 * stay in registers while k runs from 0 upward. Every shape has the same order, so results repeat bit by bit.
 *
 * ADDITIVE_EMULATOR_REFUSES=bias         the library has no algorithm that adds a bias in its epilogue
 * ADDITIVE_EMULATOR_CANDIDATES=MS,MS,…   the library has this many algorithms, all with the same result; a product takes
 *                                        so many milliseconds of the device's clock, or is refused with 0 */
#include <cublasLt.h>

#include <cuda_bf16.h>

#include <stdlib.h>

#include <vector>

#include "emulator.h"

struct cublasLtContext {
	int unused;
};
struct emulator_layout {
	cudaDataType type;
	cublasLtOrder_t order;
	uint64_t rows, columns;
	int64_t ld, offset; /* offset: elements from one matrix of a batch to the next */
	int32_t batch;
};
struct emulator_matmul {
	cublasComputeType_t compute;
	cudaDataType scale;
	int32_t pointer_mode, transpose_a, transpose_b, transpose_c;
	uint32_t epilogue;
	void *bias;
	int32_t bias_type;  /* -1: D's type */
	int32_t processors; /* number of processors to use; 0: all */
};
struct emulator_preference {
	uint64_t workspace;
};

namespace {

enum { ROWS = 16, COLUMNS = 4 };
typedef float lanes __attribute__((vector_size(16)));

size_t element(cudaDataType type)
{
	return type == CUDA_R_16BF ? 2 : 4;
}

float number(const void *data, cudaDataType type, int64_t i)
{
	if (type == CUDA_R_16BF)
		return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
	return ((const float *)data)[i];
}

/* Offset of element (row, column) of a layout, in elements. */
struct steps {
	int64_t row, column;
};
steps steps_of(const emulator_layout &l)
{
	return l.order == CUBLASLT_ORDER_COL ? steps{1, l.ld} : steps{l.ld, 1};
}

/* x [n, depth] by strides -> panels of `width` rows: out[panel][k][width], zeros beyond n. */
std::vector<float> panels(const void *data, cudaDataType type, int64_t n, int64_t depth, int64_t by_row, int64_t by_k, int width)
{
	int64_t count = (n + width - 1) / width;
	std::vector<float> out((size_t)(count * depth * width));
	for (int64_t r = 0; r < n; r++) {
		float *to = out.data() + r / width * depth * width + r % width;
		for (int64_t k = 0; k < depth; k++)
			to[k * width] = number(data, type, r * by_row + k * by_k);
	}
	return out;
}

/* sum [COLUMNS][ROWS] = the product of two panels. */
void tile(float *sum, const float *a, const float *b, int64_t depth)
{
	lanes s[COLUMNS][ROWS / 4] = {};
	for (int64_t k = 0; k < depth; k++, a += ROWS, b += COLUMNS)
		for (int i = 0; i < ROWS / 4; i++) {
			lanes x;
			memcpy(&x, a + 4 * i, sizeof x);
			for (int j = 0; j < COLUMNS; j++)
				s[j][i] += x * b[j];
		}
	memcpy(sum, s, sizeof s);
}

struct product {
	emulator_matmul desc;
	emulator_layout a, b, c, d;
	float alpha, beta;
	const void *a_data, *b_data, *c_data;
	void *d_data;
	unsigned candidate;
	double ms;

	void run() const;
	void run_one(int batch) const;
	void count(size_t bias) const;
	float finish(float sum, int64_t at_c, int64_t row, const void *c_from) const;
};

float product::finish(float sum, int64_t at_c, int64_t row, const void *c_from) const
{
	float x = alpha * sum;
	if (beta != 0)
		x += beta * number(c_from, c.type, at_c);
	if (desc.epilogue & CUBLASLT_EPILOGUE_BIAS)
		x += number(desc.bias, desc.bias_type < 0 ? d.type : (cudaDataType)desc.bias_type, row);
	return desc.epilogue & CUBLASLT_EPILOGUE_RELU && x < 0 ? 0 : x;
}

void product::run_one(int batch) const
{
	const char *a_from = (const char *)a_data + batch * a.offset * (int64_t)element(a.type);
	const char *b_from = (const char *)b_data + batch * b.offset * (int64_t)element(b.type);
	const char *c_from = (const char *)c_data + batch * c.offset * (int64_t)element(c.type);
	char *d_to = (char *)d_data + batch * d.offset * (int64_t)element(d.type);
	int64_t m = (int64_t)d.rows, n = (int64_t)d.columns, depth = (int64_t)(desc.transpose_a ? a.rows : a.columns);
	steps as = steps_of(a), bs = steps_of(b), cs = steps_of(c), ds = steps_of(d);
	if (desc.transpose_a)
		std::swap(as.row, as.column);
	if (desc.transpose_b)
		std::swap(bs.row, bs.column);
	std::vector<float> left = panels(a_from, a.type, m, depth, as.row, as.column, ROWS);
	std::vector<float> right = panels(b_from, b.type, n, depth, bs.column, bs.row, COLUMNS);
	for (int64_t j = 0; j < n; j += COLUMNS)
		for (int64_t i = 0; i < m; i += ROWS) {
			float sum[COLUMNS][ROWS];
			tile(sum[0], left.data() + i * depth, right.data() + j * depth, depth);
			for (int64_t y = j; y < n && y < j + COLUMNS; y++)
				for (int64_t x = i; x < m && x < i + ROWS; x++) {
					float value = finish(sum[y - j][x - i], x * cs.row + y * cs.column, x, c_from);
					int64_t at = x * ds.row + y * ds.column;
					if (d.type == CUDA_R_16BF)
						((__nv_bfloat16 *)d_to)[at] = __float2bfloat16_rn(value);
					else
						((float *)d_to)[at] = value;
				}
		}
}

/* Check the memory from the first element of a batch of matrices to the last. */
void need(const void *data, const emulator_layout &l, const char *what, bool written = false)
{
	if (l.rows == 0 || l.columns == 0)
		return;
	steps s = steps_of(l);
	int64_t last = (l.batch - 1) * l.offset + (int64_t)(l.rows - 1) * s.row + (int64_t)(l.columns - 1) * s.column;
	size_t bytes = (size_t)(last + 1) * element(l.type);
	emulator::need_device(data, bytes, what);
	emulator::previous->ranges.push_back({(uintptr_t)data, bytes, written});
}

/* Bytes of a batch of matrices; a matrix that all share counts once. */
size_t bytes_of(const emulator_layout &l)
{
	return (size_t)(l.rows * l.columns) * element(l.type) * (l.offset ? (size_t)l.batch : 1);
}

void product::count(size_t bias) const
{
	const unsigned depth = (unsigned)(desc.transpose_a ? a.rows : a.columns), m = (unsigned)d.rows, n = (unsigned)d.columns;
	const unsigned size[3] = {m, n, depth};
	size_t read = bytes_of(a) + bytes_of(b) + (beta != 0 ? bytes_of(c) : 0) + bias;
	emulator::count_work(EMULATOR_PRODUCT, a.type == CUDA_R_16BF ? "product of bf16" : "product of f32", read, bytes_of(d), size,
	                     (unsigned)d.batch, 2 * (uint64_t)m * n * depth * (uint64_t)d.batch, (unsigned)desc.processors, candidate);
}

void product::run() const
{
	const size_t bias = desc.epilogue & CUBLASLT_EPILOGUE_BIAS
	                        ? d.rows * element(desc.bias_type < 0 ? d.type : (cudaDataType)desc.bias_type)
	                        : 0;
	emulator::previous->began = emulator::previous->ended = 0;
	emulator::previous->ranges.clear();
	need(a_data, a, "cublasLtMatmul, A");
	need(b_data, b, "cublasLtMatmul, B");
	need(d_data, d, "cublasLtMatmul, D", true);
	if (beta != 0)
		need(c_data, c, "cublasLtMatmul, C");
	emulator::need_device(desc.bias, bias, "cublasLtMatmul, bias");
	count(bias);
	for (int i = 0; i < d.batch; i++)
		run_one(i);
	emulator::clock_ms += ms;
}

bool known(cudaDataType type)
{
	return type == CUDA_R_32F || type == CUDA_R_16BF;
}

/* CUBLAS_STATUS_SUCCESS if the product is supported and its matrices fit each other. */
cublasStatus_t check(const emulator_matmul &m, const emulator_layout &a, const emulator_layout &b, const emulator_layout &c,
                     const emulator_layout &d)
{
	if (m.scale != CUDA_R_32F || m.pointer_mode != CUBLASLT_POINTER_MODE_HOST || m.transpose_c ||
	    (m.epilogue & ~7u) != 0 || !known(a.type) || a.type != b.type || !known(c.type) || c.type != d.type)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (m.compute != CUBLAS_COMPUTE_32F && m.compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
	    (a.type != CUDA_R_32F || (m.compute != CUBLAS_COMPUTE_32F_FAST_TF32 && m.compute != CUBLAS_COMPUTE_32F_FAST_16BF)))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (a.type == CUDA_R_32F && d.type != CUDA_R_32F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	uint64_t rows = m.transpose_a ? a.columns : a.rows, depth = m.transpose_a ? a.rows : a.columns;
	uint64_t depth_b = m.transpose_b ? b.columns : b.rows, columns = m.transpose_b ? b.rows : b.columns;
	if (rows != d.rows || columns != d.columns || depth != depth_b || c.rows != d.rows || c.columns != d.columns ||
	    a.batch != d.batch || b.batch != d.batch || c.batch != d.batch)
		return CUBLAS_STATUS_INVALID_VALUE;
	for (const emulator_layout *l : {&a, &b, &c, &d})
		if (l->ld < (int64_t)(l->order == CUBLASLT_ORDER_COL ? l->rows : l->columns))
			return CUBLAS_STATUS_INVALID_VALUE;
	return CUBLAS_STATUS_SUCCESS;
}

bool has_no_algorithm(const emulator_matmul &m)
{
	const char *s = getenv("ADDITIVE_EMULATOR_REFUSES");
	return s && strcmp(s, "bias") == 0 && m.epilogue & CUBLASLT_EPILOGUE_BIAS;
}

/* Times of the algorithms. */
std::vector<double> candidates()
{
	const char *s = getenv("ADDITIVE_EMULATOR_CANDIDATES");
	std::vector<double> out;
	for (char *end = (char *)s; end && *end; end += *end == ',')
		out.push_back(strtod(end, &end));
	return s ? out : std::vector<double>{0.001};
}

template <class T> cublasStatus_t set(T *field, const void *value, size_t bytes)
{
	if (!value || bytes != sizeof *field)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(field, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
	*handle = new cublasLtContext();
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	delete handle;
	return CUBLAS_STATUS_SUCCESS;
}
const char *cublasLtGetStatusName(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS"
	       : s == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
	       : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
	                                          : "CUBLAS_STATUS_EXECUTION_FAILED";
}
const char *cublasLtGetStatusString(cublasStatus_t s)
{
	return cublasLtGetStatusName(s);
}
size_t cublasLtGetVersion(void)
{
	return 130000;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
	*out = new emulator_layout{type, CUBLASLT_ORDER_COL, rows, columns, ld, 0, 1};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	delete layout;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
	switch (attribute) {
	case CUBLASLT_MATRIX_LAYOUT_TYPE:
		return set(&l->type, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_ORDER:
		return set(&l->order, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_ROWS:
		return set(&l->rows, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_COLS:
		return set(&l->columns, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_LD:
		return set(&l->ld, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
		return set(&l->batch, value, bytes);
	case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
		return set(&l->offset, value, bytes);
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType scale)
{
	*out = new emulator_matmul{compute, scale, CUBLASLT_POINTER_MODE_HOST, 0, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, nullptr, -1, 0};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	delete desc;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t m, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
	int8_t fast;
	switch (attribute) {
	case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
		return set(&m->compute, value, bytes);
	case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
		return set(&m->scale, value, bytes);
	case CUBLASLT_MATMUL_DESC_POINTER_MODE:
		return set(&m->pointer_mode, value, bytes);
	case CUBLASLT_MATMUL_DESC_TRANSA:
		return set(&m->transpose_a, value, bytes);
	case CUBLASLT_MATMUL_DESC_TRANSB:
		return set(&m->transpose_b, value, bytes);
	case CUBLASLT_MATMUL_DESC_TRANSC:
		return set(&m->transpose_c, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		return set(&m->epilogue, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		return set(&m->bias, value, bytes);
	case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
		return set(&m->processors, value, bytes);
	case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
		return set(&fast, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
		return set(&m->bias_type, value, bytes);
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
	*out = new emulator_preference();
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	delete preference;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
	uint32_t ignored;
	if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
		return set(&p->workspace, value, bytes);
	return set(&ignored, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
	*count = 0;
	if (most < 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	cublasStatus_t s = check(*desc, *a, *b, *c, *d);
	if (s != CUBLAS_STATUS_SUCCESS)
		return s;
	if (emulator::is_planted("algorithm") || has_no_algorithm(*desc))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	*count = std::min(most, (int)candidates().size());
	for (int i = 0; i < *count; i++) {
		results[i] = {};
		results[i].algo.data[0] = (uint64_t)i;
		results[i].wavesCount = 1;
	}
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *, size_t,
                              cudaStream_t stream)
{
	if (!handle)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (!desc || !alpha || !beta || !a_layout || !b_layout || !c_layout || !d_layout || !a || !b || !d)
		return CUBLAS_STATUS_INVALID_VALUE;
	cublasStatus_t s = check(*desc, *a_layout, *b_layout, *c_layout, *d_layout);
	const unsigned candidate = algo ? (unsigned)algo->data[0] : 0;
	const std::vector<double> times = candidates();
	const double ms = candidate < times.size() ? times[candidate] : 0;
	if (s == CUBLAS_STATUS_SUCCESS && (has_no_algorithm(*desc) || ms == 0))
		s = CUBLAS_STATUS_NOT_SUPPORTED;
	if (s != CUBLAS_STATUS_SUCCESS)
		return s;
	product p = {*desc, *a_layout, *b_layout, *c_layout, *d_layout, 0, 0, a, b, c, d, candidate, ms};
	memcpy(&p.alpha, alpha, sizeof p.alpha);
	memcpy(&p.beta, beta, sizeof p.beta);
	if ((p.beta != 0 && !c) || (desc->epilogue & CUBLASLT_EPILOGUE_BIAS && !desc->bias))
		return CUBLAS_STATUS_INVALID_VALUE;
	return emulator::enqueue(stream, [p]() { p.run(); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
	                                                                     : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
