/* bench_ops - the ceilings of this machine, and every op's share of them.
 *
 *   bench_ops [threads [op]]
 *
 * Lines of JSON. First the ceilings: memory (a copy, read and write counted) at several sizes, matrix products at
 * several shapes, each with one thread and with all. Then the op table: for every op its cases, with median and best
 * time and the bytes that must move. Inputs are read once, outputs and in-place updates are written once; for tables
 * and pools only the used rows count. Products and softmax attention also have FLOPs, two per multiply-add. Every op
 * has a line, which says if it has no case or no kernel. With the name of an op, only its lines are printed. Small
 * shapes stay in the cache between calls. The file is long because it has a case for each op. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/sample.h"
#include "engine/tensor/panel.h"
#include "tests/bench/support/bench.h"
#include "tests/bench/support/ceilings.h"

/* --- a case ------------------------------------------------------------------------- */

/* The bench as it walks: which ops had a case. */
typedef struct walk {
	backend *backend;
	int threads;
	bool seen[OP_COUNT];
	const char *only; /* this op alone; NULL: all */
} walk;

/* One trial of an op: its arguments, and data that cannot be derived from them. */
typedef struct trial {
	op_id id;
	const void *params;
	tensor in[OP_MAX_INPUTS]; /* data NULL and rank 0 of f32: absent; owned by the trial */
	int n_in;
	double flops;
	double bytes;      /* 0: all inputs and outputs */
	unsigned unwanted; /* bit i: output i is unwanted */
} trial;

static size_t tensor_bytes(const tensor *t)
{
	size_t bytes;
	if (!shape_bytes(t->shape, t->type, &bytes))
		bench_fail("a shape is too large");
	return bytes;
}

static tensor reals(const walk *w, shape s)
{
	tensor t = {NULL, DTYPE_F32, s};
	t.data = ceilings_memory(w->backend, tensor_bytes(&t));
	ceilings_fill(t.data, shape_count(s));
	return t;
}

/* first, first + step, first + 2 step, … below `range`. */
static tensor integers(const walk *w, shape s, int32_t first, int32_t step, int32_t range)
{
	tensor t = {NULL, DTYPE_I32, s};
	t.data = ceilings_memory(w->backend, tensor_bytes(&t));
	for (int64_t i = 0; i < shape_count(s); i++)
		((int32_t *)t.data)[i] = (int32_t)((first + i * step) % range);
	return t;
}

/* A weight [n, k] of any type. */
static tensor weight(const walk *w, dtype type, int64_t n, int64_t k)
{
	tensor plain = reals(w, SHAPE2(n, k));
	if (type == DTYPE_F32)
		return plain;
	tensor packed = {NULL, type, plain.shape};
	packed.data = ceilings_memory(w->backend, tensor_bytes(&packed));
	panel_pack(type, plain.data, n, k, packed.data);
	w->backend->release(w->backend, plain.data);
	return packed;
}

typedef struct launch {
	backend *backend;
	op_id id;
	op_call call;
} launch;

static void run_launch(void *context)
{
	launch *l = context;
	if (l->backend->kernel[l->id](l->backend, &l->call) != STATUS_OK)
		bench_fail("%s failed", op_get(l->id)->name);
}

static double compulsory_bytes(const op_call *call, unsigned mutated)
{
	double bytes = 0;
	for (int i = 0; i < call->n_in; i++)
		if (call->in[i].data)
			bytes += (double)tensor_bytes(&call->in[i]) * (mutated >> i & 1 ? 2 : 1);
	for (int i = 0; i < call->n_out; i++)
		if (call->out[i].data)
			bytes += (double)tensor_bytes(&call->out[i]);
	return bytes;
}

static void release_inputs(backend *b, const trial *t)
{
	for (int i = 0; i < t->n_in; i++)
		b->release(b, t->in[i].data);
}

/* Time a trial, print its line, release its inputs. */
static void bench(walk *w, const char *shape_text, trial t)
{
	backend *b = w->backend;
	const op *o = op_get(t.id);
	if (w->only && strcmp(w->only, o->name) != 0) {
		release_inputs(b, &t);
		return;
	}
	error err = ERROR_INIT;
	launch l = {b, t.id, {.params = t.params, .n_in = t.n_in, .n_out = o->n_out}};
	memcpy(l.call.in, t.in, sizeof t.in);
	w->seen[t.id] = true;
	if (o->check(&l.call, &err) != STATUS_OK)
		bench_fail("%s %s: %s", o->name, shape_text, error_message(&err));
	for (int i = 0; i < l.call.n_out; i++)
		if (!(t.unwanted >> i & 1))
			l.call.out[i].data = ceilings_memory(b, tensor_bytes(&l.call.out[i]));
	size_t scratch = b->scratch[t.id] ? b->scratch[t.id](b, &l.call) : 0;
	l.call.scratch = scratch ? ceilings_memory(b, scratch) : NULL;
	printf("{\"op\": \"%s\", \"shape\": \"%s\", \"threads\": %d, ", o->name, shape_text, w->threads);
	if (!b->kernel[t.id] || b->kernel[t.id](b, &l.call) == STATUS_UNSUPPORTED) {
		printf("\"unsupported\": true}\n");
	} else {
		printf("\"bytes\": %.0f, \"flops\": %.0f, ",
		       t.bytes > 0 ? t.bytes : compulsory_bytes(&l.call, o->mutates), t.flops);
		ceilings_time(run_launch, &l);
	}
	for (int i = 0; i < l.call.n_out; i++)
		b->release(b, l.call.out[i].data);
	release_inputs(b, &t);
	b->release(b, l.call.scratch);
}

