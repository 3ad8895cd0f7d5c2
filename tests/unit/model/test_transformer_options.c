/* The options of the transformer: the order of layers that they produce, and the options that exclude each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "engine/model/transformer/transformer.h"
#include "tests/unit/model/fixture.h"

static void entries_are_in_the_order_that_the_options_request(void **state)
{
	(void)state;
	static const struct {
		stack_options o;
		const char *order;
	} cases[] = {
	    {{.depth = 2}, "afaf"},
	    {{.depth = 2, .cross_attend = true}, "acfacf"},
	    {{.depth = 2, .cross_attend = true, .only_cross = true}, "cfcf"},
	    {{.depth = 3, .macaron = true}, "faffaffaf"},
	    {{.depth = 6, .sandwich_coef = 6}, "aaaaaaffffff"},
	    {{.depth = 6, .sandwich_coef = 2}, "aaafafafafff"},
	    {{.depth = 4, .sandwich_coef = 2, .cross_attend = true}, "aaacfacfff"},
	    {{.depth = 12, .par_ratio = 4}, "affaffaffaffaffaffffffff"},
	    {{.depth = 4, .par_ratio = 4}, "affaffff"},
	    {{.depth = 2, .par_ratio = 2}, "aaff"},
	    {{.depth = 2, .par_ratio = 3}, "afff"},
	    {{.depth = 3, .par_ratio = 4}, "afffffff"},
	    {{.depth = 2, .par_ratio = 5}, ""},
	    {{.depth = 2, .par_ratio = 1}, ""},
	    {{.depth = 2, .sandwich_coef = 3}, ""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char order[STACK_MAX_ENTRIES + 1] = "";
		int n = stack_order(&cases[i].o, order);
		assert_int_equal(n, strlen(cases[i].order));
		assert_string_equal(n ? order : "", cases[i].order);
	}
}

static void options_that_exclude_each_other_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *keys, *param;
	} cases[] = {
	    {"\"no_such\": 1", "no_such"},
	    {"\"heads\": 0", "heads"},
	    {"\"alibi_pos_bias\": true, \"rel_pos_bias\": true", "alibi_pos_bias"},
	    {"\"sandwich_norm\": true, \"pre_norm\": false", "sandwich_norm"},
	    {"\"rotary_pos_emb\": true, \"attn_dim_head\": 8, \"rotary_emb_dim\": 16", "rotary_emb_dim"},
	    {"\"emb_dim\": 4, \"post_emb_norm\": true", "post_emb_norm"},
	    {"\"emb_dim\": 5, \"sinusoidal_pos_emb\": true", "sinusoidal_pos_emb"},
	    {"\"sinusoidal_pos_emb\": true, \"sinusoidal_form\": \"sine\"", "sinusoidal_form"},
	    {"\"use_rmsnorm\": true, \"use_unbiased_norm\": true", "use_unbiased_norm"},
	    {"\"ff_relu\": true, \"ff_swish\": true", "ff_relu"},
	    {"\"deepnorm\": true, \"xavier_init\": true", "xavier_init"},
	    {"\"attn_kv_heads\": 3", "attn_kv_heads"},
	    {"\"shift_tokens\": [1, 2]", "shift_tokens"},
	    {"\"shift_tokens\": 512", "shift_tokens"},
	    {"\"layer_dropout\": 1", "layer_dropout"},
	    {"\"custom_layers\": [\"x\"]", "custom_layers"},
	    {"\"custom_layers\": [\"c\", \"f\"]", "custom_layers"},
	    {"\"custom_layers\": [\"f\"]", "custom_layers"},
	    {"\"attn_qk_norm\": true, \"attn_qk_norm_groups\": 32", "attn_qk_norm_groups"},
	    {"\"stack\": \"pile\"", "stack"},
	    {"\"stack\": \"encoder_decoder\", \"encoder\": 1, \"decoder\": {}", "encoder"},
	    {"\"stack\": \"encoder_decoder\", \"encoder\": {\"x\": 1}, \"decoder\": {}", "x"},
	    {"\"stack\": \"encoder_decoder\", \"encoder\": {}, \"decoder\": {}", "cross_attend"},
	    {"\"stack\": \"encoder_decoder\", \"encoder\": {\"dim\": 8}, \"decoder\": {\"dim\": 8, \"cross_attend\": "
	     "true, "
	     "\"custom_layers\": [\"a\", \"f\"]}",
	     "custom_layers"},
	    {"\"stack\": \"encoder_decoder\", \"encoder\": {\"dim\": 8}, \"decoder\": {\"dim\": 8, \"cross_attend\": "
	     "true, "
	     "\"depth\": 1, \"sandwich_coef\": 1}",
	     "sandwich_coef"},
	    {"\"stack\": \"encoder\", \"rel_pos_bias\": true, \"rel_pos_num_buckets\": 9", "rel_pos_num_buckets"},
	    {"\"compat\": \"x-transformers-1.6.0\", \"attn_max_attend_past\": 0", "attn_max_attend_past"},
	    {"\"compat\": \"x-transformers-1.6.0\", \"attn_tensor_product\": true, \"attn_one_kv_head\": true",
	     "attn_tensor_product"},
	    {"\"compat\": \"1.7\"", "compat"},
	    {"\"cache_dtype\": \"fp16\"", "cache_dtype"},
	    {"\"cache_dtype\": \"bf16\", \"attn_talking_heads\": true", "cache_dtype"},
	    {"\"cache_dtype\": \"bf16\", \"attn_sparse_topk\": 3", "cache_dtype"},
	    {"\"cache_dtype\": \"bf16\", \"residual_attn\": true", "cache_dtype"},
	    {"\"cache_dtype\": \"bf16\", \"max_mem_len\": 4, \"shift_tokens\": 1", "cache_dtype"},
	    {"\"cache_dtype\": \"bf16\", \"cross_attend\": true", "cache_dtype"},
	    {"\"cache_dtype\": \"bf16\", \"stack\": \"encoder\"", "cache_dtype"},
	    {"\"stack\": \"encoder_decoder\", \"encoder\": {\"cache_dtype\": \"bf16\"}, \"decoder\": "
	     "{\"cross_attend\": true}",
	     "cache_dtype"},
	    {"\"num_tokens\": 16777216, \"dim\": 65536", ""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[320];
		void *config;
		error err = ERROR_INIT;
		snprintf(text, sizeof text, "{%s}", cases[i].keys);
		if (fixture_config(&architecture_transformer, text, &config, &err) != STATUS_INVALID)
			fail_msg("not refused: %s", text);
		assert_string_equal(err.param, cases[i].param);
		free(config);
	}
}

static void an_argument_of_another_constructor_is_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"TransformerWrapper\": {}, \"Decoder\": {\"l2norm_embed\": true}}", "l2norm_embed"},
	    {"{\"TransformerWrapper\": {}, \"Encoder\": {\"max_mem_len\": 4}}", "max_mem_len"},
	    {"{\"TransformerWrapper\": {\"depth\": 1}, \"Decoder\": {}}", "depth"},
	    {"{\"TransformerWrapper\": {\"mask_prob\": 0.1}, \"Decoder\": {}}", "mask_prob"},
	    {"{\"TransformerWrapper\": {}, \"Decoder\": {}, \"AutoregressiveWrapper\": {\"heads\": 2}}", "heads"},
	    {"{\"XTransformer\": {\"dim\": 8, \"dec_l2norm_embed\": true}}", "dec_l2norm_embed"},
	    {"{\"XTransformer\": {\"dim\": 8, \"dec_num_memory_tokens\": 2}}", "dec_num_memory_tokens"},
	    {"{\"XTransformer\": {\"dim\": 8, \"enc_mask_prob\": 0.5}}", "enc_mask_prob"},
	    {"{\"XTransformer\": {\"dim\": 8, \"enc_tie_embedding\": true}}", "enc_tie_embedding"},
	    {"{\"XTransformer\": {\"enc_depth\": 1, \"dec_depth\": 1, \"enc_cache_dtype\": \"bf16\"}}",
	     "enc_cache_dtype"},
	    {"{\"XTransformer\": {\"enc_depth\": 1, \"dec_depth\": 1, \"dec_cache_dtype\": \"fp16\"}}",
	     "dec_cache_dtype"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_x_transformers, cases[i].text, cases[i].key);
	void *config;
	assert_int_equal(fixture_config(&architecture_x_transformers,
	                                "{\"XTransformer\": {\"dim\": 8, \"enc_num_memory_tokens\": 2, "
	                                "\"dec_emb_dropout\": 0.1, \"dec_tie_embedding\": null}}",
	                                &config, NULL),
	                 STATUS_OK);
	free(config);
}

static void a_cache_of_bf16_is_written_and_has_half_the_bytes(void **state)
{
	(void)state;
	static const struct {
		const architecture *a;
		const char *text, *member, *key;
	} cases[] = {
	    {&architecture_transformer, "{\"depth\": 1, \"cache_dtype\": \"bf16\"}", NULL, "cache_dtype"},
	    {&architecture_transformer,
	     "{\"stack\": \"encoder_decoder\", \"encoder\": {\"depth\": 1}, \"decoder\": {\"depth\": 1, "
	     "\"cross_attend\": "
	     "true, \"cache_dtype\": \"bf16\"}}",
	     "decoder", "cache_dtype"},
	    {&architecture_x_transformers,
	     "{\"TransformerWrapper\": {}, \"Decoder\": {\"depth\": 1, \"cache_dtype\": \"bf16\"}}", "Decoder",
	     "cache_dtype"},
	    {&architecture_x_transformers,
	     "{\"XTransformer\": {\"enc_depth\": 1, \"dec_depth\": 1, \"dec_cache_dtype\": \"bf16\"}}", "XTransformer",
	     "dec_cache_dtype"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		void *config;
		state_list list = {0};
		assert_int_equal(fixture_config(cases[i].a, cases[i].text, &config, NULL), STATUS_OK);
		architecture_states(cases[i].a, config, &list);
		const state_spec *cache = state_list_find(&list, "layers.0.cache");
		assert_non_null(cache);
		assert_int_equal(cache->floats, 1024 * (512 + 1));
		json_t *got = cases[i].a->config_write(config),
		       *part = cases[i].member ? json_object_get(got, cases[i].member) : got;
		assert_string_equal(json_string_value(json_object_get(part, cases[i].key)), "bf16");
		json_decref(got);
		state_list_free(&list);
		free(config);
	}
	fixture_check_refused(&architecture_x_transformers,
	                      "{\"TransformerWrapper\": {\"cache_dtype\": \"bf16\"}, \"Decoder\": {}}", "cache_dtype");
	fixture_check_refused(&architecture_x_transformers,
	                      "{\"TransformerWrapper\": {}, \"Encoder\": {\"cache_dtype\": \"bf16\"}}", "cache_dtype");
}

static void architectures_without_the_ring_refuse_its_type_by_name(void **state)
{
	(void)state;
	int without = 0;
	for (int i = 0; architecture_at(i); i++) {
		const architecture *a = architecture_at(i);
		const bool has = a == &architecture_gpt2 || a == &architecture_transformer;
		if (has || a == &architecture_x_transformers)
			continue;
		fixture_check_refused(a, "{\"cache_dtype\": \"bf16\"}", "cache_dtype");
		without++;
	}
	assert_true(without >= 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(entries_are_in_the_order_that_the_options_request),
	    cmocka_unit_test(options_that_exclude_each_other_are_refused_by_name),
	    cmocka_unit_test(a_cache_of_bf16_is_written_and_has_half_the_bytes),
	    cmocka_unit_test(architectures_without_the_ring_refuse_its_type_by_name),
	    cmocka_unit_test(an_argument_of_another_constructor_is_refused_by_name),
	};
	return cmocka_run_group_tests_name("transformer_options", tests, NULL, NULL);
}
