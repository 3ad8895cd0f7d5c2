/* A plan that reuses memory must give the same bits as one that does not. The latter is made by binding every temporary
 * to its own buffer. */
#include "tests/unit/tensor/plan_fixture.h"

#include <math.h>

#include "engine/tensor/arena.h"
#include "tests/unit/support/allocations.h"

/* --- the arena ------------------------------------------------------------------------ */

static void live_requests_never_overlap(void **state)
{
	(void)state;
	enum { COUNT = 200, STEPS = 50 };
	arena_request r[COUNT];
	uint64_t seed = 1;
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < COUNT; i++) {
			r[i] = (arena_request){.bytes = (size_t)random_next(&seed, 1, 5000)};
			r[i].first = (int)random_next(&seed, 0, STEPS - 1);
			r[i].last = (int)random_next(&seed, r[i].first, STEPS - 1);
		}
		size_t total, least = 0;
		assert_int_equal(arena_place(r, COUNT, &total), STATUS_OK);
		for (int i = 0; i < COUNT; i++) {
			assert_int_equal(r[i].offset % ARENA_ALIGNMENT, 0);
			assert_true(r[i].offset + r[i].bytes <= total);
			for (int j = 0; j < i; j++)
				assert_true(r[i].last < r[j].first || r[j].last < r[i].first ||
				            r[i].offset + r[i].bytes <= r[j].offset ||
				            r[j].offset + r[j].bytes <= r[i].offset);
		}
		for (int step = 0; step < STEPS; step++) {
			size_t alive = 0;
			for (int i = 0; i < COUNT; i++)
				alive += r[i].first <= step && step <= r[i].last ? r[i].bytes : 0;
			least = alive > least ? alive : least;
		}
		assert_true(total >= least && total <= least + least / 4);
	}
}

static void an_arena_too_large_to_count_is_out_of_memory(void **state)
{
	(void)state;
	size_t total;
	arena_request r[2] = {{.bytes = SIZE_MAX / 2 + 1}, {.bytes = SIZE_MAX / 2 + 1}};
	assert_int_equal(arena_place(r, 2, &total), STATUS_NOMEM);
	r[0].bytes = SIZE_MAX;
	assert_int_equal(arena_place(r, 1, &total), STATUS_NOMEM);
	assert_int_equal(arena_place(NULL, 0, &total), STATUS_OK);
	assert_int_equal(total, 0);
}

/* --- random graphs ---------------------------------------------------------------------- */

static void reusing_memory_changes_no_bit(void **state)
{
	size_t reused = 0, separate = 0;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		graph *g = random_graph(1000 * seed), *h = random_graph(1000 * seed);
		plan_binding *all = calloc((size_t)graph_value_count(h), sizeof *all);
		plan_binding parameters[2];
		assert_non_null(all);
		int n_all = bind_role(h, ROLE_PARAMETER, all);
		memcpy(parameters, all, sizeof parameters);
		n_all += bind_role(h, ROLE_TEMPORARY, all + n_all);
		for (int i = 0; i < n_all; i++)
			separate += buffer_bytes(all[i].data);
		plan *p = compile(*state, g, parameters, 2), *q = compile(*state, h, all, n_all);
		reused += plan_bytes(p);
		fill_inputs(p);
		fill_inputs(q);
		for (int run = 0; run < 2; run++) { /* the second run over the memory of the first */
			assert_int_equal(plan_run(p), STATUS_OK);
			assert_int_equal(plan_run(q), STATUS_OK);
			assert_same_outputs(p, q);
		}
		plan_free(p);
		plan_free(q);
		free_bindings(all, n_all);
		free(all);
	}
	assert_true(reused < separate / 2);
}

