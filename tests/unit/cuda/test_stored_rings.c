/* softmax_stream with a ring of bf16 or of codes on the device, in any division into calls. It has the bits of a ring of
 * floats, for bf16 those of rounded keys and values, and the same ring as on the CPU. test_long_runs.c has prompts. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/pair.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/softmax_layer.h"

enum { TOKENS = 150, KINDS = 5 };

typedef struct stored {
	softmax_format format;
	text (*text)(const kind *k, int64_t n, uint64_t seed); /* one that the format holds */
	kind kinds[KINDS];
} stored;

static text round_new(const kind *k, int64_t n, uint64_t seed)
{
	text t = text_new(k, n, seed);
	text_round(k, &t);
	return t;
}

/* Widths that are multiples of four and others, rows and heads that end within a float, and memories, which are not
 * rounded. */
static const stored bf16 = {
    SOFTMAX_BF16,
    text_new,
    {
        {.heads = 1, .kv_heads = 1, .key = 48, .value = 32, .window = 64},
        {.heads = 2, .kv_heads = 2, .key = 16, .value = 16, .window = 12, .masked = true, .together = true},
        {.heads = 3, .kv_heads = 3, .key = 5, .value = 9, .window = 33, .memories = 5, .stored = true, .masked = true},
        {.heads = 2, .kv_heads = 1, .key = 36, .value = 20, .window = 130, .memories = 70, .masked = true},
        {.heads = 1, .kv_heads = 1, .key = 1, .value = 1, .window = 1},
    }};
static const stored codes = {SOFTMAX_CODES,
                             coded_new,
                             {
                                 {.heads = 1, .kv_heads = 1, .key = 48, .value = 32, .window = 64},
                                 {.heads = 2, .kv_heads = 2, .key = 6, .value = 16, .window = 12, .masked = true},
                                 {.heads = 4, .kv_heads = 2, .key = 5, .value = 9, .window = 33, .masked = true},
                                 {.heads = 2, .kv_heads = 1, .key = 36, .value = 20, .window = 130, .masked = true},
                                 {.heads = 1, .kv_heads = 1, .key = 1, .value = 1, .window = 1},
                             }};

/* A layer that has read a text in calls of `cut` tokens. */
typedef struct reading {
	layer l;
	text t;
} reading;

static reading reading_of(backend *b, const kind *k, softmax_format format, text t, int64_t cut)
{
	reading r = {layer_new(b, call_run, *k, format), t};
	read_in_chunks(&r.l, &r.t, cut);
	return r;
}

static void reading_free(reading *r)
{
	layer_free(&r->l);
	text_free(&r->t);
}

static void check_bits(const stored *s)
{
	static const int64_t cuts[] = {1, 7, 64};
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &s->kinds[i];
		text exact = s->format == SOFTMAX_BF16 ? round_new(k, TOKENS, 1) : s->text(k, TOKENS, 1);
		reading floats = reading_of(device, k, SOFTMAX_F32, exact, 50);
		for (int n = 0; n < 3; n++) {
			if (is_left_out(device, i + n, 2))
				continue;
			reading got = reading_of(device, k, s->format, s->text(k, TOKENS, 1), cuts[n]);
			assert_true(compare_same("y", got.t.y, floats.t.y, TOKENS * k->heads * k->value));
			assert_true(compare_same("log_normalizer", got.t.log_normalizer, floats.t.log_normalizer,
			                         TOKENS * k->heads));
			reading_free(&got);
		}
		reading_free(&floats);
	}
}

static void check_ring(const stored *s)
{
	for (int i = 0; i < KINDS; i++) {
		const kind *k = &s->kinds[i];
		reading ours = reading_of(device, k, s->format, s->text(k, TOKENS, 1), 40),
		        theirs = reading_of(cpu, k, s->format, s->text(k, TOKENS, 1), 40);
		assert_memory_equal(ours.l.pool.data, theirs.l.pool.data, call_bytes(&ours.l.pool));
		assert_true(compare_close("y", ours.t.y, theirs.t.y, TOKENS * k->heads * k->value, 1e-5, 1e-5));
		reading_free(&ours);
		reading_free(&theirs);
	}
}

static void a_ring_of_bf16_gives_the_bits_of_a_ring_of_floats_for_rounded_tokens(void **state)
{
	(void)state;
	check_bits(&bf16);
}

static void a_ring_of_codes_gives_the_bits_of_a_ring_of_floats(void **state)
{
	(void)state;
	check_bits(&codes);
}

static void the_ring_of_bf16_equals_that_of_the_cpu(void **state)
{
	(void)state;
	check_ring(&bf16);
}

static void the_ring_of_codes_equals_that_of_the_cpu(void **state)
{
	(void)state;
	check_ring(&codes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_ring_of_bf16_gives_the_bits_of_a_ring_of_floats_for_rounded_tokens),
	    cmocka_unit_test(a_ring_of_codes_gives_the_bits_of_a_ring_of_floats),
	    cmocka_unit_test(the_ring_of_bf16_equals_that_of_the_cpu),
	    cmocka_unit_test(the_ring_of_codes_equals_that_of_the_cpu),
	};
	return cmocka_run_group_tests(tests, open_pair, close_pair);
}
