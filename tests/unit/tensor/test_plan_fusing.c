/* Plans on a backend that runs neighbouring calls as one kernel. */
#include "tests/unit/tensor/plan_fixture.h"

#include "engine/tensor/panel.h"

enum { MAX_GROUPS = 64, GROUP_VALUES = BACKEND_FUSE_MAX * OP_MAX_INPUTS };

typedef struct fused_group {
	const op_call *first;
	op_id ids[BACKEND_FUSE_MAX];
	int count;
	unsigned dead;
} fused_group;

/* The reference, with fusing: `want` returns the number of calls in a group (0: none). Its kernels use all the freedom
 * that backend.h gives. */
typedef struct fusing_backend {
	backend base;
	int (*want)(const op_id *ids, const op_call *const *calls, int n, unsigned dead);
	fused_group groups[MAX_GROUPS]; /* as passed to the last query */
	int n_groups, runs;
} fusing_backend;

static fused_group *group_of(fusing_backend *f, const op_call *first)
{
	for (int i = 0; i < f->n_groups; i++)
		if (f->groups[i].first == first)
			return &f->groups[i];
	assert_true(f->n_groups < MAX_GROUPS);
	f->groups[f->n_groups] = (fused_group){.first = first};
	return &f->groups[f->n_groups++];
}

static size_t tensor_bytes(const tensor *t)
{
	size_t bytes = 0;
	assert_true(!t->data || shape_bytes(t->shape, t->type, &bytes));
	return bytes;
}

static void poison(const tensor *t)
{
	memset(t->data, 0xff, tensor_bytes(t));
}

/* Overwrite every output before any input is read, run the calls on copies of the group's inputs, then overwrite the
 * values declared dead. A call that shares memory with an output, or reads a dead value, gets NaN. */
static status hostile_kernel(backend *b, const op_call *const *calls)
{
	fusing_backend *f = (fusing_backend *)b;
	const fused_group *group = group_of(f, calls[0]);
	void *kept[GROUP_VALUES];
	op_call copies[BACKEND_FUSE_MAX];
	int n_kept = 0;
	for (int i = 0; i < group->count; i++)
		for (int j = 0; j < calls[i]->n_out; j++)
			if (calls[i]->out[j].data)
				poison(&calls[i]->out[j]);
	for (int i = 0; i < group->count; i++) {
		copies[i] = *calls[i];
		for (int j = 0; j < copies[i].n_in; j++) {
			bool inside = !copies[i].in[j].data;
			for (int k = 0; k < i; k++)
				for (int l = 0; l < calls[k]->n_out; l++)
					inside |= copies[i].in[j].data == calls[k]->out[l].data;
			if (inside)
				continue;
			size_t bytes = tensor_bytes(&copies[i].in[j]);
			kept[n_kept] = malloc(bytes + 1);
			assert_non_null(kept[n_kept]);
			memcpy(kept[n_kept], copies[i].in[j].data, bytes);
			copies[i].in[j].data = kept[n_kept++];
		}
	}
	for (int i = 0; i < group->count; i++)
		assert_int_equal(b->kernel[group->ids[i]](b, &copies[i]), STATUS_OK);
	for (int i = 0; i < group->count; i++)
		if ((group->dead >> i & 1) && calls[i]->out[0].data)
			poison(&calls[i]->out[0]);
	while (n_kept > 0)
		free(kept[--n_kept]);
	f->runs++;
	return STATUS_OK;
}

static int fuse(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                backend_fused_kernel *out)
{
	fusing_backend *f = (fusing_backend *)b;
	assert_true(n >= 2 && n <= BACKEND_FUSE_MAX);
	for (int i = 0; i < n; i++)
		for (int j = 0; j < calls[i]->n_out; j++)
			assert_int_equal((uintptr_t)calls[i]->out[j].data % 64, 0);
	int count = f->want(ids, calls, n, dead);
	*out = hostile_kernel; /* also when it declines: then it must have no effect */
	fused_group *group = count ? group_of(f, calls[0]) : NULL;
	if (!group)
		return 0;
	memcpy(group->ids, ids, (size_t)count * sizeof *ids);
	group->count = count;
	group->dead = dead & (unsigned)((1ull << count) - 1);
	return count;
}

static void fusing_init(fusing_backend *f, const backend *b,
                        int (*want)(const op_id *ids, const op_call *const *calls, int n, unsigned dead))
{
	memset(f, 0, sizeof *f);
	f->base = *b;
	f->base.fuse = fuse;
	f->want = want;
}

/* Two to five neighbours, whatever their ops. */
static int any_neighbours(const op_id *ids, const op_call *const *calls, int n, unsigned dead)
{
	(void)calls, (void)dead;
	int count = 2 + (int)(ids[0] + ids[1]) % 4;
	return ids[0] % 3 == 0 ? 0 : count < n ? count : n;
}

/* Three calls of a longer run, but not these three alone. */
static int a_change_of_mind(const op_id *ids, const op_call *const *calls, int n, unsigned dead)
{
	(void)ids, (void)calls, (void)dead;
	return n > 3 ? 3 : 0;
}

