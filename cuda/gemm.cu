/* matmul, linear: matrix products by cuBLASLt.
 *
 *    C [m, n] = alpha op(A) op(B) + beta C         matmul, cuda_gemm
 *    y [M, N] = alpha (x Wᵀ + b)                   linear with f32 or bf16 weights (panels: linear_panels.cu)
 *
 * The library is column-major. Our row-major C is its Cᵀ [n, m] = alpha op(B)ᵀ op(A)ᵀ + beta Cᵀ, so the operands change
 * places and each keeps its transposition. f32 is multiplied as f32 (no TF32); bf16 is summed in f32. C may be read
 * from another tensor than the one that is written, so that a product and the sum that it goes into are one kernel
 * (fuse.cu).
 *
 * linear's bias is added in the epilogue. There it comes after alpha and has the type of y, so alpha b is prepared in
 * scratch, unless b itself will do. For bf16 it is rounded to bf16 (an error of at most 2⁻⁹ of b). That costs N
 * elements, where a pass over y would cost M N. For some shapes (odd rows of bf16) the library has no algorithm that
 * adds a bias. Then the product is written without it, rounded, and a kernel of ours adds the bias in a pass over y.
 *
 * Equal calls give equal bits. For each shape the library's first choice is kept, or in training the fastest of its
 * first CANDIDATES (cuda_choose_fastest). They are queried for operands with an alignment of at most 16 bytes, so that a
 * tensor's address does not matter, and with a workspace of fixed size. Sums
 * over parts of k may be split only if the parts are kept in f32 in the workspace and a second step adds them in order.
 * Reduction in place or in the type of C is excluded. Handle and workspace belong to the backend, hence to its stream.
 *
 * A backend in the background leaves processors to the others. The library's kernels for large products may keep a
 * block on every processor, alone there, until the whole product ends. Each kernel of a served step would wait for
 * that. So the number of processors (ADDITIVE_CUDA_BACKGROUND_PROCESSORS, else 7 of 8) is part of each product's
 * description. With fewer, the library may choose another algorithm, hence other bits than in the foreground; the same
 * number gives the same bits.
 *
 * The library has no products with k = 0; a kernel of ours writes their result. */
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/linear_panels.h"
#include "cuda/product_choices.h"

extern "C" {
#include "engine/base/log.h"
}

enum : size_t { WORKSPACE_BYTES = 32 << 20 };
enum { BUCKETS = 256, MOST_PLANS = 4096, MOST_CHOICES = 16, ALIGNED = 16, THREADS = 256 };
enum { CANDIDATES = 8, ROUNDS = 3, RUNS = 3 /* per candidate in later rounds */, KEY_BYTES = 256 };
#define LONG_MS 0.5f
#define NEARLY 1.1f
/* A candidate replaces the first one if it takes at most this part of its time. Less may be noise. */
#define FASTER 0.97f

/* --- plans of products ------------------------------------------- */

/* Everything an algorithm may depend on. Compared as bytes, so it is zeroed before it is filled. */
typedef struct product_key {
	int64_t m, n, k, lda, ldb, ldc;
	uint8_t type, c_type, trans_a, trans_b;
	uint8_t align_a, align_b, align_c, align_from, align_bias; /* bytes; from: the operand of beta; 0: no bias */
} product_key;

typedef struct product_plan {
	struct product_plan *next;
	product_key key;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, c;
	cublasLtMatmulAlgo_t algorithm;
	bool adds_bias; /* by a kernel of ours, since the library cannot */
} product_plan;

typedef struct cuda_products {
	cublasLtHandle_t handle;
	int32_t processors; /* most for one product; 0: all */
	void *workspace;
	product_plan *buckets[BUCKETS];
	int count;
	product_choices *choices; /* NULL: the library's first choice is used */
	cudaEvent_t begin, end;   /* with choices: around the runs of a candidate */
} cuda_products;

/* Convert a status of the library: choosing and launching return unsupported cases; any other failure is STATUS_DEVICE
 * (cuda_refuse). */
static status library_status(cuda_backend *c, cublasStatus_t e)
{
	if (e == CUBLAS_STATUS_SUCCESS)
		return cuda_lost(c) ? STATUS_DEVICE : STATUS_OK;
	if (e == CUBLAS_STATUS_ALLOC_FAILED)
		return STATUS_NOMEM;
	if (e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE || c->recording) {
		log_line(LOG_WARN, "CUDA device %d: cuBLASLt refuses a product: %s", c->device,
		         cublasLtGetStatusString(e));
		return STATUS_UNSUPPORTED; /* while recording: the direct run will show whether the device is lost */
	}
	(void)cudaGetLastError();
	return cuda_refuse(c, cublasLtGetStatusName(e), cublasLtGetStatusString(e));
}

