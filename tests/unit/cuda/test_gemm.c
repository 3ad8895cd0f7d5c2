/* matmul and linear on the CUDA backend against sums in double: every transposition, type and odd shape. Kernels are
 * called as a plan calls them, on operands between guards. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
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

/* --- the fastest algorithm ------------------------------------------------------------------------ */

/* A product of a shape that the other tests of a folder do not use gives another key. */
static const product chosen = {.m = 40, .n = 24, .k = 56, .trans_b = true, .alpha = 1};
static const product other = {.m = 24, .n = 40, .k = 56, .trans_b = true, .alpha = 1};

/* Products that `p` needed in two equal calls, and the algorithm of the last. */
typedef struct runs {
	int products;
	unsigned candidate;
} runs;

static runs run_counted(backend *b, const product *p)
{
	const emulator_counter counter = emulator_counting();
	runs r = {0};
	size_t n;
	counter.begin();
	try_product(b, p);
	const emulator_work *w = counter.end(&n);
	for (size_t i = 0; i < n; i++)
		if (w[i].kind == EMULATOR_PRODUCT)
			r.products++, r.candidate = w[i].candidate;
	return r;
}

/* Open the device with algorithms that take these times. */
static backend *open_with(const char *times, const char *folder)
{
	setenv("ADDITIVE_EMULATOR_CANDIDATES", times, 1);
	backend *b = open_device();
	b->choose_fastest(b, folder);
	return b;
}

static runs run_with(const char *times, const char *folder, const product *p)
{
	backend *b = open_with(times, folder);
	const runs r = run_counted(b, p);
	backend_close(b);
	return r;
}

/* An empty folder for choices. */
static void choices_begin(char folder[PATH_MAX])
{
	skip_unless_emulated();
	snprintf(folder, PATH_MAX, "%s/choices-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(folder));
}

static void choices_end(const char *folder)
{
	unsetenv("ADDITIVE_EMULATOR_CANDIDATES");
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* Path of the only file in a folder; false if there is none. */
static bool choices_file(const char *folder, char path[PATH_MAX])
{
	int n = 0;
	DIR *dir = opendir(folder);
	assert_non_null(dir);
	for (const struct dirent *e; (e = readdir(dir));)
		if (e->d_name[0] != '.' && ++n)
			assert_true(snprintf(path, PATH_MAX, "%s/%s", folder, e->d_name) < PATH_MAX);
	closedir(dir);
	assert_true(n <= 1);
	return n == 1;
}

static void a_clearly_faster_algorithm_than_the_first_is_chosen(void **state)
{
	static const struct {
		const char *times;
		unsigned best;
	} cases[] = {{"4,1,9", 1},
	             {"1,4,9", 0},
	             {"100,99", 0},
	             {"4,0,1" /* refused */, 2},
	             {"5,4,3,2", 3},
	             {"1,1,1", 0},
	             {"9,8,7,6,5,4,3,2,1" /* the ninth is not tried */, 7}};
	char folder[PATH_MAX];
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		choices_begin(folder);
		const runs r = run_with(cases[i].times, folder, &chosen);
		assert_int_equal(r.candidate, cases[i].best);
		assert_true(r.products > 2);
		choices_end(folder);
	}
}

static void a_choice_is_made_once_for_all_processes(void **state)
{
	char folder[PATH_MAX];
	(void)state;
	choices_begin(folder);
	backend *first = open_with("4,1", folder), *second = open_with("4,1", folder);
	assert_int_equal(run_counted(first, &chosen).candidate, 1);
	setenv("ADDITIVE_EMULATOR_CANDIDATES", "1,4", 1);
	const runs kept = run_counted(second, &chosen);
	assert_int_equal(kept.candidate, 1);
	assert_int_equal(kept.products, 2);
	assert_int_equal(run_counted(second, &other).candidate, 0);
	backend_close(first);
	backend_close(second);
	for (int i = 0; i < 2; i++) {
		const runs again = run_with(i ? "1,4" : "4,1", folder, i ? &chosen : &other);
		assert_int_equal(again.candidate, i);
		assert_int_equal(again.products, 2);
	}
	choices_end(folder);
}

/* A file that was removed is written again with all choices of the process. */
static void choices_outlive_their_file(void **state)
{
	char folder[PATH_MAX], path[PATH_MAX];
	(void)state;
	choices_begin(folder);
	backend *b = open_with("4,1", folder);
	assert_int_equal(run_counted(b, &chosen).candidate, 1);
	assert_true(choices_file(folder, path));
	assert_int_equal(remove(path), 0);
	assert_int_equal(run_counted(b, &other).candidate, 1);
	backend_close(b);
	for (int i = 0; i < 2; i++) {
		const runs kept = run_with("1,4", folder, i ? &chosen : &other);
		assert_int_equal(kept.candidate, 1);
		assert_int_equal(kept.products, 2);
	}
	choices_end(folder);
}

static void a_damaged_file_of_choices_is_replaced(void **state)
{
	char folder[PATH_MAX], path[PATH_MAX];
	(void)state;
	choices_begin(folder);
	assert_int_equal(run_with("4,1", folder, &chosen).candidate, 1);
	assert_true(choices_file(folder, path));
	char *text;
	size_t bytes;
	assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), STATUS_OK);
	for (size_t at = 0; at <= bytes; at += at == bytes ? 1 : at + 23 < bytes ? 23 : bytes - at) {
		/* one bit; then too short by some bytes */
		for (int shorter = 0; shorter < 2; shorter++) {
			text[at] ^= !shorter && at < bytes;
			const file_part part = {text, shorter ? at : bytes};
			assert_int_equal(file_write(path, &part, 1, NULL), STATUS_OK);
			text[at] ^= !shorter && at < bytes;
			const bool whole = at == bytes;
			const runs r = run_with("1,4", folder, &chosen);
			assert_int_equal(r.candidate, whole);
			assert_int_equal(r.products == 2, whole);
			assert_int_equal(run_with("4,1", folder, &chosen).candidate, whole);
		}
	}
	free(text);
	choices_end(folder);
}

