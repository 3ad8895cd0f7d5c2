/* Layers of additive2 (cuda/program_layer.cu) and of additive (cuda/program_rounds.cu) as phases of a program give the
 * outputs and states of the kernels, bit for bit, and have four waits each. The tests vary the types of weights, the
 * number of rows and the order of blocks. Some tokens are masked, some rows read nothing. */
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
	MOST_WIDTH = 288,
	MOST_WEIGHTS = 288 * 288,
	MOST_BINDINGS = 24,
	MIXTURES = 3,
	WINDOWS = 2, /* layers have them in turn */
	PROCESSORS = 4
};

enum form { FORGETTING, ROUNDS };
enum between { NOTHING, ROWS_SELECTED, OTHER_OP };

typedef struct network {
	enum form form;
	dtype type;
	int64_t rows, width, heads, inner;
	int64_t windows[WINDOWS]; /* ROUNDS; 0: global */
	int layers;
	bool masked, scored; /* scored: the first layer's scores are an output */
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
    /* int8 takes 32 inputs a step: parts of steps. */
    {.type = DTYPE_PANEL_INT8, .rows = 1, .width = 64, .heads = 4, .inner = 72, .layers = 2},
    {.type = DTYPE_PANEL_INT8, .rows = 3, .width = 48, .heads = 4, .inner = 56, .layers = 2},
    {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 1, .width = 64, .heads = 4, .inner = 80,
     .windows = {0, 4}, .layers = 2, .scored = true},
    {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 8, .width = 32, .heads = 4, .inner = 48,
     .windows = {3, 1}, .layers = 2, .masked = true},
    {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 3, .width = 160, .heads = 20, .inner = 144,
     .windows = {2, 0}, .layers = 2, .between = ROWS_SELECTED},
    {.form = ROUNDS, .type = DTYPE_PANEL_F32, .rows = 4, .width = 48, .heads = 4, .inner = 40,
     .windows = {4, 5}, .layers = 2, .masked = true},
    {.form = ROUNDS, .type = DTYPE_PANEL_INT8, .rows = 1, .width = 64, .heads = 2, .inner = 96,
     .windows = {5, 0}, .layers = 2, .masked = true},
    {.form = ROUNDS, .type = DTYPE_PANEL_INT8, .rows = 5, .width = 40, .heads = 2, .inner = 72,
     .windows = {0, 4}, .layers = 2},
};
enum { NETWORKS = sizeof networks / sizeof *networks, FIRST_OF_ROUNDS = 9 };

typedef struct results {
	float y[TOKENS][MOST_ROWS * MOST_WIDTH], score[TOKENS][MOST_ROWS * MOST_WIDTH];
	float *pool;
	int64_t pool_floats;
	int programs, kernels; /* launches of the last run; 0 if not counted */
	unsigned signals;      /* words by which blocks of its programs signal others */
} results;