static void slices_give_the_results_of_an_undivided_run(void **state)
{
	plan_binding parameters[2];
	graph *g = random_graph(77), *h = random_graph(77);
	bind_role(g, ROLE_PARAMETER, parameters);
	plan *p = compile(*state, g, parameters, 2), *q = compile(*state, h, parameters, 2);
	fill_inputs(p);
	fill_inputs(q);
	assert_int_equal(plan_run(p), STATUS_OK);
	int steps = 0;
	for (int cursor = 0; cursor < plan_node_count(q); steps++)
		assert_int_equal(plan_step(q, &cursor), STATUS_OK);
	assert_int_equal(steps, plan_node_count(p));
	assert_same_outputs(p, q);
	int past = plan_node_count(q);
	assert_int_equal(plan_step(q, &past), STATUS_INVALID);
	plan_free(p);
	plan_free(q);
	free_bindings(parameters, 2);
}

static void a_run_allocates_nothing(void **state)
{
	plan_binding parameters[2];
	graph *g = random_graph(5);
	bind_role(g, ROLE_PARAMETER, parameters);
	plan *p = compile(*state, g, parameters, 2);
	fill_inputs(p);
	int64_t before = allocations_count();
	void *volatile one = malloc(1); /* volatile, so that the compiler keeps it */
	free(one);
	assert_int_equal(allocations_count(), before + 1); /* check that allocations are counted */
	before = allocations_count();
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(allocations_count(), before);
	plan_free(p);
	free_bindings(parameters, 2);
}

static void every_failed_allocation_is_clean_on(backend *on)
{
	plan_binding parameters[2];
	graph *shape_of = random_graph(9);
	bind_role(shape_of, ROLE_PARAMETER, parameters);
	graph_free(shape_of);
	int refused = 0;
	for (int64_t limit = 0;; limit++) {
		plan *p = NULL;
		allocations_limit(limit);
		graph *g = graph_new();
		status s = STATUS_NOMEM;
		if (g) {
			value x = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, WIDTH));
			value w = graph_parameter(g, "w", SHAPE2(WIDTH, WIDTH));
			value b = graph_parameter(g, "b", SHAPE1(WIDTH));
			value index = graph_input(g, "index", DTYPE_I32, SHAPE1(ROWS));
			value y = op_layernorm(g, op_matmul(g, x, w, false, true, 1), b, b, 1e-5f);
			value h = op_add(g, y, op_gather(g, w, index, 0));
			graph_backward(
			    g, op_linear_cross_entropy(g, h, w, b, index, VALUE_NONE, (linear_cross_entropy_params){1, 0}).loss);
			value dw = graph_gradient(g, w);
			graph_output(g, dw, "dw");
			s = plan_new(&p, g, on, (plan_binding[]){{w, parameters[0].data}, {b, parameters[1].data}}, 2,
			             NULL);
		}
		allocations_limit(-1);
		plan_free(p);
		if (s == STATUS_OK)
			break;
		assert_int_equal(s, STATUS_NOMEM);
		assert_null(p);
		refused++;
	}
	assert_true(refused > 50);
	free_bindings(parameters, 2);
}

static int nothing_to_fuse(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                           backend_fused_kernel *out)
{
	(void)b, (void)ids, (void)calls, (void)n, (void)dead, (void)out;
	return 0;
}

static void every_failed_allocation_is_a_clean_status(void **state)
{
	backend asking = *(backend *)*state;
	asking.fuse = nothing_to_fuse;
	every_failed_allocation_is_clean_on(*state);
	every_failed_allocation_is_clean_on(&asking);
}

/* --- the rules of memory ------------------------------------------------------------------ */

static void elementwise_chains_run_in_place(void **state)
{
	enum { N = 1000 };
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(N)), y = op_scale(g, x, 2);
	for (int i = 0; i < 10; i++)
		y = op_gelu(g, y, false);
	graph_output(g, op_scale(g, y, 2), "y");
	plan *p = compile(*state, g, NULL, 0);
	assert_true(plan_bytes(p) < 3 * N * sizeof(float) + 3 * ARENA_ALIGNMENT); /* x, the chain, y */
	plan_free(p);
}