/* --- attention ---------------------------------------------------------------------- */

static void bench_additive(walk *w, int64_t batch, int64_t length, int64_t d, int64_t heads, int64_t window)
{
	additive_attention_params p = {.heads = heads, .window = window};
	shape s = SHAPE3(batch, length, d), per_head = SHAPE3(batch, length, heads);
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d k%d", (int)batch, (int)length, (int)d, (int)heads, (int)window);
	trial forward = {.id = OP_additive_attention,
	                 .params = &p,
	                 .n_in = 2,
	                 .in = {reals(w, s), reals(w, SHAPE1(d))},
	                 .unwanted = 2};
	bench(w, text, forward);
	/* The log-normaliser must be above the scores, which are within ±2 here, for weights to be below 1. */
	tensor log_normalizer = reals(w, per_head);
	for (int64_t i = 0; i < shape_count(per_head); i++)
		((float *)log_normalizer.data)[i] += 5;
	trial backward = {.id = OP_additive_attention_grad,
	                  .params = &p,
	                  .n_in = 6,
	                  .in = {reals(w, s), reals(w, SHAPE1(d)), {0}, reals(w, s), log_normalizer, reals(w, s)}};
	bench(w, text, backward);
}

/* Causal pairs of a sequence within a window. */
static double pairs(int64_t length, int64_t window)
{
	double n = (double)length, k = window > 0 && window < length ? (double)window : n;
	return k * (k + 1) / 2 + (n - k) * k;
}

static void bench_softmax(walk *w, int64_t batch, int64_t length, int64_t d, int64_t heads)
{
	softmax_params p = {.heads = heads, .scale = 1.0f / 8};
	shape qkv = SHAPE3(batch, length, 3 * d), y = SHAPE3(batch, length, d), per_head = SHAPE3(batch, length, heads);
	double one = 2 * pairs(length, 0) * (double)(batch * d);
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d", (int)batch, (int)length, (int)d, (int)heads);
	bench(w, text,
	      (trial){.id = OP_softmax_attention, .params = &p, .n_in = 1, .in = {reals(w, qkv)}, .flops = 2 * one});
	tensor log_normalizer = reals(w, per_head);
	for (int64_t i = 0; i < shape_count(per_head); i++)
		((float *)log_normalizer.data)[i] += 10;
	bench(w, text,
	      (trial){.id = OP_softmax_attention_grad,
	              .params = &p,
	              .n_in = 9,
	              .in = {reals(w, qkv), {0}, {0}, {0}, {0}, {0}, reals(w, y), log_normalizer, reals(w, y)},
	              .flops = 5 * one});
}

/* `rows` sessions that have read `position` tokens read `count` more. */
static void bench_additive_stream(walk *w, int64_t rows, int64_t count, int64_t d, int64_t heads, int64_t window)
{
	additive_stream_params p = {heads, window, 0};
	int64_t state = additive_state_floats(d, heads, window), slot = (state + 15) / 16 * 16;
	double carry =
	    window > 0 ? 2.0 * 32 : 2.0 * 16; /* bytes per channel and token: a state's entries read and written */
	shape one = SHAPE1(rows);
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d k%d", (int)rows, (int)count, (int)d, (int)heads, (int)window);
	bench(w, text,
	      (trial){.id = OP_additive_stream,
	              .params = &p,
	              .n_in = 6,
	              .in = {reals(w, SHAPE3(rows, count, d)), reals(w, SHAPE1(d)), reals(w, SHAPE2(rows, slot)),
	                     integers(w, one, 0, 1, (int32_t)rows), integers(w, one, 1000, 0, 1 << 30),
	                     integers(w, one, (int32_t)count, 0, 1 << 30)},
	              .bytes = (double)(rows * count * d) * 8 + (double)(rows * d) * carry,
	              .unwanted = 6});
}

/* Rates of forgetting, below 0. */
static tensor rates(walk *w, shape s)
{
	tensor f = reals(w, s);
	for (int64_t i = 0; i < shape_count(s); i++)
		((float *)f.data)[i] = -fabsf(((float *)f.data)[i]) / 64;
	return f;
}

static void bench_forgetting(walk *w, int64_t batch, int64_t length, int64_t d, int64_t heads)
{
	const shape v = SHAPE3(batch, length, d), a = SHAPE3(batch, length, heads);
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d", (int)batch, (int)length, (int)d, (int)heads);
	bench(w, text,
	      (trial){.id = OP_forgetting_attention, .n_in = 3, .in = {reals(w, v), reals(w, a), rates(w, a)}});
	/* The log-normaliser must be above the scores, as in bench_additive. */
	tensor log_normalizer = reals(w, a);
	for (int64_t i = 0; i < shape_count(a); i++)
		((float *)log_normalizer.data)[i] += 5;
	bench(w, text,
	      (trial){.id = OP_forgetting_attention_grad,
	              .params = &(forgetting_params){false},
	              .n_in = 7,
	              .in = {reals(w, v), reals(w, a), rates(w, a), {0}, reals(w, v), log_normalizer, reals(w, v)}});
}

