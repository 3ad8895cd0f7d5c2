#include "tests/bench/support/training.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"

enum { WARM_STEPS = 3 };

static void write_input(plan *p, const char *name, const int32_t *data)
{
	value v = graph_find(plan_graph(p), name);
	if (v != VALUE_NONE && plan_write(p, v, data) != STATUS_OK)
		bench_fail("writing %s", name);
}

static void write_inputs(plan *p, int64_t batch, int64_t length, int64_t vocab)
{
	int64_t n = batch * length;
	int32_t *ids = calloc((size_t)n, sizeof *ids), *labels = calloc((size_t)n, sizeof *labels);
	int32_t *positions = calloc((size_t)n, sizeof *positions);
	if (!ids || !labels || !positions)
		bench_fail("out of memory");
	for (int64_t i = 0; i < n; i++) {
		ids[i] = (int32_t)(3 + philox(1, 0, 0, (uint64_t)i).word[0] % (uint32_t)(vocab - 3));
		positions[i] = (int32_t)(i % length);
	}
	for (int64_t i = 0; i < n; i++)
		labels[i] = (i + 1) % length ? ids[i + 1] : -1;
	write_input(p, "input_ids", ids);
	if (graph_find(plan_graph(p), "position_ids") != VALUE_NONE)
		write_input(p, "position_ids", positions);
	write_input(p, "labels", labels);
	free(ids);
	free(labels);
	free(positions);
}

/* Multiply-adds of one node, if it is a product. For the loss: logits, and the gradients of their two factors. */
static double node_products(const graph *g, const op_node *node)
{
	if (node->id != OP_linear && node->id != OP_matmul && node->id != OP_linear_cross_entropy)
		return 0;
	shape a = graph_value(g, node->in[0])->shape, b = graph_value(g, node->in[1])->shape;
	bool plain = node->id == OP_matmul && !((const matmul_params *)node->params)->trans_b;
	double products = (double)shape_count(a) * (double)(plain ? shape_last(b) : shape_rows(b));
	return node->id == OP_linear_cross_entropy ? 3 * products : products;
}

double training_flops(const training *t)
{
	const graph *g = plan_graph(t->plan);
	double flops = 0;
	for (int i = 0; i < graph_node_count(g); i++)
		flops += 2 * node_products(g, graph_node(g, i));
	return flops;
}

static status batch(training *t)
{
	TRY(optimizer_begin(t->optimizer));
	return plan_run(t->plan);
}

static status step(training *t, bool last)
{
	backend *b = model_backend(t->model);
	unsigned number = 0;
	float norm2;
	double norm;
	TRY(optimizer_prepare(t->optimizer, 5e-4));
	TRY(plan_run(optimizer_update_plan(t->optimizer)));
	if (!b->fetch) {
		TRY(optimizer_finish(t->optimizer, &norm));
		return last ? STATUS_OK : batch(t);
	}
	TRY(b->fetch(b, optimizer_norm2(t->optimizer), sizeof norm2, &number));
	if (!last)
		TRY(batch(t));
	TRY(b->fetch_take(b, number, &norm2, sizeof norm2));
	optimizer_count(t->optimizer, norm2);
	return STATUS_OK;
}

void training_batch(training *t)
{
	error err = ERROR_INIT;
	bench_check(batch(t), &err);
}

void training_step(training *t, bool last)
{
	error err = ERROR_INIT;
	bench_check(step(t, last), &err);
}

void training_open(training *t, backend *b, const char *config, const training_shape *way)
{
	error err = ERROR_INIT;
	train_options options;
	*t = (training){.model = bench_model(config, b), .tokens = way->batch * way->length};
	const char *choices = getenv("ADDITIVE_BENCH_CHOICES");
	if (choices && b->choose_fastest)
		b->choose_fastest(b, choices);
	train_options_default(&options);
	options.precision = way->bf16 ? PRECISION_BF16 : PRECISION_FP32;
	forward_spec spec = {.batch = way->batch,
	                     .length = way->length,
	                     .train.dropout = model_dimensions(t->model)->dropout > 0,
	                     .train.loss = true,
	                     .train.backward = true,
	                     .bf16 = way->bf16,
	                     .train.recompute = way->recompute};
	if (way->bf16)
		bench_check(model_update_bf16_copy(t->model, &err), &err);
	bench_check(optimizer_new(&t->optimizer, t->model, &options, &err), &err);
	bench_check(model_plan(&t->plan, t->model, &spec, optimizer_gradients(t->optimizer), NULL, &err), &err);
	write_inputs(t->plan, way->batch, way->length, model_dimensions(t->model)->outputs);
	write_input(t->plan, "rng", (int32_t[]){1, 0, 0, 0});
	training_batch(t);
	for (int i = 0; i < WARM_STEPS; i++)
		training_step(t, i == WARM_STEPS - 1);
}

void training_close(training *t)
{
	plan_free(t->plan);
	optimizer_free(t->optimizer);
	model_free(t->model);
}