typedef struct builder {
	backend *b;
	graph *g;
	const network *o;
	plan_binding bindings[MOST_BINDINGS];
	int count;
	uint64_t seed;
	void *pool;
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

static int64_t layer_floats(const network *o, int layer)
{
	return o->form == ROUNDS ? 2 * additive_state_floats(o->width, o->heads, o->windows[layer % WINDOWS])
	                         : shift_state_floats(o->width, 1) + forgetting_state_floats(o->width, o->heads);
}

static int64_t slot_floats(const network *o)
{
	int64_t sum = 0;
	for (int l = 0; l < o->layers; l++)
		sum += layer_floats(o, l);
	return sum;
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

/* One row selected, or another op, between attention and feed-forward of the last layer. */
static value between(const builder *m, value h, int layer)
{
	if (layer < m->o->layers - 1 || m->o->between == NOTHING)
		return h;
	return m->o->between == OTHER_OP ? op_tanh(m->g, h) : op_gather(m->g, h, graph_find(m->g, "index"), -1);
}

/* All layers have the same weights, and states of their own. */
static value forgetting_layers(builder *m, const stream_values *at, value h)
{
	const network *o = m->o;
	graph *g = m->g;
	const int64_t d = o->width;
	const value wv = matrix(m, "v", d, d), wa = matrix(m, "a", o->heads, d), wf = matrix(m, "f", o->heads, d),
	            wg = matrix(m, "gate", d, d), wo = matrix(m, "o", d, d), w1 = matrix(m, "1", 2 * o->inner, d),
	            w2 = matrix(m, "2", d, o->inner), logits = matrix(m, "logits", d, d), beta = vector(m, "beta", o->heads, 1),
	            mu = vector(m, "mu", MIXTURES * d, 0.5), gain = vector(m, "gain", d, 1),
	            before = vector(m, "before", d, 1), after = vector(m, "after", d, 1);
	int64_t offset = 0;
	for (int l = 0; l < o->layers; offset += layer_floats(o, l++)) {
		value from[MIXTURES];
		const value n = rms(m, h, before, 1);
		const value last = op_shift_stream(g, n, at->pool, at->slot, at->position, at->length, at->mask, VALUE_NONE,
		                                   VALUE_NONE, (shift_stream_params){.low = 1, .high = 1, .offset = offset});
		for (int i = 0; i < MIXTURES; i++)
			from[i] = op_mix_columns(g, n, last, mu, i);
		const value v = op_linear(g, from[0], wv, VALUE_NONE, 1), a = op_linear(g, from[1], wa, VALUE_NONE, 1),
		            f = op_activation(g, op_linear(g, from[1], wf, beta, 1), ACTIVATION_LOG_SIGMOID);
		value y = op_forgetting_stream(g, v, a, f, VALUE_NONE, *at, offset + shift_state_floats(d, 1)).pooled;
		y = rms(m, y, gain, o->heads);
		y = op_mul(g, y, op_activation(g, op_linear(g, from[2], wg, VALUE_NONE, 1), ACTIVATION_SILU));
		h = between(m, op_add(g, h, op_linear(g, y, wo, VALUE_NONE, 1)), l);
		const value inner = op_linear(g, rms(m, h, after, 1), w1, VALUE_NONE, 1);
		h = op_add(g, h, op_linear(g, op_glu_gate_first(g, inner, ACTIVATION_SILU), w2, VALUE_NONE, 1));
	}
	return op_linear(g, rms(m, h, gain, 1), logits, VALUE_NONE, 1);
}

static value round_layers(builder *m, const stream_values *at, value h)
{
	const network *o = m->o;
	graph *g = m->g;
	const int64_t d = o->width;
	const float eps = 1e-5f;
	const value wq = matrix(m, "q", d, d), wk = matrix(m, "k", d, d), wv = matrix(m, "v", d, d), wp = matrix(m, "p", d, d),
	            w1 = matrix(m, "1", o->inner, d), w2 = matrix(m, "2", d, o->inner), one = vector(m, "one", d, 1),
	            two = vector(m, "two", d, 1), gain = vector(m, "gain", d, 1), bias = vector(m, "bias", d, 1);
	int64_t offset = 0;
	for (int l = 0; l < o->layers; offset += layer_floats(o, l++)) {
		const additive_stream_params first = {o->heads, o->windows[l % WINDOWS], offset},
		                             second = {o->heads, first.window, offset + layer_floats(o, l) / 2};
		const value n = op_layernorm(g, h, gain, bias, eps), q = op_linear(g, n, wq, VALUE_NONE, 1),
		            k = op_linear(g, n, wk, VALUE_NONE, 1), v = op_linear(g, n, wv, VALUE_NONE, 1);
		attention_values a = op_additive_stream(g, q, one, at->pool, at->slot, at->position, at->length, at->mask, at->start, first);
		const value r = op_gate(g, n, op_linear(g, a.pooled, wp, VALUE_NONE, 1), k);
		a = op_additive_stream(g, op_layernorm(g, r, gain, bias, eps), two, at->pool, at->slot, at->position, at->length,
		                       at->mask, at->start, second);
		if (o->scored && l == 0)
			graph_output(g, a.score, "score");
		const value u = between(m, op_gate(g, r, a.pooled, v), l),
		            inner = op_gelu(g, op_linear(g, op_layernorm(g, u, gain, bias, eps), w1, VALUE_NONE, 1), l % 2 == 1);
		h = op_add(g, u, op_linear(g, inner, w2, VALUE_NONE, 1));
	}
	return h;
}

static plan *plan_of(builder *m, results *out)
{
	const network *o = m->o;
	const int64_t slots = o->rows + 2, floats = slot_floats(o);
	graph *g = m->g = graph_new();
	const value h = graph_input(g, "x", DTYPE_F32, SHAPE3(o->rows, 1, o->width));
	if (o->between == ROWS_SELECTED)
		(void)graph_input(g, "index", DTYPE_I32, SHAPE1(o->rows));
	out->pool_floats = slots * floats;
	out->pool = malloc((size_t)out->pool_floats * sizeof(float));
	assert_non_null(out->pool);
	random_normal(out->pool, (int)out->pool_floats, 77, 1);
	m->pool = upload(m->b, out->pool, (size_t)out->pool_floats * sizeof(float));
	const stream_values at = {.pool = bind(m, graph_state(g, "pool", SHAPE2(slots, floats)), m->pool),
	                          .slot = graph_input(g, "slot", DTYPE_I32, SHAPE1(o->rows)),
	                          .position = graph_input(g, "position", DTYPE_I32, SHAPE1(o->rows)),
	                          .length = graph_input(g, "length", DTYPE_I32, SHAPE1(o->rows)),
	                          .mask = o->masked ? graph_input(g, "mask", DTYPE_I32, SHAPE2(o->rows, 1)) : VALUE_NONE,
	                          .start = VALUE_NONE};
	graph_output(g, o->form == ROUNDS ? round_layers(m, &at, h) : forgetting_layers(m, &at, h), "y");
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
		out->signals += work[i].signals;
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
		if (o->scored)
			assert_int_equal(plan_read(p, graph_find(plan_graph(p), "score"), out->score[run]), STATUS_OK);
	}
	if (counter.begin)
		count_work(counter, out);
	assert_int_equal(m.b->download(m.b, out->pool, m.pool, (size_t)out->pool_floats * sizeof(float)), STATUS_OK);
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
		if (!compare_same("y", got.y[run], want.y[run], o->rows * o->width) ||
		    !compare_same("score", got.score[run], want.score[run], o->rows * o->heads))
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
	expect_in(2, &networks[FIRST_OF_ROUNDS], 1, 0);
	expect_in(40, &networks[FIRST_OF_ROUNDS], 1, 0);
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
		expect(&networks[FIRST_OF_ROUNDS + i % 2], 1, 0);
	}
	unsetenv("ADDITIVE_EMULATOR_ORDER");
}