/* As bench_additive_stream. */
static void bench_forgetting_stream(walk *w, int64_t rows, int64_t count, int64_t d, int64_t heads)
{
	const shape one = SHAPE1(rows);
	const int64_t state = forgetting_state_floats(d, heads), slot = (state + 15) / 16 * 16;
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d", (int)rows, (int)count, (int)d, (int)heads);
	bench(w, text,
	      (trial){.id = OP_forgetting_stream,
	              .params = &(forgetting_stream_params){0},
	              .n_in = 6,
	              .in = {reals(w, SHAPE3(rows, count, d)), reals(w, SHAPE3(rows, count, heads)),
	                     reals(w, SHAPE2(rows, slot)), integers(w, one, 0, 1, (int32_t)rows),
	                     integers(w, one, 1000, 0, 1 << 30), integers(w, one, (int32_t)count, 0, 1 << 30)},
	              .bytes = (double)(rows * count * (8 * d + 8 * heads)) + (double)(rows * state) * 8});
}

static void bench_softmax_stream(walk *w, int64_t rows, int64_t context, int64_t d, int64_t heads)
{
	softmax_stream_params p = {.heads = heads, .window = context, .scale = 1.0f / 8};
	shape one = SHAPE1(rows);
	char text[64];
	snprintf(text, sizeof text, "B%d N1 d%d H%d context %d", (int)rows, (int)d, (int)heads, (int)context);
	bench(w, text,
	      (trial){.id = OP_softmax_stream,
	              .params = &p,
	              .n_in = 7,
	              .in = {reals(w, SHAPE3(rows, 1, 3 * d)),
	                     {0},
	                     {0},
	                     reals(w, SHAPE2(rows, softmax_state_floats(d, d, context))),
	                     integers(w, one, 0, 1, (int32_t)rows),
	                     integers(w, one, (int32_t)context, 0, 1 << 30),
	                     integers(w, one, 1, 0, 2)},
	              .flops = 4.0 * (double)(rows * context * d),
	              .bytes = 8.0 * (double)(rows * context * d),
	              .unwanted = 2});
}

/* Measure with separate q, k and v and `kv_heads` heads of keys; with biases, and with four memories before the
 * keys. */
static void bench_softmax_options(walk *w, int64_t rows, int64_t context, int64_t d, int64_t heads, int64_t kv_heads,
                                  bool biased)
{
	enum { MEMORIES = 4 };
	softmax_stream_params p = {.heads = heads, .window = context, .scale = 1.0f / 8, .kv_heads = kv_heads};
	const int64_t width = d / heads * kv_heads;
	shape one = SHAPE1(rows);
	char text[96];
	snprintf(text, sizeof text, "B%d N1 d%d H%d of %d context %d%s", (int)rows, (int)d, (int)heads, (int)kv_heads,
	         (int)context, biased ? " biased" : "");
	trial t = {.id = OP_softmax_stream,
	           .params = &p,
	           .n_in = biased ? 12 : 7,
	           .in = {reals(w, SHAPE3(rows, 1, d)), reals(w, SHAPE3(rows, 1, width)),
	                  reals(w, SHAPE3(rows, 1, width)),
	                  reals(w, SHAPE2(rows, softmax_state_floats(width, width, context))),
	                  integers(w, one, 0, 1, (int32_t)rows), integers(w, one, (int32_t)context, 0, 1 << 30),
	                  integers(w, one, 1, 0, 2)},
	           .flops = 4.0 * (double)(rows * context * d),
	           .bytes = 8.0 * (double)(rows * context * width),
	           .unwanted = 2};
	if (biased) {
		t.in[9] = reals(w, SHAPE2(MEMORIES, width));
		t.in[10] = reals(w, SHAPE2(MEMORIES, width));
		t.in[11] = reals(w, SHAPE2(context + MEMORIES, heads));
	}
	bench(w, text, t);
}

/* `rows` decoders read a token each, of sources of `length` tokens that have just been stored. */
static void bench_source(walk *w, int64_t rows, int64_t length, int64_t d, int64_t heads)
{
	source_params p = {heads, heads, d, length, 0, 1.0f / 8};
	shape one = SHAPE1(rows), tokens = SHAPE3(rows, length, d);
	tensor pool = reals(w, SHAPE2(rows, source_state_floats(d, d, length)));
	for (int64_t i = 0; i < rows; i++) /* the number of a source's tokens is at the end of its slot */
		((float *)pool.data)[(i + 1) * pool.shape.dim[1] - 1] = (float)length;
	char text[64];
	snprintf(text, sizeof text, "B%d d%d H%d source %d", (int)rows, (int)d, (int)heads, (int)length);
	bench(w, text,
	      (trial){.id = OP_source_attention,
	              .params = &p,
	              .n_in = 4,
	              .in = {reals(w, SHAPE3(rows, 1, d)), pool, integers(w, one, 0, 1, (int32_t)rows),
	                     integers(w, one, 1, 0, 2)},
	              .flops = 4.0 * (double)(rows * length * d),
	              .bytes = 8.0 * (double)(rows * length * d)});
	bench(w, text,
	      (trial){.id = OP_source_store,
	              .params = &p,
	              .n_in = 4,
	              .in = {reals(w, tokens), reals(w, tokens), reals(w, pool.shape),
	                     integers(w, one, 0, 1, (int32_t)rows)},
	              .bytes = 16.0 * (double)(rows * length * d)});
}