static cudaDataType library_type(int type)
{
	return type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void plan_delete(product_plan *p)
{
	if (p->desc)
		(void)cublasLtMatmulDescDestroy(p->desc);
	if (p->a)
		(void)cublasLtMatrixLayoutDestroy(p->a);
	if (p->b)
		(void)cublasLtMatrixLayoutDestroy(p->b);
	if (p->c)
		(void)cublasLtMatrixLayoutDestroy(p->c);
	free(p);
}

static void forget_plans(cuda_products *g)
{
	for (int i = 0; i < BUCKETS; i++)
		for (product_plan *p = g->buckets[i], *next; p; p = next) {
			next = p->next;
			plan_delete(p);
		}
	memset(g->buckets, 0, sizeof g->buckets);
	g->count = 0;
}

template <class T> static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, T value)
{
	return cublasLtMatmulDescSetAttribute(desc, what, &value, sizeof value);
}
template <class T>
static cublasStatus_t prefer(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, T value)
{
	return cublasLtMatmulPreferenceSetAttribute(p, what, &value, sizeof value);
}

/* Describe the product to the library: our B is its first operand, our A its second. */
static status describe(cuda_backend *c, product_plan *p, const void *bias)
{
	const product_key *key = &p->key;
	const cudaDataType type = library_type(key->type);
	const uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
	TRY(library_status(c, cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
	TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N)));
	TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N)));
	if (c->products->processors)
		TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, c->products->processors)));
	if (bias) {
		TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS)));
		TRY(library_status(
		    c, set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)library_type(key->c_type))));
		TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)));
	}
	TRY(library_status(c, key->trans_b ? cublasLtMatrixLayoutCreate(&p->b, type, k, n, key->ldb)
	                                   : cublasLtMatrixLayoutCreate(&p->b, type, n, k, key->ldb)));
	TRY(library_status(c, key->trans_a ? cublasLtMatrixLayoutCreate(&p->a, type, m, k, key->lda)
	                                   : cublasLtMatrixLayoutCreate(&p->a, type, k, m, key->lda)));
	return library_status(c, cublasLtMatrixLayoutCreate(&p->c, library_type(key->c_type), n, m, key->ldc));
}

static status set_preference(cuda_backend *c, const product_key *key, cublasLtMatmulPreference_t p)
{
	TRY(library_status(c, prefer(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)WORKSPACE_BYTES)));
	TRY(library_status(c, prefer(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
	                             (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
	TRY(library_status(c, prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b)));
	TRY(library_status(c, prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a)));
	TRY(library_status(c, prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_from)));
	return library_status(c, prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c));
}

/* Get the library's choices, best guess first, `most` at most. */
static status ask(cuda_backend *c, const product_plan *p, int most, cublasLtMatmulHeuristicResult_t *out, int *count)
{
	cublasLtMatmulPreference_t preference;
	*count = 0;
	TRY(library_status(c, cublasLtMatmulPreferenceCreate(&preference)));
	status s = set_preference(c, &p->key, preference);
	if (s == STATUS_OK) {
		const cublasStatus_t e = cublasLtMatmulAlgoGetHeuristic(c->products->handle, p->desc, p->b, p->a, p->c,
		                                                        p->c, preference, most, out, count);
		if (e == CUBLAS_STATUS_NOT_SUPPORTED)
			*count = 0;
		else
			s = library_status(c, e);
	}
	(void)cublasLtMatmulPreferenceDestroy(preference);
	return s;
}

/* Take the library's first choice. *found: false if it has none. */
static status choose_first(cuda_backend *c, product_plan *p, bool *found)
{
	cublasLtMatmulHeuristicResult_t best = {};
	int count;
	TRY(ask(c, p, 1, &best, &count));
	*found = count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
	p->algorithm = best.algo;
	return STATUS_OK;
}

/* Choose an algorithm. If there is none, try all processors instead of fewer, then leave the bias to our own kernel. */
static status choose(cuda_backend *c, product_plan *p, bool bias)
{
	bool found;
	TRY(choose_first(c, p, &found));
	if (!found && c->products->processors) {
		TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, (int32_t)0)));
		TRY(choose_first(c, p, &found));
	}
	if (!found && bias) {
		TRY(library_status(c, set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT)));
		p->adds_bias = true;
		TRY(choose_first(c, p, &found));
	}
	return found ? STATUS_OK : library_status(c, CUBLAS_STATUS_NOT_SUPPORTED);
}

