/* linear over panels: within the error that cuda/linear_panels.h states, at the edges of panels, steps, slices and
 * blocks. Also the guarantees of ops.h: bits that do not depend on the batch, and exact sums of bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/op_cases.h"

static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
enum { TYPES = 3 };
static const linear_params params = {.alpha = -0.37f};

static int open_it(void **state)
{
	*state = open_device();
	return 0;
}

static int close_it(void **state)
{
	backend_close(*state);
	return 0;
}

static tensor pack(dtype type, const float *w, int64_t n, int64_t k)
{
	tensor t = call_tensor(type, SHAPE2(n, k));
	panel_pack(type, w, n, k, t.data);
	return t;
}

static tensor random_weight(dtype type, int64_t n, int64_t k)
{
	tensor w = call_normal(SHAPE2(n, k), 72, 0.5), t = pack(type, w.data, n, k);
	buffer_free(w.data);
	return t;
}

static op_call call_of(tensor x, tensor weight, tensor bias)
{
	return (op_call){.params = &params, .n_in = 3, .in = {x, weight, bias}};
}

/* --- against exact sums -------------------------------------------------------------------- */

/* Allowed error relative to Σ |x w| with K inputs: at worst, f32 sums round at every step of the longest chain. */
static double allowed(dtype type, int64_t k)
{
	const double rounding = ldexp(1, -23);
	if (type == DTYPE_PANEL_F32)
		return rounding * ((double)k / 32 + 40);
	return ldexp(1, -16) + rounding * ((double)k / 128 + 20);
}

static void check_sums(const op_call *call, dtype type)
{
	const int64_t rows = shape_rows(call->in[0].shape), k = shape_last(call->in[0].shape),
	              n = call->in[1].shape.dim[0];
	const float *x = call->in[0].data, *bias = call->in[2].data, *y = call->out[0].data;
	float *w = buffer_new((size_t)k * sizeof *w);
	for (int64_t j = 0; j < n; j++) {
		(void)panel_stored(type, call->in[1].data, k, j, w);
		for (int64_t i = 0; i < rows; i++) {
			double sum = 0, size = 0;
			for (int64_t l = 0; l < k; l++) {
				sum += (double)x[i * k + l] * (double)w[l];
				size += fabs((double)x[i * k + l] * (double)w[l]);
			}
			const double b = bias ? (double)bias[j] : 0, want = (double)params.alpha * (sum + b);
			const double most =
			    fabs((double)params.alpha) * (allowed(type, k) * size + 1e-7 * (fabs(b) + fabs(want)));
			if (!(fabs((double)y[i * n + j] - want) <= most))
				fail_msg("%s, %d rows, N %d, K %d: y[%d, %d] is %.9g, should be %.9g ± %.2g",
				         dtype_name(type), (int)rows, (int)n, (int)k, (int)i, (int)j,
				         (double)y[i * n + j], want, most);
		}
	}
	buffer_free(w);
}

/* Check y of int8 by the formula of ops.h, with each operation rounded. */
static void check_bytes(const op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), k = shape_last(call->in[0].shape),
	              n = call->in[1].shape.dim[0];
	const float *bias = call->in[2].data;
	float *q = buffer_new((size_t)k * sizeof *q), *want = buffer_new((size_t)(rows * n) * sizeof *want);
	for (int64_t i = 0; i < rows; i++) {
		const float *x = (const float *)call->in[0].data + i * k;
		float top = 0;
		for (int64_t l = 0; l < k; l++)
			top = fmaxf(top, fabsf(x[l]));
		const float s = fmaxf(top / PANEL_INT8_MAX, FLT_MIN);
		for (int64_t j = 0; j < n; j++) {
			const float scale = panel_stored(DTYPE_PANEL_INT8, call->in[1].data, k, j, q);
			int64_t sum = 0;
			for (int64_t l = 0; l < k; l++)
				sum += (lrintf(x[l] / s) + 128) * (int64_t)q[l] - 128 * (int64_t)q[l];
			const volatile float product = s * scale * (float)sum; /* rounded before the bias is added */
			want[i * n + j] = params.alpha * (product + (bias ? bias[j] : 0));
		}
	}
	assert_true(compare_same("int8", call->out[0].data, want, rows * n));
	buffer_free(want);
	buffer_free(q);
}