static void an_output_is_not_overwritten_by_its_reader(void **state)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3)), y = op_scale(g, x, 2), z = op_scale(g, y, 3);
	graph_output(g, y, "y");
	graph_output(g, z, "z");
	plan *p = compile(*state, g, NULL, 0);
	float in[3] = {1, 2, 3}, out[3];
	assert_int_equal(plan_write(p, x, in), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, y, out), STATUS_OK);
	assert_true(compare_same("y", out, (float[]){2, 4, 6}, 3));
	assert_int_equal(plan_read(p, z, out), STATUS_OK);
	assert_true(compare_same("z", out, (float[]){6, 12, 18}, 3));
	assert_int_equal(plan_read(p, x, out), STATUS_OK);
	assert_true(compare_same("x", out, in, 3));
	plan_free(p);
}

static void an_output_keeps_its_content_until_it_is_written_again(void **state)
{
	enum { N = 8 };
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(N, N)), y = x;
	for (int i = 0; i < 4; i++)
		y = op_matmul(g, y, x, false, false, 0.5f);
	graph_output(g, y, "y");
	plan *p = compile(*state, g, NULL, 0);
	float before[N * N];
	random_normal(plan_data(p, x), N * N, 1, 1);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, y, before), STATUS_OK);
	for (int cursor = 0; cursor + 1 < plan_node_count(p);) {
		assert_int_equal(plan_step(p, &cursor), STATUS_OK);
		assert_true(compare_same("y", plan_data(p, y), before, N * N));
	}
	plan_free(p);
}

/* A product that fails if its result overwrites its factor. */
static status factor_apart(backend *b, const op_call *call)
{
	(void)b;
	return call->out[0].data == call->in[1].data ? STATUS_INTERNAL : STATUS_OK;
}

static void an_argument_that_must_be_kept_is_not_overwritten_through_an_alias(void **state)
{
	backend spy = *(backend *)*state;
	spy.kernel[OP_scale_by] = factor_apart;
	graph *g = graph_new();
	value y = op_scale(g, graph_input(g, "x", DTYPE_F32, SHAPE0()), 2);
	graph_output(g, op_gelu(g, op_scale_by(g, y, y), false),
	             "z"); /* y may be overwritten as argument x, but not as s */
	plan *p = compile(&spy, g, NULL, 0);
	assert_int_equal(plan_run(p), STATUS_OK);
	plan_free(p);
}

static void unneeded_nodes_are_dropped(void **state)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3)), y = op_scale(g, x, 2);
	value dead = op_scale(g, op_gelu(g, y, false), 2), sum = graph_state(g, "sum", SHAPE1(3));
	op_accumulate(g, sum, y, 1); /* no output, but it updates a state */
	float total[3] = {0}, in[3] = {1, 2, 3};
	plan *p = compile(*state, g, (plan_binding[]){{sum, total}}, 1);
	assert_int_equal(plan_node_count(p), 2);
	assert_null(plan_data(p, y));
	assert_null(plan_data(p, dead));
	assert_int_equal(plan_read(p, dead, in), STATUS_INVALID);
	assert_int_equal(plan_write(p, x, in), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_true(compare_same("sum", total, (float[]){4, 8, 12}, 3));
	plan_free(p);
}

static void a_bound_result_is_written_to_the_callers_buffer(void **state)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3)), y = op_scale(g, x, 2), z = op_gelu(g, y, false);
	float in[3] = {1, 2, 3}, out[3] = {0};
	graph_output(g, z, "z");
	plan *p = compile(*state, g, (plan_binding[]){{x, in}, {y, out}}, 2);
	assert_ptr_equal(plan_data(p, y), out);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_true(compare_same("y", out, (float[]){2, 4, 6}, 3));
	assert_true(compare_same("x", in, (float[]){1, 2, 3}, 3));
	plan_free(p);
}