/* Causal, with the pattern of torchscale's LongViT; the same work for each token at any length. */
static void bench_dilated(walk *w, int64_t length, int64_t d, int64_t heads)
{
	dilated_params p = {.pattern = {5, {64, 128, 256, 512, 1024}, {1, 2, 4, 8, 16}, DILATED_BLOCK},
	                    .heads = heads,
	                    .scale = 1.0f / 8,
	                    .causal = true,
	                    .detach_weights = true};
	const shape s = SHAPE3(1, length, d), norms = SHAPE4(p.pattern.branches, 1, length, heads);
	double keys = 0;
	for (int i = 0; i < 5; i++)
		keys += (double)p.pattern.segment[i] / (double)(2 * p.pattern.dilation[i] * p.pattern.dilation[i]);
	const double one = 2 * keys * (double)(length * d);
	char text[64];
	snprintf(text, sizeof text, "N%d d%d H%d", (int)length, (int)d, (int)heads);
	bench(w, text,
	      (trial){.id = OP_dilated_attention,
	              .params = &p,
	              .n_in = 3,
	              .in = {reals(w, s), reals(w, s), reals(w, s)},
	              .flops = 2 * one,
	              .unwanted = 2});
	if (length > 100000)
		return;
	tensor log_normalizer = reals(w, norms);
	for (int64_t i = 0; i < shape_count(norms); i++)
		((float *)log_normalizer.data)[i] += 10;
	bench(w, text,
	      (trial){.id = OP_dilated_attention_grad,
	              .params = &p,
	              .n_in = 8,
	              .in = {reals(w, s), reals(w, s), reals(w, s), {0}, {0}, reals(w, s), log_normalizer, reals(w, s)},
	              .flops = 7 * one});
}

/* FLOPs of the recurrence, the fewest there are: T += a bᵀ and Tᵀ c, three times in the gradient. */
static void bench_linear_attention(walk *w, int64_t batch, int64_t length, int64_t d, int64_t heads, bool causal)
{
	linear_attention_params p = {heads, causal, LINEAR_ATTENTION_EPS};
	shape s = SHAPE3(batch, length, d), per_head = SHAPE3(batch, length, heads);
	double one = 4.0 * (double)(batch * length * d) * (double)(d / heads);
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d %s", (int)batch, (int)length, (int)d, (int)heads,
	         causal ? "causal" : "all");
	bench(w, text,
	      (trial){.id = OP_linear_attention,
	              .params = &p,
	              .n_in = 3,
	              .in = {reals(w, s), reals(w, s), reals(w, s)},
	              .flops = one});
	tensor normalizer = reals(w, per_head);
	for (int64_t i = 0; i < shape_count(per_head); i++)
		((float *)normalizer.data)[i] += 100;
	bench(w, text,
	      (trial){.id = OP_linear_attention_grad,
	              .params = &p,
	              .n_in = 7,
	              .in = {reals(w, s), reals(w, s), reals(w, s), {0}, reals(w, s), normalizer, reals(w, s)},
	              .flops = 3 * one});
}

/* As bench_additive_stream. */
static void bench_linear_stream(walk *w, int64_t rows, int64_t count, int64_t d, int64_t heads)
{
	linear_stream_params p = {heads, 0, LINEAR_ATTENTION_EPS};
	int64_t state = linear_state_floats(d, heads), slot = (state + 15) / 16 * 16;
	shape one = SHAPE1(rows), tokens = SHAPE3(rows, count, d);
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d", (int)rows, (int)count, (int)d, (int)heads);
	bench(w, text,
	      (trial){.id = OP_linear_stream,
	              .params = &p,
	              .n_in = 7,
	              .in = {reals(w, tokens), reals(w, tokens), reals(w, tokens), reals(w, SHAPE2(rows, slot)),
	                     integers(w, one, 0, 1, (int32_t)rows), integers(w, one, 1000, 0, 1 << 30),
	                     integers(w, one, (int32_t)count, 0, 1 << 30)},
	              .flops = 4.0 * (double)(rows * count * d) * (double)(d / heads),
	              .bytes = (double)(rows * count * d) * 16 + (double)(rows * state) * 8});
}

/* --- products ----------------------------------------------------------------------- */

static void bench_linear(walk *w, int64_t rows, int64_t n, int64_t k, dtype type)
{
	linear_params p = {.alpha = 1};
	char text[64];
	snprintf(text, sizeof text, "%d x %d -> %d %s", (int)rows, (int)k, (int)n, dtype_name(type));
	bench(w, text,
	      (trial){.id = OP_linear,
	              .params = &p,
	              .n_in = 3,
	              .in = {reals(w, SHAPE2(rows, k)), weight(w, type, n, k), reals(w, SHAPE1(n))},
	              .flops = 2.0 * (double)(rows * n * k)});
}

static void bench_matmul(walk *w, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b)
{
	matmul_params p = {.trans_a = trans_a, .trans_b = trans_b, .alpha = 1};
	char text[64];
	snprintf(text, sizeof text, "%d x %d x %d%s%s", (int)m, (int)n, (int)k, trans_a ? " At" : "",
	         trans_b ? " Bt" : "");
	bench(w, text,
	      (trial){.id = OP_matmul,
	              .params = &p,
	              .n_in = 2,
	              .in = {reals(w, trans_a ? SHAPE2(k, m) : SHAPE2(m, k)),
	                     reals(w, trans_b ? SHAPE2(n, k) : SHAPE2(k, n))},
	              .flops = 2.0 * (double)(m * n * k)});
}

static void bench_loss(walk *w, int64_t rows, int64_t d, int64_t vocab, bool gradients, bool hits)
{
	linear_cross_entropy_params p = {0.1f, 0};
	char text[64];
	snprintf(text, sizeof text, "%d x %d, V %d%s%s", (int)rows, (int)d, (int)vocab, gradients ? ", gradients" : "",
	         hits ? ", hits" : "");
	bench(w, text,
	      (trial){.id = OP_linear_cross_entropy,
	              .params = &p,
	              .n_in = 4,
	              .in = {reals(w, SHAPE2(rows, d)), reals(w, SHAPE2(vocab, d)), reals(w, SHAPE1(vocab)),
	                     integers(w, SHAPE1(rows), 0, 1, (int32_t)vocab)},
	              .flops = (gradients ? 6.0 : 2.0) * (double)(rows * d * vocab),
	              .unwanted = 64 | (gradients ? 0u : 4 | 8 | 16) | (hits ? 0 : 32)});
}