/* scale, and gelu of its result. */
static int scale_and_gelu(const op_id *ids, const op_call *const *calls, int n, unsigned dead)
{
	(void)n, (void)dead;
	return ids[0] == OP_scale && ids[1] == OP_gelu && calls[1]->in[0].data == calls[0]->out[0].data ? 2 : 0;
}

/* Also the next call, if no other call reads the result of scale. */
static int scale_and_gelu_and_more(const op_id *ids, const op_call *const *calls, int n, unsigned dead)
{
	int count = scale_and_gelu(ids, calls, n, dead);
	return count && n > count && (dead & 1) ? count + 1 : count;
}

static void fusing_neighbours_changes_no_bit(void **state)
{
	int runs = 0;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		fusing_backend f;
		plan_binding parameters[2];
		graph *g = random_graph(1000 * seed), *h = random_graph(1000 * seed);
		bind_role(g, ROLE_PARAMETER, parameters);
		fusing_init(&f, *state, any_neighbours);
		plan *p = compile(*state, g, parameters, 2), *q = compile(&f.base, h, parameters, 2);
		assert_true(plan_node_count(q) < plan_node_count(p));
		fill_inputs(p);
		fill_inputs(q);
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_int_equal(plan_run(q), STATUS_OK);
		assert_same_outputs(p, q);
		int steps = 0;
		for (int cursor = 0; cursor < plan_node_count(q); steps++)
			assert_int_equal(plan_step(q, &cursor), STATUS_OK);
		assert_int_equal(steps, plan_node_count(q));
		assert_same_outputs(p, q);
		runs += f.runs;
		plan_free(p);
		plan_free(q);
		free_bindings(parameters, 2);
	}
	assert_true(runs > 40 * 10);
}

static void a_backend_that_declines_later_runs_calls_one_by_one(void **state)
{
	fusing_backend f;
	plan_binding parameters[2];
	graph *g = random_graph(7), *h = random_graph(7);
	bind_role(g, ROLE_PARAMETER, parameters);
	fusing_init(&f, *state, a_change_of_mind);
	plan *p = compile(*state, g, parameters, 2), *q = compile(&f.base, h, parameters, 2);
	assert_int_equal(plan_node_count(q), plan_node_count(p));
	fill_inputs(p);
	fill_inputs(q);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_run(q), STATUS_OK);
	assert_same_outputs(p, q);
	assert_int_equal(f.runs, 0);
	plan_free(p);
	plan_free(q);
	free_bindings(parameters, 2);
}

/* x -> y = 2x -> z = gelu(y), optionally with another reader of y. */
static unsigned dead_in(backend *b, bool y_is_output, bool y_is_read, void *y_is_bound, int nodes)
{
	fusing_backend f;
	fusing_init(&f, b, scale_and_gelu);
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3)), y = op_scale(g, x, 2), z = op_gelu(g, y, false);
	graph_output(g, z, "z");
	if (y_is_read)
		graph_output(g, op_add(g, y, x), "sum");
	if (y_is_output)
		graph_output(g, y, "y");
	plan *p = compile(&f.base, g, (plan_binding[]){{y, y_is_bound}}, y_is_bound ? 1 : 0);
	assert_int_equal(plan_node_count(p), nodes);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(f.runs, 1);
	int past = nodes;
	assert_int_equal(plan_step(p, &past), STATUS_INVALID);
	plan_free(p);
	return f.groups[0].dead;
}

static void values_that_only_the_group_reads_are_dead(void **state)
{
	float place[16];
	assert_int_equal(dead_in(*state, false, false, NULL, 1), 1);
	assert_int_equal(dead_in(*state, true, false, NULL, 1), 0);
	assert_int_equal(dead_in(*state, false, true, NULL, 2), 0);
	void *y = (void *)(((uintptr_t)place + 63) / 64 * 64);
	assert_int_equal(dead_in(*state, false, false, y, 1), 0);
}

/* y = 2x, z = gelu(y), t = 3z and optionally t + y. */
static int nodes_of_chain(backend *b, int (*want)(const op_id *, const op_call *const *, int, unsigned), bool y_is_read)
{
	fusing_backend f;
	fusing_init(&f, b, want);
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(3)), y = op_scale(g, x, 2);
	value t = op_scale(g, op_gelu(g, y, false), 3);
	graph_output(g, y_is_read ? op_add(g, t, y) : t, "t");
	plan *p = compile(&f.base, g, NULL, 0);
	int nodes = plan_node_count(p);
	plan_free(p);
	return nodes;
}

static void results_do_not_overwrite_inputs_of_the_group(void **state)
{
	assert_int_equal(nodes_of_chain(*state, scale_and_gelu, false), 2); /* without the rule, z would overwrite y */
	assert_int_equal(nodes_of_chain(*state, scale_and_gelu, true), 3);
}

