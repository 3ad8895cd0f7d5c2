/* RWKV-4 as a language model: its forms, its state, its first values and its configuration. The golden files check its
 * numbers (tests/e2e/test_golden.py). */
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

enum { B = 3, N = 23, V = 37, D = 20, C = 26, SLOTS = 3, LAYERS = 3 };

#include "tests/unit/model/forms.h"

#define KEYS                                                                                                           \
	"\"model_type\": \"rwkv\", \"hidden_size\": 20, \"attention_hidden_size\": 26, \"num_hidden_layers\": 3,"      \
	" \"vocab_size\": 37"
static const char *const models[] = {
    "{" KEYS "}",
    "{" KEYS ", \"tie_word_embeddings\": true, \"intermediate_size\": 31, \"rescale_every\": 1}",
};
enum { MODELS = sizeof models / sizeof *models };

static void chunks_of_any_size_give_the_parallel_logits(void **state)
{
	(void)state;
	static const int64_t chunks[] = {1, 5, 23};
	for (int k = 0; k < MODELS; k++) {
		model *m = fixture_model_as(&architecture_rwkv, models[k], device);
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
		model *m = fixture_model_as(&architecture_rwkv, models[k], device);
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

/* The mean of each channel with its log-sum in two parts, and the rows before the attention and the feed-forward. */
static void a_state_has_the_means_and_the_two_rows_before(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_rwkv, models[0], 1, device);
	const state_list *states = model_states(m);
	static const struct {
		const char *name;
		int64_t floats;
	} want[] = {{"pooled", 4 * C}, {"before", D}, {"inner_before", D}};
	assert_int_equal(states->count, 3 * LAYERS);
	for (int i = 0; i < 3 * LAYERS; i++) {
		char name[32];
		snprintf(name, sizeof name, "layers.%d.%s", i / 3, want[i % 3].name);
		assert_int_equal(state_list_find(states, name)->floats, want[i % 3].floats);
	}
	model_free(m);
}

/* As transformers computes them. */
static double first_value(const char *name, int layer, int i)
{
	const double late = layer / (LAYERS - 1.0), early = 1 - (double)layer / LAYERS, at = (double)i / D;
	if (parameter_name_ends(name, "time_decay"))
		return -5 + 8 * pow(i / (C - 1.0), 0.7 + 1.3 * late);
	if (parameter_name_ends(name, "time_first"))
		return 1;
	if (parameter_name_ends(name, "attention.time_mix_value"))
		return pow(at, early) + 0.3 * late;
	return pow(at, parameter_name_ends(name, "attention.time_mix_receptance") ? 0.5 * early : early);
}

static void a_new_model_has_the_decays_and_mixtures_of_transformers(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_rwkv, models[0], 1, device);
	float *weights = fixture_weights(m);
	int found = 0;
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const float *x = weights + model_parameter_offset(m, i);
		int layer;
		if (!strstr(p->name, ".time_") || sscanf(p->name, "rwkv.blocks.%d.", &layer) != 1)
			continue;
		for (int k = 0; k < (int)shape_count(p->shape); k++)
			assert_true(fabs((double)x[k] - first_value(p->name, layer, k)) < 1e-5);
		assert_int_equal(parameter_stored_shape(p).rank, strstr(p->name, "mix") ? 3 : 1);
		found++;
	}
	assert_int_equal(found, 7 * LAYERS);
	free(weights);
	model_free(m);
}