static void bench_products(walk *w)
{
	static const int64_t rows[] = {1, 2, 16, 256};
	static const dtype types[] = {DTYPE_F32, DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
		for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
			bench_linear(w, rows[r], 4096, 1024, types[t]);
			bench_linear(w, rows[r], 8192, 128, types[t]);
		}
	bench_linear(w, 4096, 384, 128, DTYPE_F32);
	bench_linear(w, 4096, 512, 128, DTYPE_F32);
	bench_linear(w, 4096, 128, 512, DTYPE_F32);
	bench_matmul(w, 4096, 128, 512, false, false); /* gradients of the two above */
	bench_matmul(w, 512, 128, 4096, true, false);
	bench_loss(w, 4096, 128, 8192, false, false);
	bench_loss(w, 4096, 128, 8192, false, true);
	bench_loss(w, 4096, 128, 8192, true, false);
	bench_loss(w, 4096, 128, 259, false, false);
	bench_loss(w, 4096, 128, 259, false, true);
	bench_loss(w, 4096, 128, 259, true, false);
}

/* --- ops bound by memory ------------------------------------------------------------ */

static void bench_rows(walk *w, int64_t rows, int64_t d)
{
	shape s = SHAPE2(rows, d), vector = SHAPE1(d), one_row = SHAPE2(1, d), per_row = SHAPE1(rows);
	static const scale_params twice = {2};
	static const secant_params half = {0.5f};
	static const layernorm_params norm = {.eps = 1e-5f};
	static const gelu_params erf = {false}, tanh = {true};
	static const dropout_params drop = {0.1f, 3};
	fill_params zeros = {.shape = s};
	char text[64], tanh_text[80];
	snprintf(text, sizeof text, "%d x %d", (int)rows, (int)d);
	snprintf(tanh_text, sizeof tanh_text, "%s tanh", text);
	bench(w, text, (trial){.id = OP_fill, .params = &zeros});
	bench(w, text, (trial){.id = OP_add, .n_in = 2, .in = {reals(w, s), reals(w, s)}});
	bench(w, text, (trial){.id = OP_mul, .n_in = 2, .in = {reals(w, s), reals(w, s)}});
	bench(w, text, (trial){.id = OP_gate, .n_in = 3, .in = {reals(w, s), reals(w, s), reals(w, s)}});
	bench(w, text, (trial){.id = OP_scale, .params = &twice, .n_in = 1, .in = {reals(w, s)}});
	bench(w, text, (trial){.id = OP_scale_by, .n_in = 2, .in = {reals(w, s), reals(w, SHAPE0())}});
	bench(w, text,
	      (trial){.id = OP_secant_grad, .params = &half, .n_in = 3, .in = {reals(w, s), reals(w, s), reals(w, s)}});
	bench(w, text, (trial){.id = OP_dot_rows, .params = &twice, .n_in = 2, .in = {reals(w, s), reals(w, s)}});
	bench(w, text, (trial){.id = OP_sum_rows, .params = &twice, .n_in = 1, .in = {reals(w, s)}});
	bench(w, text, (trial){.id = OP_accumulate, .params = &twice, .n_in = 2, .in = {reals(w, s), reals(w, s)}});
	bench(w, text, (trial){.id = OP_lerp, .n_in = 3, .in = {reals(w, s), reals(w, s), reals(w, SHAPE0())}});
	bench(w, text,
	      (trial){.id = OP_layernorm,
	              .params = &norm,
	              .n_in = 3,
	              .in = {reals(w, s), reals(w, vector), reals(w, vector)}});
	bench(w, text,
	      (trial){.id = OP_layernorm_grad,
	              .params = &(layernorm_grad_params){0},
	              .n_in = 5,
	              .in = {reals(w, s), reals(w, vector), reals(w, per_row), reals(w, per_row), reals(w, s)}});
	bench(w, text,
	      (trial){.id = OP_mix_columns,
	              .params = &(mix_columns_params){0},
	              .n_in = 3,
	              .in = {reals(w, s), reals(w, s), reals(w, one_row)}});
	bench(w, text,
	      (trial){.id = OP_mix_columns_grad,
	              .params = &(mix_columns_params){0},
	              .n_in = 4,
	              .in = {reals(w, s), reals(w, s), reals(w, one_row), reals(w, s)}});
	bench(w, text, (trial){.id = OP_gelu, .params = &erf, .n_in = 1, .in = {reals(w, s)}});
	bench(w, text, (trial){.id = OP_gelu_grad, .params = &erf, .n_in = 2, .in = {reals(w, s), reals(w, s)}});
	bench(w, tanh_text, (trial){.id = OP_gelu, .params = &tanh, .n_in = 1, .in = {reals(w, s)}});
	bench(w, tanh_text, (trial){.id = OP_gelu_grad, .params = &tanh, .n_in = 2, .in = {reals(w, s), reals(w, s)}});
	bench(w, text,
	      (trial){
	          .id = OP_dropout, .params = &drop, .n_in = 2, .in = {reals(w, s), integers(w, SHAPE1(4), 0, 1, 4)}});
}

