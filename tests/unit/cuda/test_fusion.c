/* Over 600 lines: a table of chains, and the graph of each.
 * Neighbouring calls run as one kernel give the same bits as one by one, whichever results are kept. A matrix product
 * with an add is rounded once instead of twice, so it is compared with a tolerance. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/cuda/tensors.h"
#include "tests/unit/support/op_cases.h"
#include "tests/unit/support/random.h"

static backend *device;
static __typeof__(((backend *)0)->fuse) fuse; /* the device's own function */
static int fused;                             /* fused calls in the last plan */

/* fuse is called before there are addresses and again with them, so the last group counts. */
static int fuse_and_count(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                          backend_fused_kernel *out)
{
	int count = fuse(b, ids, calls, n, dead, out);
	fused = count > fused ? count : fused;
	return count;
}

/* Fuse all but products, which have other bits. */
static int fuse_but_products(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                             backend_fused_kernel *out)
{
	return ids[0] == OP_matmul || ids[0] == OP_linear ? 0 : fuse_and_count(b, ids, calls, n, dead, out);
}

static int open_one(void **state)
{
	(void)state;
	device = open_device();
	fuse = device->fuse;
	return fuse ? 0 : 1;
}

static int close_one(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

/* --- chains --------------------------------------------------------------------------------- */

/* Builds a chain. The values that its calls read are inputs; its results, in order, go to `made`. Returns their
 * number. */
typedef struct sizes {
	dtype type;
	int64_t rows, width;
} sizes;
typedef int (*chain_builder)(graph *g, const sizes *s, value made[]);

enum { FROZEN_WIDTH = 264 };

static value real(graph *g, const sizes *s, const char *name)
{
	return graph_input(g, name, s->type, SHAPE2(s->rows, s->width));
}

static value drop(graph *g, const sizes *s, value x)
{
	(void)s;
	value rng = graph_find(g, "rng");
	return op_dropout(g, x, rng != VALUE_NONE ? rng : graph_input(g, "rng", DTYPE_I32, SHAPE1(4)), 0.3f, 7);
}

/* Append y, mean and rstd. */
static int norm(graph *g, const sizes *s, value x, value made[])
{
	value weight = graph_input(g, "weight", DTYPE_F32, SHAPE1(s->width)),
	      bias = graph_input(g, "bias", DTYPE_F32, SHAPE1(s->width));
	graph_apply(g, OP_layernorm, (value[]){x, weight, bias}, 3, &(layernorm_params){.eps = 1e-5f}, made);
	return 3;
}

/* Append dx, dweight and dbias, frozen at one of the widths, for arbitrary mean and rstd. */
static int norm_grad(graph *g, const sizes *s, value made[])
{
	value in[] = {real(g, s, "x"), graph_input(g, "weight", DTYPE_F32, SHAPE1(s->width)),
	              graph_input(g, "mean", DTYPE_F32, SHAPE1(s->rows)),
	              graph_input(g, "rstd", DTYPE_F32, SHAPE1(s->rows)), real(g, s, "dy")};
	graph_apply(g, OP_layernorm_grad, in, 5, &(layernorm_grad_params){.frozen = s->width == FROZEN_WIDTH}, made);
	return 3;
}

static int add_norm(graph *g, const sizes *s, value made[])
{
	made[0] = op_add(g, real(g, s, "a"), real(g, s, "b"));
	return 1 + norm(g, s, made[0], made + 1);
}

static int gate_norm(graph *g, const sizes *s, value made[])
{
	made[0] = op_gate(g, real(g, s, "a"), real(g, s, "b"), real(g, s, "c"));
	return 1 + norm(g, s, made[0], made + 1);
}

static int drop_add(graph *g, const sizes *s, value made[])
{
	made[0] = drop(g, s, real(g, s, "b"));
	made[1] = op_add(g, real(g, s, "a"), made[0]);
	return 2;
}

/* The dropped term is the first one. */
static int drop_add_turned(graph *g, const sizes *s, value made[])
{
	made[0] = drop(g, s, real(g, s, "b"));
	made[1] = op_add(g, made[0], real(g, s, "a"));
	return 2;
}

static int drop_add_norm(graph *g, const sizes *s, value made[])
{
	int n = drop_add(g, s, made);
	return n + norm(g, s, made[1], made + n);
}

static int drop_gate(graph *g, const sizes *s, value made[])
{
	made[0] = drop(g, s, real(g, s, "b"));
	made[1] = op_gate(g, real(g, s, "a"), made[0], real(g, s, "c"));
	return 2;
}

static int drop_gate_norm(graph *g, const sizes *s, value made[])
{
	made[0] = drop(g, s, real(g, s, "b"));
	made[1] = op_gate(g, real(g, s, "a"), real(g, s, "c"), made[0]);
	return 2 + norm(g, s, made[1], made + 2);
}

static int grad_add(graph *g, const sizes *s, value made[])
{
	int n = norm_grad(g, s, made);
	made[n] = op_add(g, real(g, s, "a"), made[0]);
	return n + 1;
}

static int grad_drop(graph *g, const sizes *s, value made[])
{
	int n = norm_grad(g, s, made);
	made[n] = drop(g, s, made[0]);
	return n + 1;
}

static int grad_add_drop(graph *g, const sizes *s, value made[])
{
	int n = grad_add(g, s, made);
	made[n] = drop(g, s, made[n - 1]);
	return n + 1;
}

static int grad_add_mul_mul(graph *g, const sizes *s, value made[])
{
	int n = grad_add(g, s, made);
	value sum = made[n - 1];
	made[n] = op_mul(g, sum, real(g, s, "b"));
	made[n + 1] = op_mul(g, sum, real(g, s, "c"));
	return n + 2;
}

static int grad_add_mul_mul_drop(graph *g, const sizes *s, value made[])
{
	int n = grad_add_mul_mul(g, s, made);
	made[n] = drop(g, s, made[n - 2]);
	return n + 1;
}

static int grad_add_add_mul_mul(graph *g, const sizes *s, value made[])
{
	int n = grad_add(g, s, made);
	value sum = made[n - 1];
	made[n] = op_add(g, real(g, s, "more"), sum);
	made[n + 1] = op_mul(g, sum, real(g, s, "b"));
	made[n + 2] = op_mul(g, sum, real(g, s, "c"));
	return n + 3;
}

static const struct {
	const char *name;
	chain_builder build;
	int calls;
} chains[] = {
    {"add, layernorm", add_norm, 2},
    {"gate, layernorm", gate_norm, 2},
    {"dropout, add", drop_add, 2},
    {"dropout, add, turned", drop_add_turned, 2},
    {"dropout, add, layernorm", drop_add_norm, 3},
    {"dropout, gate", drop_gate, 2},
    {"dropout, gate, layernorm", drop_gate_norm, 3},
    {"layernorm_grad, add", grad_add, 2},
    {"layernorm_grad, dropout", grad_drop, 2},
    {"layernorm_grad, add, dropout", grad_add_drop, 3},
    {"layernorm_grad, add, mul, mul", grad_add_mul_mul, 4},
    {"layernorm_grad, add, mul, mul, dropout", grad_add_mul_mul_drop, 5},
    {"layernorm_grad, add, add, mul, mul", grad_add_add_mul_mul, 5},
};
enum { CHAINS = sizeof chains / sizeof chains[0], MADE = 9 };

static value weights(graph *g, const sizes *s)
{
	return graph_input(g, "w", s->type, SHAPE2(s->width, s->width));
}

static int product_add(graph *g, const sizes *s, value made[])
{
	made[0] = op_matmul(g, real(g, s, "x"), weights(g, s), false, false, 0.5f);
	made[1] = op_add(g, real(g, s, "a"), made[0]);
	return 2;
}

/* The gradient of a weight that is used twice: f32 for any type. */
static int wide_product_add(graph *g, const sizes *s, value made[])
{
	made[0] = op_matmul_wide(g, real(g, s, "dy"), real(g, s, "x"), true, false, 1);
	made[1] = op_add(g, graph_input(g, "a", DTYPE_F32, SHAPE2(s->width, s->width)), made[0]);
	return 2;
}

static int linear_add(graph *g, const sizes *s, value made[])
{
	made[0] = op_linear(g, real(g, s, "x"), weights(g, s), VALUE_NONE, 1);
	made[1] = op_add(g, made[0], real(g, s, "a"));
	return 2;
}

static int linear_bias_add(graph *g, const sizes *s, value made[])
{
	made[0] = op_linear(g, real(g, s, "x"), weights(g, s), graph_input(g, "bias", DTYPE_F32, SHAPE1(s->width)), 2);
	made[1] = op_add(g, real(g, s, "a"), made[0]);
	return 2;
}

static const struct {
	const char *name;
	chain_builder build;
} products[] = {
    {"matmul, add", product_add},
    {"matmul to f32, add", wide_product_add},
    {"linear, add", linear_add},
    {"linear with a bias, add", linear_bias_add},
};
enum { PRODUCTS = sizeof products / sizeof products[0] };

/* True if a later node reads v. */
static bool is_read(const graph *g, value v)
{
	for (int i = 0; i < graph_node_count(g); i++)
		for (int j = 0; j < graph_node(g, i)->n_in; j++)
			if (graph_node(g, i)->in[j] == v)
				return true;
	return false;
}

static void fill_inputs(plan *p)
{
	const graph *g = plan_graph(p);
	const op_case c = {.low = 0, .high = 1};
	for (value v = 0; v < graph_value_count(g); v++) {
		size_t bytes;
		if (graph_value(g, v)->role != ROLE_INPUT ||
		    !shape_bytes(graph_value(g, v)->shape, graph_value(g, v)->type, &bytes))
			continue;
		void *content = malloc(bytes + 1);
		assert_non_null(content);
		op_cases_fill(&c, graph_value(g, v), content);
		assert_int_equal(plan_write(p, v, content), STATUS_OK);
		free(content);
	}
}

/* Run a chain. Results that no call reads are kept, and of the others those with a bit in `keep`. The results are
 * concatenated in *out. */
static size_t run_chain(chain_builder build, const sizes *s, unsigned keep, char **out)
{
	graph *g = graph_new();
	value made[MADE];
	const int n = build(g, s, made);
	size_t bytes[MADE] = {0}, total = 0;
	for (int i = 0; i < n; i++) {
		if (is_read(g, made[i]) && !(keep >> i & 1))
			continue;
		graph_output(g, made[i], "made %d", i);
		assert_true(shape_bytes(graph_value(g, made[i])->shape, graph_value(g, made[i])->type, &bytes[i]));
		total += bytes[i];
	}
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, device, NULL, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	fill_inputs(p);
	assert_int_equal(plan_run(p), STATUS_OK);
	*out = malloc(total + 1);
	assert_non_null(*out);
	for (int i = 0, at = 0; i < n; at += (int)bytes[i++])
		if (bytes[i])
			assert_int_equal(plan_read(p, made[i], *out + at), STATUS_OK);
	plan_free(p);
	return total;
}

static void compare(int which, const sizes *s, unsigned keep, int calls)
{
	char *together, *single;
	fused = 0;
	device->fuse = fuse_and_count;
	const size_t bytes = run_chain(chains[which].build, s, keep, &together);
	device->fuse = NULL;
	assert_int_equal(run_chain(chains[which].build, s, keep, &single), bytes);
	device->fuse = fuse;
	if (fused != calls || memcmp(together, single, bytes) != 0)
		fail_msg("%s, %s, %lld rows of %lld, kept %#x: %s", chains[which].name, dtype_name(s->type),
		         (long long)s->rows, (long long)s->width, keep,
		         fused != calls ? "not the calls that were to be one" : "other bits");
	free(together);
	free(single);
}

/* The last result of a chain, as floats. */
static float *numbers_of(const sizes *s, const char *bytes, size_t n, int64_t *count)
{
	const bool half = s->type == DTYPE_BF16;
	*count = (int64_t)(n / (half ? 2 : 4));
	float *x = tensors_room((size_t)*count * sizeof *x);
	for (int64_t i = 0; i < *count; i++) {
		if (half)
			x[i] = panel_f32(((const uint16_t *)(const void *)bytes)[i]);
		else
			x[i] = ((const float *)(const void *)bytes)[i];
	}
	return x;
}

static void try_product(int which, const sizes *s)
{
	char *together, *again, *single;
	int64_t count;
	const sizes result = {products[which].build == wide_product_add ? DTYPE_F32 : s->type, 0, 0};
	fused = 0;
	device->fuse = fuse_and_count;
	const size_t bytes = run_chain(products[which].build, s, 0, &together);
	assert_int_equal(run_chain(products[which].build, s, 0, &again), bytes);
	assert_int_equal(fused, 2);
	device->fuse = NULL;
	assert_int_equal(run_chain(products[which].build, s, 0, &single), bytes);
	device->fuse = fuse;
	assert_memory_equal(together, again, bytes);
	float *got = numbers_of(&result, together, bytes, &count), *want = numbers_of(&result, single, bytes, &count);
	const distance d = tensors_distance(got, want, count);
	const double coarse = result.type == DTYPE_BF16 ? 1 : 1e-4;
	if (!(d.rms <= 0.008 * coarse && d.worst <= 0.02 * coarse)) /* two roundings of at most 2^-9 */
		fail_msg("%s, %s, %lld rows of %lld: error %g, at worst %g", products[which].name, dtype_name(s->type),
		         (long long)s->rows, (long long)s->width, d.rms, d.worst);
	free(together);
	free(again);
	free(single);
	free(got);
	free(want);
}

static void a_product_includes_the_other_term_of_a_sum(void **state)
{
	(void)state;
	static const int64_t rows[] = {1, 37, 130}, widths[] = {8, 33, 96};
	for (int which = 0; which < PRODUCTS; which++)
		for (int i = 0; i < 9; i++)
			for (int half = 0; half < 2; half++) {
				const sizes s = {half ? DTYPE_BF16 : DTYPE_F32, rows[i / 3], widths[i % 3]};
				try_product(which, &s);
			}
}

/* Without columns the result is the other term plus the bias. */
static void a_sum_with_an_empty_product(void **state)
{
	(void)state;
	float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
	graph *g = graph_new();
	value a = graph_input(g, "a", DTYPE_F32, SHAPE2(2, 3));
	value sum = op_add(g, a,
	                   op_linear(g, graph_input(g, "x", DTYPE_F32, SHAPE2(2, 0)),
	                             graph_input(g, "w", DTYPE_F32, SHAPE2(3, 0)),
	                             graph_input(g, "bias", DTYPE_F32, SHAPE1(3)), 2));
	graph_output(g, sum, "sum");
	plan *p;
	assert_int_equal(plan_new(&p, g, device, NULL, 0, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, a, x), STATUS_OK);
	assert_int_equal(plan_write(p, graph_find(g, "bias"), x + 1), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, sum, y), STATUS_OK);
	for (int i = 0; i < 6; i++)
		assert_true(y[i] == x[i] + 2 * x[1 + i % 3]);
	plan_free(p);
}

