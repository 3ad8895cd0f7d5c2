/* The causal language model with dilated attention. */
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

enum { B = 2, N = 37, V = 37, D = 20, LAYERS = 3, SLOTS = 3 };

#include "tests/unit/model/forms.h"

#define KEYS                                                                                                           \
	"\"model_type\": \"dilated\", \"hidden_size\": 20, \"n_heads\": 4, \"n_layer\": 3, \"vocab_size\": 37,"        \
	" \"ffn_size\": 36, \"segment_length\": [4, 7, 16], \"dilated_ratio\": [1, 2, 3]"

static void chunks_of_any_size_give_the_parallel_logits(void **state)
{
	static const char *const configs[] = {
	    "{" KEYS "}",
	    "{" KEYS ", \"subln\": false, \"dilated_head_offset\": \"mod\", \"position_embedding\": \"learned\","
	    " \"n_positions\": 40}",
	};
	static const int64_t chunks[] = {1, 3, 9, 37};
	(void)state;
	for (int c = 0; c < 2; c++) {
		model *m = fixture_model_as(&architecture_dilated, configs[c], device);
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

static void a_token_changes_only_later_tokens_within_its_segments(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_dilated,
	                            "{\"hidden_size\": 20, \"n_layer\": 1, \"vocab_size\": 37,"
	                            " \"segment_length\": [4, 7, 16], \"dilated_ratio\": [1, 2, 3]}",
	                            device);
	float before[B * N * V], after[B * N * V];
	int32_t ids[B * N];
	random_ids(ids, B * N, 2);
	parallel_logits(m, ids, before);
	ids[11] = (ids[11] + 1) % V; /* in the first sequence only */
	parallel_logits(m, ids, after);
	assert_memory_equal(before, after, 11 * V * sizeof *before);
	assert_true(distance(before + 11 * V, after + 11 * V, V) > 1e-3f);
	assert_memory_equal(before + 16 * V, after + 16 * V, (B * N - 16) * V * sizeof *before);
	model_free(m);
}

static void a_bidirectional_model_reads_both_sides_and_has_no_state(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_dilated,
	                            "{\"hidden_size\": 20, \"n_layer\": 1, \"vocab_size\": 37, \"bidirectional\": true,"
	                            " \"segment_length\": [4, 7, 16], \"dilated_ratio\": [1, 2, 3]}",
	                            device);
	float before[B * N * V], after[B * N * V];
	int32_t ids[B * N];
	assert_false(model_dimensions(m)->form->stepwise);
	assert_int_equal(model_states(m)->count, 0);
	random_ids(ids, B * N, 2);
	parallel_logits(m, ids, before);
	ids[11] = (ids[11] + 1) % V; /* in the first sequence only */
	parallel_logits(m, ids, after);
	for (int i = 8; i < 12; i++) /* its segment of 4 */
		assert_true(distance(before + i * V, after + i * V, V) > 1e-3f);
	assert_memory_equal(before + 16 * V, after + 16 * V, (B * N - 16) * V * sizeof *before);
	model_free(m);
}

static void the_state_is_a_ring_of_the_longest_segments_length(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_dilated, "{" KEYS "}", 1, device);
	const state_list *states = model_states(m);
	assert_int_equal(states->count, LAYERS);
	for (int l = 0; l < LAYERS; l++) {
		char name[32];
		snprintf(name, sizeof name, "layers.%d.cache", l);
		const state_spec *s = state_list_find(states, name);
		assert_non_null(s);
		assert_int_equal(s->kind, STATE_CACHE);
		assert_int_equal(s->floats, 16 * (2 * D + 1));
	}
	model_free(m);
}

/* Standard deviation of a parameter of a new model. */
static double spread(const model *m, const char *name)
{
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		if (strcmp(p->name, name) != 0)
			continue;
		float *all = fixture_weights(m), *x = all + model_parameter_offset(m, i);
		double sum = 0;
		for (int64_t k = 0; k < shape_count(p->shape); k++)
			sum += (double)x[k] * (double)x[k];
		free(all);
		return sqrt(sum / (double)shape_count(p->shape));
	}
	fail_msg("no parameter %s", name);
	return 0;
}

