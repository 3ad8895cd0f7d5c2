/* bench_train - training steps on random tokens: a contestant (support/bench.h).
 *
 *   bench_train CONFIG BATCH LENGTH [recompute|bf16]
 *
 * A step is what the trainer does with one batch: forward, loss, backward, the gradients' norm, AdamW; on a device it
 * takes the step's numbers in while the next batch is computed, as the trainer does. The ready line
 * holds the FLOPs of the step's matrix products (two per multiply-add; attention not counted) and the bytes of its
 * plan; with `recompute` activations are computed again in the backward pass, with `bf16` activations and the weights
 * in products are bf16. The last line, after the end of standard input, holds the peak of resident memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/philox.h"
#include "engine/cpu/threads.h"
#include "engine/train/optimizer.h"
#include "tests/bench/support/bench.h"

typedef struct run {
	model *model;
	optimizer *optimizer;
	plan *plan;
} run;

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

/* Multiply-adds of one node, if it is a product. Of the loss: logits, and the gradients of their two factors. */
static double node_products(const graph *g, const op_node *node)
{
	if (node->id != OP_linear && node->id != OP_matmul && node->id != OP_linear_cross_entropy)
		return 0;
	shape a = graph_value(g, node->in[0])->shape, b = graph_value(g, node->in[1])->shape;
	bool plain = node->id == OP_matmul && !((const matmul_params *)node->params)->trans_b;
	double products = (double)shape_count(a) * (double)(plain ? shape_last(b) : shape_rows(b));
	return node->id == OP_linear_cross_entropy ? 3 * products : products;
}

static double product_flops(const graph *g)
{
	double flops = 0;
	for (int i = 0; i < graph_node_count(g); i++)
		flops += 2 * node_products(g, graph_node(g, i));
	return flops;
}

static status batch(run *r)
{
	TRY(optimizer_begin(r->optimizer));
	return plan_run(r->plan);
}

/* The update behind a batch, the batch after it unless it is the last, and then the update's norm. */
static status step(run *r, bool last)
{
	backend *b = model_backend(r->model);
	unsigned number = 0;
	float norm2;
	double norm;
	TRY(optimizer_prepare(r->optimizer, 5e-4));
	TRY(plan_run(optimizer_update_plan(r->optimizer)));
	if (!b->fetch) {
		TRY(optimizer_finish(r->optimizer, &norm));
		return last ? STATUS_OK : batch(r);
	}
	TRY(b->fetch(b, optimizer_norm2(r->optimizer), sizeof norm2, &number));
	if (!last)
		TRY(batch(r));
	TRY(b->fetch_take(b, number, &norm2, sizeof norm2));
	optimizer_count(r->optimizer, norm2);
	return STATUS_OK;
}

/* A time is that from one update's end to the next; the first begins with its batch. */
static void steps(void *context, int count, bench_times *t)
{
	run *r = context;
	error err = ERROR_INIT;
	uint64_t began = clock_ns();
	bench_check(batch(r), &err);
	for (int i = 0; i < count; i++) {
		bench_check(step(r, i == count - 1), &err);
		uint64_t now = clock_ns();
		bench_times_add(t, (double)(now - began));
		began = now;
	}
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	if (argc < 4)
		bench_fail("usage: bench_train CONFIG BATCH LENGTH [recompute|bf16]");
	int64_t rows = atoll(argv[2]), length = atoll(argv[3]);
	backend *b = bench_backend();
	run r = {.model = bench_model(argv[1], b)};
	error err = ERROR_INIT;
	train_options options;
	train_options_default(&options);
	bool bf16 = argc > 4 && strcmp(argv[4], "bf16") == 0;
	options.precision = bf16 ? PRECISION_BF16 : PRECISION_FP32;
	forward_spec spec = {.batch = rows,
	                     .length = length,
	                     .dropout = model_dimensions(r.model)->dropout > 0,
	                     .loss = true,
	                     .backward = true,
	                     .bf16 = bf16,
	                     .recompute = argc > 4 && strcmp(argv[4], "recompute") == 0};
	if (bf16)
		bench_check(model_update_bf16_copy(r.model, &err), &err);
	bench_check(optimizer_new(&r.optimizer, r.model, &options, &err), &err);
	bench_check(model_plan(&r.plan, r.model, &spec, optimizer_gradients(r.optimizer), NULL, &err), &err);
	write_inputs(r.plan, rows, length, model_dimensions(r.model)->outputs);
	write_input(r.plan, "rng", (int32_t[]){1, 0, 0, 0});
	bench_times warm = {0};
	steps(&r, 3, &warm);
	bench_times_free(&warm);
	json_t *facts =
	    json_pack("{s:s, s:I, s:I, s:f, s:I}", "device", b->device, "tokens", (json_int_t)(rows * length),
	              "parameters", (json_int_t)model_scalar_count(r.model), "product_flops",
	              product_flops(plan_graph(r.plan)), "plan_bytes", (json_int_t)plan_bytes(r.plan));
	bench_contest(facts, steps, &r);
	printf("{\"peak_bytes\": %.0f}\n", bench_peak());
	json_decref(facts);
	plan_free(r.plan);
	optimizer_free(r.optimizer);
	model_free(r.model);
	backend_close(b);
	return EXIT_SUCCESS;
}