static void a_chain_has_the_bits_of_its_calls(void **state)
{
	(void)state;
	static const int64_t rows[] = {1, 37, 37, 3}, widths[] = {8, 128, FROZEN_WIDTH, 1024};
	for (int which = 0; which < CHAINS; which++)
		for (int i = 0; i < 4; i++)
			for (int half = 0; half < 2; half++) {
				const sizes s = {half ? DTYPE_BF16 : DTYPE_F32, rows[i], widths[i]};
				compare(which, &s, 0, chains[which].calls);
			}
}

static void the_bits_are_the_same_for_any_kept_results(void **state)
{
	(void)state;
	for (int which = 0; which < CHAINS; which++)
		for (unsigned keep = 1; keep < 32; keep++)
			for (int half = 0; half < 2; half++) {
				const sizes s = {half ? DTYPE_BF16 : DTYPE_F32, 5, 32};
				compare(which, &s, keep, chains[which].calls);
			}
}

/* Rows that do not fill packs, and rows that are too wide, have a separate layernorm. */
static void rows_that_do_not_fit_have_the_same_bits(void **state)
{
	(void)state;
	for (int which = 0; which < CHAINS; which++)
		for (int half = 0; half < 2; half++) {
			const sizes s = {half ? DTYPE_BF16 : DTYPE_F32, 9, 33};
			const bool front = strncmp(chains[which].name, "dropout", 7) == 0;
			compare(which, &s, 0, front ? 2 : 0);
		}
}