static void check_shape_of(backend *b, dtype type, int64_t rows, int64_t n, int64_t k, bool biased)
{
	tensor bias = biased ? call_normal(SHAPE1(n), 73, 1) : (tensor){0};
	op_call call = call_of(call_normal(SHAPE2(rows, k), 71, 1), random_weight(type, n, k), bias);
	call_run(b, OP_linear, &call);
	if (type == DTYPE_PANEL_INT8)
		check_bytes(&call);
	else
		check_sums(&call, type);
	call_free(&call);
}

static void odd_shapes_are_right(void **state)
{
	static const int64_t sizes[] = {1, 15, 16, 17, 131, 260};
	static const int64_t rows[] = {1, 2, 7, 8, 9, 16, 17, 33};
	for (int i = 0; i < 6 * 6 * TYPES; i++)
		check_shape_of(*state, types[i / 36], rows[(i + i / 6) % 8], sizes[i % 6], sizes[i / 6 % 6], i % 2);
}

static void every_number_of_rows_is_right(void **state)
{
	for (int t = 0; t < TYPES; t++)
		for (int64_t rows = 1; rows <= 40; rows++)
			check_shape_of(*state, types[t], rows, 17, 35, rows % 2);
}

static void long_sums_and_many_outputs_are_right(void **state)
{
	for (int t = 0; t < TYPES; t++) {
		check_shape_of(*state, types[t], 3, 17, 4099, true);
		check_shape_of(*state, types[t], 17, 16, 4096, false);
		check_shape_of(*state, types[t], 2, 4099, 17, true);
	}
}

/* More rows and outputs than a block has, and more inputs K than stages and slices. */
static void large_products_are_right(void **state)
{
	static const int64_t inputs[] = {1, 16, 64, 65, 132, 515};
	for (int i = 0; i < 6 * TYPES; i++)
		if (!is_left_out(*state, i, 5))
			check_shape_of(*state, types[i / 6], i % 2 ? 129 : 192, 1025, inputs[i % 6], i % 2);
}

/* --- batches ---------------------------------------------------------------------------------- */

/* Run rows first … first + count - 1 of x; true if they have the bits of the same rows of `whole`. */
static bool rows_are_those_of(backend *b, const op_call *whole, int64_t first, int64_t count)
{
	const int64_t k = shape_last(whole->in[0].shape), n = shape_last(whole->out[0].shape);
	op_call part = *whole;
	part.in[0] = call_tensor(DTYPE_F32, SHAPE2(count, k));
	memcpy(part.in[0].data, (const float *)whole->in[0].data + first * k, (size_t)(count * k) * sizeof(float));
	call_run(b, OP_linear, &part);
	bool same = compare_same("rows", part.out[0].data, (const float *)whole->out[0].data + first * n, count * n);
	buffer_free(part.in[0].data);
	call_free_outputs(&part);
	return same;
}

static void a_row_has_the_same_bits_in_any_batch(void **state)
{
	enum { ROWS = 150, N = 1030 };
	static const int64_t inputs[] = {131, 300};
	static const int64_t batches[][2] = {{0, 1},  {149, 1}, {77, 1},  {3, 2},   {20, 4}, {40, 7},
	                                     {31, 8}, {31, 9},  {60, 16}, {60, 17}, {1, 64}, {20, 130}};
	for (int i = 0; i < 2 * TYPES; i++) {
		const int64_t k = inputs[i % 2];
		op_call whole = call_of(call_normal(SHAPE2(ROWS, k), 74, 1), random_weight(types[i / 2], N, k),
		                        call_normal(SHAPE1(N), 75, 1));
		call_run(*state, OP_linear, &whole);
		for (int j = 0; j < 12; j++)
			if (!is_left_out(*state, i + j, 5))
				assert_true(rows_are_those_of(*state, &whole, batches[j][0], batches[j][1]));
		call_free(&whole);
	}
}

/* Repeat with a row that is not finite: no other row changes. */
static void one_row_is_spoilt(backend *b, op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), k = shape_last(call->in[0].shape),
	              n = shape_last(call->out[0].shape), spoilt = rows - 2;
	tensor before = call->out[0];
	((float *)call->in[0].data)[spoilt * k + k / 2] = NAN;
	call_run(b, OP_linear, call);
	const float *y = call->out[0].data, *want = before.data;
	for (int64_t i = 0; i < n; i++)
		assert_true(isnan(y[spoilt * n + i]));
	assert_true(compare_same("rows before", y, want, spoilt * n));
	assert_true(compare_same("the last row", y + (rows - 1) * n, want + (rows - 1) * n, n));
	buffer_free(before.data);
}

