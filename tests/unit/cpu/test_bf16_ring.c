/* softmax_stream with a ring of bf16, on every instruction set: the bits of a ring of floats for rounded keys and
 * values. Also the content of the ring. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/tensor/ops/softmax_stream.h"
#include "tests/unit/cpu/streams.h"

enum { TOKENS = 230 };

/* Odd numbers of channels, whose rows end within a float, memories and one tensor for all. */
static const kind kinds[] = {
    {.heads = 1, .kv_heads = 1, .key = 48, .value = 32, .window = 130, .biased = true},
    {.heads = 2, .kv_heads = 2, .key = 16, .value = 16, .window = 12, .masked = true, .together = true},
    {.heads = 4, .kv_heads = 2, .key = 5, .value = 9, .window = 40, .masked = true},
    {.heads = 3, .kv_heads = 1, .key = 33, .value = 21, .window = 1},
    {.heads = 2, .kv_heads = 2, .key = 64, .value = 48, .window = 301, .memories = 3, .past = 70, .masked = true},
    {.heads = 1, .kv_heads = 1, .key = 1, .value = 1, .window = 7, .memories = 70, .stored = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* A text whose masked tokens have keys and values of NaN, and which has infinite and tiny values. */
static text text_of(const kind *k, uint64_t seed)
{
	text t = text_new(k, TOKENS, seed);
	for (int64_t i = 0; i < TOKENS; i++) {
		for (int64_t d = 0; d < key_width(k) && !t.mask[i]; d++)
			t.k[i * key_width(k) + d] = NAN;
		for (int64_t d = 0; d < value_width(k) && !t.mask[i]; d++)
			t.v[i * value_width(k) + d] = NAN;
	}
	t.v[3 * value_width(k)] = 1e-40f;
	t.v[TOKENS * value_width(k) - 1] = 3.4e38f; /* rounds to infinity */
	return t;
}

/* --- results ----------------------------------------------------------------------------------------------------- */

static void check_bits(backend *b)
{
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		layer floats = layer_new(b, fixture_run, *k, SOFTMAX_F32),
		      half = layer_new(b, fixture_run, *k, SOFTMAX_BF16);
		text x = text_of(k, 11), y = text_of(k, 11);
		text_round(k, &x);
		read_both(&floats, &x, &half, &y, 5 + (uint64_t)i);
		assert_true(compare_same("y", y.y, x.y, TOKENS * k->heads * k->value));
		assert_true(compare_same("log_normalizer", y.log_normalizer, x.log_normalizer, TOKENS * k->heads));
		text_free(&x);
		text_free(&y);
		layer_free(&floats);
		layer_free(&half);
	}
}

static void results_have_the_bits_of_a_ring_of_floats_for_rounded_tokens_on_every_instruction_set(void **state)
{
	(void)state;
	check_bits(reference);
	on_every_isa(check_bits);
}

/* A token alone attends to itself, so y is its own value. */
static void the_value_of_the_query_s_own_token_is_rounded_too(void **state)
{
	(void)state;
	const kind k = {.heads = 1, .kv_heads = 1, .key = 3, .value = 5, .window = 4};
	for (int i = 0; i < 2; i++) {
		layer l = layer_new(i ? fast : reference, fixture_run, k, SOFTMAX_BF16);
		text t = text_new(&k, 1, 17);
		read_one(&l, &t, 1);
		for (int64_t d = 0; d < k.value; d++) {
			assert_true(t.v[d] != panel_f32(panel_bf16(t.v[d])));
			assert_true(t.y[d] == panel_f32(panel_bf16(t.v[d])));
		}
		text_free(&t);
		layer_free(&l);
	}
}

/* --- content of the ring ---------------------------------------------------------------------------------------- */

static void check_row(const void *row, const float *x, int64_t width)
{
	const char *at = row;
	for (int64_t d = 0; d < (width + 1) / 2 * 2; d++) {
		uint16_t got;
		memcpy(&got, at + (size_t)d * sizeof got, sizeof got);
		assert_int_equal(got, d < width ? panel_bf16(x[d]) : 0);
	}
}

/* Check that the last tokens of the text are in their places, and that the margins are unchanged. */
static void check_ring(const layer *l, const text *c)
{
	const kind *k = &l->k;
	const int64_t keys = key_width(k), values = value_width(k), n = c->n;
	const softmax_store ring = softmax_store_of(keys, values, k->window, SOFTMAX_BF16);
	const float *pool = l->pool.data, *state = pool + l->pool.shape.dim[1] + MARGIN;
	for (int64_t t = n > k->window ? n - k->window : 0; t < n; t++) {
		const int64_t place = t % k->window;
		assert_true(state[softmax_there(ring, place)] == (c->mask[t] ? 1 : 0));
		check_row(state + softmax_key(ring, place), c->k + t * keys, keys);
		check_row(state + softmax_value(ring, place), c->v + t * values, values);
	}
	for (int64_t i = 0; i < MARGIN; i++) {
		assert_true(isnan(state[-1 - i]));
		assert_true(k->stored || isnan(state[softmax_ring_floats(ring) + i]));
	}
}

static void the_ring_holds_bf16_in_half_of_the_bytes_however_the_text_is_cut(void **state)
{
	(void)state;
	static const int64_t cuts[] = {1, 3, 70, TOKENS};
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		layer first = layer_new(reference, fixture_run, *k, SOFTMAX_BF16);
		text whole = text_of(k, 21);
		read_in_chunks(&first, &whole, 50);
		check_ring(&first, &whole);
		for (int n = 0; n < 4; n++) {
			layer l = layer_new(fast, fixture_run, *k, SOFTMAX_BF16);
			text c = text_of(k, 21);
			read_in_chunks(&l, &c, cuts[n]);
			assert_memory_equal(l.pool.data, first.pool.data,
			                    (size_t)shape_count(l.pool.shape) * sizeof(float));
			text_free(&c);
			layer_free(&l);
		}
		text_free(&whole);
		layer_free(&first);
	}
	assert_int_equal(softmax_bf16_state_floats(48, 32, 2048), 2048 * (24 + 16 + 1));
	assert_int_equal(softmax_bf16_state_floats(5, 3, 7), 7 * (3 + 2 + 1));
}