static void unrequested_results_have_no_memory(void **state)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE3(1, 100, 2)), w = graph_parameter(g, "w", SHAPE1(2));
	attention_values a = op_additive_attention(g, x, w, VALUE_NONE, 2, 0);
	graph_output(g, a.log_normalizer, "m");
	float weights[2] = {1, 1};
	plan *p = compile(*state, g, (plan_binding[]){{w, weights}}, 1);
	assert_null(plan_data(p, a.pooled));
	assert_true(plan_bytes(p) <= 2 * 100 * 2 * sizeof(float) + 2 * ARENA_ALIGNMENT);
	assert_int_equal(plan_run(p), STATUS_OK);
	const float *m = plan_data(p, a.log_normalizer);
	assert_true(fabs((double)m[2 * 99] - log(100)) <= 1e-6); /* x is zero, so all scores are equal */
	plan_free(p);
}

static void an_empty_tensor_is_not_an_absent_one(void **state)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(0, 3)), y = op_gelu(g, x, false);
	graph_output(g, y, "y");
	plan *p = compile(*state, g, NULL, 0);
	assert_non_null(plan_data(p, x));
	assert_non_null(plan_data(p, y));
	assert_int_equal(plan_write(p, x, NULL), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	plan_free(p);
}

/* --- smaller inputs ------------------------------------------------------------------------ */

enum { MANY = 9, CHANNELS = 5, CLASSES = 4 };

typedef struct network {
	value x, pick, w, y, z;
} network;

/* y = gelu(layernorm(x)) W for each row, and z = the picked rows of y, doubled. */
static graph *make_network(network *n, int64_t rows, int64_t picked)
{
	graph *g = graph_new();
	n->x = graph_input(g, "x", DTYPE_F32, SHAPE2(rows, CHANNELS));
	n->pick = graph_input(g, "pick", DTYPE_I32, SHAPE1(picked));
	n->w = graph_parameter(g, "w", SHAPE2(CLASSES, CHANNELS));
	value ones = op_fill(g, SHAPE1(CHANNELS), 1);
	value h = op_gelu(g, op_layernorm(g, n->x, ones, ones, 1e-5f), false);
	n->y = op_matmul(g, h, n->w, false, true, 1);
	n->z = op_scale(g, op_gather(g, n->y, n->pick, -1), 2);
	graph_output(g, n->y, "y");
	graph_output(g, n->z, "z");
	return g;
}

static void write_network(plan *p, const network *n, const float *x, const int32_t *pick, int64_t rows, int64_t picked)
{
	memcpy(plan_data(p, n->x), x, (size_t)(rows * CHANNELS) * sizeof *x);
	memcpy(plan_data(p, n->pick), pick, (size_t)picked * sizeof *pick);
}

static void with_smaller_inputs_a_plan_equals_one_of_their_size_and_writes_nothing_after_them(void **state)
{
	static const int64_t sizes[][2] = {{MANY, MANY}, {3, 2}, {8, 1}, {1, 1}, {5, 0}, {0, 0}, {MANY, 4}};
	float x[MANY * CHANNELS], w[CLASSES * CHANNELS], junk[MANY * CLASSES];
	const int32_t pick[MANY] = {0};
	network large, exact;
	random_normal(x, MANY * CHANNELS, 1, 1);
	random_normal(w, CLASSES * CHANNELS, 2, 1);
	memset(junk, 0xff, sizeof junk);
	graph *g = make_network(&large, MANY, MANY);
	plan *p = compile(*state, g, (plan_binding[]){{large.w, w}}, 1);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		const int64_t rows = sizes[i][0], picked = sizes[i][1];
		graph *h = make_network(&exact, rows, picked);
		plan *q = compile(*state, h, (plan_binding[]){{exact.w, w}}, 1);
		const plan_shape shapes[] = {{large.x, SHAPE2(rows, CHANNELS)}, {large.pick, SHAPE1(picked)}};
		float *y = plan_data(p, large.y), *z = plan_data(p, large.z);
		memcpy(y, junk, sizeof junk);
		memcpy(z, junk, sizeof junk);
		write_network(p, &large, x, pick, rows, picked);
		write_network(q, &exact, x, pick, rows, picked);
		assert_int_equal(plan_reshape(p, shapes, 2, NULL), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_int_equal(plan_run(q), STATUS_OK);
		assert_memory_equal(y, plan_data(q, exact.y), (size_t)(rows * CLASSES) * sizeof *y);
		assert_memory_equal(z, plan_data(q, exact.z), (size_t)(picked * CLASSES) * sizeof *z);
		assert_memory_equal(y + rows * CLASSES, junk, (size_t)((MANY - rows) * CLASSES) * sizeof *y);
		assert_memory_equal(z + picked * CLASSES, junk, (size_t)((MANY - picked) * CLASSES) * sizeof *z);
		plan_free(q);
	}
	plan_free(p);
}

