/* bench_device - the ceilings of a device, and the ops' share of them.
 *
 *   bench_device [quick] [ceilings] [rounds] [ops] [choices] [panels]      (none of the five: the first three)
 *
 * Lines of JSON, all of the backend that ADDITIVE_BENCH_BACKEND names.
 *
 *   ceilings  copies at several sizes, bf16 products at the shapes of three models, the cost of a node of a recorded
 * plan rounds    of additive attention, each beside a copy of as many bytes ops       what else decides a training step
 *   choices   products: the library's best guess beside its next ones (cuda/gemm.h)
 *   panels    products of serving, with bf16 and int8 panels
 *
 * Ops have the bytes that must move (inputs read once, outputs written once) or the FLOPs of their products.
 *
 * A plan is run as the engine runs it: recorded once, then replayed. A sample is as many runs as take SAMPLE_NS between
 * two synchronisations; median, 95th percentile and best are over at least MIN_SAMPLES of them, after a warm-up.
 * "cold": plans with buffers of their own take turns, so that together they are larger than any cache; "warm": one
 * plan. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/philox.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/bench/support/bench.h"

enum { MIN_SAMPLES = 50, WARM_RUNS = 10, MAX_SETS = 16, MAX_STATES = 4, NODES = 256, MAX_CHOICES = 8 };
static const double sample_ns = 2e6, cold_bytes = 256e6;
static bool quick;

/* --- timing ------------------------------------------------------------------------------- */

typedef struct load {
	backend *b;
	plan *plans[MAX_SETS];
	int sets, next;
} load;

static void run_once(load *l)
{
	if (plan_run(l->plans[l->next]) != STATUS_OK)
		bench_fail("a plan failed");
	l->next = (l->next + 1) % l->sets;
}

static double run_many(load *l, int runs)
{
	uint64_t began = clock_ns();
	for (int i = 0; i < runs; i++)
		run_once(l);
	if (l->b->synchronize(l->b) != STATUS_OK)
		bench_fail("the device failed");
	return (double)(clock_ns() - began);
}

/* Prints the end of a line: times of one run. */
static void measure(load *l)
{
	bench_times t = {0};
	run_many(l, WARM_RUNS + 2 * l->sets);
	double once = run_many(l, l->sets) / l->sets;
	int runs = once >= sample_ns ? 1 : (int)(sample_ns / once) + 1;
	for (int i = 0; i < (quick ? 5 : MIN_SAMPLES); i++)
		bench_times_add(&t, run_many(l, runs) / runs);
	printf("\"sets\": %d, \"runs\": %d, \"median_ns\": %.0f, \"p95_ns\": %.0f, \"best_ns\": %.0f}\n", l->sets, runs,
	       bench_times_median(&t), bench_times_p95(&t), bench_times_best(&t));
	fflush(stdout);
	bench_times_free(&t);
}

/* --- graphs with random content ------------------------------------------------------------- */

typedef struct bench_case {
	const char *op, *name;
	void (*build)(graph *g, const int64_t *arg);
	int64_t arg[6];
	double bytes, flops;
} bench_case;

static void fill(backend *b, plan *p, value v)
{
	const value_info *info = graph_value(plan_graph(p), v);
	size_t bytes;
	if (!shape_bytes(info->shape, info->type, &bytes))
		bench_fail("a shape is too large");
	const bool halves = info->type == DTYPE_BF16 || info->type == DTYPE_PANEL_BF16;
	int64_t n = (int64_t)(bytes / (halves ? sizeof(uint16_t) : sizeof(float)));
	char *host = malloc(bytes);
	if (!host)
		bench_fail("out of memory");
	uint32_t state = 12345;
	for (int64_t i = 0; i < n; i++) {
		state = state * 1664525u + 1013904223u;
		float x = (float)(state >> 8) * 0x1p-23f - 1.0f;
		if (info->type == DTYPE_I32)
			((int32_t *)host)[i] = (int32_t)(state >> 20);
		else if (halves)
			((uint16_t *)host)[i] = panel_bf16(x);
		else
			((float *)host)[i] = x;
	}
	if (b->upload(b, plan_data(p, v), host, bytes) != STATUS_OK)
		bench_fail("an upload failed");
	free(host);
}

