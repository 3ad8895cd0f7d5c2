/* softmax_stream with a ring of codes on the device: the bits of a ring of floats however tokens are cut into calls,
 * and the ring that the CPU leaves. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops/quantize.h"
#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"

enum { TOKENS = 150, OFFSET = 4, MOST = 128 };

static backend *device, *cpu;

static int open_both(void **state)
{
	(void)state;
	device = open_device();
	return cpu_reference_open(&cpu, 0, NULL) != STATUS_OK;
}

static int close_both(void **state)
{
	(void)state;
	backend_close(device);
	backend_close(cpu);
	return 0;
}

typedef struct form {
	int64_t heads, groups, key, value, window;
	bool masked;
} form;

/* Widths in fours and others, heads that end within a float. */
static const form forms[] = {
    {1, 1, 48, 32, 64, false}, {2, 2, 6, 16, 12, true}, {4, 2, 5, 9, 33, true},
    {2, 1, 36, 20, 130, true}, {1, 1, 1, 1, 1, false},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* Keys with a step for each token, values of the fixed one. */
typedef struct content {
	tensor q, k, v, step, mask;
} content;

static content content_of(const form *f)
{
	content c = {call_normal(SHAPE3(1, TOKENS, f->heads * f->key), 1, 1),
	             call_normal(SHAPE3(1, TOKENS, f->groups * f->key), 2, 2),
	             call_normal(SHAPE3(1, TOKENS, f->groups * f->value), 3, 3), call_tensor(DTYPE_F32, SHAPE1(TOKENS)),
	             call_tensor(DTYPE_I32, SHAPE2(1, TOKENS))};
	float *k = c.k.data, *v = c.v.data, *step = c.step.data;
	const int64_t width = f->groups * f->key;
	for (int64_t t = 0; t < TOKENS; t++) {
		step[t] = quantize_tensor_step(k + t * width, width);
		for (int64_t d = 0; d < width; d++)
			k[t * width + d] = quantize_value(k[t * width + d], step[t], 8);
		((int32_t *)c.mask.data)[t] = !f->masked || t % 5 != 2;
	}
	for (int64_t i = 0; i < shape_count(c.v.shape); i++)
		v[i] = quantize_value(v[i], QUANTIZE_FIXED_STEP, 8);
	return c;
}

static void content_free(content *c)
{
	tensor *all[] = {&c->q, &c->k, &c->v, &c->step, &c->mask};
	for (int i = 0; i < 5; i++)
		buffer_free(all[i]->data);
}

/* Tokens first … first + n - 1 of a tensor of TOKENS rows. */
static tensor some(const tensor *t, shape s, int64_t first)
{
	tensor part = call_tensor(t->type, s);
	const size_t row = call_bytes(t) / TOKENS;
	memcpy(part.data, (const char *)t->data + (size_t)first * row, call_bytes(&part));
	return part;
}

/* Read all tokens, `cut` of them in a call; pool: of one slot. */
static void read_all(backend *b, const form *f, const content *c, bool codes, int64_t cut, tensor *pool, float *y)
{
	const softmax_stream_params p = {.heads = f->heads,
	                                 .window = f->window,
	                                 .offset = OFFSET,
	                                 .scale = 0.3f,
	                                 .kv_heads = f->groups,
	                                 .value_step = codes ? QUANTIZE_FIXED_STEP : 0};
	const int64_t keys = f->groups * f->key, values = f->groups * f->value, width = f->heads * f->value;
	const int64_t state =
	    codes ? softmax_code_state_floats(keys, values, f->window) : softmax_state_floats(keys, values, f->window);
	*pool = call_tensor(DTYPE_F32, SHAPE2(1, (OFFSET + state + 3) / 4 * 4));
	for (int64_t at = 0, n; at < TOKENS; at += n) {
		n = cut < TOKENS - at ? cut : TOKENS - at;
		op_call call = {.params = &p, .n_in = 13};
		call.in[0] = some(&c->q, SHAPE3(1, n, f->heads * f->key), at);
		call.in[1] = some(&c->k, SHAPE3(1, n, keys), at);
		call.in[2] = some(&c->v, SHAPE3(1, n, values), at);
		call.in[3] = *pool;
		call.in[4] = call_integers(SHAPE1(1), &(int32_t){0});
		call.in[5] = call_integers(SHAPE1(1), &(int32_t){(int32_t)at});
		call.in[6] = call_integers(SHAPE1(1), &(int32_t){(int32_t)n});
		call.in[7] = some(&c->mask, SHAPE2(1, n), at);
		if (codes)
			call.in[12] = some(&c->step, SHAPE1(n), at);
		call_run(b, OP_softmax_stream, &call);
		memcpy(y + at * width, call.out[0].data, (size_t)(n * width) * sizeof *y);
		call_free_outputs(&call);
		for (int i = 0; i < 13; i++)
			if (i != 3)
				buffer_free(call.in[i].data);
	}
}

static void a_ring_of_codes_gives_the_bits_of_a_ring_of_floats(void **state)
{
	(void)state;
	static const int64_t cuts[] = {1, 7, 64};
	static float floats[TOKENS * MOST], codes[TOKENS * MOST];
	for (int i = 0; i < FORMS; i++) {
		const form *f = &forms[i];
		content c = content_of(f);
		tensor pool;
		read_all(device, f, &c, false, 50, &pool, floats);
		buffer_free(pool.data);
		for (int n = 0; n < 3; n++) {
			if (is_left_out(device, i + n, 2))
				continue;
			read_all(device, f, &c, true, cuts[n], &pool, codes);
			assert_true(compare_same("y", codes, floats, TOKENS * f->heads * f->value));
			buffer_free(pool.data);
		}
		content_free(&c);
	}
}

static void the_ring_is_that_of_the_cpu(void **state)
{
	(void)state;
	static float ours[TOKENS * MOST], theirs[TOKENS * MOST];
	for (int i = 0; i < FORMS; i++) {
		const form *f = &forms[i];
		content c = content_of(f);
		tensor mine, other;
		read_all(device, f, &c, true, 40, &mine, ours);
		read_all(cpu, f, &c, true, 40, &other, theirs);
		assert_memory_equal(mine.data, other.data, call_bytes(&mine));
		assert_true(compare_close("y", ours, theirs, TOKENS * f->heads * f->value, 1e-5, 1e-5));
		buffer_free(mine.data);
		buffer_free(other.data);
		content_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_ring_of_codes_gives_the_bits_of_a_ring_of_floats),
	    cmocka_unit_test(the_ring_is_that_of_the_cpu),
	};
	return cmocka_run_group_tests(tests, open_both, close_both);
}
