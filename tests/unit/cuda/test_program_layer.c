/* Layers of additive2 as phases of a program (cuda/program_layer.cu) give the outputs and states of the kernels, bit for
 * bit. Types of weights, numbers of rows and orders of blocks vary. Some tokens are masked, some rows read nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

enum {
	TOKENS = 5, /* runs of the plan */
	MOST_ROWS = 9,
	MOST_WIDTH = 160,
	MOST_WEIGHTS = 2 * 160 * 160,
	MOST_BINDINGS = 24,
	MIXTURES = 3,
	PROCESSORS = 4
};

enum between { NOTHING, ROWS_SELECTED, OTHER_OP };

typedef struct network {
	dtype type;
	int64_t rows, width, heads, inner;
	int layers;
	bool masked;
	enum between between; /* attention and feed-forward of the last layer */
} network;

static const network networks[] = {
    {.type = DTYPE_PANEL_BF16, .rows = 1, .width = 64, .heads = 4, .inner = 80, .layers = 2},
    {.type = DTYPE_PANEL_BF16, .rows = 8, .width = 32, .heads = 4, .inner = 48, .layers = 2, .masked = true},
    {.type = DTYPE_PANEL_BF16, .rows = 3, .width = 160, .heads = 20, .inner = 144, .layers = 2, .between = ROWS_SELECTED},
    {.type = DTYPE_PANEL_F32, .rows = 1, .width = 32, .heads = 4, .inner = 36, .layers = 2, .masked = true},
    {.type = DTYPE_PANEL_F32, .rows = 4, .width = 48, .heads = 4, .inner = 40, .layers = 2, .between = ROWS_SELECTED},
    {.type = DTYPE_PANEL_INT8, .rows = 1, .width = 64, .heads = 4, .inner = 96, .layers = 2},
    {.type = DTYPE_PANEL_INT8, .rows = 5, .width = 32, .heads = 8, .inner = 64, .layers = 2, .masked = true},
};
enum { NETWORKS = sizeof networks / sizeof *networks };

typedef struct results {
	float y[TOKENS][MOST_ROWS * MOST_WIDTH];
	float *pool;
	int64_t pool_floats;
	int programs, kernels; /* launches of the last run; 0 if not counted */
} results;

typedef struct builder {
	backend *b;
	graph *g;
	const network *o;
	plan_binding bindings[MOST_BINDINGS];
	int count;
	uint64_t seed;
} builder;

static void *upload(backend *b, const void *host, size_t bytes)
{
	void *data;
	assert_int_equal(b->allocate(b, bytes, &data), STATUS_OK);
	assert_int_equal(b->upload(b, data, host, bytes), STATUS_OK);
	return data;
}

static value bind(builder *m, value v, void *data)
{
	assert_true(m->count < MOST_BINDINGS);
	m->bindings[m->count++] = (plan_binding){v, data};
	return v;
}

static value vector(builder *m, const char *name, int64_t n, double scale)
{
	float x[MIXTURES * MOST_WIDTH];
	random_normal(x, (int)n, ++m->seed, scale);
	return bind(m, graph_parameter(m->g, name, SHAPE1(n)), upload(m->b, x, (size_t)n * sizeof *x));
}

static value matrix(builder *m, const char *name, int64_t n, int64_t k)
{
	static float w[MOST_WEIGHTS];
	size_t bytes;
	assert_true(n * k <= MOST_WEIGHTS);
	assert_true(panel_bytes(m->o->type, n, k, &bytes));
	void *panels = malloc(bytes);
	assert_non_null(panels);
	random_normal(w, (int)(n * k), ++m->seed, 0.2);
	panel_pack(m->o->type, w, n, k, panels);
	const value v = bind(m, graph_weight(m->g, name, m->o->type, SHAPE2(n, k)), upload(m->b, panels, bytes));
	free(panels);
	return v;
}

static int64_t layer_floats(const network *o)
{
	return shift_state_floats(o->width, 1) + forgetting_state_floats(o->width, o->heads);
}

static value rms(const builder *m, value x, value gain, int64_t parts)
{
	const double width = (double)(m->o->width / parts);
	return op_normalize(m->g, x, gain,
	                    (normalize_params){.groups = parts,
	                                       .scale = (float)sqrt(width),
	                                       .floor = FLT_MIN,
	                                       .eps = (float)(width * 1e-6)});
}