static status issue(cuda_backend *c, const cuda_gemm_args *g, const void *from, const product_plan *p,
                    const cublasLtMatmulAlgo_t *algorithm)
{
	TRY(cuda_program_end(c));
	c->after_kernel = false;
	TRY(library_status(c, cublasLtMatmul(c->products->handle, p->desc, &g->alpha, g->b, p->b, g->a, p->a, &g->beta,
	                                     from, p->c, g->c, p->c, algorithm, c->products->workspace, WORKSPACE_BYTES,
	                                     c->stream)));
	return cuda_launched(c, cudaSuccess, NULL);
}

/* --- the fastest algorithm -------------------------------------------------------------------- */

/* ms: time of a run, the mean of `runs` after an untimed one; unchanged if the library refuses the candidate. */
static status time_runs(cuda_backend *c, const cuda_gemm_args *g, const void *from, const product_plan *p,
                        const cublasLtMatmulAlgo_t *algorithm, int runs, float *ms)
{
	cuda_products *all = c->products;
	float whole;
	for (int i = -1; i < runs; i++) {
		if (i == 0)
			TRY(cuda_status(c, cudaEventRecord(all->begin, c->stream)));
		if (issue(c, g, from, p, algorithm) != STATUS_OK)
			return cuda_lost(c) ? STATUS_DEVICE : STATUS_OK;
	}
	TRY(cuda_status(c, cudaEventRecord(all->end, c->stream)));
	TRY(cuda_status(c, cudaEventSynchronize(all->end)));
	TRY(cuda_status(c, cudaEventElapsedTime(&whole, all->begin, all->end)));
	*ms = whole / (float)runs;
	return STATUS_OK;
}

/* Find the candidate with the least time of any round. The results go to memory of their own, since the product may add
 * to its output. STATUS_NOMEM: there is no such memory. After the first round, only candidates that are nearly as fast
 * as the best one are timed again, and long products once. */
static status time_candidates(cuda_backend *c, const cuda_gemm_args *g, const void *from, const product_plan *p,
                              const cublasLtMatmulHeuristicResult_t *candidates, int count, int *best)
{
	float times[CANDIDATES], least = INFINITY;
	int fastest = 0;
	cuda_gemm_args runs = *g;
	status s = STATUS_OK;
	*best = 0;
	TRY(c->base.allocate(&c->base, (size_t)(g->m * g->ldc) * dtype_bytes(g->c_type), &runs.c));
	for (float &ms : times)
		ms = INFINITY;
	for (int i = 0; i < ROUNDS * count && s == STATUS_OK; i++) {
		const int at = i % count;
		const bool first = i < count, goes_on = times[at] < INFINITY && times[at] <= NEARLY * least;
		float ms = INFINITY;
		if (first ? candidates[at].state == CUBLAS_STATUS_SUCCESS : goes_on)
			s = time_runs(c, &runs, from, p, &candidates[at].algo, first || least > LONG_MS ? 1 : RUNS, &ms);
		times[at] = fminf(times[at], ms);
		fastest = times[at] < times[fastest] ? at : fastest;
		least = times[fastest];
	}
	c->base.release(&c->base, runs.c);
	*best = least <= FASTER * times[0] ? fastest : 0;
	return s;
}

/* Replace the library's first choice by the fastest one: the choice that is kept, or a new one. A recording cannot time
 * anything; its products have run before. */