static void inputs_that_fit_neither_the_plan_nor_each_other_are_refused(void **state)
{
	network n;
	float w[CLASSES * CHANNELS] = {0};
	backend recording = *(backend *)*state;
	graph *g = make_network(&n, MANY, MANY);
	plan *p = compile(&recording, g, (plan_binding[]){{n.w, w}}, 1);
	const plan_shape wrong[] = {
	    {n.x, SHAPE2(MANY + 1, CHANNELS)}, {n.x, SHAPE1(CHANNELS)},
	    {n.x, SHAPE2(2, CHANNELS - 1)}, /* layernorm has CHANNELS weights */
	    {n.w, SHAPE2(CLASSES, CHANNELS)},  {n.y, SHAPE2(1, CLASSES)},
	    {VALUE_NONE, SHAPE2(1, CHANNELS)},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error err = ERROR_INIT;
		assert_int_equal(plan_reshape(p, &wrong[i], 1, &err), STATUS_INVALID);
		assert_true(err.message[0]);
	}
	const plan_shape right = {n.x, SHAPE2(2, CHANNELS)};
	assert_int_equal(plan_reshape(p, &right, 1, NULL), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	recording.record_begin = recording.synchronize;
	assert_int_equal(plan_reshape(p, &right, 1, NULL), STATUS_UNSUPPORTED);
	plan_free(p);
}

/* --- errors ---------------------------------------------------------------------------------- */

static void expect_refusal(backend *b, graph *g, const plan_binding *bindings, int n, status s, const char *param)
{
	plan *p;
	error err = ERROR_INIT;
	assert_int_equal(plan_new(&p, g, b, bindings, n, &err), s);
	assert_null(p);
	assert_string_equal(err.param, param);
	assert_true(err.message[0]);
}

static graph *one_parameter(value *w)
{
	graph *g = graph_new();
	*w = graph_parameter(g, "w", SHAPE1(3));
	graph_output(g, op_scale(g, *w, 2), "y");
	return g;
}

static void bad_bindings_are_refused(void **state)
{
	value w;
	float data[3] = {0};
	expect_refusal(*state, one_parameter(&w), NULL, 0, STATUS_INVALID, "w");
	expect_refusal(*state, one_parameter(&w), (plan_binding[]){{0, data}, {0, data}}, 2, STATUS_INVALID, "w");
	expect_refusal(*state, one_parameter(&w), (plan_binding[]){{0, NULL}}, 1, STATUS_INVALID, "");
	expect_refusal(*state, one_parameter(&w), (plan_binding[]){{99, data}}, 1, STATUS_INVALID, "");
	expect_refusal(*state, one_parameter(&w), (plan_binding[]){{VALUE_NONE, data}}, 1, STATUS_INVALID, "");
}

static void a_graph_with_an_error_is_refused_with_its_message(void **state)
{
	graph *g = graph_new();
	op_gelu(g, VALUE_NONE, false);
	expect_refusal(*state, g, NULL, 0, STATUS_INVALID, "gelu.x");
}

static void a_missing_kernel_is_unsupported(void **state)
{
	value w;
	float data[3] = {0};
	backend lacking = *(backend *)*state;
	lacking.kernel[OP_scale] = NULL;
	expect_refusal(&lacking, one_parameter(&w), (plan_binding[]){{0, data}}, 1, STATUS_UNSUPPORTED, "");
}

static status fails(backend *b, const op_call *call)
{
	(void)b, (void)call;
	return STATUS_DEVICE;
}

static void a_lost_device_ends_the_run(void **state)
{
	value w;
	float data[3] = {0};
	backend broken = *(backend *)*state;
	broken.kernel[OP_scale] = fails;
	plan *p = compile(&broken, one_parameter(&w), (plan_binding[]){{0, data}}, 1);
	assert_int_equal(plan_run(p), STATUS_DEVICE);
	plan_free(p);
	plan_free(NULL);
}

static int calls_left; /* scales before one fails */

static status scale_some(backend *b, const op_call *call)
{
	(void)b, (void)call;
	return calls_left-- > 0 ? STATUS_OK : STATUS_DEVICE;
}

static void a_failed_run_says_if_more_than_temporaries_changed(void **state)
{
	backend broken = *(backend *)*state;
	broken.kernel[OP_scale] = scale_some;
	for (int fails = 0; fails <= 3; fails++) {
		graph *g = graph_new();
		value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3)), a = op_scale(g, x, 2), b = op_scale(g, a, 3);
		graph_output(g, b, "b");
		graph_output(g, op_scale(g, b, 4), "c");
		plan *p = compile(&broken, g, NULL, 0);
		calls_left = 3;
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_true(plan_has_changed(p));
		calls_left = fails;
		assert_int_equal(plan_run(p), fails < 3 ? STATUS_DEVICE : STATUS_OK);
		assert_int_equal(plan_has_changed(p), fails > 0); /* the second scale writes an output */
		plan_free(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(live_requests_never_overlap),
	    cmocka_unit_test(an_arena_too_large_to_count_is_out_of_memory),
	    cmocka_unit_test(reusing_memory_changes_no_bit),
	    cmocka_unit_test(slices_give_the_results_of_an_undivided_run),
	    cmocka_unit_test(a_run_allocates_nothing),
	    cmocka_unit_test(every_failed_allocation_is_a_clean_status),
	    cmocka_unit_test(elementwise_chains_run_in_place),
	    cmocka_unit_test(an_output_is_not_overwritten_by_its_reader),
	    cmocka_unit_test(an_output_keeps_its_content_until_it_is_written_again),
	    cmocka_unit_test(an_argument_that_must_be_kept_is_not_overwritten_through_an_alias),
	    cmocka_unit_test(unneeded_nodes_are_dropped),
	    cmocka_unit_test(a_bound_result_is_written_to_the_callers_buffer),
	    cmocka_unit_test(unrequested_results_have_no_memory),
	    cmocka_unit_test(an_empty_tensor_is_not_an_absent_one),
	    cmocka_unit_test(with_smaller_inputs_a_plan_equals_one_of_their_size_and_writes_nothing_after_them),
	    cmocka_unit_test(inputs_that_fit_neither_the_plan_nor_each_other_are_refused),
	    cmocka_unit_test(bad_bindings_are_refused),
	    cmocka_unit_test(a_graph_with_an_error_is_refused_with_its_message),
	    cmocka_unit_test(a_missing_kernel_is_unsupported),
	    cmocka_unit_test(a_lost_device_ends_the_run),
	    cmocka_unit_test(a_failed_run_says_if_more_than_temporaries_changed),
	};
	return cmocka_run_group_tests(tests, open_backend, close_backend);
}