/* --- calls that are no chain -------------------------------------------------------------------- */

static int add_to_itself(graph *g, const sizes *s, value made[])
{
	made[0] = drop(g, s, real(g, s, "b"));
	made[1] = op_add(g, made[0], made[0]);
	return 2;
}

static int norm_of_another(graph *g, const sizes *s, value made[])
{
	made[0] = op_add(g, real(g, s, "a"), real(g, s, "b"));
	return 1 + norm(g, s, graph_find(g, "a"), made + 1);
}

static int product_with_dx(graph *g, const sizes *s, value made[])
{
	int n = grad_add(g, s, made);
	value sum = made[n - 1];
	made[n] = op_mul(g, sum, made[0]);
	made[n + 1] = op_mul(g, sum, real(g, s, "c"));
	return n + 2;
}

static int product_twice(graph *g, const sizes *s, value made[])
{
	made[0] = op_linear(g, real(g, s, "x"), weights(g, s), VALUE_NONE, 1);
	made[1] = op_add(g, made[0], made[0]);
	return 2;
}

/* Number of calls, from the first on, that are run as one. */
static int taken(chain_builder build)
{
	const sizes s = {DTYPE_F32, 2, 8};
	graph *g = graph_new();
	value made[MADE];
	const int n = build(g, &s, made);
	for (int i = 0; i < n; i++)
		graph_output(g, made[i], "made %d", i);
	plan *p;
	fused = 0;
	device->fuse = fuse_and_count;
	assert_int_equal(plan_new(&p, g, device, NULL, 0, NULL), STATUS_OK);
	device->fuse = fuse;
	plan_free(p);
	return fused;
}