/* With these sizes, a device with 4 processors, or with 100 to 150, uses each tile of the wide kernels
 * (cuda/linear_wide.cu). In some, rows of x are no multiple of 16 bytes. Parts of the batches are narrow. */
static void tiles_of_every_size_add_in_the_same_order(void **state)
{
	static const int64_t few[][3] = {{64, 130, 1028}, {60, 50, 4201}, {60, 510, 1028},
	                                 {33, 300, 301},  {97, 270, 515}, {110, 250, 772}};
	static const int64_t many[][3] = {{250, 1000, 3070}, {250, 700, 8192}, {256, 3072, 768}, {1030, 3002, 517}};
	const bool emulated = device_is_emulated(*state);
	for (int i = 0; i < (emulated ? 6 : 4) * 2; i++) {
		const int64_t *size = emulated ? few[i / 2] : many[i / 2], rows = size[0], n = size[1], k = size[2];
		const dtype type = types[1 + i % 2];
		op_call whole = call_of(call_normal(SHAPE2(rows, k), 82, 1), random_weight(type, n, k),
		                        call_normal(SHAPE1(n), 83, 1));
		call_run(*state, OP_linear, &whole);
		if (type == DTYPE_PANEL_INT8)
			check_bytes(&whole);
		else
			check_sums(&whole, type);
		assert_true(rows_are_those_of(*state, &whole, 0, 1));
		assert_true(rows_are_those_of(*state, &whole, rows / 2 - 4, 9));
		assert_true(rows_are_those_of(*state, &whole, rows - 2, 2));
		one_row_is_spoilt(*state, &whole);
		call_free(&whole);
	}
}

/* --- values at the limits ----------------------------------------------------------------------- */

/* All bytes are at their limits, where a sum in float would round. */
static void sums_of_bytes_do_not_overflow(void **state)
{
	enum { K = PANEL_INT8_INPUTS };
	tensor x = call_tensor(DTYPE_F32, SHAPE2(1, K)), w = call_tensor(DTYPE_F32, SHAPE2(2, K));
	for (int64_t k = 0; k < K; k++) {
		((float *)x.data)[k] = 127;
		((float *)w.data)[k] = 127;
		((float *)w.data)[K + k] = k == 0 ? -126 : -127;
	}
	op_call call = call_of(x, pack(DTYPE_PANEL_INT8, w.data, 2, K), (tensor){0});
	call_run(*state, OP_linear, &call);
	const float *y = call.out[0].data;
	assert_true(y[0] == params.alpha * (127.0f * 127.0f * K));
	assert_true(y[1] == params.alpha * (float)(127 - 127 * 127 * K));
	buffer_free(w.data);
	call_free(&call);
}

static void rows_of_zeros_and_of_large_and_tiny_values_are_right(void **state)
{
	enum { ROWS = 3, N = 17, K = 31 };
	static const float sizes[ROWS] = {0, 1e30f, 1e-30f};
	for (int t = 0; t < TYPES; t++) {
		tensor x = call_normal(SHAPE2(ROWS, K), 78, 1);
		for (int64_t i = 0; i < ROWS * K; i++)
			((float *)x.data)[i] *= sizes[i / K];
		op_call call = call_of(x, random_weight(types[t], N, K), (tensor){0});
		call_run(*state, OP_linear, &call);
		if (types[t] == DTYPE_PANEL_INT8)
			check_bytes(&call);
		else
			check_sums(&call, types[t]);
		for (int64_t i = 0; i < N; i++)
			assert_true(((float *)call.out[0].data)[i] == 0);
		call_free(&call);
	}
}