/* Memory for data that is updated in place; it stays until the program ends. */
static int bind_states(backend *b, const graph *g, plan_binding *bindings)
{
	int n = 0;
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		size_t bytes;
		if (info->role != ROLE_STATE && info->role != ROLE_PARAMETER)
			continue;
		if (n == MAX_STATES || !shape_bytes(info->shape, info->type, &bytes) ||
		    b->allocate(b, bytes, &bindings[n].data) != STATUS_OK)
			bench_fail("no memory for a state");
		bindings[n++].v = v;
	}
	return n;
}

static plan *make_plan(backend *b, const bench_case *c)
{
	plan *p;
	plan_binding bindings[MAX_STATES];
	error err = ERROR_INIT;
	graph *g = graph_new();
	if (!g)
		bench_fail("out of memory");
	c->build(g, c->arg);
	bench_check(plan_new(&p, g, b, bindings, bind_states(b, g, bindings), &err), &err);
	for (value v = 0; v < graph_value_count(plan_graph(p)); v++)
		if (graph_value(plan_graph(p), v)->role != ROLE_TEMPORARY)
			fill(b, p, v);
	return p;
}

static void run_case(backend *b, const bench_case *c, bool cold)
{
	load l = {.b = b};
	double held = 0;
	do {
		l.plans[l.sets++] = make_plan(b, c);
		held += (double)plan_bytes(l.plans[0]);
	} while (cold && held < cold_bytes && l.sets < MAX_SETS);
	printf("{\"op\": \"%s\", \"case\": \"%s\", \"cold\": %s, \"wgmma\": %s, \"bytes\": %.0f, \"flops\": %.0f, ",
	       c->op, c->name, cold ? "true" : "false", strstr(b->device, "wgmma") ? "true" : "false", c->bytes,
	       c->flops);
	measure(&l);
	for (int i = 0; i < l.sets; i++)
		plan_free(l.plans[i]);
}

/* --- ceilings ------------------------------------------------------------------------------- */

/* `bytes` are read, and as many written. */
static void copy_ceiling(backend *b, size_t bytes)
{
	bench_times t = {0};
	void *from, *to;
	if (b->allocate(b, bytes, &from) != STATUS_OK || b->allocate(b, bytes, &to) != STATUS_OK)
		bench_fail("out of memory");
	int runs = (int)(sample_ns / ((double)bytes * 2 / 4e3)) + 1; /* at 4 TB/s */
	for (int i = 0; i < (quick ? 6 : MIN_SAMPLES + 1); i++) {
		uint64_t began = clock_ns();
		for (int r = 0; r < runs; r++)
			if (b->copy(b, r % 2 ? from : to, r % 2 ? to : from, bytes) != STATUS_OK)
				bench_fail("a copy failed");
		if (b->synchronize(b) != STATUS_OK)
			bench_fail("the device failed");
		if (i > 0)
			bench_times_add(&t, (double)(clock_ns() - began) / runs);
	}
	printf("{\"ceiling\": \"copy\", \"megabytes\": %zu, \"bytes\": %zu, \"runs\": %d, \"median_ns\": %.0f, "
	       "\"p95_ns\": "
	       "%.0f, \"best_ns\": %.0f}\n",
	       bytes >> 20, 2 * bytes, runs, bench_times_median(&t), bench_times_p95(&t), bench_times_best(&t));
	fflush(stdout);
	bench_times_free(&t);
	b->release(b, from);
	b->release(b, to);
}

static void build_product(graph *g, const int64_t *arg) /* m, n, k: y [m, n] = x [m, k] Wᵀ */
{
	graph_output(g,
	             op_matmul(g, graph_input(g, "x", DTYPE_BF16, SHAPE2(arg[0], arg[2])),
	                       graph_input(g, "w", DTYPE_BF16, SHAPE2(arg[1], arg[2])), false, true, 1),
	             "y");
}

static void build_nodes(graph *g, const int64_t *arg) /* count */
{
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(16));
	for (int64_t i = 0; i < arg[0]; i++)
		x = op_scale(g, x, 1.0f);
	graph_output(g, x, "y");
}

