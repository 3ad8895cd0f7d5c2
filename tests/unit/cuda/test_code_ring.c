/* softmax_stream with a ring of codes on the device: the bits of a ring of floats in any division into calls, and the
 * same ring as on the CPU. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/pair.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/softmax_layer.h"

enum { TOKENS = 150 };

/* Widths that are multiples of four and others, and heads that end within a float. */
static const kind kinds[] = {
    {.heads = 1, .kv_heads = 1, .key = 48, .value = 32, .window = 64},
    {.heads = 2, .kv_heads = 2, .key = 6, .value = 16, .window = 12, .masked = true},
    {.heads = 4, .kv_heads = 2, .key = 5, .value = 9, .window = 33, .masked = true},
    {.heads = 2, .kv_heads = 1, .key = 36, .value = 20, .window = 130, .masked = true},
    {.heads = 1, .kv_heads = 1, .key = 1, .value = 1, .window = 1},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* A layer that has read a text in calls of `cut` tokens. */
typedef struct reading {
	layer l;
	text t;
} reading;

static reading reading_of(backend *b, const kind *k, softmax_format format, int64_t cut)
{
	reading r = {layer_new(b, call_run, *k, format), coded_new(k, TOKENS, 1)};
	read_in_chunks(&r.l, &r.t, cut);
	return r;
}

static void reading_free(reading *r)
{
	layer_free(&r->l);
	text_free(&r->t);
}

static void a_ring_of_codes_gives_the_bits_of_a_ring_of_floats(void **state)
{
	(void)state;
	static const int64_t cuts[] = {1, 7, 64};
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		reading floats = reading_of(device, k, SOFTMAX_F32, 50);
		for (int n = 0; n < 3; n++) {
			if (is_left_out(device, i + n, 2))
				continue;
			reading codes = reading_of(device, k, SOFTMAX_CODES, cuts[n]);
			assert_true(compare_same("y", codes.t.y, floats.t.y, TOKENS * k->heads * k->value));
			assert_true(compare_same("log_normalizer", codes.t.log_normalizer, floats.t.log_normalizer,
			                         TOKENS * k->heads));
			reading_free(&codes);
		}
		reading_free(&floats);
	}
}

static void the_ring_equals_that_of_the_cpu(void **state)
{
	(void)state;
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &kinds[i];
		reading ours = reading_of(device, k, SOFTMAX_CODES, 40), theirs = reading_of(cpu, k, SOFTMAX_CODES, 40);
		assert_memory_equal(ours.l.pool.data, theirs.l.pool.data, call_bytes(&ours.l.pool));
		assert_true(compare_close("y", ours.t.y, theirs.t.y, TOKENS * k->heads * k->value, 1e-5, 1e-5));
		reading_free(&ours);
		reading_free(&theirs);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_ring_of_codes_gives_the_bits_of_a_ring_of_floats),
	    cmocka_unit_test(the_ring_equals_that_of_the_cpu),
	};
	return cmocka_run_group_tests(tests, open_pair, close_pair);
}
