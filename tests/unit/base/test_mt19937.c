/* Known numbers of MT19937; seed 1313 is the one of 3Lin's source. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "engine/base/mt19937.h"

static void words_are_those_of_the_published_generator(void **state)
{
	(void)state;
	static const struct {
		uint32_t seed;
		int place;
		uint32_t word;
	} known[] = {{1313, 0, 0xfe14a370},    {1313, 1, 0x2099d8b3},
	             {1313, 623, 0xa01d3a3c},  {1313, 624, 0xbc5ad54a},
	             {1313, 1299, 0x0e907a3f}, {5489, 9999, 4123659995}}; /* the last one is in the C++ standard */
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		mt19937 m;
		mt19937_seed(&m, known[i].seed);
		for (int k = 0; k < known[i].place; k++)
			mt19937_next(&m);
		assert_int_equal(mt19937_next(&m), known[i].word);
	}
}

static void normals_skip_pairs_outside_the_circle(void **state)
{
	(void)state;
	static const double known[] = {-0.21589751323842, 1.1283015350140713, -1.374990380886586,
	                               -0.041708133673976855};
	mt19937 m;
	mt19937_seed(&m, 1313);
	for (int i = 0; i < 64; i++) {
		const double x = mt19937_normal(&m);
		if (i < 4)
			assert_true(fabs(x - known[i]) <= 1e-15);
		if (i == 63)
			assert_true(fabs(x - 0.4290331147854346) <= 1e-15);
	}
	mt19937_seed(&m, 1313);
	assert_true(mt19937_uniform(&m) == (0xfe14a370 + 0.5) / 4294967296);
}

static void numbers_below_a_bound_have_64_bits(void **state)
{
	(void)state;
	static const uint64_t known[] = {899, 340, 22, 87};
	mt19937 m;
	mt19937_seed(&m, 1313);
	for (uint64_t i = 0; i < 64; i++) {
		const uint64_t x = mt19937_below(&m, 1000 + i);
		if (i < 4 || i == 63)
			assert_int_equal(x, i == 63 ? 745 : known[i]);
	}
	mt19937_seed(&m, 1);
	int tries = 0; /* about half of all numbers are above this bound */
	for (int i = 0; i < 64; i++) {
		const int before = m.next;
		assert_true(mt19937_below(&m, (UINT64_C(1) << 63) + 1) <= UINT64_C(1) << 63);
		tries += (m.next - before + MT19937_WORDS) % MT19937_WORDS / 2;
	}
	assert_in_range(tries, 90, 180);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(words_are_those_of_the_published_generator),
	    cmocka_unit_test(normals_skip_pairs_outside_the_circle),
	    cmocka_unit_test(numbers_below_a_bound_have_64_bits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
