/* Weighted labels: what a forward reads and outputs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"

enum { B = 3, N = 7, V = 37, SLOTS = 1, LABELS = B * N };

#include "tests/unit/model/forms.h"

static const char config[] = "{\"model_type\": \"linear\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 1,"
                             " \"vocab_size\": 37}";

typedef struct outcome {
	float loss, count, log_probabilities[LABELS];
	float *gradients;
} outcome;

/* weights: NULL: the forward takes none. */
static outcome run(const model *m, const float *weights, float smoothing)
{
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .train = {.loss = true,
	                                     .backward = true,
	                                     .log_probabilities = true,
	                                     .weighted = weights,
	                                     .smoothing = smoothing}};
	outcome o = {.gradients = calloc((size_t)model_arena_floats(m), sizeof(float))};
	plan *p = fixture_plan(m, &spec, o.gradients, NULL);
	int32_t ids[LABELS], labels[LABELS];
	random_ids(ids, LABELS, 1);
	random_ids(labels, LABELS, 2);
	labels[4] = labels[9] = -1;
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	if (weights)
		assert_int_equal(feed_write(p, PORT_LABEL_WEIGHTS, weights), STATUS_OK);
	assert_int_equal(port_find(plan_graph(p), PORT_LABEL_WEIGHTS) == VALUE_NONE, !weights);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "loss", &o.loss);
	fixture_read(p, "count", &o.count);
	fixture_read(p, "log_probabilities", o.log_probabilities);
	plan_free(p);
	return o;
}

static void the_loss_is_the_mean_of_log_probabilities_by_their_weights(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_linear, config, device);
	float weights[LABELS];
	double plain = 0, weighted = 0;
	for (int i = 0; i < LABELS; i++)
		weights[i] = (float)(i % 5) - 1.5f;
	outcome without = run(m, NULL, 0), with = run(m, weights, 0);
	assert_true(without.count == LABELS - 2 && with.count == LABELS - 2);
	assert_memory_equal(without.log_probabilities, with.log_probabilities, sizeof with.log_probabilities);
	assert_true(with.log_probabilities[4] == 0 && with.log_probabilities[9] == 0);
	for (int i = 0; i < LABELS; i++) {
		plain -= (double)with.log_probabilities[i];
		weighted -= (double)weights[i] * (double)with.log_probabilities[i];
	}
	assert_true(plain > LABELS && fabs(plain / (LABELS - 2) - (double)without.loss) < 1e-5);
	assert_true(fabs(weighted / (LABELS - 2) - (double)with.loss) < 1e-5);
	free(without.gradients), free(with.gradients);
	model_free(m);
}

static void weights_of_one_change_no_bit_and_gradients_are_linear_in_weights(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_linear, config, device);
	const int64_t floats = model_arena_floats(m);
	float ones[LABELS], first[LABELS], rest[LABELS];
	for (int i = 0; i < LABELS; i++) {
		ones[i] = 1;
		first[i] = i < 8 ? 3 : 0;
		rest[i] = 1 - first[i];
	}
	outcome plain = run(m, NULL, 0.1f), same = run(m, ones, 0.1f), a = run(m, first, 0.1f), b = run(m, rest, 0.1f);
	assert_memory_equal(&plain.loss, &same.loss, sizeof plain.loss);
	assert_memory_equal(plain.gradients, same.gradients, (size_t)floats * sizeof *plain.gradients);
	assert_true(fabsf(a.loss + b.loss - plain.loss) < 1e-5f && fabsf(a.loss - plain.loss) > 1e-2f);
	for (int64_t i = 0; i < floats; i++)
		assert_true(fabsf(a.gradients[i] + b.gradients[i] - plain.gradients[i]) < 1e-5f);
	free(plain.gradients), free(same.gradients), free(a.gradients), free(b.gradients);
	model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_loss_is_the_mean_of_log_probabilities_by_their_weights),
	    cmocka_unit_test(weights_of_one_change_no_bit_and_gradients_are_linear_in_weights),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
