/* The explained number: its kind, its outputs and their coefficients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/explain/attribution.h"

enum { OUTPUTS = 4 };

/* Logits of the probabilities p, and 0.6, 0.3 and 0.1 of 1 - p. */
static void fill(float logits[OUTPUTS], double p)
{
	static const double rest[] = {0.3, 0.6, 0.1};
	logits[0] = (float)log(p);
	for (int v = 1; v < OUTPUTS; v++)
		logits[v] = (float)log(rest[v - 1] * (1 - p));
}

static void a_nearly_certain_prediction_is_compared_with_its_strongest_rival(void **state)
{
	static const struct {
		double p;
		explain_target_kind asked, used;
	} cases[] = {{0.95, EXPLAIN_USUAL, EXPLAIN_DIFFERENCE},    {0.91, EXPLAIN_USUAL, EXPLAIN_DIFFERENCE},
	             {0.89, EXPLAIN_USUAL, EXPLAIN_CONTRAST},      {0.3, EXPLAIN_USUAL, EXPLAIN_CONTRAST},
	             {0.95, EXPLAIN_CONTRAST, EXPLAIN_CONTRAST},   {0.95, EXPLAIN_LOGIT, EXPLAIN_LOGIT},
	             {0.3, EXPLAIN_DIFFERENCE, EXPLAIN_DIFFERENCE}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		float logits[OUTPUTS], c[OUTPUTS];
		explain_parts parts = {0};
		const explain_target t = {.kind = cases[i].asked, .token = 0, .other = -1};
		fill(logits, cases[i].p);
		explain_target_choose(&t, logits, OUTPUTS, c, &parts);
		assert_int_equal(parts.kind, cases[i].used);
		assert_int_equal(parts.token, 0);
		assert_int_equal(parts.other, cases[i].used == EXPLAIN_DIFFERENCE ? 2 : -1);
		assert_true(fabs(parts.log_probability - log(cases[i].p)) < 1e-6);
		double sum = 0;
		for (int v = 0; v < OUTPUTS; v++)
			sum += (double)c[v];
		assert_true(fabs(sum - (cases[i].used == EXPLAIN_LOGIT)) < 1e-6);
		if (cases[i].used == EXPLAIN_DIFFERENCE)
			assert_true(fabs(parts.score - (double)(logits[0] - logits[2])) < 1e-6);
	}
}

static void an_unlikely_token_is_not_compared_with_a_rival(void **state)
{
	float logits[OUTPUTS], c[OUTPUTS];
	explain_parts parts = {0};
	(void)state;
	fill(logits, 0.99);
	explain_target_choose(&(explain_target){.token = 3, .other = -1}, logits, OUTPUTS, c, &parts);
	assert_int_equal(parts.kind, EXPLAIN_CONTRAST);
	assert_int_equal(parts.other, -1);
}

/* The path must integrate a polynomial of degree 2 · STEPS - 1 exactly. */
static void a_straight_path_integrates_polynomials(void **state)
{
	enum { STEPS = 5 };
	double factors[STEPS], weights[STEPS];
	(void)state;
	explain_straight_path(STEPS, factors, weights);
	for (int power = 0; power < 2 * STEPS; power++) {
		double sum = 0;
		for (int i = 0; i < STEPS; i++)
			sum += weights[i] * pow(factors[i], power);
		assert_true(fabs(sum - 1.0 / (power + 1)) < 1e-12);
	}
}

static void the_mean_baseline_has_the_direction_of_the_mean_and_the_size_of_the_vectors(void **state)
{
	static const float vectors[] = {3, 0, 1, 4, 4, 0}, opposite[] = {1, -2, -1, 2};
	float mean[2], zeros[2] = {0}, none[2] = {1, 1}, one[2];
	(void)state;
	explain_mean_baseline(vectors, 3, 2, mean);
	assert_true(fabs((double)mean[0] / (double)mean[1] - 2) < 1e-6);
	assert_true(fabs((double)mean[0] * (double)mean[0] + (double)mean[1] * (double)mean[1] - 14) < 1e-5);
	explain_mean_baseline(vectors + 4, 1, 2, one);
	assert_memory_equal(one, vectors + 4, sizeof one);
	explain_mean_baseline(opposite, 2, 2, none);
	assert_memory_equal(none, zeros, sizeof zeros);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_nearly_certain_prediction_is_compared_with_its_strongest_rival),
	    cmocka_unit_test(an_unlikely_token_is_not_compared_with_a_rival),
	    cmocka_unit_test(a_straight_path_integrates_polynomials),
	    cmocka_unit_test(the_mean_baseline_has_the_direction_of_the_mean_and_the_size_of_the_vectors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
