/* matmul and linear on the CUDA backend against sums in double: every transposition, type and odd shape. Kernels are
 * called as a plan calls them, on operands between guards. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/panel.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/random.h"

enum { GUARD = 64 }; /* bytes on each side */

static int setup_device(void **state)
{
	*state = open_device();
	return 0;
}

static int close_device(void **state)
{
	backend_close(*state);
	return 0;
}

/* --- operands --------------------------------------------------------------------------------- */

/* A tensor on the device and its content as floats. */
typedef struct operand {
	tensor t;
	void *block; /* t with its guards */
	float *values;
	size_t bytes;
} operand;

static void to_stored(dtype type, const float *from, int64_t count, void *to)
{
	for (int64_t i = 0; i < count; i++) {
		if (type == DTYPE_BF16)
			((uint16_t *)to)[i] = panel_bf16(from[i]);
		else
			((float *)to)[i] = from[i];
	}
}

static float stored_at(dtype type, const void *data, int64_t i)
{
	return type == DTYPE_BF16 ? panel_f32(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

/* Seed 0: poison, for a result. `shift`: number of elements by which the address is misaligned. */
static operand operand_new(backend *b, dtype type, shape s, uint64_t seed, int shift)
{
	operand o = {.t = {NULL, type, s}};
	int64_t count = shape_count(s);
	o.bytes = (size_t)count * dtype_bytes(type);
	size_t before = GUARD + (size_t)shift * dtype_bytes(type), all = before + o.bytes + GUARD;
	unsigned char *host = malloc(all);
	o.values = calloc((size_t)count + 1, sizeof *o.values);
	assert_non_null(host);
	assert_non_null(o.values);
	memset(host, 0xff, all);
	if (seed) {
		random_normal(o.values, count, seed, 1);
		void *stored = malloc(o.bytes + 1);
		assert_non_null(stored);
		to_stored(type, o.values, count, stored);
		for (int64_t i = 0; i < count; i++)
			o.values[i] = stored_at(type, stored, i);
		memcpy(host + before, stored, o.bytes);
		free(stored);
	}
	assert_int_equal(b->allocate(b, all, &o.block), STATUS_OK);
	assert_int_equal(b->upload(b, o.block, host, all), STATUS_OK);
	o.t.data = (char *)o.block + before;
	free(host);
	return o;
}

/* Download the operand's bytes and check its guards. */
static void *operand_read(backend *b, const operand *o)
{
	const size_t before = (size_t)((char *)o->t.data - (char *)o->block), all = before + o->bytes + GUARD;
	unsigned char *host = malloc(all);
	void *back = malloc(o->bytes + 1);
	assert_non_null(host);
	assert_non_null(back);
	assert_int_equal(b->download(b, host, o->block, all), STATUS_OK);
	for (size_t i = 0; i < all; i++)
		assert_true((i >= before && i < before + o->bytes) || host[i] == 0xff);
	memcpy(back, host + before, o->bytes);
	free(host);
	return back;
}

static void operand_free(backend *b, operand *o)
{
	b->release(b, o->block);
	free(o->values);
}

/* --- one product -------------------------------------------------------------------------------- */

typedef struct product {
	int64_t m, n, k;
	dtype type;
	bool trans_a, trans_b, wide;
	bool linear, bias;
	float alpha;
	int shift;
} product;

/* The exact sum, and the sum of magnitudes, which bounds the effect of roundings. */
static double exact(const product *p, const float *a, const float *w, const float *bias, int64_t i, int64_t j,
                    double *size)
{
	double sum = 0;
	*size = 0;
	for (int64_t l = 0; l < p->k; l++) {
		double term = (double)a[p->trans_a ? l * p->m + i : i * p->k + l] *
		              (double)w[p->trans_b ? j * p->k + l : l * p->n + j];
		sum += term;
		*size += fabs(term);
	}
	if (bias) {
		sum += (double)bias[j];
		*size += fabs((double)bias[j]);
	}
	*size *= fabs((double)p->alpha);
	return (double)p->alpha * sum;
}

static void compare(const product *p, const operand *a, const operand *w, const operand *bias, const operand *y,
                    const void *got)
{
	/* bf16 rounds the sum once, and the bias of linear before that. For some shapes (odd ones on 9.0) cuBLASLt also
	 * rounds the product before it adds the bias. */
	const double step = y->t.type == DTYPE_BF16 ? 1.0 / 256 : 0;
	for (int64_t i = 0; i < p->m; i++)
		for (int64_t j = 0; j < p->n; j++) {
			double size, want = exact(p, a->values, w->values, bias ? bias->values : NULL, i, j, &size);
			double found = (double)stored_at(y->t.type, got, i * p->n + j);
			double added = bias ? (double)bias->values[j] * (double)p->alpha : 0;
			double extra = bias ? step * (fabs(added) + fabs(want - added)) : 0;
			double allowed = 1e-6 * size + step * fabs(want) + extra * 1.01;
			if (!(fabs(found - want) <= allowed))
				fail_msg("%s m %d n %d k %d, %s%s%s%s, alpha %g: [%d, %d] is %g, not %g",
				         p->linear ? "linear" : "matmul", (int)p->m, (int)p->n, (int)p->k,
				         dtype_name(p->type), p->trans_a ? ", a transposed" : "",
				         p->trans_b ? ", b transposed" : "", p->wide ? ", wide" : "", (double)p->alpha,
				         (int)i, (int)j, found, want);
		}
}

static void try_product(backend *b, const product *p)
{
	const dtype out = p->wide ? DTYPE_F32 : p->type;
	const op_id id = p->linear ? OP_linear : OP_matmul;
	operand a = operand_new(b, p->type, p->trans_a ? SHAPE2(p->k, p->m) : SHAPE2(p->m, p->k), 1, p->shift);
	operand w = operand_new(b, p->type, p->trans_b ? SHAPE2(p->n, p->k) : SHAPE2(p->k, p->n), 2, p->shift);
	operand y = operand_new(b, out, SHAPE2(p->m, p->n), 0, 0), bias = {0};
	op_call call = {.n_in = 2, .n_out = 1, .in = {a.t, w.t}, .out = {y.t}};
	linear_params as_linear = {.alpha = p->alpha};
	matmul_params as_matmul = {p->trans_a, p->trans_b, p->wide, p->alpha};
	call.params = p->linear ? (const void *)&as_linear : (const void *)&as_matmul;
	if (p->bias) {
		bias = operand_new(b, DTYPE_F32, SHAPE1(p->n), 3, p->shift);
		call.in[call.n_in++] = bias.t;
	}
	assert_int_equal(op_get(id)->check(&call, NULL), STATUS_OK);
	call.out[0].data = y.t.data;
	size_t scratch = b->scratch[id] ? b->scratch[id](b, &call) : 0;
	if (scratch)
		assert_int_equal(b->allocate(b, scratch, &call.scratch), STATUS_OK);
	assert_int_equal(b->kernel[id](b, &call), STATUS_OK);
	void *got = operand_read(b, &y);
	compare(p, &a, &w, p->bias ? &bias : NULL, &y, got);
	assert_int_equal(b->kernel[id](b, &call), STATUS_OK);
	void *again = operand_read(b, &y);
	assert_memory_equal(got, again, y.bytes);
	free(got);
	free(again);
	b->release(b, call.scratch);
	operand_free(b, &a);
	operand_free(b, &w);
	operand_free(b, &y);
	if (p->bias)
		operand_free(b, &bias);
}

/* --- tests ------------------------------------------------------------------------------------------ */

static const int64_t shapes[][3] = {{1, 1, 1},    {1, 33, 7},   {31, 1, 65}, {5, 3, 1},   {64, 32, 16},
                                    {33, 65, 31}, {128, 24, 8}, {2, 130, 9}, {70, 70, 70}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void products_are_right_in_every_type_transposed_or_not(void **state)
{
	for (int i = 0; i < N_SHAPES; i++)
		for (unsigned bits = 0; bits < 16; bits++) {
			product p = {.m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2]};
			p.trans_a = bits & 1;
			p.trans_b = bits & 2;
			p.type = bits & 4 ? DTYPE_BF16 : DTYPE_F32;
			p.wide = bits & 8;
			p.alpha = bits & 1 ? 1 : -0.37f;
			try_product(*state, &p);
		}
}

static void linear_adds_its_bias_before_it_scales(void **state)
{
	static const float alphas[] = {1, 0.25f, -3};
	for (int i = 0; i < N_SHAPES; i++)
		for (size_t j = 0; j < sizeof alphas / sizeof alphas[0]; j++)
			for (unsigned bits = 0; bits < 4; bits++) {
				product p = {.m = shapes[i][0],
				             .n = shapes[i][1],
				             .k = shapes[i][2],
				             .trans_b = true,
				             .linear = true};
				p.bias = bits & 1;
				p.type = bits & 2 ? DTYPE_BF16 : DTYPE_F32;
				p.alpha = alphas[j];
				try_product(*state, &p);
			}
}

static void operands_may_have_any_alignment(void **state)
{
	for (unsigned bits = 0; bits < 8; bits++)
		for (int shift = 1; shift <= 4; shift++) {
			product p = {.m = 17, .n = 24, .k = 40, .trans_b = true, .alpha = 1, .shift = shift};
			p.type = bits & 1 ? DTYPE_BF16 : DTYPE_F32;
			p.linear = bits & 2;
			p.bias = bits & 4 && p.linear;
			try_product(*state, &p);
		}
}

static void an_empty_sum_is_zero_or_the_bias(void **state)
{
	for (unsigned bits = 0; bits < 16; bits++) {
		product p = {.m = 3, .n = 70, .trans_b = true, .alpha = 0.5f};
		p.type = bits & 1 ? DTYPE_BF16 : DTYPE_F32;
		p.linear = bits & 2;
		p.bias = bits & 4 && p.linear;
		p.wide = bits & 8 && !p.linear;
		try_product(*state, &p);
	}
}

static void empty_results_are_legal(void **state)
{
	for (unsigned bits = 0; bits < 4; bits++) {
		product p = {.m = bits & 1 ? 0 : 5, .n = bits & 1 ? 5 : 0, .k = 4, .trans_b = true, .alpha = 1};
		p.linear = p.bias = bits & 2;
		try_product(*state, &p);
	}
}

/* A NaN in the old content of the result must have no effect: beta is 0, not a factor. */
static void old_content_of_the_result_has_no_effect(void **state)
{
	product p = {.m = 4, .n = 4, .k = 4, .alpha = 1};
	try_product(*state, &p); /* results are poisoned with NaN */
	p.alpha = 0;
	try_product(*state, &p);
}

static void more_shapes_than_the_cache_holds_are_right(void **state)
{
	enum { EDGE = 65 }; /* EDGE² exceeds MOST_PLANS of gemm.cu */
	for (int64_t m = 1; m <= EDGE; m++)
		for (int64_t n = 1; n <= EDGE; n++)
			try_product(*state, &(product){.m = m, .n = n, .k = 1, .alpha = 1});
	try_product(*state, &(product){.m = 1, .n = 1, .k = 1, .alpha = 1});
}

/* For some shapes the library has no algorithm that adds a bias in its epilogue (ADDITIVE_EMULATOR_REFUSES). */
static void a_bias_that_the_library_cannot_add_is_added_by_a_kernel(void **state)
{
	(void)state;
	skip_unless_emulated();
	setenv("ADDITIVE_EMULATOR_REFUSES", "bias", 1);
	backend *b = open_device();
	const emulator_counter counter = emulator_counting();
	for (int i = 0; i < N_SHAPES; i++)
		for (unsigned bits = 0; bits < 4; bits++) {
			product p = {
			    .m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2], .trans_b = true, .linear = true};
			size_t n;
			int adds = 0;
			p.bias = bits & 1;
			p.type = bits & 2 ? DTYPE_BF16 : DTYPE_F32;
			p.alpha = bits & 2 ? -3 : 1;
			counter.begin();
			try_product(b, &p); /* twice: the second time with the plan of the first */
			const emulator_work *w = counter.end(&n);
			for (size_t at = 0; at < n; at++)
				adds += strncmp(w[at].name, "add_bias_kernel", strlen("add_bias_kernel")) == 0;
			assert_int_equal(adds, p.bias ? 2 : 0);
		}
	backend_close(b);
	unsetenv("ADDITIVE_EMULATOR_REFUSES");
}

/* Benchmarks get this function by name: every choice of the library is the same product. */
static void every_choice_gives_the_product(void **state)
{
	status (*choose)(backend * b, const op_call *call, int i, int *count);
	const char *folder = getenv("ADDITIVE_PLUGIN_DIR");
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/additive-cuda.so", folder ? folder : "build/bin");
	void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	if (!plugin)
		skip();
	*(void **)&choose = dlsym(plugin, "additive_cuda_matmul_choice");
	assert_non_null((void *)(uintptr_t)choose);
	backend *b = *state;
	const product p = {.m = 40, .n = 24, .k = 56, .type = DTYPE_BF16, .trans_b = true, .alpha = 1};
	operand a = operand_new(b, p.type, SHAPE2(p.m, p.k), 1, 0), w = operand_new(b, p.type, SHAPE2(p.n, p.k), 2, 0);
	operand y = operand_new(b, p.type, SHAPE2(p.m, p.n), 0, 0);
	const matmul_params params = {p.trans_a, p.trans_b, p.wide, p.alpha};
	const op_call call = {.params = &params, .n_in = 2, .n_out = 1, .in = {a.t, w.t}, .out = {y.t}};
	int count = 0;
	for (int i = 0; i == 0 || i < count; i++) {
		assert_int_equal(choose(b, &call, i, &count), STATUS_OK);
		void *got = operand_read(b, &y);
		compare(&p, &a, &w, NULL, &y, got);
		free(got);
	}
	assert_int_equal(choose(b, &call, count, &count), STATUS_INVALID);
	assert_int_equal(choose(b, &call, -1, &count), STATUS_INVALID);
	operand_free(b, &a);
	operand_free(b, &w);
	operand_free(b, &y);
	dlclose(plugin);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(products_are_right_in_every_type_transposed_or_not),
	    cmocka_unit_test(linear_adds_its_bias_before_it_scales),
	    cmocka_unit_test(operands_may_have_any_alignment),
	    cmocka_unit_test(an_empty_sum_is_zero_or_the_bias),
	    cmocka_unit_test(empty_results_are_legal),
	    cmocka_unit_test(old_content_of_the_result_has_no_effect),
	    cmocka_unit_test(more_shapes_than_the_cache_holds_are_right),
	    cmocka_unit_test(a_bias_that_the_library_cannot_add_is_added_by_a_kernel),
	    cmocka_unit_test(every_choice_gives_the_product),
	};
	return cmocka_run_group_tests(tests, setup_device, close_device);
}
