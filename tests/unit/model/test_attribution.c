/* Attributions of a score to its tokens: parts that sum to it, and gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "tests/unit/model/parts.h"
#include "tests/unit/model/device.h"
#include "tests/unit/support/folder.h"

enum { WIDTH = 64 }; /* maximum channels of a word vector */

static double score_of(const parts *p, int b)
{
	double score = 0;
	for (int v = 0; v < V; v++)
		score += (double)p->coefficients[b * V + v] * (double)p->logits[b * V + v];
	return score;
}

static double sum_of(const parts *p, int b)
{
	double sum = (double)p->head[b];
	for (int i = b * N; i < (b + 1) * N; i++)
		sum += (double)p->words[i] + (double)p->positions[i] + (double)p->biases[i];
	return sum;
}

static void check_sums(const model *m, const char *name)
{
	static const float shares[] = {0, 0.25f, 0.5f, 1};
	for (int i = 0; i < 4; i++) {
		parts p;
		attribute(m, ATTRIBUTION_FROZEN, shares[i], 1, false, false, &p);
		for (int b = 0; b < B; b++)
			if (!(fabs(sum_of(&p, b) - score_of(&p, b)) < 1e-4))
				fail_msg("%s, share %g: %.7g, must be %.7g", name, (double)shares[i], sum_of(&p, b),
				         score_of(&p, b));
	}
}

static void parts_sum_to_the_score(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		model *m = fixture_model_as(kinds[k].architecture, kinds[k].config, device);
		check_sums(m, kinds[k].architecture->name);
		model_free(m);
	}
}

static void tokens_that_cannot_be_read_have_no_part(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		model *m = fixture_model_as(kinds[k].architecture, kinds[k].config, device);
		parts p;
		attribute(m, ATTRIBUTION_FROZEN, 0.5f, 1, false, false, &p);
		for (int i = MOST - 4; i < MOST; i++)
			assert_true(p.words[i] == 0 && p.positions[i] == 0 && p.biases[i] == 0);
		for (int i = 0; i < MOST - 4; i++)
			assert_true(isfinite(p.words[i]));
		model_free(m);
	}
}

static void recomputed_activations_give_the_same_parts(void **state)
{
	(void)state;
	model *m = fixture_model(SMALL_CONFIG, device);
	parts kept, again;
	attribute(m, ATTRIBUTION_FROZEN, 0.5f, 1, false, false, &kept);
	attribute(m, ATTRIBUTION_FROZEN, 0.5f, 1, true, false, &again);
	assert_memory_equal(&kept, &again, sizeof kept);
	model_free(m);
}

/* A library may add in another order for products with fewer rows. */
static void rows_of_nodes_can_be_computed_separately(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		model *m = fixture_model_as(kinds[k].architecture, kinds[k].config, device);
		for (attribution way = ATTRIBUTION_FROZEN; way <= ATTRIBUTION_GRADIENT; way++) {
			parts whole, apart;
			attribute(m, way, 0.25f, 1, false, false, &whole);
			attribute(m, way, 0.25f, 1, false, true, &apart);
			for (int i = 0; i < B * V; i++)
				assert_true(fabsf(apart.logits[i] - whole.logits[i]) < 1e-5f);
			for (int i = 0; i < MOST; i++) {
				assert_true(fabsf(apart.words[i] - whole.words[i]) < 1e-5f);
				assert_true(fabsf(apart.biases[i] - whole.biases[i]) < 1e-5f);
				assert_true(fabsf(apart.attention[i] - whole.attention[i]) < 1e-5f);
			}
		}
		model_free(m);
	}
}

/* Weights are packed as for serving. The parts are those of the numbers that the panels hold; with int8 up to the
 * rounding of activations. */
static void packed_weights_have_parts_too(void **state)
{
	(void)state;
	static const struct {
		dtype type;
		double tolerance;
	} types[] = {{DTYPE_PANEL_F32, 1e-4}, {DTYPE_PANEL_BF16, 1e-4}, {DTYPE_PANEL_INT8, 0.3}};
	model *plain = fixture_model(SMALL_CONFIG, device);
	char folder[FOLDER_BYTES];
	folder_new(folder);
	assert_int_equal(model_save(plain, folder, NULL), STATUS_OK);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		model *m;
		parts p;
		assert_int_equal(model_open(&m, folder, types[i].type, device, NULL), STATUS_OK);
		attribute(m, ATTRIBUTION_FROZEN, 0.5f, 1, false, false, &p);
		for (int b = 0; b < B; b++)
			assert_true(fabs(sum_of(&p, b) - score_of(&p, b)) < types[i].tolerance);
		model_free(m);
	}
	model_free(plain);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* Read the word vector of the first token. */