static void ceilings(backend *b)
{
	static const int64_t sizes[] = {16, 64, 256, 1024}, widths[] = {128, 768, 2048};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes - (quick ? 2 : 0); i++)
		copy_ceiling(b, (size_t)sizes[i] << 20);
	for (size_t i = 0; i < (quick ? 1 : sizeof widths / sizeof *widths); i++) {
		const int64_t d = widths[i], tokens = quick ? 512 : 16384,
		              shapes[][3] = {{tokens, d, d}, {tokens, 4 * d, d}, {tokens, d, 4 * d}};
		for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
			const int64_t *s = shapes[j];
			char name[64];
			snprintf(name, sizeof name, "%lld x %lld x %lld", (long long)s[0], (long long)s[1],
			         (long long)s[2]);
			run_case(b,
			         &(bench_case){"product",
			                       name,
			                       build_product,
			                       {s[0], s[1], s[2]},
			                       2.0 * (double)(s[0] * s[2] + s[1] * s[2] + s[0] * s[1]),
			                       2.0 * (double)s[0] * (double)s[1] * (double)s[2]},
			         true);
		}
	}
	run_case(b, &(bench_case){"node", "256 scales of 16 floats", build_nodes, {NODES}, 0, 0}, false);
}

/* --- ops -------------------------------------------------------------------------------------- */

static value activation(graph *g, const char *name, const int64_t *arg) /* B, N, D */
{
	return graph_input(g, name, DTYPE_BF16, SHAPE3(arg[0], arg[1], arg[2]));
}

static value vector(graph *g, const char *name, int64_t d)
{
	return graph_input(g, name, DTYPE_F32, SHAPE1(d));
}

static void build_round(graph *g, const int64_t *arg) /* B, N, D, heads, window */
{
	attention_values a =
	    op_additive_attention(g, activation(g, "x", arg), vector(g, "w", arg[2]), VALUE_NONE, arg[3], arg[4]);
	graph_output(g, a.pooled, "g");
	graph_output(g, a.log_normalizer, "m");
}

/* The arguments are random, because the time does not depend on them. */
static void build_round_grad(graph *g, const int64_t *arg)
{
	value x = activation(g, "x", arg), w = vector(g, "w", arg[2]), out[2];
	value pooled = activation(g, "g", arg), dg = activation(g, "dg", arg);
	value m = graph_input(g, "m", DTYPE_F32, SHAPE3(arg[0], arg[1], arg[3]));
	additive_attention_params params = {.heads = arg[3], .window = arg[4]};
	graph_apply(g, OP_additive_attention_grad, (value[]){x, w, VALUE_NONE, pooled, m, dg}, 6, &params, out);
	graph_output(g, out[0], "dx");
	graph_output(g, out[1], "dw");
}

static void build_gate_layernorm(graph *g, const int64_t *arg)
{
	value r = op_gate(g, activation(g, "a", arg), activation(g, "b", arg), activation(g, "c", arg));
	graph_output(g, r, "r");
	graph_output(g, op_layernorm(g, r, vector(g, "w", arg[2]), vector(g, "bias", arg[2]), 1e-5f), "y");
}

static void build_layernorm(graph *g, const int64_t *arg)
{
	graph_output(
	    g, op_layernorm(g, activation(g, "x", arg), vector(g, "w", arg[2]), vector(g, "bias", arg[2]), 1e-5f), "y");
}

static void build_gelu(graph *g, const int64_t *arg)
{
	graph_output(g, op_gelu(g, activation(g, "x", arg), false), "y");
}

static void build_softmax(graph *g, const int64_t *arg) /* B, N, 3D, heads */
{
	value out[2];
	softmax_params params = {.heads = arg[3], .scale = 0.125f};
	graph_apply(g, OP_softmax_attention, (value[]){activation(g, "qkv", arg)}, 1, &params, out);
	graph_output(g, out[0], "y");
	graph_output(g, out[1], "m");
}

static void build_softmax_grad(graph *g, const int64_t *arg)
{
	value in[9] = {activation(g, "qkv", arg), VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE}, out[4];
	const int64_t y[] = {arg[0], arg[1], arg[2] / 3};
	softmax_params params = {.heads = arg[3], .scale = 0.125f};
	graph_apply(g, OP_softmax_attention, in, 1, &params, in + 6);
	in[8] = activation(g, "dy", y);
	graph_apply(g, OP_softmax_attention_grad, in, 9, &params, out);
	graph_output(g, in[6], "y");
	graph_output(g, out[0], "dqkv");
}