static void bench_tables(walk *w, int64_t rows, int64_t d, int64_t vocab)
{
	gather_params p = {-1};
	gather_grad_params back = {vocab, -1};
	double used = 8.0 * (double)(rows * d);
	char text[64];
	snprintf(text, sizeof text, "%d of %d x %d", (int)rows, (int)vocab, (int)d);
	bench(w, text,
	      (trial){.id = OP_gather,
	              .params = &p,
	              .n_in = 2,
	              .in = {reals(w, SHAPE2(vocab, d)), integers(w, SHAPE1(rows), 0, 17, (int32_t)vocab)},
	              .bytes = used});
	bench(w, text,
	      (trial){.id = OP_gather_grad,
	              .params = &back,
	              .n_in = 2,
	              .in = {integers(w, SHAPE1(rows), 0, 17, (int32_t)vocab), reals(w, SHAPE2(rows, d))}});
	hash_rows_params hash = {.first = 2, .round = 2};
	bench(w, text,
	      (trial){.id = OP_hash_rows,
	              .params = &hash,
	              .n_in = 1,
	              .in = {integers(w, SHAPE1(rows), 0, 17, (int32_t)vocab)}});
	longest_match_params match = {.window = 4096, .length = 32};
	bench(
	    w, text,
	    (trial){
	        .id = OP_longest_match, .params = &match, .n_in = 1, .in = {integers(w, SHAPE2(1, rows), 0, 17, 64)}});
	segment_rows_params segments = {.segment = 512, .front = 4};
	bench(w, text,
	      (trial){.id = OP_segment_rows,
	              .params = &segments,
	              .n_in = 1,
	              .in = {integers(w, SHAPE1(rows), 0, 17, (int32_t)vocab)}});
	bench(w, text,
	      (trial){.id = OP_segment_begin,
	              .params = &segments,
	              .n_in = 2,
	              .in = {integers(w, SHAPE1(rows), 0, 17, (int32_t)vocab), integers(w, SHAPE1(rows), 1, 0, 2)}});
}

static void bench_optimizer(walk *w, int64_t n)
{
	adamw_params p = {0.9f, 0.999f, 1e-8f, 0.01f, 1, false};
	tensor hyper = reals(w, SHAPE1(2)), v = reals(w, SHAPE1(n));
	((float *)hyper.data)[0] = 1e-6f;
	((float *)hyper.data)[1] = 10.0f;
	for (int64_t i = 0; i < n; i++)
		((float *)v.data)[i] *= ((float *)v.data)[i];
	char text[64];
	snprintf(text, sizeof text, "%d", (int)n);
	bench(w, text, (trial){.id = OP_sum_squares, .n_in = 1, .in = {reals(w, SHAPE1(n))}});
	bench(w, text,
	      (trial){
	          .id = OP_adamw,
	          .params = &p,
	          .n_in = 6,
	          .in = {reals(w, SHAPE1(n)), reals(w, SHAPE1(n)), reals(w, SHAPE1(n)), v, reals(w, SHAPE0()), hyper}});
}

/* --- sampling ----------------------------------------------------------------------- */

/* A normal variate, near enough: the sum of four uniform ones. */
static void fill_normal(float *x, int64_t n, float deviation)
{
	static float uniform[4];
	uint32_t state = 12345;
	for (int64_t i = 0; i < n; i++) {
		for (int k = 0; k < 4; k++) {
			state = state * 1664525u + 1013904223u;
			uniform[k] = (float)(state >> 8) * 0x1p-23f - 1;
		}
		x[i] = deviation * 0.866f * (uniform[0] + uniform[1] + uniform[2] + uniform[3]);
	}
}

/* Flat logits are those of a model that has learned nothing. */
static void bench_sample(walk *w, int64_t rows, int64_t vocab, float deviation)
{
	static const struct {
		const char *name;
		sample_setting setting;
	} draws[] = {{"greedy", {.temperature = 0, .top_p = 1}},
	             {"temperature", {.temperature = 0.8f, .top_p = 1}},
	             {"top-k 50", {.temperature = 0.8f, .top_p = 1, .top_k = 50}},
	             {"top-k 50, top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f, .top_k = 50}},
	             {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f}},
	             {"min-p 0.05", {.temperature = 0.8f, .top_p = 1, .min_p = 0.05f}},
	             {"top-a 0.2", {.temperature = 0.8f, .top_p = 1, .top_a = 0.2f, .top_a_power = 2}}};
	for (size_t i = 0; i < sizeof draws / sizeof draws[0]; i++) {
		char text[96];
		snprintf(text, sizeof text, "B%d V%d deviation %g, %s", (int)rows, (int)vocab, (double)deviation,
		         draws[i].name);
		tensor logits = reals(w, SHAPE2(rows, vocab));
		tensor settings = integers(w, SHAPE2(rows, SAMPLE_WORDS), 0, 0, 1);
		fill_normal(logits.data, rows * vocab, deviation);
		for (int64_t row = 0; row < rows; row++) {
			sample_setting *s = (sample_setting *)settings.data + row;
			*s = draws[i].setting;
			s->repetition_penalty = 1;
			s->seed_low = (uint32_t)row;
			s->active = 1;
		}
		bench(
		    w, text,
		    (trial){.id = OP_sample, .n_in = 3, .in = {logits, settings, integers(w, SHAPE2(0, 3), 0, 0, 1)}});
	}
}

/* --- the walk ----------------------------------------------------------------------- */