/* A row that transformers halves n times has norms with ε 4^n, unless the graph has gradients. */
static void halved_rows_have_wider_norms_except_in_training(void **state)
{
	(void)state;
	static const char config[] = "{" KEYS ", \"rescale_every\": 2, \"layer_norm_epsilon\": 0.001}";
	static const double want[] = {1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 4e-3, 4e-3, 4e-5};
	for (int training = 0; training < 2; training++) {
		const forward_spec spec = {.batch = 1,
		                           .length = 3,
		                           .train.loss = training,
		                           .train.backward = training,
		                           .out.logits = LOGITS_ALL};
		void *c;
		assert_int_equal(fixture_config(&architecture_rwkv, config, &c, NULL), STATUS_OK);
		graph *g = fixture_graph(&architecture_rwkv, c, &spec);
		int norms = 0;
		for (int i = 0; i < graph_node_count(g); i++)
			if (graph_node(g, i)->id == OP_layernorm) {
				const double eps = (double)((const layernorm_params *)graph_node(g, i)->params)->eps;
				const double plain = norms == 7 ? 1e-5 : 1e-3;
				assert_true(fabs(eps - (training ? plain : want[norms])) < 1e-9);
				norms++;
			}
		assert_int_equal(norms, 2 * LAYERS + 2);
		graph_free(g);
		free(c);
	}
}

static void configurations_of_the_ecosystem_are_accepted(void **state)
{
	(void)state;
	static const char *const good[] = {
	    "{}",
	    "{\"architectures\": [\"RwkvForCausalLM\"], \"attention_hidden_size\": 768, \"bos_token_id\": 0,"
	    " \"context_length\": 1024, \"eos_token_id\": 0, \"hidden_size\": 768, \"intermediate_size\": 3072,"
	    " \"layer_norm_epsilon\": 1e-05, \"model_type\": \"rwkv\", \"num_hidden_layers\": 12, \"rescale_every\": 6,"
	    " \"tie_word_embeddings\": false, \"transformers_version\": \"4.29.0\", \"use_cache\": true,"
	    " \"vocab_size\": 50277}",
	    "{\"attention_hidden_size\": null, \"intermediate_size\": null, \"eos_token_id\": [2, 0]}",
	    "{\"rescale_every\": -1, \"dtype\": \"float32\"}",
	};
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		void *config;
		assert_int_equal(fixture_config(&architecture_rwkv, good[i], &config, NULL), STATUS_OK);
		assert_int_equal(architecture_dims(config)->outputs, 50277);
		assert_int_equal(architecture_dims(config)->trained, 1024);
		free(config);
	}
}

static void a_configuration_is_written_as_it_was_read(void **state)
{
	(void)state;
	for (int k = 0; k < MODELS; k++)
		fixture_check_written(&architecture_rwkv, models[k]);
	fixture_check_written(&architecture_rwkv,
	                      "{\"layer_norm_epsilon\": 0.5, \"rescale_every\": -3, \"eos_token_id\": 7,"
	                      " \"bos_token_id\": null, \"trained_length\": 77,"
	                      " \"context_length\": 77}");
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
	(void)state;
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"hidden_size\": 0}", "hidden_size"},
	    {"{\"hidden_size\": null}", "hidden_size"},
	    {"{\"attention_hidden_size\": 0}", "attention_hidden_size"},
	    {"{\"attention_hidden_size\": 65537}", "attention_hidden_size"},
	    {"{\"intermediate_size\": 2.5}", "intermediate_size"},
	    {"{\"num_hidden_layers\": 257}", "num_hidden_layers"},
	    {"{\"context_length\": 0}", "context_length"},
	    {"{\"vocab_size\": 0}", "vocab_size"},
	    {"{\"rescale_every\": 6.5}", "rescale_every"},
	    {"{\"rescale_every\": 1, \"num_hidden_layers\": 33}", "rescale_every"},
	    {"{\"layer_norm_epsilon\": 0}", "layer_norm_epsilon"},
	    {"{\"tie_word_embeddings\": 1}", "tie_word_embeddings"},
	    {"{\"n_head\": 4}", "n_head"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_rwkv, cases[i].text, cases[i].key);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_logits),
	    cmocka_unit_test(a_token_changes_its_own_and_later_outputs_alone),
	    cmocka_unit_test(a_state_has_the_means_and_the_two_rows_before),
	    cmocka_unit_test(a_new_model_has_the_decays_and_mixtures_of_transformers),
	    cmocka_unit_test(halved_rows_have_wider_norms_except_in_training),
	    cmocka_unit_test(configurations_of_the_ecosystem_are_accepted),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
