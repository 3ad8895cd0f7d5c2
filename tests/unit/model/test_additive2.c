/* Additive attention that forgets as a language model, with and without windows of softmax attention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"

enum { B = 3, N = 23, V = 37, D = 20, SLOTS = 3 };

#include "tests/unit/model/forms.h"

#define KEYS                                                                                                           \
	"\"model_type\": \"additive2\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 3, \"vocab_size\": 37,"      \
	" \"intermediate_size\": 31"
static const char *const models[] = {
    "{" KEYS "}",
    "{" KEYS ", \"forget\": \"const\", \"gate\": false}",
    "{" KEYS ", \"forget\": \"none\", \"shift\": false, \"group_norm\": false}",
    "{" KEYS ", \"window_layers\": [1], \"window\": 6, \"window_heads\": 2}",
    "{" KEYS ", \"window_layers\": [0, 2], \"window\": 4, \"window_heads\": 5, \"shift\": false, \"gate\": false}",
    "{" KEYS ", \"linear_layers\": [0, 2], \"window_heads\": 2}",
    "{" KEYS ", \"window_sizes\": [4, 1, 0]}",
    "{" KEYS ", \"window_sizes\": [0, 7, 0], \"window_heads\": 2, \"shift\": false, \"gate\": false}",
    "{" KEYS ", \"window_layers\": [1], \"linear_layers\": [0], \"window_heads\": 2, \"shift\": false}",
};
enum { MODELS = sizeof models / sizeof *models, WINDOWED = 3, LINEAR = 5, ADDITIVE };

static void chunks_of_any_size_give_the_parallel_logits(void **state)
{
	(void)state;
	static const int64_t chunks[] = {1, 5, 23};
	for (int k = 0; k < MODELS; k++) {
		model *m = fixture_model_as(&architecture_additive2, models[k], device);
		float whole[B * N * V], stepped[B * N * V];
		int32_t ids[B * N];
		random_ids(ids, B * N, 1);
		parallel_logits(m, ids, whole);
		for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
			memcpy(stepped, whole, sizeof whole);
			for (int64_t b = 0; b < B; b++) /* unwritten logits would show */
				memset(stepped + b * N * V, 0,
				       (size_t)(N / chunks[i] * chunks[i] * V) * sizeof *stepped);
			stepped_logits(m, ids, chunks[i], stepped);
			assert_true(distance(stepped, whole, B * N * V) < 1e-4f);
		}
		model_free(m);
	}
}

static void a_token_changes_its_own_and_later_outputs_alone(void **state)
{
	(void)state;
	for (int k = 0; k < MODELS; k++) {
		model *m = fixture_model_as(&architecture_additive2, models[k], device);
		float before[B * N * V], after[B * N * V];
		int32_t ids[B * N];
		random_ids(ids, B * N, 2);
		parallel_logits(m, ids, before);
		ids[11] = (ids[11] + 1) % V; /* in the first sequence only */
		parallel_logits(m, ids, after);
		assert_memory_equal(before, after, 11 * V * sizeof *before);
		assert_true(distance(before + 11 * V, after + 11 * V, V) > 1e-3f);
		assert_true(distance(before + 22 * V, after + 22 * V, V) > 1e-5f);
		assert_memory_equal(before + N * V, after + N * V, (B - 1) * N * V * sizeof *before);
		model_free(m);
	}
}

/* Sums in three numbers (m, s, rest), means, and the row before. */
static void a_state_has_one_mean_of_each_head_and_the_row_before(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_additive2, models[0], 1, device);
	const state_list *states = model_states(m);
	assert_int_equal(states->count, 6);
	for (int l = 0; l < 3; l++) {
		char name[32];
		snprintf(name, sizeof name, "layers.%d.pooled", l);
		assert_int_equal(state_list_find(states, name)->floats, D + 3 * 5);
		snprintf(name, sizeof name, "layers.%d.before", l);
		assert_int_equal(state_list_find(states, name)->floats, D);
	}
	model_free(m);
	m = fixture_created_as(&architecture_additive2, models[WINDOWED], 1, device);
	const state_spec *cache = state_list_find(model_states(m), "layers.1.cache");
	assert_int_equal(cache->kind, STATE_CACHE);
	assert_int_equal(cache->places, 6);
	model_free(m);
	m = fixture_created_as(&architecture_additive2, models[LINEAR], 1, device);
	assert_int_equal(state_list_find(model_states(m), "layers.2.sums")->floats, linear_state_floats(D, 2));
	model_free(m);
	m = fixture_created_as(&architecture_additive2, models[ADDITIVE], 1, device);
	for (int l = 0; l < 3; l++) {
		static const int64_t windows[] = {4, 1, 0};
		char name[32];
		snprintf(name, sizeof name, "layers.%d.key", l);
		assert_int_equal(state_list_find(model_states(m), name)->floats,
		                 additive_state_floats(D, 4, windows[l]));
	}
	model_free(m);
}

/* n_heads is 5, and other layers have window_heads. */
static void a_layer_is_explained_by_the_heads_of_its_own_attention(void **state)
{
	(void)state;
	static const struct {
		int model;
		int64_t heads[3];
	} cases[] = {{0, {5, 5, 5}}, {WINDOWED, {5, 2, 5}}, {LINEAR, {2, 5, 2}}, {ADDITIVE, {4, 4, 4}}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		model *m = fixture_created_as(&architecture_additive2, models[cases[i].model], 1, device);
		for (int l = 0; l < 3; l++) {
			attention_site at;
			assert_true(architecture_attention(&architecture_additive2, model_config(m),
			                                   ATTENTION_OF_TOKENS, l, &at));
			assert_int_equal(at.heads, cases[i].heads[l]);
		}
		model_free(m);
	}
}