static status choose_fastest(cuda_backend *c, const cuda_gemm_args *g, const void *from, product_plan *p)
{
	product_choices *choices = c->products->choices;
	const product_key *k = &p->key;
	cublasLtMatmulHeuristicResult_t candidates[CANDIDATES] = {};
	char key[KEY_BYTES];
	int count;
	TRY(ask(c, p, CANDIDATES, candidates, &count));
	if (count < 2)
		return STATUS_OK;
	snprintf(key, sizeof key,
	         "%lld x %lld x %lld, %lld %lld %lld, types %d %d %d %d, bytes %d %d %d %d %d, processors %d",
	         (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->lda, (long long)k->ldb,
	         (long long)k->ldc, k->type, k->c_type, k->trans_a, k->trans_b, k->align_a, k->align_b, k->align_c,
	         k->align_from, k->align_bias, (int)c->products->processors);
	int choice = product_choices_find(choices, key, !c->recording);
	if (choice < 0 && !c->recording) {
		const status s = time_candidates(c, g, from, p, candidates, count, &choice);
		if (s == STATUS_NOMEM)
			return STATUS_OK; /* the first choice, until this plan is forgotten */
		TRY(s);
		choice = product_choices_keep(choices, key, choice);
	}
	if (choice >= 0 && choice < count && candidates[choice].state == CUBLAS_STATUS_SUCCESS)
		p->algorithm = candidates[choice].algo;
	return STATUS_OK;
}

/* Return the plan of a shape, made when the shape first occurs. Its choices are the library's alone or are kept
 * elsewhere, so forgetting plans (before they become too many) changes no result. */
static status find_plan(cuda_backend *c, const product_key *key, const cuda_gemm_args *g, const void *from,
                        const void *bias, product_plan **out)
{
	cuda_products *all = c->products;
	uint64_t hash = 14695981039346656037u; /* FNV-1a */
	for (size_t i = 0; i < sizeof *key; i++)
		hash = (hash ^ ((const unsigned char *)key)[i]) * 1099511628211u;
	product_plan **bucket = &all->buckets[hash % BUCKETS];
	for (product_plan *p = *bucket; p; p = p->next)
		if (memcmp(&p->key, key, sizeof *key) == 0) {
			*out = p;
			return STATUS_OK;
		}
	if (all->count == MOST_PLANS)
		forget_plans(all);
	product_plan *p = (product_plan *)calloc(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	p->key = *key;
	status s = describe(c, p, bias);
	if (s == STATUS_OK)
		s = choose(c, p, bias);
	if (s == STATUS_OK && all->choices)
		s = choose_fastest(c, g, from, p);
	if (s != STATUS_OK) {
		plan_delete(p);
		return s;
	}
	p->next = *bucket;
	*bucket = p;
	all->count++;
	*out = p;
	return STATUS_OK;
}

/* --- products ------------------------------------------------------------------------------- */

static uint8_t alignment(const void *data)
{
	uint8_t bytes = 1;
	while (bytes < ALIGNED && (uintptr_t)data % (2u * bytes) == 0)
		bytes = (uint8_t)(2 * bytes);
	return bytes;
}

/* c [m, n] = beta from + bias, in rows `ld` apart: the product with k = 0. `from` may be c. bias has the same type and
 * may be NULL. beta = 0 does not read `from`. */
template <class T>
__global__ void no_product_kernel(T *c, const T *from, const T *bias, float beta, int64_t m, int64_t n, int64_t ld)
{
	for (int64_t i = grid_first(); i < m * n; i += grid_stride()) {
		const int64_t at = i / n * ld + i % n;
		store_real(c + at, (beta != 0.0f ? beta * load_real(from + at) : 0.0f) +
		                       (bias ? load_real(bias + i % n) : 0.0f));
	}
}

/* c [m, n] += bias [n] */
template <class T> __global__ void add_bias_kernel(T *c, const T *bias, int64_t m, int64_t n, int64_t ld)
{
	for (int64_t i = grid_first(); i < m * n; i += grid_stride()) {
		T *at = c + i / n * ld + i % n;
		store_real(at, load_real(at) + load_real(bias + i % n));
	}
}

static status add_bias(backend *b, const cuda_gemm_args *g, const void *bias)
{
	return cuda_by_type(g->c_type, [&](auto *type) {
		typedef decltype(type) T;
		return cuda_launch(b, add_bias_kernel<std::remove_pointer_t<T>>, cuda_blocks(b, g->m * g->n, THREADS),
		                   THREADS, 0, (T)g->c, (T)bias, g->m, g->n, g->ldc);
	});
}

static status no_product(backend *b, const cuda_gemm_args *g, const void *from, const void *bias)
{
	return cuda_by_type(g->c_type, [&](auto *type) {
		typedef decltype(type) T;
		return cuda_launch(b, no_product_kernel<std::remove_pointer_t<T>>, cuda_blocks(b, g->m * g->n, THREADS),
		                   THREADS, 0, (T)g->c, (T)from, (T)bias, g->beta, g->m, g->n, g->ldc);
	});
}

/* from: the operand of beta, in C's layout; may be C itself. bias: n elements of C's type, added after alpha, or
 * NULL. */
static status plan_of(cuda_backend *c, const cuda_gemm_args *g, const void *from, const void *bias, product_plan **out)
{
	product_key key;
	memset(&key, 0, sizeof key);
	key.m = g->m, key.n = g->n, key.k = g->k;
	key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
	key.type = (uint8_t)g->type, key.c_type = (uint8_t)g->c_type;
	key.trans_a = g->trans_a, key.trans_b = g->trans_b;
	key.align_a = alignment(g->a), key.align_b = alignment(g->b);
	key.align_c = alignment(g->c), key.align_from = alignment(from);
	key.align_bias = bias ? alignment(bias) : 0;
	TRY(find_plan(c, &key, g, from, bias, out));
	return bias && !(*out)->adds_bias
	           ? library_status(c, set((*out)->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias))
	           : STATUS_OK;
}

static status product(backend *b, const cuda_gemm_args *g, const void *from, const void *bias)
{
	cuda_backend *c = cuda_of(b);
	product_plan *p = NULL;
	TRY(cuda_enter(c));
	if (g->m == 0 || g->n == 0)
		return STATUS_OK;
	if (g->k == 0)
		return no_product(b, g, from, bias);
	TRY(plan_of(c, g, from, bias, &p));
	TRY(issue(c, g, from, p, &p->algorithm));
	return p->adds_bias ? add_bias(b, g, bias) : STATUS_OK;
}

status cuda_gemm(backend *b, cuda_gemm_args args)
{
	return product(b, &args, args.c, NULL);
}

static cuda_gemm_args matmul_args(const op_call *call)
{
	const matmul_params *p = (const matmul_params *)call->params;
	const tensor *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
	cuda_gemm_args g = {};
	g.trans_a = p->trans_a, g.trans_b = p->trans_b;
	g.m = shape_rows(y->shape), g.n = shape_last(y->shape);
	g.k = p->trans_a ? shape_rows(x->shape) : shape_last(x->shape);
	g.alpha = p->alpha;
	g.type = x->type, g.c_type = y->type;
	g.a = x->data, g.b = w->data, g.c = y->data;
	g.lda = shape_last(x->shape), g.ldb = shape_last(w->shape), g.ldc = g.n;
	return g;
}

size_t cuda_matmul_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const tensor *w = &call->in[1];
	return dtype_is_panel(w->type) ? (size_t)shape_count(w->shape) * sizeof(float) : 0;
}

status cuda_matmul(backend *b, const op_call *call)
{
	cuda_gemm_args g = matmul_args(call);
	if (dtype_is_panel(call->in[1].type)) {
		g.b = call->scratch;
		TRY(cuda_unpack(b, &call->in[1], (float *)call->scratch));
	}
	return cuda_gemm(b, g);
}

status cuda_matmul_plus(backend *b, const op_call *call, const void *add, void *out)
{
	cuda_gemm_args g = matmul_args(call);
	g.c = out;
	g.beta = 1.0f;
	return product(b, &g, add, NULL);
}

status additive_cuda_matmul_choice(backend *b, const op_call *call, int i, int *count)
{
	cuda_backend *c = cuda_of(b);
	const cuda_gemm_args g = matmul_args(call);
	cublasLtMatmulHeuristicResult_t choices[MOST_CHOICES] = {};
	product_plan *p = NULL;
	*count = 0;
	TRY(cuda_enter(c));
	if (g.m == 0 || g.n == 0 || g.k == 0)
		return STATUS_INVALID;
	TRY(plan_of(c, &g, g.c, NULL, &p));
	TRY(ask(c, p, MOST_CHOICES, choices, count));
	if (i < 0 || i >= *count)
		return STATUS_INVALID;
	TRY(library_status(c, choices[i].state));
	return issue(c, &g, g.c, p, &choices[i].algo);
}

/* --- linear ------------------------------------------------------------------------------------ */

/* out = alpha b, in y's type. */
template <class T> __global__ void scaled_bias_kernel(T *out, const float *bias, float alpha, int64_t n)
{
	for (int64_t i = grid_first(); i < n; i += grid_stride())
		store_real(out + i, alpha * bias[i]);
}

static bool bias_as_it_is(const op_call *call)
{
	return call->out[0].type == DTYPE_F32 && ((const linear_params *)call->params)->alpha == 1.0f &&
	       alignment(cuda_optional(call, 2)) == ALIGNED;
}

size_t cuda_linear_scratch(const backend *b, const op_call *call)
{
	if (dtype_is_panel(call->in[1].type))
		return cuda_linear_panels_scratch(b, call);
	if (!cuda_optional(call, 2))
		return 0;
	return (size_t)shape_last(call->out[0].shape) * dtype_bytes(call->out[0].type);
}

/* y = alpha (x Wᵀ + bias) + beta from */
static status linear(backend *b, const op_call *call, float beta, const void *from, void *out)
{
	const linear_params *p = (const linear_params *)call->params;
	const tensor *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
	cuda_gemm_args g = {};
	g.trans_b = true;
	g.m = shape_rows(x->shape), g.n = w->shape.dim[0], g.k = w->shape.dim[1];
	g.alpha = p->alpha, g.beta = beta;
	g.type = x->type, g.c_type = y->type;
	g.a = x->data, g.b = w->data, g.c = out;
	g.lda = g.ldb = g.k, g.ldc = g.n;
	const void *bias = cuda_optional(call, 2);
	if (bias && !bias_as_it_is(call)) {
		TRY(cuda_by_type(y->type, [&](auto *type) {
			typedef decltype(type) T;
			return cuda_launch(b, scaled_bias_kernel<std::remove_pointer_t<T>>,
			                   cuda_blocks(b, g.n, THREADS), THREADS, 0, (T)call->scratch,
			                   (const float *)bias, p->alpha, g.n);
		}));
		bias = call->scratch;
	}
	return product(b, &g, from, bias);
}

status cuda_linear(backend *b, const op_call *call)
{
	void *y = call->out[0].data;
	return dtype_is_panel(call->in[1].type) ? cuda_linear_panels(b, call) : linear(b, call, 0.0f, y, y);
}

status cuda_linear_plus(backend *b, const op_call *call, const void *add, void *out)
{
	return linear(b, call, 1.0f, add, out);
}

/* --- opening and closing ------------------------------------------------------------------------ */

/* Number of processors in the background; see the top of the file. Values from the device's own number on mean all. A
 * stream with a part of them uses the whole part. */
static int32_t background_processors(const cuda_backend *c)
{
	const char *value = getenv("ADDITIVE_CUDA_BACKGROUND_PROCESSORS");
	const long asked = value ? strtol(value, NULL, 10) : 0;
	const long most = asked > 0 ? asked : c->processors * 7 / 8;
	if (most > 0 && most < c->processors && !c->partition)
		return (int32_t)most;
	return c->partition ? c->processors : 0;
}

/* The table's choose_fastest. Identity: all that the library's candidates and their times depend on. */
static void cuda_choose_fastest(backend *b, const char *folder)
{
	cuda_backend *c = cuda_of(b);
	cuda_products *g = c->products;
	const char *value = getenv("ADDITIVE_CUDA_FASTEST");
	char identity[KEY_BYTES];
	int driver = 0;
	if (g->choices || (value && *value == '0') || cuda_enter(c) != STATUS_OK)
		return;
	(void)cudaDriverGetVersion(&driver);
	snprintf(identity, sizeof identity,
	         "additive: algorithms of products\ndevice %s, %d processors\ndriver %d\nlibrary %zu\n", b->device,
	         c->processors, driver, cublasLtGetVersion());
	if (cuda_status(c, cudaEventCreateWithFlags(&g->begin, cudaEventDefault)) == STATUS_OK &&
	    cuda_status(c, cudaEventCreateWithFlags(&g->end, cudaEventDefault)) == STATUS_OK)
		g->choices = product_choices_new(folder, identity);
}

status cuda_products_open(cuda_backend *c)
{
	cuda_products *g = c->products = (cuda_products *)calloc(1, sizeof *g);
	if (!g)
		return STATUS_NOMEM;
	c->base.choose_fastest = cuda_choose_fastest;
	g->processors = c->background ? background_processors(c) : 0;
	TRY(library_status(c, cublasLtCreate(&g->handle)));
	return c->base.allocate(&c->base, WORKSPACE_BYTES, &g->workspace);
}

void cuda_products_close(cuda_backend *c)
{
	cuda_products *g = c->products;
	if (!g)
		return;
	forget_plans(g);
	product_choices_free(g->choices);
	if (g->begin)
		(void)cudaEventDestroy(g->begin);
	if (g->end)
		(void)cudaEventDestroy(g->end);
	if (g->workspace)
		c->base.release(&c->base, g->workspace);
	if (g->handle)
		(void)cublasLtDestroy(g->handle);
	free(g);
	c->products = NULL;
}