static void a_backend_that_covers_fewer_calls_is_queried_again_about_those(void **state)
{
	assert_int_equal(nodes_of_chain(*state, scale_and_gelu_and_more, false), 1);
	assert_int_equal(nodes_of_chain(*state, scale_and_gelu_and_more, true),
	                 3); /* y is dead in a group of four, not in one of three */
}

/* Number of nodes of gelu(2x) when the result is bound `offset` floats after x. */
static int nodes_at(backend *b, int offset)
{
	enum { COUNT = 32 };
	fusing_backend f;
	fusing_init(&f, b, scale_and_gelu);
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(COUNT)), z = op_gelu(g, op_scale(g, x, 2), false);
	float *data = buffer_new(2 * COUNT * sizeof *data);
	plan *p = compile(&f.base, g, (plan_binding[]){{x, data}, {z, data + offset}}, 2);
	int nodes = plan_node_count(p);
	plan_free(p);
	buffer_free(data);
	return nodes;
}

static void a_group_does_not_overwrite_its_inputs(void **state)
{
	assert_int_equal(nodes_at(*state, 0), 2);
	assert_int_equal(nodes_at(*state, 16), 2);
	assert_int_equal(nodes_at(*state, 32), 1);
}

/* --- weights ahead --------------------------------------------------------------------------------- */

enum { PRODUCTS = 6 };
static const op_call *products[PRODUCTS];
static int n_products;

static status keep_call(backend *b, const op_call *call)
{
	(void)b;
	assert_true(n_products < PRODUCTS);
	products[n_products++] = call;
	return STATUS_OK;
}

/* Group two products that have the same x. */
static int want_siblings(const op_id *ids, const op_call *const *calls, int n, unsigned dead)
{
	(void)dead;
	return n >= 2 && ids[0] == OP_linear && ids[1] == OP_linear && calls[0]->in[0].data == calls[1]->in[0].data ? 2
	                                                                                                            : 0;
}

static status keep_group(backend *b, const op_call *const *calls)
{
	TRY(keep_call(b, calls[0]));
	return keep_call(b, calls[1]);
}

static int fuse_siblings(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                         backend_fused_kernel *out)
{
	(void)b;
	*out = keep_group;
	return want_siblings(ids, calls, n, dead);
}

/* y = W5 W4 W3 W2 (W0 x + W1 x). The first two are one unit, and W3 is not packed. */
static void a_product_knows_the_packed_weights_of_the_second_next_unit(void **state)
{
	backend b = *(backend *)*state;
	graph *g = graph_new();
	const shape square = SHAPE2(PANEL_WIDTH, PANEL_WIDTH);
	value w[PRODUCTS], x = graph_input(g, "x", DTYPE_F32, SHAPE2(1, PANEL_WIDTH));
	plan_binding bound[PRODUCTS];
	char name[] = "w0";
	b.kernel[OP_linear] = keep_call;
	b.fuse = fuse_siblings;
	for (int i = 0; i < PRODUCTS; i++, name[1]++) {
		w[i] = i == 3 ? graph_parameter(g, name, square) : graph_weight(g, name, DTYPE_PANEL_BF16, square);
		bound[i] = (plan_binding){w[i], aligned_alloc(64, PANEL_WIDTH * PANEL_WIDTH * sizeof(float))};
	}
	const value one = op_linear(g, x, w[0], VALUE_NONE, 1), two = op_linear(g, x, w[1], VALUE_NONE, 1);
	value y = op_add(g, one, two);
	for (int i = 2; i < PRODUCTS; i++)
		y = op_linear(g, y, w[i], VALUE_NONE, 1);
	graph_output(g, y, "y");
	plan *p = compile(&b, g, bound, PRODUCTS);
	n_products = 0;
	assert_int_equal(plan_run(p), STATUS_OK);
	static const int ahead[PRODUCTS] = {4, 4, 5, -1, -1, -1}; /* the product, by product; 3 has no packed weights */
	assert_int_equal(n_products, PRODUCTS);
	for (int i = 0; i < PRODUCTS; i++) {
		const tensor *t = products[i]->ahead[0];
		assert_ptr_equal(t ? t->data : NULL, ahead[i] < 0 ? NULL : bound[ahead[i]].data);
		assert_null(products[i]->ahead[1]);
	}
	plan_free(p);
	for (int i = 0; i < PRODUCTS; i++)
		free(bound[i].data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(fusing_neighbours_changes_no_bit),
	    cmocka_unit_test(a_backend_that_declines_later_runs_calls_one_by_one),
	    cmocka_unit_test(values_that_only_the_group_reads_are_dead),
	    cmocka_unit_test(results_do_not_overwrite_inputs_of_the_group),
	    cmocka_unit_test(a_backend_that_covers_fewer_calls_is_queried_again_about_those),
	    cmocka_unit_test(a_group_does_not_overwrite_its_inputs),
	    cmocka_unit_test(a_product_knows_the_packed_weights_of_the_second_next_unit),
	};
	return cmocka_run_group_tests(tests, open_backend, close_backend);
}