static void build_head(graph *g, const int64_t *arg) /* rows, D, V */
{
	value h = graph_input(g, "h", DTYPE_BF16, SHAPE2(arg[0], arg[1]));
	value e = graph_input(g, "e", DTYPE_BF16, SHAPE2(arg[2], arg[1]));
	value label = graph_input(g, "label", DTYPE_I32, SHAPE1(arg[0]));
	value out[6];
	linear_cross_entropy_params params = {1, 0};
	graph_apply(g, OP_linear_cross_entropy, (value[]){h, e, vector(g, "bias", arg[2]), label}, 4, &params, out);
	static const char *const names[] = {"loss", "count", "dh", "de", "dbias"};
	for (int i = 0; i < 5; i++) /* not hits, as in training */
		graph_output(g, out[i], "%s", names[i]);
}

static void build_adamw(graph *g, const int64_t *arg) /* n */
{
	shape s = SHAPE1(arg[0]);
	value grad = graph_input(g, "g", DTYPE_F32, s), norm2 = op_sum_squares(g, grad);
	op_adamw(g, graph_state(g, "p", s), grad, graph_state(g, "m", s), graph_state(g, "v", s), norm2,
	         graph_input(g, "hyper", DTYPE_F32, SHAPE1(2)), graph_weight(g, "narrow", DTYPE_BF16, s), VALUE_NONE,
	         (adamw_params){0.9f, 0.999f, 1e-8f, 0.01f, 1, false});
}

/* x is read and g written, or x, g, dg read and dx written; m once each. x alone: 33 MB, which a cache can hold (warm),
 * and 268 MB. */
static void round_cases(backend *b)
{
	static const int64_t windows[] = {0, 16, 64, 256, 1024}, lengths[] = {2048, 16384};
	for (size_t n = 0; n < (quick ? 1 : sizeof lengths / sizeof *lengths); n++) {
		size_t x_bytes = quick ? 1 << 16 : 8 * (size_t)lengths[n] * 1024 * 2;
		copy_ceiling(b, x_bytes); /* 4 bytes an element move in the forward, 8 in the backward */
		copy_ceiling(b, 2 * x_bytes);
		for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
			int64_t arg[] = {quick ? 1 : 8, quick ? 256 : lengths[n], quick ? 128 : 1024, quick ? 2 : 16,
			                 windows[k]};
			double elements = (double)(arg[0] * arg[1] * arg[2]),
			       norms = 4.0 * (double)(arg[0] * arg[1] * arg[3]);
			char name[64];
			snprintf(name, sizeof name, "B %lld, N %lld, D %lld, H %lld, window %lld", (long long)arg[0],
			         (long long)arg[1], (long long)arg[2], (long long)arg[3], (long long)arg[4]);
			bench_case forward = {"additive_attention", name, build_round, {0}, 4 * elements + norms, 0};
			bench_case backward = {"additive_attention_grad", name, build_round_grad, {0},
			                       8 * elements + norms,      0};
			memcpy(forward.arg, arg, sizeof arg);
			memcpy(backward.arg, arg, sizeof arg);
			for (int cold = n == 0 ? 0 : 1; cold < 2; cold++) {
				run_case(b, &forward, cold);
				run_case(b, &backward, cold);
			}
		}
	}
}

