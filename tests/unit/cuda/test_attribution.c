/* Attributions of scores to tokens on the CUDA backend, compared with the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/cuda/device.h"
#include "tests/unit/model/parts.h"

static void assert_near(const char *name, const float *found, const float *expected, int n)
{
	for (int i = 0; i < n; i++)
		if (!(fabsf(found[i] - expected[i]) < 1e-4f))
			fail_msg("%s, number %d: %g, must be %g", name, i, (double)found[i], (double)expected[i]);
}

static void parts_equal_those_of_the_cpu(void **state)
{
	(void)state;
	find_plain_plugin();
	backend *device = open_device(), *cpu = fixture_backend();
	for (int k = 0; k < KINDS; k++) {
		const char *name = kinds[k].architecture->name;
		model *a = fixture_model_as(kinds[k].architecture, kinds[k].config, device);
		model *b = fixture_model_as(kinds[k].architecture, kinds[k].config, cpu);
		for (attribution way = ATTRIBUTION_FROZEN; way <= ATTRIBUTION_GRADIENT; way++) {
			static parts found, expected;
			attribute(a, way, 0.25f, 1, false, false, &found);
			attribute(b, way, 0.25f, 1, false, false, &expected);
			assert_near(name, found.words, expected.words, MOST);
			assert_near(name, found.positions, expected.positions, MOST);
			assert_near(name, found.biases, expected.biases, MOST);
			assert_near(name, found.head, expected.head, B);
			assert_near(name, found.attention, expected.attention, MOST);
		}
		model_free(a);
		model_free(b);
	}
	backend_close(device);
	backend_close(cpu);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(parts_equal_those_of_the_cpu)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