/* Attention with its matrix: `length` queries and keys. */
static void bench_attention_matrix(walk *w, int64_t batch, int64_t length, int64_t d, int64_t heads)
{
	attention_matrix_params p = {heads, 0, 1.0f / 8};
	mix_heads_params plain = {false};
	const shape tokens = SHAPE3(batch, length, d), matrix = SHAPE4(batch, heads, length, length);
	const shape mix = SHAPE2(heads, heads);
	const double flops = 2.0 * (double)(batch * length * length * d);
	static const op_id products[] = {OP_attention_apply, OP_attention_apply_transposed};
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d", (int)batch, (int)length, (int)d, (int)heads);
	bench(w, text,
	      (trial){.id = OP_attention_scores,
	              .params = &p,
	              .n_in = 2,
	              .in = {reals(w, tokens), reals(w, tokens)},
	              .flops = flops});
	for (int i = 0; i < 2; i++)
		bench(w, text,
		      (trial){.id = products[i],
		              .params = &p,
		              .n_in = 2,
		              .in = {reals(w, matrix), reals(w, tokens)},
		              .flops = flops});
	for (int i = 0; i < 3; i++) {
		attention_weights_params how = {
		    .top_k = i == 2 ? 32 : 0, .bidirectional = true, .bias_first = 1 - length};
		snprintf(text, sizeof text, "B%d N%d H%d%s", (int)batch, (int)length, (int)heads,
		         i == 0   ? ""
		         : i == 1 ? ", biased"
		                  : ", the largest 32");
		tensor bias = i == 1 ? reals(w, SHAPE2(2 * length - 1, heads)) : (tensor){0};
		bench(w, text,
		      (trial){.id = OP_attention_weights,
		              .params = &how,
		              .n_in = 4,
		              .in = {reals(w, matrix), {0}, {0}, bias},
		              .unwanted = 2});
		if (i == 2)
			continue;
		bias = i == 1 ? reals(w, SHAPE2(2 * length - 1, heads)) : (tensor){0};
		bench(w, text,
		      (trial){.id = OP_attention_weights_grad,
		              .params = &how,
		              .n_in = 4,
		              .in = {reals(w, matrix), reals(w, matrix), {0}, bias}});
	}
	snprintf(text, sizeof text, "B%d N%d H%d", (int)batch, (int)length, (int)heads);
	bench(w, text,
	      (trial){.id = OP_mix_heads, .params = &plain, .n_in = 2, .in = {reals(w, matrix), reals(w, mix)}});
	bench(w, text,
	      (trial){.id = OP_mix_heads_grad, .n_in = 3, .in = {reals(w, matrix), reals(w, matrix), reals(w, mix)}});
}

/* `rows` sessions that have read `context` tokens read `count` more. */
static void bench_matrix_stream(walk *w, int64_t rows, int64_t count, int64_t context, int64_t d, int64_t heads)
{
	matrix_stream_params p = {
	    .heads = heads, .window = context, .key_width = d, .value_width = d, .scale = 1.0f / 8};
	const shape one = SHAPE1(rows), tokens = SHAPE3(rows, count, d);
	const shape weights = SHAPE4(rows * count, heads, 1, context);
	const int64_t half = (int64_t)rows * context * d * 4; /* bytes of the keys, and of the values */
	static const op_id ids[] = {OP_stream_scores, OP_stream_apply, OP_stream_store};
	char text[64];
	snprintf(text, sizeof text, "B%d N%d d%d H%d context %d", (int)rows, (int)count, (int)d, (int)heads,
	         (int)context);
	for (int i = 0; i < 3; i++)
		bench(w, text,
		      (trial){.id = ids[i],
		              .params = &p,
		              .n_in = 6,
		              .in = {reals(w, tokens), reals(w, i == 1 ? weights : tokens),
		                     reals(w, SHAPE2(rows, matrix_stream_floats(p))),
		                     integers(w, one, 0, 1, (int32_t)rows),
		                     integers(w, one, (int32_t)context, 0, 1 << 30),
		                     integers(w, one, (int32_t)count, 0, 1 << 30)},
		              .flops = i < 2 ? 2.0 * (double)(rows * count * context * d) : 0,
		              .bytes = (double)(i < 2 ? half + 4 * shape_count(weights) : 16 * shape_count(tokens))});
}

static void bench_position_bias(walk *w, int64_t length, int64_t heads)
{
	t5_buckets_params buckets = {1 - length, 2 * length - 1, 32, 128, true};
	distances_params distances = {1 - length, 2 * length - 1, false, true};
	alibi_params alibi = {1 - length, 2 * length - 1, heads, heads};
	char text[64];
	snprintf(text, sizeof text, "N%d H%d", (int)length, (int)heads);
	bench(w, text, (trial){.id = OP_t5_buckets, .params = &buckets});
	bench(w, text, (trial){.id = OP_distances, .params = &distances});
	bench(w, text, (trial){.id = OP_alibi, .params = &alibi});
}