/* All layers have the same weights, and states of their own. */
static plan *plan_of(builder *m, results *out)
{
	const network *o = m->o;
	const int64_t d = o->width, slots = o->rows + 2, slot_floats = o->layers * layer_floats(o);
	graph *g = m->g = graph_new();
	value h = graph_input(g, "x", DTYPE_F32, SHAPE3(o->rows, 1, d));
	const value index = o->between == ROWS_SELECTED ? graph_input(g, "index", DTYPE_I32, SHAPE1(o->rows)) : VALUE_NONE;
	const value wv = matrix(m, "v", d, d), wa = matrix(m, "a", o->heads, d), wf = matrix(m, "f", o->heads, d),
	            wg = matrix(m, "gate", d, d), wo = matrix(m, "o", d, d), w1 = matrix(m, "1", 2 * o->inner, d),
	            w2 = matrix(m, "2", d, o->inner), logits = matrix(m, "logits", d, d), beta = vector(m, "beta", o->heads, 1),
	            mu = vector(m, "mu", MIXTURES * d, 0.5), gain = vector(m, "gain", d, 1),
	            before = vector(m, "before", d, 1), after = vector(m, "after", d, 1);
	out->pool_floats = slots * slot_floats;
	out->pool = malloc((size_t)out->pool_floats * sizeof(float));
	assert_non_null(out->pool);
	random_normal(out->pool, (int)out->pool_floats, 77, 1);
	const value pool = bind(m, graph_state(g, "pool", SHAPE2(slots, slot_floats)),
	                        upload(m->b, out->pool, (size_t)out->pool_floats * sizeof(float)));
	const stream_values at = {.pool = pool,
	                          .slot = graph_input(g, "slot", DTYPE_I32, SHAPE1(o->rows)),
	                          .position = graph_input(g, "position", DTYPE_I32, SHAPE1(o->rows)),
	                          .length = graph_input(g, "length", DTYPE_I32, SHAPE1(o->rows)),
	                          .mask = o->masked ? graph_input(g, "mask", DTYPE_I32, SHAPE2(o->rows, 1)) : VALUE_NONE,
	                          .start = VALUE_NONE};
	for (int l = 0; l < o->layers; l++) {
		const int64_t offset = l * layer_floats(o);
		value from[MIXTURES];
		const value n = rms(m, h, before, 1);
		const value last = op_shift_stream(g, n, at.pool, at.slot, at.position, at.length, at.mask, VALUE_NONE, VALUE_NONE,
		                                   (shift_stream_params){.low = 1, .high = 1, .offset = offset});
		for (int i = 0; i < MIXTURES; i++)
			from[i] = op_mix_columns(g, n, last, mu, i);
		const value v = op_linear(g, from[0], wv, VALUE_NONE, 1), a = op_linear(g, from[1], wa, VALUE_NONE, 1),
		            f = op_activation(g, op_linear(g, from[1], wf, beta, 1), ACTIVATION_LOG_SIGMOID);
		value y = op_forgetting_stream(g, v, a, f, VALUE_NONE, at, offset + shift_state_floats(d, 1)).pooled;
		y = rms(m, y, gain, o->heads);
		y = op_mul(g, y, op_activation(g, op_linear(g, from[2], wg, VALUE_NONE, 1), ACTIVATION_SILU));
		h = op_add(g, h, op_linear(g, y, wo, VALUE_NONE, 1));
		if (l == o->layers - 1 && o->between == ROWS_SELECTED)
			h = op_gather(g, h, index, -1);
		if (l == o->layers - 1 && o->between == OTHER_OP)
			h = op_tanh(g, h);
		const value inner = op_linear(g, rms(m, h, after, 1), w1, VALUE_NONE, 1);
		h = op_add(g, h, op_linear(g, op_glu_gate_first(g, inner, ACTIVATION_SILU), w2, VALUE_NONE, 1));
	}
	graph_output(g, op_linear(g, rms(m, h, gain, 1), logits, VALUE_NONE, 1), "y");
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, m->b, m->bindings, (size_t)m->count, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return p;
}

static void write(plan *p, const char *name, const void *data)
{
	const value v = graph_find(plan_graph(p), name);
	if (v != VALUE_NONE)
		assert_int_equal(plan_write(p, v, data), STATUS_OK);
}

/* Row i begins at run i % 2, so that it is at a position of its own, and one row reads nothing in run 2. */
static void write_inputs(plan *p, const network *o, int run)
{
	float x[MOST_ROWS * MOST_WIDTH];
	int32_t slot[MOST_ROWS], position[MOST_ROWS], length[MOST_ROWS], mask[MOST_ROWS], index[MOST_ROWS];
	random_normal(x, (int)(o->rows * o->width), 10 + (uint64_t)run, 1);
	for (int i = 0; i < o->rows; i++) {
		slot[i] = (int32_t)(o->rows - i);
		position[i] = run >= i % 2 ? run - i % 2 : 0;
		length[i] = run != 2 || i != o->rows - 1;
		mask[i] = (run + i) % 3 != 1;
		index[i] = i;
	}
	write(p, "x", x);
	write(p, "slot", slot);
	write(p, "position", position);
	write(p, "length", length);
	write(p, "mask", mask);
	write(p, "index", index);
}

static void count_work(emulator_counter counter, results *out)
{
	size_t n;
	const emulator_work *work = counter.end(&n);
	for (size_t i = 0; i < n; i++) {
		out->programs += strncmp(work[i].name, "program_kernel", strlen("program_kernel")) == 0;
		out->kernels += work[i].kind == EMULATOR_KERNEL;
	}
}