static void a_row_that_is_not_finite_affects_only_itself(void **state)
{
	enum { N = 1030, K = 37 };
	static const int64_t rows[] = {9, 70};
	for (int i = 0; i < 2 * TYPES; i++) {
		tensor x = call_normal(SHAPE2(rows[i % 2], K), 79, 1);
		((float *)x.data)[2 * K] = NAN; /* reached by reading a step too far from the previous row */
		((float *)x.data)[7 * K + 6] = INFINITY;
		op_call call = call_of(x, random_weight(types[i / 2], N, K), (tensor){0});
		call_run(*state, OP_linear, &call);
		for (int64_t e = 0; e < rows[i % 2] * N; e++)
			assert_int_equal(isfinite(((float *)call.out[0].data)[e]) != 0, e / N != 2 && e / N != 7);
		call_free(&call);
	}
}

/* The weights of output 3 are not finite; for int8, its scale shows that. */
static void an_output_that_is_not_finite_affects_only_itself(void **state)
{
	enum { ROWS = 9, N = 20, K = 37 };
	for (int t = 0; t < TYPES; t++) {
		tensor w = call_normal(SHAPE2(N, K), 80, 1);
		((float *)w.data)[3 * K + K - 1] = NAN;
		((float *)w.data)[19 * K] = INFINITY;
		op_call call = call_of(call_normal(SHAPE2(ROWS, K), 81, 1), pack(types[t], w.data, N, K), (tensor){0});
		call_run(*state, OP_linear, &call);
		for (int64_t e = 0; e < ROWS * N; e++)
			assert_int_equal(isfinite(((float *)call.out[0].data)[e]) != 0, e % N != 3 && e % N != 19);
		buffer_free(w.data);
		call_free(&call);
	}
}

/* --- with neighbouring calls ----------------------------------------------------------------------- */

/* An optional layernorm, products of one x, and an op on the result of a single product. */
typedef struct form {
	const char *name;
	bool norm, kept; /* kept: layernorm's result is an output too */
	int products;
	op_id end; /* OP_COUNT: none */
	bool tanh;
} form;

static const form forms[] = {
    {"layernorm, three products", true, true, 3, OP_COUNT, false},
    {"layernorm, two products", true, false, 2, OP_COUNT, false},
    {"layernorm, product", true, true, 1, OP_COUNT, false},
    {"layernorm, product, gelu", true, false, 1, OP_gelu, false},
    {"layernorm, product, gate", true, true, 1, OP_gate, false},
    {"layernorm, product, add", true, false, 1, OP_add, false},
    {"three products", false, false, 3, OP_COUNT, false},
    {"two products", false, false, 2, OP_COUNT, false},
    {"product, gelu", false, false, 1, OP_gelu, true},
    {"product, gate", false, false, 1, OP_gate, false},
    {"product, add", false, false, 1, OP_add, false},
};
enum { FORMS = sizeof forms / sizeof forms[0], RESULTS = 4 };

typedef struct sizes {
	dtype type;
	int64_t rows, n, k;
	bool biased;
} sizes;

static value named(graph *g, const char *name, int i, dtype type, shape s)
{
	char text[32];
	(void)snprintf(text, sizeof text, "%s %d", name, i);
	return graph_input(g, text, type, s);
}

/* Build the form; each of its results is an output. Returns their number. */
static int build(const form *f, const sizes *s, graph *g, value results[RESULTS])
{
	int n = 0;
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(s->rows, s->k)), y = VALUE_NONE;
	if (f->norm)
		x = op_layernorm(g, x, graph_input(g, "scale", DTYPE_F32, SHAPE1(s->k)),
		                 graph_input(g, "shift", DTYPE_F32, SHAPE1(s->k)), 1e-5f);
	if (f->kept)
		results[n++] = x;
	for (int i = 0; i < f->products; i++) { /* with different widths */
		const int64_t outputs = s->n + (f->products > 1 ? 13 * i : 0);
		const value bias = s->biased ? named(g, "bias", i, DTYPE_F32, SHAPE1(outputs)) : VALUE_NONE;
		y = op_linear(g, x, named(g, "w", i, s->type, SHAPE2(outputs, s->k)), bias, params.alpha);
		if (f->end == OP_COUNT)
			results[n++] = y;
	}
	const value a = f->end == OP_COUNT ? VALUE_NONE : graph_input(g, "a", DTYPE_F32, SHAPE2(s->rows, s->n));
	if (f->end == OP_gelu)
		results[n++] = op_gelu(g, y, f->tanh);
	if (f->end == OP_gate)
		results[n++] = op_gate(g, a, y, graph_input(g, "b", DTYPE_F32, SHAPE2(s->rows, s->n)));
	if (f->end == OP_add)
		results[n++] = op_add(g, a, y);
	for (int i = 0; i < n; i++)
		graph_output(g, results[i], "result %d", i);
	return n;
}