static void with_inner_norms_matrices_of_the_residual_path_start_larger(void **state)
{
#define LAYER "decoder.layers.1."
#define WIDE "\"model_type\": \"dilated\", \"hidden_size\": 64, \"n_layer\": 3, \"vocab_size\": 37"
	static const char *const plain[] = {"self_attn.q_proj", "self_attn.k_proj"}, *const larger[] = {
	                                                                                 "self_attn.v_proj",
	                                                                                 "self_attn.out_proj",
	                                                                                 "ffn.fc1"};
	(void)state;
	for (int subln = 0; subln < 2; subln++) {
		model *m = fixture_created_as(&architecture_dilated,
		                              subln ? "{" WIDE "}" : "{" WIDE ", \"subln\": false}", 1, device);
		const double std = 1 / sqrt(3 * 64.0), gain = subln ? sqrt(log(6)) : 1;
		char name[96];
		for (int i = 0; i < 5; i++) {
			snprintf(name, sizeof name, LAYER "%s.weight", i < 2 ? plain[i] : larger[i - 2]);
			assert_true(fabs(spread(m, name) / (i < 2 ? std : gain * std) - 1) < 0.05);
		}
		assert_true(fabs(spread(m, LAYER "ffn.fc2.weight") / (gain * std / 2) - 1) < 0.05);
		assert_true(fabs(spread(m, "decoder.embed_tokens.weight") * 8 - 1) < 0.05);
		assert_int_equal(model_tensor_count(m), 3 + 3 * (subln ? 20 : 16));
		model_free(m);
	}
}

static void a_configuration_is_written_as_it_was_read(void **state)
{
	static const char *const texts[] = {
	    "{" KEYS "}",
	    "{" KEYS
	    ", \"subln\": false, \"dilated_head_offset\": \"mod\", \"detach_weights\": false, \"bidirectional\": true,"
	    " \"position_embedding\": \"learned\", \"hidden_dropout_prob\": 0.25, \"layer_norm_eps\": 1e-6}"};
	const architecture *a = &architecture_dilated;
	(void)state;
	for (int i = 0; i < 2; i++)
		fixture_check_written(a, texts[i]);
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"hidden_size\": 0}", "hidden_size"},
	    {"{\"n_heads\": 7}", "n_heads"},
	    {"{\"ffn_size\": 0}", "ffn_size"},
	    {"{\"segment_length\": 64}", "segment_length"},
	    {"{\"segment_length\": []}", "segment_length"},
	    {"{\"segment_length\": [4, \"8\"], \"dilated_ratio\": [1, 2]}", "segment_length"},
	    {"{\"segment_length\": [0], \"dilated_ratio\": [1]}", "segment_length"},
	    {"{\"segment_length\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", "segment_length"},
	    {"{\"segment_length\": [4, 8]}", "dilated_ratio"},
	    {"{\"dilated_ratio\": [1, 2, 4, 8, -16]}", "dilated_ratio"},
	    {"{\"segment_length\": [4, 8], \"dilated_ratio\": [2, 4]}", "dilated_ratio"},
	    {"{\"dilated_head_offset\": \"none\"}", "dilated_head_offset"},
	    {"{\"subln\": 1}", "subln"},
	    {"{\"bidirectional\": 1}", "bidirectional"},
	    {"{\"deepnorm\": true}", "deepnorm"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_dilated, cases[i].text, cases[i].key);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_logits),
	    cmocka_unit_test(a_token_changes_only_later_tokens_within_its_segments),
	    cmocka_unit_test(a_bidirectional_model_reads_both_sides_and_has_no_state),
	    cmocka_unit_test(the_state_is_a_ring_of_the_longest_segments_length),
	    cmocka_unit_test(with_inner_norms_matrices_of_the_residual_path_start_larger),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