/* blocks 0: kernel by kernel. */
static void run_with(int blocks, const network *o, results *out)
{
	char text[16];
	snprintf(text, sizeof text, "%d", blocks);
	setenv("ADDITIVE_CUDA_PERSISTENT", text, 1);
	builder m = {.b = open_device(), .o = o};
	unsetenv("ADDITIVE_CUDA_PERSISTENT");
	memset(out, 0, sizeof *out);
	plan *p = plan_of(&m, out);
	const emulator_counter counter = emulator_counting();
	for (int run = 0; run < TOKENS; run++) {
		write_inputs(p, o, run);
		if (counter.begin && run == TOKENS - 1)
			counter.begin();
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_int_equal(plan_read(p, graph_find(plan_graph(p), "y"), out->y[run]), STATUS_OK);
	}
	if (counter.begin)
		count_work(counter, out);
	void *pool = m.bindings[m.count - 1].data;
	assert_int_equal(m.b->download(m.b, out->pool, pool, (size_t)out->pool_floats * sizeof(float)), STATUS_OK);
	plan_free(p);
	for (int i = 0; i < m.count; i++)
		m.b->release(m.b, m.bindings[i].data);
	backend_close(m.b);
}

/* The network's last run with programs of at most `blocks` blocks has `programs` programs and `kernels` others. */
static void expect_in(int blocks, const network *o, int programs, int kernels)
{
	static results want, got;
	run_with(0, o, &want);
	run_with(blocks, o, &got);
	for (int run = 0; run < TOKENS; run++)
		if (!compare_same("y", got.y[run], want.y[run], o->rows * o->width))
			fail_msg("%s, %d rows, width %d: run %d", dtype_name(o->type), (int)o->rows, (int)o->width, run);
	if (!compare_same("state", got.pool, want.pool, want.pool_floats))
		fail_msg("%s, %d rows, width %d", dtype_name(o->type), (int)o->rows, (int)o->width);
	free(want.pool);
	free(got.pool);
	if (emulator_counting().begin) {
		assert_int_equal(want.programs, 0);
		assert_int_equal(got.programs, programs);
		assert_int_equal(got.kernels, programs + kernels);
	}
}

static void expect(const network *o, int programs, int kernels)
{
	expect_in(PROCESSORS, o, programs, kernels);
}

/* --- tests -------------------------------------------------------------------------------------- */

static void layers_as_one_launch_change_no_bit(void **state)
{
	(void)state;
	for (int i = 0; i < NETWORKS; i++)
		expect(&networks[i], 1, 0);
}

static void any_number_of_blocks_changes_no_bit(void **state)
{
	(void)state;
	skip_unless_emulated();
	setenv("ADDITIVE_EMULATOR_PROCESSORS", "40", 1);
	expect_in(1, &networks[0], 1, 0);
	expect_in(3, &networks[1], 1, 0);
	expect_in(40, &networks[0], 1, 0);
	unsetenv("ADDITIVE_EMULATOR_PROCESSORS");
}

static void the_order_of_blocks_and_threads_changes_no_bit(void **state)
{
	static const char *const orders[] = {"reverse", "shuffle:3", "shuffle:4"};
	(void)state;
	skip_unless_emulated();
	for (int i = 0; i < 3; i++) {
		setenv("ADDITIVE_EMULATOR_ORDER", orders[i], 1);
		expect(&networks[i % 2], 1, 0);
	}
	unsetenv("ADDITIVE_EMULATOR_ORDER");
}

/* A norm of several warps, and heads of several lanes. */
static void wide_rows_change_no_bit(void **state)
{
	const network o = {.type = DTYPE_PANEL_BF16, .rows = 1, .width = 160, .heads = 4, .inner = 48, .layers = 1};
	(void)state;
	expect(&o, 1, 0);
}

static void groups_that_are_too_few_for_a_program_run_as_kernels(void **state)
{
	network o = networks[0];
	(void)state;
	o.layers = 1;
	o.between = OTHER_OP;
	expect(&o, 0, 24);
}

static void more_layers_than_a_program_holds_make_two_programs(void **state)
{
	network o = networks[1];
	(void)state;
	o.rows = 1;
	o.layers = 12;
	expect(&o, 2, 0);
}

/* The state of two heads is not aligned to 16 bytes. */
static void unaligned_states_are_for_kernels(void **state)
{
	network o = networks[1];
	(void)state;
	o.heads = 2;
	expect(&o, 0, 40);
}

static void layers_that_a_program_cannot_have_run_as_kernels(void **state)
{
	network o = networks[1];
	static results want, got;
	(void)state;
	o.rows = 9;
	run_with(0, &o, &want);
	run_with(PROCESSORS, &o, &got);
	assert_int_equal(got.programs, 0);
	assert_int_equal(got.kernels, want.kernels);
	free(want.pool);
	free(got.pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(layers_as_one_launch_change_no_bit),
	    cmocka_unit_test(any_number_of_blocks_changes_no_bit),
	    cmocka_unit_test(the_order_of_blocks_and_threads_changes_no_bit),
	    cmocka_unit_test(wide_rows_change_no_bit),
	    cmocka_unit_test(groups_that_are_too_few_for_a_program_run_as_kernels),
	    cmocka_unit_test(more_layers_than_a_program_holds_make_two_programs),
	    cmocka_unit_test(unaligned_states_are_for_kernels),
	    cmocka_unit_test(layers_that_a_program_cannot_have_run_as_kernels),
	};
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