/* Heads forget with time constants from 2 to 512 tokens, and a layer begins as the identity. */
static void a_new_model_forgets_at_geometric_rates_and_predicts_from_the_token_alone(void **state)
{
	(void)state;
	for (int k = 0; k < 2; k++) {
		model *m = fixture_created_as(&architecture_additive2, models[k], 1, device);
		float *weights = fixture_weights(m);
		for (int i = 0; i < model_tensor_count(m); i++) {
			const parameter_spec *p = model_parameter(m, i);
			const float *x = weights + model_parameter_offset(m, i);
			if (!parameter_name_ends(p->name, k ? ".theta" : ".beta"))
				continue;
			for (int h = 0; h < 5; h++) {
				const double tau = 2 * pow(256, h / 4.0), logit = (double)(k ? -x[h] : x[h]);
				assert_true(fabs(1 / (1 + exp(-logit)) - exp(-1 / tau)) < 1e-6);
			}
		}
		free(weights);
		float before[B * N * V], after[B * N * V];
		int32_t ids[B * N];
		random_ids(ids, B * N, 2);
		parallel_logits(m, ids, before);
		ids[11] = (ids[11] + 1) % V;
		parallel_logits(m, ids, after);
		assert_memory_equal(before + 12 * V, after + 12 * V, (N - 12) * V * sizeof *before);
		model_free(m);
	}
}

/* A layer has about 12 d² parameters. */
static void a_new_model_has_heads_of_8_channels_unless_heads_are_given(void **state)
{
	(void)state;
	static const struct {
		model_size size;
		int64_t heads, inner;
	} cases[] = {{{.hidden = 128}, 16, 368},
	             {{.hidden = 36}, 4, 96},
	             {{.hidden = 128, .heads = 2}, 2, 368},
	             {{.hidden = 4}, 4, 16}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		model_size size = cases[i].size;
		json_t *json = json_object();
		size.inputs = 50;
		size.dropout = -1;
		model_size_complete(&size);
		assert_true(architecture_additive2.complete(json, &size));
		assert_int_equal(json_integer_value(json_object_get(json, "n_heads")), cases[i].heads);
		assert_int_equal(json_integer_value(json_object_get(json, "intermediate_size")), cases[i].inner);
		json_decref(json);
	}
}

static void a_configuration_is_written_as_it_was_read(void **state)
{
	(void)state;
	for (int k = 0; k < MODELS; k++)
		fixture_check_written(&architecture_additive2, models[k]);
	fixture_check_written(&architecture_additive2,
	                      "{\"tau\": [1.5, 64.0], \"rotary_base\": 500.0, \"dropout\": 0.0,"
	                      " \"trained_length\": 77}");
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
	(void)state;
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"n_heads\": 7}", "n_heads"},
	    {"{\"n_heads\": 2048, \"hidden_size\": 2048}", "n_heads"},
	    {"{\"forget\": \"all\"}", "forget"},
	    {"{\"forget\": true}", "forget"},
	    {"{\"tau\": 3}", "tau"},
	    {"{\"tau\": [2]}", "tau"},
	    {"{\"tau\": [3, 2]}", "tau"},
	    {"{\"tau\": [0, 2]}", "tau"},
	    {"{\"tau\": [\"a\", \"b\"]}", "tau"},
	    {"{\"shift\": 1}", "shift"},
	    {"{\"window_layers\": 1}", "window_layers"},
	    {"{\"window_layers\": [6]}", "window_layers"},
	    {"{\"window_layers\": [-1]}", "window_layers"},
	    {"{\"window_layers\": [1.5]}", "window_layers"},
	    {"{\"window_layers\": [0], \"window\": 0}", "window"},
	    {"{\"window_layers\": [0], \"window_heads\": 3}", "window_heads"},
	    {"{\"window_layers\": [0], \"window_heads\": 128}", "window_heads"},
	    {"{\"linear_layers\": [6]}", "linear_layers"},
	    {"{\"window_layers\": [1], \"linear_layers\": [1]}", "linear_layers"},
	    {"{\"linear_layers\": [0], \"window_heads\": 3}", "window_heads"},
	    {"{\"window_sizes\": 4}", "window_sizes"},
	    {"{\"window_sizes\": [4]}", "window_sizes"},
	    {"{\"n_layer\": 1, \"window_sizes\": [-1]}", "window_sizes"},
	    {"{\"n_layer\": 1, \"window_sizes\": [\"all\"]}", "window_sizes"},
	    {"{\"n_layer\": 1, \"linear_layers\": [0], \"window_sizes\": [4]}", "window_sizes"},
	    {"{\"intermediate_size\": 0}", "intermediate_size"},
	    {"{\"n_positions\": 100}", "n_positions"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_additive2, cases[i].text, cases[i].key);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_logits),
	    cmocka_unit_test(a_token_changes_its_own_and_later_outputs_alone),
	    cmocka_unit_test(a_state_has_one_mean_of_each_head_and_the_row_before),
	    cmocka_unit_test(a_layer_is_explained_by_the_heads_of_its_own_attention),
	    cmocka_unit_test(a_new_model_forgets_at_geometric_rates_and_predicts_from_the_token_alone),
	    cmocka_unit_test(a_new_model_has_heads_of_8_channels_unless_heads_are_given),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