static void calls_that_are_not_consecutive_are_not_fused(void **state)
{
	(void)state;
	assert_int_equal(taken(add_to_itself), 0);
	assert_int_equal(taken(norm_of_another), 0);
	assert_int_equal(taken(product_with_dx), 2); /* layernorm_grad and add */
	assert_int_equal(taken(product_add), 0);     /* the product is an output, so it must be written */
	assert_int_equal(taken(product_twice), 0);
}

/* --- models ----------------------------------------------------------------------------------------- */

enum { BATCH = 2, LENGTH = 24, VOCAB = 37 };

/* The loss of one step, and all gradients in `out`, which has room for the arena. */
static float train(const model *m, const forward_spec *spec, float *out)
{
	const size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	void *gradients;
	assert_int_equal(device->allocate(device, bytes, &gradients), STATUS_OK);
	plan *p;
	error err = ERROR_INIT;
	if (model_plan(&p, m, spec, gradients, NULL, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	int32_t ids[BATCH * LENGTH], positions[BATCH * LENGTH], rng[4] = {1, 2, 3, 0};
	random_integers(ids, BATCH * LENGTH, 5, 0, VOCAB - 1);
	for (int i = 0; i < BATCH * LENGTH; i++)
		positions[i] = i % LENGTH;
	const graph *g = plan_graph(p);
	assert_int_equal(plan_write(p, graph_find(g, "input_ids"), ids), STATUS_OK);
	assert_int_equal(plan_write(p, graph_find(g, "position_ids"), positions), STATUS_OK);
	assert_int_equal(plan_write(p, graph_find(g, "labels"), ids), STATUS_OK);
	assert_int_equal(plan_write(p, graph_find(g, "rng"), rng), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	float loss;
	assert_int_equal(plan_read(p, graph_find(g, "loss"), &loss), STATUS_OK);
	assert_int_equal(device->download(device, out, gradients, bytes), STATUS_OK);
	plan_free(p);
	device->release(device, gradients);
	return loss;
}

/* Compare gradients whose products included the other terms of sums with those that were rounded in between. */
static void compare_gradients(const float *got, const float *want, int64_t count, bool half)
{
	const distance d = tensors_distance(got, want, count);
	if (!(d.rms <= (half ? 0.02 : 1e-5)))
		fail_msg("error %g, at worst %g", d.rms, d.worst);
}

/* Train with and without fusion; `calls`: length of the longest chain. */
static void compare_models(const architecture *a, const char *config, int calls)
{
	json_t *json = json_loads(config, 0, NULL);
	model *m;
	assert_int_equal(model_create(&m, a, json, 3, device, NULL), STATUS_OK);
	json_decref(json);
	assert_int_equal(model_update_bf16_copy(m, NULL), STATUS_OK);
	const size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	float *together = calloc(1, bytes), *single = calloc(1, bytes);
	assert_non_null(together);
	assert_non_null(single);
	for (int manner = 0; manner < 4; manner++) {
		const forward_spec spec = {.batch = BATCH,
		                           .length = LENGTH,
		                           .train.dropout = true,
		                           .train.loss = true,
		                           .train.backward = true,
		                           .train.recompute = manner & 1,
		                           .bf16 = manner & 2};
		fused = 0;
		device->fuse = fuse_but_products;
		const float loss = train(m, &spec, together);
		device->fuse = NULL;
		assert_true(train(m, &spec, single) == loss);
		assert_int_equal(fused, calls);
		assert_memory_equal(together, single, bytes);
		device->fuse = fuse;
		assert_true(fabsf(train(m, &spec, together) - loss) <= 0.01f * loss);
		compare_gradients(together, single, model_arena_floats(m), spec.bf16);
	}
	free(together);
	free(single);
	model_free(m);
}

static void a_model_trains_to_the_same_bits(void **state)
{
	(void)state;
	compare_models(&architecture_additive,
	               "{\"hidden_size\": 16, \"n_heads\": 2, \"n_layer\": 2, \"vocab_size\": 37, \"n_positions\": 24,"
	               " \"window_sizes\": [5, 24], \"hidden_dropout_prob\": 0.25}",
	               5);
	compare_models(&architecture_gpt2,
	               "{\"n_embd\": 16, \"n_head\": 2, \"n_layer\": 2, \"vocab_size\": 37, \"n_positions\": 24,"
	               " \"resid_pdrop\": 0.25, \"embd_pdrop\": 0.25, \"attn_pdrop\": 0.25}",
	               3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_chain_has_the_bits_of_its_calls),
	    cmocka_unit_test(the_bits_are_the_same_for_any_kept_results),
	    cmocka_unit_test(a_product_includes_the_other_term_of_a_sum),
	    cmocka_unit_test(a_sum_with_an_empty_product),
	    cmocka_unit_test(rows_that_do_not_fit_have_the_same_bits),
	    cmocka_unit_test(calls_that_are_not_consecutive_are_not_fused),
	    cmocka_unit_test(a_model_trains_to_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_one, close_one);
}