/* A norm of several warps, and heads of several lanes; more heads than a block computes at a time, and heads of more
 * channels than their lanes compute at a time. */
static void wide_rows_change_no_bit(void **state)
{
	const network wide = {.type = DTYPE_PANEL_BF16, .rows = 1, .width = 160, .heads = 4, .inner = 48, .layers = 1},
	              heads = {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 8, .width = 160, .heads = 20, .inner = 16,
	                       .windows = {4, 0}, .layers = 2},
	              channels = {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 1, .width = 288, .heads = 2, .inner = 16,
	                          .windows = {4, 0}, .layers = 2};
	(void)state;
	expect(&wide, 1, 0);
	expect(&heads, 1, 0);
	expect(&channels, 1, 0);
}

/* Return how many more waits the network `more` has. */
static int more_waits(network some, network more)
{
	static results one, other;
	run_with(PROCESSORS, &some, &one);
	run_with(PROCESSORS, &more, &other);
	free(one.pool);
	free(other.pool);
	return (int)other.signals - (int)one.signals;
}

static int waits_of_layer(network o)
{
	network more = o;
	more.layers++;
	return more_waits(o, more);
}

static void a_layer_has_four_waits(void **state)
{
	(void)state;
	skip_unless_emulated();
	for (int i = 0; i < NETWORKS; i++)
		if (networks[i].between == NOTHING && networks[i].rows == 1)
			assert_int_equal(waits_of_layer(networks[i]), 4);
}

/* Its attention has the second round as a phase of its own. */
static void rows_selected_in_the_last_layer_of_additive_cost_two_waits(void **state)
{
	const network o = {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 1, .width = 64, .heads = 4, .inner = 16, .layers = 2};
	network selected = o;
	(void)state;
	skip_unless_emulated();
	selected.between = ROWS_SELECTED;
	assert_int_equal(more_waits(o, selected), 2);
}

/* 2,304 channels. There are enough processors for a warp of each round to have one to itself. */
static void rounds_of_many_channels_are_phases(void **state)
{
	const network o = {.form = ROUNDS, .type = DTYPE_PANEL_BF16, .rows = 8, .width = 288, .heads = 36, .inner = 16, .layers = 2};
	(void)state;
	skip_unless_emulated();
	setenv("ADDITIVE_EMULATOR_PROCESSORS", "16", 1);
	assert_int_equal(waits_of_layer(o), 6);
	unsetenv("ADDITIVE_EMULATOR_PROCESSORS");
}

static void groups_that_are_too_few_for_a_program_run_as_kernels(void **state)
{
	network o = networks[0];
	(void)state;
	o.layers = 1;
	o.between = OTHER_OP;
	expect(&o, 0, 21);
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
	expect(&o, 0, 38);
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
	    cmocka_unit_test(a_layer_has_four_waits),
	    cmocka_unit_test(rows_selected_in_the_last_layer_of_additive_cost_two_waits),
	    cmocka_unit_test(rounds_of_many_channels_are_phases),
	    cmocka_unit_test(groups_that_are_too_few_for_a_program_run_as_kernels),
	    cmocka_unit_test(more_layers_than_a_program_holds_make_two_programs),
	    cmocka_unit_test(unaligned_states_are_for_kernels),
	    cmocka_unit_test(layers_that_a_program_cannot_have_run_as_kernels),
	};
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