static void ops(backend *b)
{
	const int64_t n = quick ? 256 : 16384, d = quick ? 128 : 1024, w = quick ? 128 : 768, v = quick ? 512 : 32768,
	              p = quick ? 4096 : 110000000;
	const double elements = (double)(n * d), head = (double)n * (double)d * (double)v;
	const bench_case cases[] = {
	    {"layernorm", "rows of D", build_layernorm, {1, n, d}, 4 * elements, 0},
	    {"gate + layernorm", "rows of D", build_gate_layernorm, {1, n, d}, 10 * elements, 0},
	    {"gelu", "rows of D", build_gelu, {1, n, d}, 4 * elements, 0},
	    {"sum_squares + adamw", "parameters", build_adamw, {p}, 34 * (double)p, 0},
	    {"linear_cross_entropy", "rows x D x V", build_head, {n, d, v}, 0, 6 * head},
	    {"softmax_attention",
	     "causal, one sequence",
	     build_softmax,
	     {1, n, 3 * d, d / 64},
	     8 * elements,
	     2 * (double)n * (double)n * (double)d},
	    {"softmax_attention + gradient",
	     "causal, one sequence",
	     build_softmax_grad,
	     {1, n, 3 * w, w / 64},
	     20 * (double)(n * w),
	     7 * (double)n * (double)n * (double)w},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		run_case(b, &cases[i], true);
}

/* --- choices ---------------------------------------------------------------------------------- */

typedef status (*choice_function)(backend *b, const op_call *call, int i, int *count);

/* The plug-in's function; NULL: it has none. The plug-in is loaded already. */
static choice_function find_choice(const backend *b)
{
	char path[PATH_MAX];
	const char *folder = getenv("ADDITIVE_PLUGIN_DIR");
	snprintf(path, sizeof path, "%s/additive-%s.so", folder ? folder : ".", b->name);
	void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD),
	     *found = plugin ? dlsym(plugin, "additive_cuda_matmul_choice") : NULL;
	choice_function f;
	memcpy(&f, &found, sizeof f);
	return f;
}

static void *random_matrix(backend *b, int64_t count)
{
	void *data;
	uint16_t *host = malloc((size_t)count * sizeof *host);
	if (!host || b->allocate(b, (size_t)count * sizeof *host, &data) != STATUS_OK)
		bench_fail("out of memory");
	uint32_t state = 12345;
	for (int64_t i = 0; i < count; i++) {
		state = state * 1664525u + 1013904223u;
		host[i] = panel_bf16((float)(state >> 8) * 0x1p-23f - 1.0f);
	}
	if (b->upload(b, data, host, (size_t)count * sizeof *host) != STATUS_OK)
		bench_fail("an upload failed");
	free(host);
	return data;
}

/* Asking the library takes the host longer than a small product takes the device. So the device is given copies to do
 * first, and the time of as many copies alone is taken away. choice < 0: copies alone. */
static double after_copies(backend *b, choice_function f, const op_call *call, int choice, void *const *buffers,
                           size_t bytes)
{
	enum { COPIES = 16, PRODUCTS = 32 };
	bench_times t = {0};
	int count = 0;
	for (int i = 0; i < (quick ? 2 : 7); i++) {
		uint64_t began = clock_ns();
		for (int j = 0; j < COPIES; j++)
			if (b->copy(b, buffers[j % 2], buffers[1 - j % 2], bytes) != STATUS_OK)
				bench_fail("a copy failed");
		for (int j = 0; j < PRODUCTS && choice >= 0; j++)
			if (f(b, call, choice, &count) != STATUS_OK)
				bench_fail("a product failed");
		if (b->synchronize(b) != STATUS_OK)
			bench_fail("the device failed");
		bench_times_add(&t, (double)(clock_ns() - began) / PRODUCTS);
	}
	double best = bench_times_best(&t);
	bench_times_free(&t);
	return best;
}

static void one_product(backend *b, choice_function f, const char *name, matmul_params params, int64_t m, int64_t n,
                        int64_t k)
{
	const size_t bytes = quick ? 1 << 20 : (size_t)1 << 30;
	void *buffers[2];
	op_call call = {.params = &params, .n_in = 2, .n_out = 1};
	call.in[0] = (tensor){random_matrix(b, m * k), DTYPE_BF16, params.trans_a ? SHAPE2(k, m) : SHAPE2(m, k)};
	call.in[1] = (tensor){random_matrix(b, n * k), DTYPE_BF16, params.trans_b ? SHAPE2(n, k) : SHAPE2(k, n)};
	call.out[0] = (tensor){random_matrix(b, m * n * (params.wide ? 2 : 1)), params.wide ? DTYPE_F32 : DTYPE_BF16,
	                       SHAPE2(m, n)};
	if (b->allocate(b, bytes, &buffers[0]) != STATUS_OK || b->allocate(b, bytes, &buffers[1]) != STATUS_OK)
		bench_fail("out of memory");
	int count = 0;
	status s = f(b, &call, 0, &count);
	after_copies(b, f, &call, -1, buffers, bytes);
	double copies = after_copies(b, f, &call, -1, buffers, bytes);
	printf("{\"op\": \"choice\", \"case\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"ns\": [", name,
	       (long long)m, (long long)n, (long long)k);
	for (int i = 0; s == STATUS_OK && i < count && i < MAX_CHOICES; i++)
		printf("%s%.0f", i ? ", " : "", after_copies(b, f, &call, i, buffers, bytes) - copies);
	printf("]}\n");
	fflush(stdout);
	b->release(b, buffers[0]);
	b->release(b, buffers[1]);
	b->release(b, call.in[0].data);
	b->release(b, call.in[1].data);
	b->release(b, call.out[0].data);
}

