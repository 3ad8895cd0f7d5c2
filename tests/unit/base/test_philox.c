/* Known answers of philox4x32-10, from the authors' Random123 distribution. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/base/philox.h"

static void assert_words(philox_block b, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3)
{
	assert_int_equal(b.word[0], w0);
	assert_int_equal(b.word[1], w1);
	assert_int_equal(b.word[2], w2);
	assert_int_equal(b.word[3], w3);
}

static void it_gives_the_published_answers(void **state)
{
	(void)state;
	assert_words(philox(0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
	assert_words(philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
	             0x6d5451fd);
	/* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: digits of π */
	assert_words(philox(0x299f31d0a4093822, 0x13198a2e, 0x03707344, 0x85a308d3243f6a88), 0xd16cfe09, 0x94fdcceb,
	             0x5001e420, 0x24126ea1);
}

static void uniform_numbers_are_at_least_zero_and_below_one(void **state)
{
	(void)state;
	assert_true(philox_uniform(0) == 0);
	assert_true(philox_uniform(UINT32_MAX) == 1 - 0x1p-24f);
	assert_true(philox_uniform(0x80000000) == 0.5f);
}

static void uniform_numbers_have_the_expected_mean_and_variance(void **state)
{
	(void)state;
	enum { N = 100000 };
	double sum = 0, squares = 0;
	for (uint64_t i = 0; i < N / 4; i++) {
		philox_block b = philox(7, 1, 0, i);
		for (int j = 0; j < 4; j++) {
			double u = (double)philox_uniform(b.word[j]) - 0.5;
			sum += u;
			squares += u * u;
		}
	}
	assert_true(sum / N < 0.004 && sum / N > -0.004); /* 4 standard errors */
	assert_true(squares / N < 0.0843 && squares / N > 0.0823);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(it_gives_the_published_answers),
	    cmocka_unit_test(uniform_numbers_are_at_least_zero_and_below_one),
	    cmocka_unit_test(uniform_numbers_have_the_expected_mean_and_variance),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