static void fill(plan *p)
{
	const graph *g = plan_graph(p);
	const op_case none = {0};
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		const tensor t = {NULL, info->type, info->shape};
		if (info->role != ROLE_INPUT)
			continue;
		void *content = buffer_new(call_bytes(&t));
		op_cases_fill(&none, info, content);
		assert_int_equal(plan_write(p, v, content), STATUS_OK);
		buffer_free(content);
	}
}

/* Returns the concatenated results, for buffer_free, the number of their floats and the number of kernels. */
static float *run_form(backend *b, const form *f, const sizes *s, int64_t *floats, int *kernels)
{
	graph *g = graph_new();
	value results[RESULTS];
	const int n = build(f, s, g, results);
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, NULL, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	fill(p);
	assert_int_equal(plan_run(p), STATUS_OK);
	*kernels = plan_node_count(p);
	*floats = 0;
	for (int i = 0; i < n; i++)
		*floats += shape_count(graph_value(g, results[i])->shape);
	float *out = buffer_new((size_t)*floats * sizeof *out), *at = out;
	for (int i = 0; i < n; at += shape_count(graph_value(g, results[i])->shape), i++)
		assert_int_equal(plan_read(p, results[i], at), STATUS_OK);
	plan_free(p);
	return out;
}

/* Check for the bits of the calls one by one, and for this number of kernels unless it is 0. */
static void compare_form(backend *b, const form *f, const sizes *s, int kernels)
{
	int64_t floats, same;
	int together, single;
	float *got = run_form(b, f, s, &floats, &together);
	__typeof__(b->fuse) fuse = b->fuse;
	b->fuse = NULL;
	float *want = run_form(b, f, s, &same, &single);
	b->fuse = fuse;
	if ((kernels && together != kernels) || !compare_same(f->name, got, want, floats))
		fail_msg("%s, %s, %d rows, N %d, K %d, %s bias: %d kernels", f->name, dtype_name(s->type), (int)s->rows,
		         (int)s->n, (int)s->k, s->biased ? "with" : "without", together);
	buffer_free(got);
	buffer_free(want);
}

/* Few enough rows that each block computes the layernorm again. */
static bool is_small(const sizes *s)
{
	return s->rows <= (s->type == DTYPE_PANEL_F32 ? 4 : 16);
}

static void neighbours_in_one_kernel_give_the_same_bits(void **state)
{
	static const int64_t rows[] = {1, 3, 4, 5, 8, 9, 16, 17, 33};
	static const int64_t widths[][2] = {{17, 132}, {16, 16}, {1, 4}, {33, 260}};
	for (int i = 0; i < FORMS * TYPES * 9; i++) {
		const int at = i % 9, t = i / 9 % TYPES, f = i / 9 / TYPES;
		const int64_t *width = widths[(at + f) % 4];
		const sizes s = {types[t], rows[at], width[0], width[1], (at + f) % 3};
		if (!is_left_out(*state, i, 5))
			compare_form(*state, &forms[f], &s, is_small(&s) || !forms[f].norm ? 1 : 0);
	}
}

/* Rows that do not fill packs have a separate layernorm, but their products may still be fused. */
static void rows_that_do_not_fill_packs_give_the_same_bits(void **state)
{
	for (int f = 0; f < FORMS; f++)
		for (int t = 0; t < TYPES; t++) {
			const sizes s = {types[t], 1 + 4 * t, 17, 35, t % 2};
			compare_form(*state, &forms[f], &s, 1 + forms[f].norm);
		}
}

/* Rows of several warps, and slices with more steps than a warp has in registers. */
static void wide_rows_in_one_kernel_give_the_same_bits(void **state)
{
	for (int f = 0; f < FORMS; f++)
		for (int t = 0; t < TYPES; t++) {
			const sizes s = {types[t], 1 + 2 * (t > 0), 17, 1300 + 740 * (f % 2), true};
			compare_form(*state, &forms[f], &s, 0);
		}
}

