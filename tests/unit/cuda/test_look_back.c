/* Rounds of additive attention look back at what other blocks have published. So their bits are compared over many runs
 * beside a second stream, whose kernels take processors at other moments each time. On a GPU: two sequences of 262,144
 * tokens of 1,024 channels, 500 runs; an emulated device takes less of everything. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pthread.h>

#include "engine/tensor/ops.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/cuda/tensors.h"

typedef struct sizes {
	int64_t batch, length, d, heads, words; /* words: different rows of x */
	int runs;
} sizes;

static backend *device;

static int open_one(void **state)
{
	(void)state;
	device = open_device();
	return 0;
}

static int close_one(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

static sizes sizes_here(void)
{
	return device_is_emulated(device) ? (sizes){2, 700, 64, 2, 50, 3} : (sizes){2, 262144, 1024, 16, 4096, 500};
}

static void drop(backend *b, tensor t)
{
	b->release(b, t.data);
}

/* x [B, N, D] in bf16 without that many numbers of the host's: rows of a table. */
static tensor rows_of(backend *b, const sizes *s)
{
	const gather_params p = {-1};
	op_call call = {.params = &p, .n_in = 2, .n_out = 1};
	call.in[0] = tensors_normal(b, DTYPE_BF16, SHAPE2(s->words, s->d), 1);
	call.in[1] = tensors_integers(b, SHAPE2(s->batch, s->length), 2, 0, (int32_t)s->words - 1);
	call.out[0] = tensors_empty(b, DTYPE_BF16, SHAPE3(s->batch, s->length, s->d));
	tensors_run(b, OP_gather, &call);
	drop(b, call.in[0]);
	drop(b, call.in[1]);
	return call.out[0];
}

typedef struct round_run {
	additive_attention_params params;
	op_call call;
} round_run;

static void round_open(round_run *r, backend *b, const sizes *s, tensor x, int64_t window)
{
	r->params = (additive_attention_params){.heads = s->heads, .window = window};
	r->call = (op_call){.params = &r->params, .n_in = 2, .n_out = 3};
	r->call.in[0] = x;
	r->call.in[1] = tensors_normal(b, DTYPE_F32, SHAPE1(s->d), 3);
	r->call.out[0] = tensors_empty(b, DTYPE_BF16, x.shape);
	r->call.out[1] = tensors_empty(b, DTYPE_F32, SHAPE3(s->batch, s->length, s->heads));
	r->call.out[2] = tensors_empty(b, DTYPE_F32, SHAPE3(s->batch, s->length, s->heads));
}

static void round_close(round_run *r, backend *b)
{
	drop(b, r->call.in[1]);
	for (int i = 0; i < 3; i++)
		drop(b, r->call.out[i]);
}

/* Σ (x - y)², on the device: 0 where all bits are equal, or signs of zeros alone differ. */
static float squared_distance(backend *b, tensor minus_x, tensor y, tensor difference, tensor wide)
{
	op_call add = {.n_in = 2, .n_out = 1, .in = {minus_x, y}, .out = {difference}};
	const cast_params as = {DTYPE_F32};
	op_call cast = {.params = &as, .n_in = 1, .n_out = 1, .in = {difference}, .out = {wide}};
	op_call squares = {.n_in = 1, .n_out = 1, .in = {wide}, .out = {tensors_empty(b, DTYPE_F32, SHAPE0())}};
	tensors_run(b, OP_add, &add);
	tensors_run(b, OP_cast, &cast);
	tensors_run(b, OP_sum_squares, &squares);
	float *sum = tensors_get(b, squares.out[0]), found = *sum;
	free(sum);
	drop(b, squares.out[0]);
	return found;
}

/* --- the other stream --------------------------------------------------------------------------- */

typedef struct beside {
	backend *b;
	sizes s;
	bool stop;
} beside;

static void *work_beside(void *context)
{
	beside *w = context;
	round_run r;
	tensor x = rows_of(w->b, &w->s);
	round_open(&r, w->b, &w->s, x, 0);
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE))
		tensors_run(w->b, OP_additive_attention, &r.call);
	round_close(&r, w->b);
	drop(w->b, x);
	return NULL;
}

static void compare_runs(const sizes *s, int64_t window)
{
	round_run r;
	tensor x = rows_of(device, s);
	round_open(&r, device, s, x, window);
	tensor minus = tensors_empty(device, DTYPE_BF16, x.shape),
	       difference = tensors_empty(device, DTYPE_BF16, x.shape),
	       wide = tensors_empty(device, DTYPE_F32, x.shape);
	const scale_params negative = {-1};
	op_call negate = {.params = &negative, .n_in = 1, .n_out = 1, .in = {r.call.out[0]}, .out = {minus}};
	int differing = 0;
	tensors_run(device, OP_additive_attention, &r.call);
	tensors_run(device, OP_scale, &negate);
	assert_true(squared_distance(device, minus, x, difference, wide) > 0); /* it can tell */
	for (int i = 0; i < s->runs; i++) {
		tensors_run(device, OP_additive_attention, &r.call);
		differing += !(squared_distance(device, minus, r.call.out[0], difference, wide) == 0);
	}
	assert_int_equal(differing, 0);
	drop(device, minus);
	drop(device, difference);
	drop(device, wide);
	round_close(&r, device);
	drop(device, x);
}

static void rounds_beside_other_work_have_the_same_bits(void **state)
{
	(void)state;
	const sizes s = sizes_here();
	const backend_options background = {.background = true};
	beside w = {.b = open_device_as(&background), .s = s};
	w.s.batch = 1;
	w.s.length = s.length / 7;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, work_beside, &w), 0);
	compare_runs(&s, 0);
	compare_runs(&(sizes){s.batch, s.length, s.d, s.heads, s.words, s.runs / 10 + 1}, 256);
	__atomic_store_n(&w.stop, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	backend_close(w.b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rounds_beside_other_work_have_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_one, close_one);
}