static void choosing_can_be_switched_off(void **state)
{
	char folder[PATH_MAX], path[PATH_MAX];
	(void)state;
	choices_begin(folder);
	setenv("ADDITIVE_CUDA_FASTEST", "0", 1);
	const runs r = run_with("4,1", folder, &chosen);
	unsetenv("ADDITIVE_CUDA_FASTEST");
	assert_int_equal(r.candidate, 0);
	assert_int_equal(r.products, 2);
	assert_false(choices_file(folder, path));
	choices_end(folder);
}

static void choices_without_a_folder_last_as_long_as_the_device(void **state)
{
	(void)state;
	skip_unless_emulated();
	backend *b = open_with("4,1", "/proc/none");
	assert_int_equal(run_counted(b, &chosen).candidate, 1);
	const runs again = run_counted(b, &chosen);
	assert_int_equal(again.candidate, 1);
	assert_int_equal(again.products, 2);
	backend_close(b);
	unsetenv("ADDITIVE_EMULATOR_CANDIDATES");
}

/* The last group of rows has a shape of its own, and its product is added to dweight in place. */
static void timing_does_not_change_a_result_that_is_added_to(void **state)
{
	char folder[PATH_MAX];
	(void)state;
	choices_begin(folder);
	const char *const times[] = {"1", "4,1"};
	void *got[2];
	linear_cross_entropy_params params = {1, 0};
	enum { ROWS = 700, CLASSES = 200, D = 8 }; /* more than one group */
	for (int i = 0; i < 2; i++) {
		backend *b = open_with(times[i], folder);
		operand x = operand_new(b, DTYPE_F32, SHAPE2(ROWS, D), 1, 0);
		operand w = operand_new(b, DTYPE_F32, SHAPE2(CLASSES, D), 2, 0);
		operand labels = operand_new(b, DTYPE_F32, SHAPE1(ROWS), 0, 0);
		operand out[4];
		op_call call = {.params = &params, .n_in = 4, .n_out = 6, .in = {x.t, w.t, {0}, labels.t}};
		assert_int_equal(b->clear(b, labels.t.data, ROWS * sizeof(int32_t)), STATUS_OK);
		call.in[3].type = DTYPE_I32;
		for (int j = 0; j < 4; j++) {
			out[j] = operand_new(b, DTYPE_F32, j < 2 ? SHAPE0() : j == 2 ? x.t.shape : w.t.shape, 0, 0);
			call.out[j] = out[j].t;
		}
		assert_int_equal(b->allocate(b, b->scratch[OP_linear_cross_entropy](b, &call), &call.scratch),
		                 STATUS_OK);
		assert_int_equal(b->kernel[OP_linear_cross_entropy](b, &call), STATUS_OK);
		got[i] = operand_read(b, &out[3]);
		b->release(b, call.scratch);
		for (int j = 0; j < 4; j++)
			operand_free(b, &out[j]);
		operand_free(b, &x);
		operand_free(b, &w);
		operand_free(b, &labels);
		backend_close(b);
	}
	assert_memory_equal(got[0], got[1], CLASSES * D * sizeof(float));
	free(got[0]);
	free(got[1]);
	choices_end(folder);
}

/* A product is not timed in a recording, even if it is the first of its shape. */
static void nothing_is_timed_in_a_recording(void **state)
{
	char folder[PATH_MAX], path[PATH_MAX];
	(void)state;
	choices_begin(folder);
	backend *b = open_with("4,1", folder);
	const emulator_counter counter = emulator_counting();
	operand a = operand_new(b, DTYPE_F32, SHAPE2(16, 16), 1, 0),
	        w = operand_new(b, DTYPE_F32, SHAPE2(16, 16), 2, 0);
	operand y = operand_new(b, DTYPE_F32, SHAPE2(16, 16), 0, 0);
	const matmul_params params = {.alpha = 1};
	const op_call call = {.params = &params, .n_in = 2, .n_out = 1, .in = {a.t, w.t}, .out = {y.t}};
	void *recording;
	size_t n;
	assert_int_equal(b->record_begin(b), STATUS_OK);
	assert_int_equal(b->kernel[OP_matmul](b, &call), STATUS_OK);
	assert_int_equal(b->record_end(b, &recording), STATUS_OK);
	counter.begin();
	assert_int_equal(b->replay(b, recording), STATUS_OK);
	const emulator_work *work = counter.end(&n);
	assert_int_equal(n, 1);
	assert_int_equal(work[0].candidate, 0);
	assert_false(choices_file(folder, path));
	b->forget(b, recording);
	operand_free(b, &a);
	operand_free(b, &w);
	operand_free(b, &y);
	backend_close(b);
	choices_end(folder);
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
	    cmocka_unit_test(a_clearly_faster_algorithm_than_the_first_is_chosen),
	    cmocka_unit_test(a_choice_is_made_once_for_all_processes),
	    cmocka_unit_test(choices_outlive_their_file),
	    cmocka_unit_test(a_damaged_file_of_choices_is_replaced),
	    cmocka_unit_test(choosing_can_be_switched_off),
	    cmocka_unit_test(choices_without_a_folder_last_as_long_as_the_device),
	    cmocka_unit_test(timing_does_not_change_a_result_that_is_added_to),
	    cmocka_unit_test(nothing_is_timed_in_a_recording),
	};
	return cmocka_run_group_tests(tests, setup_device, close_device);
}