/* Enough rows for the wide kernels, which combine products of one x, and nothing else. */
static void many_rows_of_products_of_one_x_are_one_kernel(void **state)
{
	static const sizes shapes[] = {
	    {.rows = 130, .n = 150, .k = 36}, {.rows = 300, .n = 33, .k = 260}, {.rows = 257, .n = 17, .k = 35}};
	for (int f = 0; f < FORMS; f++)
		for (int i = 0; i < 3 * TYPES && forms[f].products > 1; i++) {
			sizes s = shapes[i / TYPES];
			if (is_left_out(*state, i + f, 4))
				continue;
			s.type = types[i % TYPES];
			s.biased = i % 2;
			compare_form(*state, &forms[f], &s, 1 + forms[f].norm);
		}
}

/* --- wgmma -------------------------------------------------------------------------------------------- */

static int open_without_wgmma(void **state)
{
	setenv("ADDITIVE_CUDA_WGMMA", "0", 1);
	*state = open_device();
	unsetenv("ADDITIVE_CUDA_WGMMA");
	return 0;
}

/* With these sizes, an emulated device uses each tile of linear_wgmma.cu. tile: its rows; blocks: 2 for a pair; alone:
 * rows of the tile without clusters. */
typedef struct tile_case {
	dtype type;
	int64_t rows, n, k;
	int tile, blocks, alone;
} tile_case;

static const tile_case tile_cases[] = {
    {DTYPE_PANEL_BF16, 128, 384, 260, 128, 1, 128}, /* an odd number of blocks */
    {DTYPE_PANEL_BF16, 128, 500, 132, 128, 2, 128}, {DTYPE_PANEL_BF16, 64, 128, 404, 64, 1, 64},
    {DTYPE_PANEL_BF16, 100, 120, 404, 64, 2, 64},   {DTYPE_PANEL_BF16, 32, 120, 804, 32, 1, 32},
    {DTYPE_PANEL_INT8, 128, 384, 261, 128, 1, 128}, {DTYPE_PANEL_INT8, 128, 500, 661, 128, 2, 128},
    {DTYPE_PANEL_INT8, 64, 128, 1029, 64, 1, 64},   {DTYPE_PANEL_INT8, 100, 120, 805, 64, 2, 128},
    {DTYPE_PANEL_INT8, 33, 60, 2311, 32, 1, 32},
};
enum { TILE_CASES = sizeof tile_cases / sizeof tile_cases[0] };
enum expected_kernel { MMA, TILES, TILES_ALONE };

static size_t results_of(const tile_case *c)
{
	return (size_t)(c->rows * c->n);
}

/* Run a case and copy y; true if the expected kernel computed it, for MMA one without wgmma. A device that does not
 * count its work says whether it uses wgmma. */
static bool computes(backend *b, const tile_case *c, enum expected_kernel expected, float *y)
{
	const emulator_counter counter = emulator_counting();
	const char *words = c->type == DTYPE_PANEL_INT8 ? "int8_words" : "bf16_words";
	char kernel[80] = "wgmma_kernel";
	size_t works = 0, found = 0;
	if (expected != MMA) {
		const int rows = expected == TILES ? c->tile : c->alone, blocks = expected == TILES ? c->blocks : 1;
		(void)snprintf(kernel, sizeof kernel, "wgmma_kernel<%s, wgmma_tile<%d, %d, %d, %d, %d,", words, rows,
		               rows == 128 ? 2 : 1, rows == 128 ? 1 : 4, rows == 64 ? 2 : 4, blocks);
	}
	op_call call = call_of(call_normal(SHAPE2(c->rows, c->k), 84, 1), random_weight(c->type, c->n, c->k),
	                       call_normal(SHAPE1(c->n), 85, 1));
	if (counter.begin)
		counter.begin();
	call_run(b, OP_linear, &call);
	const emulator_work *work = counter.begin ? counter.end(&works) : NULL;
	for (size_t i = 0; i < works; i++)
		found += work[i].kind == EMULATOR_KERNEL && strncmp(work[i].name, kernel, strlen(kernel)) == 0;
	for (size_t i = 0; i < works && found != (expected != MMA); i++)
		if (work[i].kind == EMULATOR_KERNEL)
			printf("%s, %s %s\n", work[i].name, expected == MMA ? "expected is no" : "expected is", kernel);
	memcpy(y, call.out[0].data, results_of(c) * sizeof *y);
	call_free(&call);
	const bool is_ninth = strstr(b->device, "sm_90") != NULL, uses = strstr(b->device, "wgmma") != NULL;
	return work ? found == (expected != MMA) : !is_ninth || uses == (expected != MMA);
}