/* y = x Wᵀ, dx = dy W, dW = dyᵀ x (in f32) of the products of a layer. */
static void choices(backend *b)
{
	static const int64_t widths[] = {128, 768, 2048},
	                     factors[][2] = {{3, 1}, {1, 1}, {4, 1}, {1, 4}}; /* outputs, inputs */
	choice_function f = find_choice(b);
	for (size_t i = 0; f && i < (quick ? 1 : sizeof widths / sizeof *widths); i++)
		for (size_t j = 0; j < sizeof factors / sizeof *factors; j++) {
			int64_t tokens = quick ? 256 : 16384, out = factors[j][0] * widths[i],
			        in = factors[j][1] * widths[i];
			one_product(b, f, "y", (matmul_params){.trans_b = true, .alpha = 1}, tokens, out, in);
			one_product(b, f, "dx", (matmul_params){.alpha = 1}, tokens, in, out);
			one_product(b, f, "dw", (matmul_params){.trans_a = true, .wide = true, .alpha = 1}, out, in,
			            tokens);
		}
}

/* --- panels ----------------------------------------------------------------------------------- */

static void build_panels(graph *g, const int64_t *arg) /* rows, N, K, type */
{
	const value x = graph_input(g, "x", DTYPE_F32, SHAPE2(arg[0], arg[2])),
	            w = graph_input(g, "w", (dtype)arg[3], SHAPE2(arg[1], arg[2]));
	graph_output(g, op_linear(g, x, w, VALUE_NONE, 1), "y");
}

/* The products of a layer at d 768: a decode step of 128 rows, and prompts. */
static void panels(backend *b)
{
	static const int64_t rows[] = {64, 128, 256, 2048},
	                     shapes[][2] = {{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}};
	for (size_t i = 0; i < (quick ? 1 : sizeof rows / sizeof *rows); i++)
		for (size_t j = 0; j < (quick ? 2 : sizeof shapes / sizeof *shapes); j++)
			for (int int8 = 0; int8 < 2; int8++) {
				const int64_t less = quick ? 12 : 1, m = rows[i], n = shapes[j][0] / less,
				              k = shapes[j][1] / less,
				              type = int8 ? DTYPE_PANEL_INT8 : DTYPE_PANEL_BF16;
				char name[64];
				snprintf(name, sizeof name, "%lld x %lld x %lld%s", (long long)m, (long long)n,
				         (long long)k, int8 ? ", int8" : "");
				run_case(
				    b,
				    &(bench_case){
				        "panels", name, build_panels, {m, n, k, type}, 0, 2.0 * (double)(m * n * k)},
				    false);
			}
}

static bool is_asked(int argc, char **argv, const char *part)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], part) == 0)
			return true;
	return strcmp(part, "choices") != 0 && strcmp(part, "panels") != 0 && argc == 1 + quick;
}

int main(int argc, char **argv)
{
	quick = argc > 1 && strcmp(argv[1], "quick") == 0;
	backend *b = bench_backend();
	if (!b->bf16)
		bench_fail("%s computes in f32 only: set ADDITIVE_BENCH_BACKEND", b->name);
	printf("{\"device\": \"%s\"}\n", b->device);
	if (is_asked(argc, argv, "ceilings"))
		ceilings(b);
	if (is_asked(argc, argv, "rounds"))
		round_cases(b);
	if (is_asked(argc, argv, "ops"))
		ops(b);
	if (is_asked(argc, argv, "choices"))
		choices(b);
	if (is_asked(argc, argv, "panels"))
		panels(b);
	backend_close(b);
	return EXIT_SUCCESS;
}