/* `rows` tokens of a trilinear layer, D channels of which Q are of keys and T of values, and its largest weight. */
static void bench_trilinear(walk *w, int64_t rows, int64_t d, int64_t q, int64_t t, int64_t heads)
{
	static const char *const modes[] = {"a tensor", "rows", "a fixed step"};
	const quantize_params quantize[] = {{QUANTIZE_TENSOR, 8}, {QUANTIZE_ROWS, 8}, {QUANTIZE_FIXED, 8}};
	const decay_biases_params biases = {65, heads, 0.25f, 0, 0};
	const decay_params decay = {heads, 64, 0.1f, 0.25f, 20.0f / 3, false};
	const shape keys = SHAPE3(1, rows, q), values = SHAPE3(1, rows, t), norms = SHAPE3(1, rows, heads);
	char text[64];
	for (int i = 0; i < 3; i++) {
		const shape s = i == 0 ? SHAPE2(d, 16 * t) : SHAPE2(rows, d);
		snprintf(text, sizeof text, "%s, %dx%d", modes[i], (int)s.dim[0], (int)s.dim[1]);
		bench(w, text, (trial){.id = OP_quantize, .params = &quantize[i], .n_in = 1, .in = {reals(w, s)}});
	}
	snprintf(text, sizeof text, "N%d Q%d T%d H%d", (int)rows, (int)q, (int)t, (int)heads);
	bench(w, text, (trial){.id = OP_trilinear, .n_in = 2, .in = {reals(w, values), reals(w, values)}});
	bench(w, text,
	      (trial){.id = OP_trilinear_grad,
	              .n_in = 3,
	              .in = {reals(w, values), reals(w, values), reals(w, SHAPE3(1, rows, 16 * t))}});
	bench(w, text, (trial){.id = OP_decay_biases, .params = &biases});
	bench(w, text,
	      (trial){
	          .id = OP_decay_merge,
	          .params = &decay,
	          .n_in = 5,
	          .in = {reals(w, keys), reals(w, SHAPE1(q)), reals(w, SHAPE1(t)), reals(w, values), reals(w, norms)}});
	bench(w, text,
	      (trial){.id = OP_decay_merge_grad,
	              .params = &decay,
	              .n_in = 6,
	              .in = {reals(w, keys), reals(w, SHAPE1(q)), reals(w, SHAPE1(t)), reals(w, values),
	                     reals(w, norms), reals(w, values)}});
}

static void walk_ops(walk *w)
{
	static const int64_t wide[] = {16, 64, 1024, 0}, narrow[] = {4, 8, 16, 32, 64, 0};
	for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
		bench_additive(w, 1, 16384, 1024, 16, wide[i]);
	for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++)
		bench_additive(w, 2, 2048, 128, 4, narrow[i]);
	bench_softmax(w, 2, 2048, 128, 4);
	bench_softmax(w, 1, 2048, 1024, 16);
	for (int64_t length = 10000; length <= 1000000; length *= 10)
		bench_dilated(w, length, 128, 4);
	for (int64_t rows = 1; rows <= 256; rows *= 256) {
		bench_additive_stream(w, rows, 1, 128, 4, 64);
		bench_additive_stream(w, rows, 1, 128, 4, 0);
		bench_softmax_stream(w, rows, 2048, 128, 4);
		bench_softmax_options(w, rows, 2048, 128, 4, 4, false);
		bench_softmax_options(w, rows, 2048, 128, 4, 4, true);
		bench_softmax_options(w, rows, 2048, 128, 4, 1, false);
		bench_source(w, rows, 512, 128, 4);
	}
	bench_forgetting(w, 1, 16384, 1024, 16);
	bench_additive(w, 2, 512, 128, 16, 0);
	bench_forgetting(w, 2, 512, 128, 16);
	bench_forgetting(w, 2, 2048, 128, 16);
	for (int64_t rows = 1; rows <= 256; rows *= 256)
		bench_forgetting_stream(w, rows, 1, 128, 16);
	bench_forgetting_stream(w, 1, 256, 128, 16);
	bench_additive_stream(w, 1, 256, 128, 4, 64);
	bench_additive_stream(w, 1, 256, 128, 4, 0);
	for (int causal = 1; causal >= 0; causal--) {
		bench_linear_attention(w, 1, 1024, 768, 12, causal);
		bench_linear_attention(w, 1, 2048, 128, 4, causal);
	}
	for (int64_t rows = 1; rows <= 256; rows *= 256) {
		bench_linear_stream(w, rows, 1, 128, 4);
		bench_linear_stream(w, rows, 1, 768, 12);
	}
	bench_linear_stream(w, 1, 256, 128, 4);
	bench_attention_matrix(w, 2, 512, 512, 8);
	for (int64_t rows = 1; rows <= 64; rows *= 64)
		bench_matrix_stream(w, rows, 1, 2048, 512, 8);
	bench_matrix_stream(w, 1, 256, 2048, 512, 8);
	bench_position_bias(w, 2048, 8);
	for (int64_t rows = 1; rows <= 4096; rows *= 4096)
		bench_trilinear(w, rows, 256, 128, 64, 1);
	bench_products(w);
	bench_rows(w, 4096, 128);
	bench_rows(w, 4096, 512);
	bench_rows(w, 16384, 1024);
	bench_tables(w, 4096, 128, 8192);
	bench_optimizer(w, 5 << 20);
	for (int64_t vocab = 8192; vocab <= 50257; vocab += 50257 - 8192) {
		bench_sample(w, 256, vocab, 0.2f);
		bench_sample(w, 256, vocab, 4);
	}
	for (int id = 0; id < OP_COUNT; id++)
		if (!w->seen[id] && !w->only)
			printf("{\"op\": \"%s\", \"missing\": true}\n", op_get((op_id)id)->name);
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	error err = ERROR_INIT;
	walk w = {.threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads(), .only = argc > 2 ? argv[2] : NULL};
	bench_check(cpu_open(&w.backend, w.threads, &err), &err);
	printf("{\"device\": \"%s\"}\n", w.backend->device);
	if (!w.only)
		ceilings_print(w.backend, w.threads);
	walk_ops(&w);
	backend_close(w.backend);
	return EXIT_SUCCESS;
}