/* Run all cases on a device opened with this setting, in a process of its own, since a process compares wgmma with
 * mma.sync once. */
static void run_with(const char *name, const char *setting, enum expected_kernel expected, float *y)
{
	const pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid > 0) {
		int how;
		assert_int_equal(waitpid(pid, &how, 0), pid);
		if (how != 0)
			fail_msg("%s=%s: another kernel", name, setting);
		return;
	}
	bool good = true;
	setenv("ADDITIVE_CUDA_WGMMA", "1", 0);
	setenv(name, setting, 1);
	backend *b = open_device();
	for (int i = 0; i < TILE_CASES; y += results_of(&tile_cases[i++]))
		good &= computes(b, &tile_cases[i], expected, y);
	fflush(stdout);
	_exit(!good);
}

/* On a device whose wgmma rounds differently the check finds that, and mma.sync is used. */
static void wgmma_is_used_if_its_bits_are_those_of_mma(void **state)
{
	const bool emulated = getenv("ADDITIVE_EMULATOR") != NULL;
	const struct {
		const char *name, *setting;
		enum expected_kernel expected;
	} runs[] = {{"ADDITIVE_CUDA_WGMMA", "0", MMA},
	            {"ADDITIVE_CUDA_WGMMA", "1", TILES},
	            {"ADDITIVE_CUDA_CLUSTERS", "0", TILES_ALONE},
	            {"ADDITIVE_EMULATOR_REFUSES", "clusters", TILES_ALONE},
	            {"ADDITIVE_EMULATOR_WGMMA", "differs", emulated ? MMA : TILES}};
	enum { RUNS = sizeof runs / sizeof runs[0] };
	int64_t count = 0;
	(void)state;
	for (int i = 0; i < TILE_CASES; i++)
		count += (int64_t)results_of(&tile_cases[i]);
	const size_t bytes = (size_t)count * RUNS * sizeof(float);
	float *y = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(y != MAP_FAILED);
	for (int i = 0; i < RUNS; i++) {
		run_with(runs[i].name, runs[i].setting, runs[i].expected, y + i * count);
		assert_true(compare_same(runs[i].name, y + i * count, y, count));
	}
	assert_int_equal(munmap(y, bytes), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(odd_shapes_are_right),
	    cmocka_unit_test(every_number_of_rows_is_right),
	    cmocka_unit_test(long_sums_and_many_outputs_are_right),
	    cmocka_unit_test(large_products_are_right),
	    cmocka_unit_test(a_row_has_the_same_bits_in_any_batch),
	    cmocka_unit_test(tiles_of_every_size_add_in_the_same_order),
	    cmocka_unit_test(sums_of_bytes_do_not_overflow),
	    cmocka_unit_test(rows_of_zeros_and_of_large_and_tiny_values_are_right),
	    cmocka_unit_test(a_row_that_is_not_finite_affects_only_itself),
	    cmocka_unit_test(an_output_that_is_not_finite_affects_only_itself),
	    cmocka_unit_test(neighbours_in_one_kernel_give_the_same_bits),
	    cmocka_unit_test(rows_that_do_not_fill_packs_give_the_same_bits),
	    cmocka_unit_test(wide_rows_in_one_kernel_give_the_same_bits),
	    cmocka_unit_test(many_rows_of_products_of_one_x_are_one_kernel),
	};
	const struct CMUnitTest without_wgmma[] = {
	    cmocka_unit_test(tiles_of_every_size_add_in_the_same_order),
	    cmocka_unit_test(many_rows_of_products_of_one_x_are_one_kernel),
	};
	const struct CMUnitTest opening[] = {cmocka_unit_test(wgmma_is_used_if_its_bits_are_those_of_mma)};
	/* opening: first, because a process that has opened a device must not fork */
	return cmocka_run_group_tests(opening, NULL, NULL) + cmocka_run_group_tests(tests, open_it, close_it) +
	       cmocka_run_group_tests(without_wgmma, open_without_wgmma, close_it);
}