static void read_first_word(plan *p, float *out)
{
	float *words = calloc(MOST * WIDTH, sizeof *words);
	assert_non_null(words);
	assert_true(port_width(plan_graph(p), PORT_WORDS) <= WIDTH);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "words", words);
	memcpy(out, words, (size_t)port_width(plan_graph(p), PORT_WORDS) * sizeof *out);
	free(words);
}

/* On the line from a baseline to the model's word vectors, the mean of the parts is the difference of the logits. From
 * zero the norms put nearly all of it near the beginning, so factors are eighth powers. A network that ignores the
 * length of the vectors starts at a vector instead. */
static void gradients_integrate_to_the_difference_of_the_logits(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		const int steps = 256;
		model *m = fixture_model_as(kinds[k].architecture, kinds[k].config, device);
		const bool straight = model_dimensions(m)->scale_free;
		float baseline[WIDTH] = {0};
		/* Explain the logit itself: the coefficients must be equal in all steps. */
		double sum = 0, ends[2];
		for (int i = 0; i <= steps + 1; i++) {
			const forward_spec spec = {.batch = B,
			                           .length = N,
			                           .masked = true,
			                           .out.logits = LOGITS_LAST,
			                           .explain.attribution = ATTRIBUTION_GRADIENT};
			plan *p = fixture_plan(m, &spec, NULL, NULL);
			const float at = ((float)i + 0.5f) / steps;
			const double weight = (straight ? 1 : 8 * pow((double)at, 7)) / steps;
			float factor = i >= steps ? (float)(i - steps) : straight ? at : powf(at, 8);
			float logits[B * V], words[MOST], one[B * V] = {[5] = 1};
			feed(p, m);
			fixture_write(p, "factor", &factor);
			fixture_write(p, "coefficients", one);
			if (straight && i == 0)
				read_first_word(p, baseline);
			assert_int_equal(feed_baseline(p, baseline), STATUS_OK);
			assert_int_equal(plan_run(p), STATUS_OK);
			fixture_read(p, "logits", logits);
			fixture_read(p, "parts.words", words);
			for (int j = 0; j < N && i < steps; j++)
				sum += weight * (double)words[j];
			if (i >= steps)
				ends[i - steps] = (double)logits[5];
			plan_free(p);
		}
		if (!(fabs(sum - (ends[1] - ends[0])) < 0.01 * (fabs(ends[1] - ends[0]) + 0.1)))
			fail_msg("%s: %g, must be %g", kinds[k].architecture->name, sum, ends[1] - ends[0]);
		model_free(m);
	}
}

static void a_model_without_a_row_of_logits_is_refused(void **state)
{
	(void)state;
	static const forward_spec wrong[] = {
	    {.batch = 1, .length = N, .explain.attribution = ATTRIBUTION_FROZEN},
	    {.batch = 1, .length = N, .explain.attribution = ATTRIBUTION_FROZEN, .out.logits = LOGITS_ALL},
	    {.batch = 1,
	     .length = N,
	     .explain.attribution = ATTRIBUTION_FROZEN,
	     .out.logits = LOGITS_LAST,
	     .out.maxima = true},
	    {.phase = PHASE_STEP,
	     .batch = 1,
	     .length = N,
	     .slots = 1,
	     .explain.attribution = ATTRIBUTION_FROZEN,
	     .out.logits = LOGITS_LAST},
	};
	model *m = fixture_model(SMALL_CONFIG, device);
	float pool[1];
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		plan *p;
		assert_int_equal(model_plan(&p, m, &wrong[i], NULL, pool, NULL), STATUS_INVALID);
	}
	model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(parts_sum_to_the_score),
	    cmocka_unit_test(tokens_that_cannot_be_read_have_no_part),
	    cmocka_unit_test(recomputed_activations_give_the_same_parts),
	    cmocka_unit_test(rows_of_nodes_can_be_computed_separately),
	    cmocka_unit_test(packed_weights_have_parts_too),
	    cmocka_unit_test(gradients_integrate_to_the_difference_of_the_logits),
	    cmocka_unit_test(a_model_without_a_row_of_logits_is_refused),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
