/* Speed of the CPU kernels that are not matrix products, beside the speed of memory.
 *
 *   bench_ops [threads]
 *
 * For each op: median and best time of a call, nanoseconds per element of the largest
 * operand, and GB/s of compulsory traffic (every input read once, every output written
 * once). Small shapes stay in the cache between calls and may well pass the speed of memory.
 * The closing lines are a decode step's, where nothing is large. On a machine with other
 * work, threads wait for each other's turn: look at the best, or run with one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/threads.h"
#include "engine/tensor/ops.h"

enum { MAX_REPEATS = 200 };

static const double budget_ns = 3e8; /* per op */

static void fail(const char *what)
{
	fprintf(stderr, "bench_ops: %s\n", what);
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void *device_memory(backend *b, size_t bytes)
{
	void *data;
	if (b->allocate(b, bytes, &data) != STATUS_OK)
		fail("out of memory");
	return data;
}

static size_t tensor_bytes(const tensor *t)
{
	size_t bytes;
	if (!shape_bytes(t->shape, t->type, &bytes))
		fail("a shape is too large");
	return bytes;
}

/* Values in [-1, 1); i32 tensors count 0, 1, 2, … below `range`. */
static tensor operand(backend *b, dtype type, shape s, int32_t range)
{
	tensor t = {NULL, type, s};
	int64_t n = shape_count(s);
	t.data = device_memory(b, tensor_bytes(&t));
	uint32_t state = 12345;
	for (int64_t i = 0; i < n; i++) {
		state = state * 1664525u + 1013904223u;
		if (type == DTYPE_I32)
			((int32_t *)t.data)[i] = (int32_t)(i % range);
		else
			((float *)t.data)[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
	}
	return t;
}

static tensor reals(backend *b, shape s)
{
	return operand(b, DTYPE_F32, s, 1);
}

typedef struct timing {
	double median, best; /* ns */
} timing;

static timing time_call(backend *b, op_id id, const op_call *call)
{
	double times[MAX_REPEATS];
	int n = 0;
	double spent = 0;
	for (int warm = 0; warm < 2; warm++)
		if (b->kernel[id](b, call) != STATUS_OK)
			fail("a kernel failed");
	while (n < 5 || (n < MAX_REPEATS && spent < budget_ns)) {
		uint64_t start = clock_ns();
		b->kernel[id](b, call);
		times[n] = (double)(clock_ns() - start);
		spent += times[n++];
	}
	qsort(times, (size_t)n, sizeof *times, by_value);
	return (timing){times[n / 2], times[0]};
}

/* Run an op on `in` (released afterwards), print its line, return its median time. */
static double bench(backend *b, const char *name, op_id id, const void *params, int n_in, const tensor *in)
{
	op_call call = {.params = params, .n_in = n_in, .n_out = op_get(id)->n_out};
	size_t traffic = 0;
	int64_t largest = 1;
	for (int i = 0; i < n_in; i++) {
		call.in[i] = in[i];
		if (!in[i].data)
			continue;
		traffic += tensor_bytes(&in[i]);
		if (shape_count(in[i].shape) > largest)
			largest = shape_count(in[i].shape);
	}
	error err = ERROR_INIT;
	if (op_get(id)->check(&call, &err) != STATUS_OK)
		fail(error_message(&err));
	for (int i = 0; i < call.n_out; i++) {
		call.out[i].data = device_memory(b, tensor_bytes(&call.out[i]));
		traffic += tensor_bytes(&call.out[i]);
	}
	call.scratch = b->scratch[id] ? device_memory(b, b->scratch[id](b, &call)) : NULL;
	timing t = time_call(b, id, &call);
	printf("%-44s %10.1f us %10.1f best %8.3f ns/element %7.1f GB/s\n", name, t.median / 1e3, t.best / 1e3,
	       t.median / (double)largest, (double)traffic / t.median);
	for (int i = 0; i < call.n_out; i++)
		b->release(b, call.out[i].data);
	for (int i = 0; i < n_in; i++)
		b->release(b, call.in[i].data);
	b->release(b, call.scratch);
	return t.median;
}

static void bench_memory(backend *b)
{
	size_t bytes = (size_t)256 << 20;
	char *from = device_memory(b, bytes), *to = device_memory(b, bytes);
	double times[9];
	for (int i = 0; i < 9; i++) {
		uint64_t start = clock_ns();
		b->copy(b, to, from, bytes);
		times[i] = (double)(clock_ns() - start);
	}
	qsort(times, 9, sizeof *times, by_value);
	printf("%-44s %10.1f us %10.1f best %28.1f GB/s\n", "memcpy of 256 MB, one thread", times[4] / 1e3,
	       times[0] / 1e3, 2.0 * (double)bytes / times[4]);
	b->release(b, from);
	b->release(b, to);
	bench(b, "scale of 256 MB", OP_scale, &(scale_params){2.0f}, 1, (tensor[]){reals(b, SHAPE1(64 << 20))});
}

static void bench_attention(backend *b, int64_t batch, int64_t length, int64_t d, int64_t heads, int64_t window)
{
	attention_params p = {heads, window};
	shape s = SHAPE3(batch, length, d), per_head = SHAPE3(batch, length, heads);
	char name[64];
	snprintf(name, sizeof name, "attention d%d H%d B%d N%d k%d", (int)d, (int)heads, (int)batch, (int)length,
	         (int)window);
	bench(b, name, OP_additive_attention, &p, 2, (tensor[]){reals(b, s), reals(b, SHAPE1(d))});
	snprintf(name, sizeof name, "  its gradient");
	bench(b, name, OP_additive_attention_grad, &p, 6,
	      (tensor[]){reals(b, s), reals(b, SHAPE1(d)), {0}, reals(b, s), reals(b, per_head), reals(b, s)});
}

static void bench_rows(backend *b, int64_t rows, int64_t d)
{
	shape s = SHAPE2(rows, d), vector = SHAPE1(d), per_row = SHAPE1(rows);
	printf("rows x d = %d x %d\n", (int)rows, (int)d);
	bench(b, "add", OP_add, NULL, 2, (tensor[]){reals(b, s), reals(b, s)});
	bench(b, "gate", OP_gate, NULL, 3, (tensor[]){reals(b, s), reals(b, s), reals(b, s)});
	bench(b, "layernorm", OP_layernorm, &(layernorm_params){1e-5f}, 3,
	      (tensor[]){reals(b, s), reals(b, vector), reals(b, vector)});
	bench(b, "layernorm_grad", OP_layernorm_grad, NULL, 5,
	      (tensor[]){reals(b, s), reals(b, vector), reals(b, per_row), reals(b, per_row), reals(b, s)});
	bench(b, "gelu", OP_gelu, NULL, 1, (tensor[]){reals(b, s)});
	bench(b, "gelu_grad", OP_gelu_grad, NULL, 2, (tensor[]){reals(b, s), reals(b, s)});
	bench(b, "dropout", OP_dropout, &(dropout_params){0.1f, 3}, 2,
	      (tensor[]){reals(b, s), operand(b, DTYPE_I32, SHAPE1(4), 4)});
	bench(b, "sum_rows", OP_sum_rows, &(scale_params){1.0f}, 1, (tensor[]){reals(b, s)});
}

static void bench_ends(backend *b, int64_t rows, int64_t d, int64_t v)
{
	shape logits = SHAPE2(rows, v), index = SHAPE1(rows);
	printf("vocabulary %d\n", (int)v);
	bench(b, "gather", OP_gather, &(gather_params){-1}, 2,
	      (tensor[]){reals(b, SHAPE2(v, d)), operand(b, DTYPE_I32, index, (int32_t)v)});
	bench(b, "gather_grad", OP_gather_grad, &(gather_grad_params){v, -1}, 2,
	      (tensor[]){operand(b, DTYPE_I32, index, (int32_t)v), reals(b, SHAPE2(rows, d))});
	bench(b, "bias", OP_bias, &(scale_params){1.0f}, 2, (tensor[]){reals(b, logits), reals(b, SHAPE1(v))});
	bench(b, "cross_entropy", OP_cross_entropy, &(cross_entropy_params){0.0f}, 2,
	      (tensor[]){reals(b, logits), operand(b, DTYPE_I32, index, (int32_t)v)});
	bench(b, "cross_entropy_grad", OP_cross_entropy_grad, &(cross_entropy_params){0.0f}, 5,
	      (tensor[]){reals(b, logits), operand(b, DTYPE_I32, index, (int32_t)v), reals(b, index),
	                 reals(b, SHAPE0()), reals(b, SHAPE0())});
}

static void bench_optimizer(backend *b, int64_t n)
{
	adamw_params p = {0.9f, 0.999f, 1e-8f, 0.01f, 1.0f};
	tensor hyper = reals(b, SHAPE1(2)), v = reals(b, SHAPE1(n));
	((float *)hyper.data)[1] = 10.0f;
	for (int64_t i = 0; i < n; i++)
		((float *)v.data)[i] *= ((float *)v.data)[i];
	printf("%d parameters\n", (int)n);
	bench(b, "sum_squares", OP_sum_squares, NULL, 1, (tensor[]){reals(b, SHAPE1(n))});
	bench(b, "adamw", OP_adamw, &p, 6,
	      (tensor[]){reals(b, SHAPE1(n)), reals(b, SHAPE1(n)), reals(b, SHAPE1(n)), v, reals(b, SHAPE0()), hyper});
}

/* One token of one session at d = 128, every round at a late position. */
static double bench_decode(backend *b, int64_t window)
{
	int64_t d = 128, heads = 4;
	stream_params p = {heads, window, 0};
	shape one = SHAPE1(1);
	tensor position = operand(b, DTYPE_I32, one, 1), length = operand(b, DTYPE_I32, one, 1);
	*(int32_t *)position.data = 1000;
	*(int32_t *)length.data = 1;
	char name[64];
	snprintf(name, sizeof name, "stream d128 H4, one token, k%d", (int)window);
	return bench(b, name, OP_additive_stream, &p, 6,
	             (tensor[]){reals(b, SHAPE3(1, 1, d)), reals(b, SHAPE1(d)),
	                        reals(b, SHAPE2(1, attention_state_floats(d, heads, window) + 1)),
	                        operand(b, DTYPE_I32, one, 1), position, length});
}

static double bench_linear(backend *b, int64_t n, int64_t k)
{
	char name[64];
	snprintf(name, sizeof name, "matmul 1 x %d by [%d, %d] transposed", (int)k, (int)n, (int)k);
	return bench(b, name, OP_matmul, &(matmul_params){false, true, 1.0f}, 2,
	             (tensor[]){reals(b, SHAPE2(1, k)), reals(b, SHAPE2(n, k))});
}

static void bench_decode_step(backend *b)
{
	double ns = 0;
	printf("decode, batch 1, d 128, 6 layers, windows 4 … 64 and global, vocabulary 256\n");
	for (int64_t window = 4; window <= 64; window *= 2)
		ns += 2 * bench_decode(b, window);
	ns += 2 * bench_decode(b, 0);
	ns += 6 * (4 * bench_linear(b, 128, 128) + bench_linear(b, 512, 128) + bench_linear(b, 128, 512));
	ns += bench_linear(b, 256, 128);
	printf("%-44s %10.1f us\n", "rounds and products of one step together", ns / 1e3);
}

int main(int argc, char **argv)
{
	threads_sleep_when_idle(argv);
	backend *b;
	error err = ERROR_INIT;
	if (cpu_open(&b, argc > 1 ? atoi(argv[1]) : 0, &err) != STATUS_OK)
		fail(error_message(&err));
	printf("%s\n", b->device);
	bench_memory(b);
	for (int64_t window = 4; window <= 512; window *= 2)
		bench_attention(b, 8, 512, 128, 4, window);
	static const int64_t wide[] = {4, 64, 1024, 0};
	for (int i = 0; i < 4; i++)
		bench_attention(b, 1, 16384, 1024, 16, wide[i]);
	bench_rows(b, 4096, 128);
	bench_rows(b, 4096, 512);
	bench_rows(b, 16384, 1024);
	bench_ends(b, 4096, 128, 256);
	bench_ends(b, 4096, 128, 32000);
	bench_optimizer(b, 5 << 20);
	bench_decode_step(b);
	backend_close(b);
	return 0;
}