/* --- checks ------------------------------------------------------------------------------------------------------ */

static void arguments_that_do_not_fit_are_refused_by_name(void **state)
{
	(void)state;
	enum { H = 2, KEY = 6, VALUE = 5, WINDOW = 6, STATE = (6 + 5 + 1) * WINDOW };
	softmax_stream_params p = {.heads = H, .window = WINDOW, .scale = 1, .bf16 = true};
	tensor in[13] = {
	    FLOATS(SHAPE3(1, 2, H * KEY)), FLOATS(SHAPE3(1, 2, H * KEY)), FLOATS(SHAPE3(1, 2, H * VALUE)),
	    FLOATS(SHAPE2(3, STATE)),      INTEGERS(SHAPE1(1)),           INTEGERS(SHAPE1(1)),
	    INTEGERS(SHAPE1(1)),
	};
	assert_string_equal(refused(OP_softmax_stream, &p, 13, in), "");
	in[3] = (tensor)FLOATS(SHAPE2(3, STATE - 1));
	assert_string_equal(refused(OP_softmax_stream, &p, 13, in), "pool");
	in[3] = (tensor)FLOATS(SHAPE2(3, STATE));
	in[12] = (tensor)FLOATS(SHAPE1(2));
	p.value_step = 0.5f;
	assert_string_equal(refused(OP_softmax_stream, &p, 13, in), "bf16");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(results_have_the_bits_of_a_ring_of_floats_for_rounded_tokens_on_every_instruction_set),
	    cmocka_unit_test(the_value_of_the_query_s_own_token_is_rounded_too),
	    cmocka_unit_test(the_ring_holds_bf16_in_half_of_the_bytes_however_the_text_is_cut),
	    cmocka_unit_test(arguments_that_do_not_fit_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
