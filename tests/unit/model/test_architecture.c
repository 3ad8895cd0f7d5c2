#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "engine/model/config.h"
#include "tests/unit/model/fixture.h"

static int64_t window_of(const void *config, int64_t layer)
{
	const void *options;
	architecture_additive.mixer(config, layer, &options);
	return ((const additive_options *)options)->window;
}

static void an_architecture_is_found_by_either_name(void **state)
{
	(void)state;
	assert_ptr_equal(architecture_find("additive"), &architecture_additive);
	assert_ptr_equal(architecture_find("FastformerForCausalLM"), &architecture_additive);
	assert_null(architecture_find("Additive"));
	assert_null(architecture_find(""));
}

static void the_list_of_architectures_ends_and_its_names_are_unique(void **state)
{
	(void)state;
	int count = 0;
	assert_null(architecture_at(-1));
	for (; architecture_at(count); count++) {
		assert_ptr_equal(architecture_find(architecture_at(count)->name), architecture_at(count));
		assert_ptr_equal(architecture_find(architecture_at(count)->model_type), architecture_at(count));
	}
	assert_true(count >= 1);
}

/* --- configuration ------------------------------------------------------------------- */

static void an_empty_configuration_has_the_documented_defaults(void **state)
{
	(void)state;
	void *config;
	model_dims dims;
	assert_int_equal(fixture_config(&architecture_additive, "{}", &config, NULL), STATUS_OK);
	dims = *architecture_dims(config);
	assert_int_equal(dims.hidden, 256);
	assert_int_equal(dims.outputs, 32100);
	assert_int_equal(dims.heads, 4);
	assert_int_equal(dims.positions, 1024);
	assert_int_equal(dims.layers, 4);
	assert_true(dims.dropout == 0.1f);
	static const int64_t windows[] = {4, 8, 16, 0};
	for (int l = 0; l < 4; l++)
		assert_int_equal(window_of(config, l), windows[l]);
	json_t *json = architecture_additive.config_write(config);
	assert_string_equal(json_string_value(json_object_get(json, "model_type")), "FastformerForCausalLM");
	assert_true(json_is_true(json_object_get(json, "use_local_att")));
	assert_true(json_is_null(json_object_get(json, "window_sizes")));
	assert_true(json_real_value(json_object_get(json, "initializer_range")) == 0.02);
	json_decref(json);
	free(config);
}

static void good_configurations_are_accepted(void **state)
{
	(void)state;
	static const char *const good[] = {
	    "{\"model_type\": \"FastformerForCausalLM\"}",
	    "{\"model_type\": \"additive\"}",
	    "{\"hidden_size\": 15, \"n_heads\": 3}",
	    "{\"hidden_size\": 1, \"n_heads\": 1, \"vocab_size\": 1, \"n_positions\": 1, \"n_layer\": 1}",
	    "{\"n_layer\": 2, \"window_sizes\": [1, 1073741824]}",
	    "{\"window_sizes\": null}",
	    "{\"use_local_att\": false}",
	    "{\"position_embedding\": \"learned\", \"trained_length\": 1024}",
	    "{\"position_embedding\": \"none\", \"trained_length\": 65536}",
	    "{\"use_local_att\": false, \"window_sizes\": null}",
	    "{\"hidden_dropout_prob\": 0, \"initializer_range\": 1}",
	    "{\"n_layer\": 256}",
	    "{\"_name_or_path\": \"x\", \"_anything\": {}, \"architectures\": [\"A\"], \"torch_dtype\": \"float32\","
	    " \"transformers_version\": \"4.20\", \"pad_token_id\": 0, \"tie_word_embeddings\": true, \"use_cache\": "
	    "1}",
	};
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		void *config;
		error err = ERROR_INIT;
		status s = fixture_config(&architecture_additive, good[i], &config, &err);
		if (s != STATUS_OK)
			print_error("%s: %s\n", good[i], error_message(&err));
		assert_int_equal(s, STATUS_OK);
		free(config);
	}
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
	(void)state;
	static const struct {
		const char *text, *param;
	} bad[] = {
	    {"[]", ""},
	    {"null", ""},
	    {"\"additive\"", ""},
	    {"{\"model_type\": \"gpt2\"}", "model_type"},
	    {"{\"model_type\": 1}", "model_type"},
	    {"{\"n_head\": 4}", "n_head"},
	    {"{\"Hidden_size\": 4}", "Hidden_size"},
	    {"{\"\": 4}", ""},
	    {"{\"hidden_size\": 0}", "hidden_size"},
	    {"{\"hidden_size\": -256}", "hidden_size"},
	    {"{\"hidden_size\": 65537}", "hidden_size"},
	    {"{\"hidden_size\": 9223372036854775807}", "hidden_size"},
	    {"{\"hidden_size\": 256.0}", "hidden_size"},
	    {"{\"hidden_size\": \"256\"}", "hidden_size"},
	    {"{\"hidden_size\": null}", "hidden_size"},
	    {"{\"hidden_size\": true}", "hidden_size"},
	    {"{\"n_heads\": 0}", "n_heads"},
	    {"{\"n_heads\": 3}", "n_heads"},
	    {"{\"hidden_size\": 8, \"n_heads\": 16}", "n_heads"},
	    {"{\"vocab_size\": 0}", "vocab_size"},
	    {"{\"vocab_size\": 16777217}", "vocab_size"},
	    {"{\"n_positions\": 0}", "n_positions"},
	    {"{\"n_positions\": 16777217}", "n_positions"},
	    {"{\"position_embedding\": \"sinusoidal\"}", "position_embedding"},
	    {"{\"position_embedding\": null}", "position_embedding"},
	    {"{\"trained_length\": 0}", "trained_length"},
	    {"{\"n_positions\": 64, \"trained_length\": 65}", "trained_length"},
	    {"{\"n_layer\": 0}", "n_layer"},
	    {"{\"n_layer\": 257}", "n_layer"},
	    {"{\"use_local_att\": 1}", "use_local_att"},
	    {"{\"use_local_att\": false, \"window_sizes\": [4, 8, 16, 1024]}", "window_sizes"},
	    {"{\"use_local_att\": false, \"window_sizes\": []}", "window_sizes"},
	    {"{\"window_sizes\": []}", "window_sizes"},
	    {"{\"window_sizes\": 4}", "window_sizes"},
	    {"{\"window_sizes\": {}}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16]}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16, 32, 64]}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16, 0]}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16, -1]}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16, 1073741825]}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16, 32.0]}", "window_sizes"},
	    {"{\"window_sizes\": [4, 8, 16, null]}", "window_sizes"},
	    {"{\"hidden_dropout_prob\": -0.1}", "hidden_dropout_prob"},
	    {"{\"hidden_dropout_prob\": 1}", "hidden_dropout_prob"},
	    {"{\"hidden_dropout_prob\": \"0.1\"}", "hidden_dropout_prob"},
	    {"{\"hidden_dropout_prob\": null}", "hidden_dropout_prob"},
	    {"{\"initializer_range\": -1}", "initializer_range"},
	    {"{\"initializer_range\": 1e308}", "initializer_range"},
	    {"{\"hidden_size\": 65536, \"n_layer\": 256}", ""},
	    {"{\"hidden_size\": 65536, \"vocab_size\": 16777216, \"n_positions\": 16777216}", ""},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		void *config;
		error err = ERROR_INIT;
		status s = fixture_config(&architecture_additive, bad[i].text, &config, &err);
		if (s != STATUS_INVALID || strcmp(err.param, bad[i].param) != 0)
			print_error("%s: status %d, param \"%s\"\n", bad[i].text, (int)s, err.param);
		assert_int_equal(s, STATUS_INVALID);
		assert_string_equal(err.param, bad[i].param);
		assert_true(err.message[0]);
		free(config);
	}
}

static void a_configuration_is_written_as_it_was_read(void **state)
{
	(void)state;
	static const char *const texts[] = {
	    "{\"model_type\": \"FastformerForCausalLM\", \"hidden_size\": 15, \"vocab_size\": 37, \"n_heads\": 3,"
	    " \"n_positions\": 40, \"position_embedding\": \"none\", \"trained_length\": 50,"
	    " \"n_layer\": 3, \"use_local_att\": true, \"window_sizes\": [3, 5, 1000],"
	    " \"hidden_dropout_prob\": 0.25, \"initializer_range\": 0.5}",
	    "{\"model_type\": \"FastformerForCausalLM\", \"hidden_size\": 8, \"vocab_size\": 9, \"n_heads\": 1,"
	    " \"n_positions\": 10, \"position_embedding\": \"learned\", \"trained_length\": 10,"
	    " \"n_layer\": 2, \"use_local_att\": false, \"window_sizes\": null,"
	    " \"hidden_dropout_prob\": 0.0, \"initializer_range\": 0.02}",
	};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		void *config;
		assert_int_equal(fixture_config(&architecture_additive, texts[i], &config, NULL), STATUS_OK);
		json_t *got = architecture_additive.config_write(config), *want = fixture_json(texts[i]);
		assert_true(json_equal(got, want));
		json_decref(got);
		json_decref(want);
		free(config);
	}
}

static void a_window_over_all_positions_is_global(void **state)
{
	(void)state;
	void *config;
	assert_int_equal(fixture_config(&architecture_additive,
	                                "{\"n_layer\": 3, \"n_positions\": 10, \"window_sizes\": [9, 10, 11]}", &config,
	                                NULL),
	                 STATUS_OK);
	assert_int_equal(window_of(config, 0), 9);
	assert_int_equal(window_of(config, 1), 0);
	assert_int_equal(window_of(config, 2), 0);
	free(config);
}

static void default_windows_double_until_they_are_global(void **state)
{
	(void)state;
	void *config;
	assert_int_equal(
	    fixture_config(&architecture_additive, "{\"n_layer\": 256, \"n_positions\": 1024}", &config, NULL),
	    STATUS_OK);
	for (int l = 0; l < 256; l++)
		assert_int_equal(window_of(config, l), l < 8 ? 4 << l : 0);
	free(config);
}

/* --- parameters and state --------------------------------------------------------------- */

static void parameters_have_the_names_and_shapes_of_the_checkpoint(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		shape shape;
		parameter_init init;
	} want[] = {
	    {"word_embedding.weight", {2, {37, 15}}, INIT_NORMAL},
	    {"proj_logits.bias", {1, {37}}, INIT_ZERO},
	    {"fastformer_model.position_embeddings.weight", {2, {40, 15}}, INIT_NORMAL},
	    {"fastformer_model.LayerNorm.weight", {1, {15}}, INIT_ONE},
	    {"fastformer_model.LayerNorm.bias", {1, {15}}, INIT_ZERO},
	    {"fastformer_model.decoders.2.attention.Wquery.weight", {2, {15, 15}}, INIT_NORMAL},
	    {"fastformer_model.decoders.2.attention.Wkeys.weight", {2, {15, 15}}, INIT_NORMAL},
	    {"fastformer_model.decoders.2.attention.Wvalues.weight", {2, {15, 15}}, INIT_NORMAL},
	    {"fastformer_model.decoders.2.attention.attn_proj.weight", {2, {15, 15}}, INIT_NORMAL},
	    {"fastformer_model.decoders.2.attention.query_attn", {1, {15}}, INIT_ZERO},
	    {"fastformer_model.decoders.2.attention.key_attn", {1, {15}}, INIT_ZERO},
	    {"fastformer_model.decoders.2.attention.attn_norm.weight", {1, {15}}, INIT_ONE},
	    {"fastformer_model.decoders.2.attention.attn_norm.bias", {1, {15}}, INIT_ZERO},
	    {"fastformer_model.decoders.2.attention.mid_norm.weight", {1, {15}}, INIT_ONE},
	    {"fastformer_model.decoders.2.attention.mid_norm.bias", {1, {15}}, INIT_ZERO},
	    {"fastformer_model.decoders.2.boom.weight", {2, {60, 15}}, INIT_NORMAL},
	    {"fastformer_model.decoders.2.unboom.weight", {2, {15, 60}}, INIT_NORMAL},
	    {"fastformer_model.decoders.2.boom_norm.weight", {1, {15}}, INIT_ONE},
	    {"fastformer_model.decoders.2.boom_norm.bias", {1, {15}}, INIT_ZERO},
	};
	enum { OUTSIDE = 5, PER_LAYER = 14 };
	void *config;
	parameter_list list = {0};
	assert_int_equal(fixture_config(&architecture_additive, SMALL_CONFIG, &config, NULL), STATUS_OK);
	architecture_additive.parameters(config, &list);
	assert_int_equal(list.status, STATUS_OK);
	assert_int_equal(list.count, OUTSIDE + 3 * PER_LAYER);
	assert_string_equal(list.items[0].alias, "proj_logits.weight");
	for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
		int found = 0;
		for (int j = 0; j < list.count; j++) {
			if (strcmp(list.items[j].name, want[i].name) != 0)
				continue;
			assert_true(shape_equal(list.items[j].shape, want[i].shape));
			assert_int_equal(list.items[j].init, want[i].init);
			if (want[i].init == INIT_NORMAL)
				assert_true(list.items[j].std == 0.02f);
			found++;
		}
		if (found != 1)
			print_error("%s is there %d times\n", want[i].name, found);
		assert_int_equal(found, 1);
	}
	parameter_list_free(&list);
	free(config);
}

/* The parameters of SMALL_CONFIG with further keys; the caller frees the list. */
static parameter_list parameters_with(const char *more, model_dims *dims)
{
	json_t *json = fixture_json(SMALL_CONFIG), *extra = fixture_json(more);
	void *config = calloc(1, architecture_additive.config_bytes);
	parameter_list list = {0};
	assert_non_null(config);
	assert_int_equal(json_object_update(json, extra), 0);
	assert_int_equal(architecture_additive.config_read(config, json, NULL), STATUS_OK);
	architecture_additive.parameters(config, &list);
	*dims = *architecture_dims(config);
	free(config);
	json_decref(json);
	json_decref(extra);
	return list;
}

static void without_a_position_table_there_is_no_parameter_and_no_bound(void **state)
{
	(void)state;
	model_dims old, learned, none;
	parameter_list without = parameters_with("{\"position_embedding\": \"none\"}", &none),
	               with = parameters_with("{\"position_embedding\": \"learned\"}", &learned),
	               by_default = parameters_with("{}", &old);
	assert_int_equal(with.count, by_default.count); /* checkpoints from before this key */
	assert_int_equal(without.count, with.count - 1);
	for (int i = 0; i < without.count; i++)
		assert_null(strstr(without.items[i].name, "position"));
	assert_int_equal(old.positions, 40);
	assert_int_equal(learned.positions, 40);
	assert_int_equal(none.positions, MODEL_UNBOUNDED);
	assert_int_equal(none.trained, 40);
	parameter_list_free(&without);
	parameter_list_free(&with);
	parameter_list_free(&by_default);
}

static void the_state_grows_only_with_the_windows(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int64_t windows[2];
	} cases[] = {
	    {"{\"hidden_size\": 12, \"n_heads\": 2, \"n_layer\": 2, \"n_positions\": 64, \"window_sizes\": [7, 64]}",
	     {7, 0}},
	    {"{\"hidden_size\": 12, \"n_heads\": 2, \"n_layer\": 2, \"n_positions\": 65, \"window_sizes\": [7, 64]}",
	     {7, 64}},
	    {"{\"hidden_size\": 12, \"n_heads\": 2, \"n_layer\": 2, \"n_positions\": 16777216, \"window_sizes\": [7, "
	     "64]}",
	     {7, 64}},
	    {"{\"hidden_size\": 12, \"n_heads\": 2, \"n_layer\": 2, \"n_positions\": 64, \"window_sizes\": [1, 1]}",
	     {1, 1}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		void *config;
		assert_int_equal(fixture_config(&architecture_additive, cases[i].text, &config, NULL), STATUS_OK);
		int64_t rounds = 0;
		for (int l = 0; l < 2; l++)
			rounds += 2 * additive_state_floats(12, 2, cases[i].windows[l]);
		int64_t floats = fixture_state_floats(&architecture_additive, config);
		assert_true(floats > rounds && floats <= rounds + 16);
		assert_int_equal(floats % 16, 0);
		free(config);
	}
}

static void a_size_is_completed_to_a_model_of_every_architecture(void **state)
{
	(void)state;
	static const struct {
		model_size given;
		int64_t hidden, heads, layers;
	} cases[] = {
	    {{0}, 128, 4, 6},
	    {{.hidden = 30}, 30, 3, 6},
	    {{.hidden = 512, .layers = 2}, 512, 8, 2},
	    {{.heads = 2}, 128, 2, 6},
	    {{.parameters = 85000000}, 768, 12, 12},
	    {{.parameters = 1000}, 64, 4, 2},
	    {{.parameters = 1200000, .hidden = 100}, 100, 4, 10},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		model_size size = cases[i].given;
		model_size_complete(&size);
		assert_int_equal(size.hidden, cases[i].hidden);
		assert_int_equal(size.heads, cases[i].heads);
		assert_int_equal(size.layers, cases[i].layers);
		size.inputs = 77;
		size.positions = size.length = 50;
		size.padding = 0;
		size.dropout = 0.25;
		size.classes = 5;
		for (int k = 0; architecture_at(k); k++) {
			const architecture *a = architecture_at(k);
			model_dims d;
			json_t *json = json_object();
			void *config = calloc(1, a->config_bytes);
			assert_true(a->complete(json, &size));
			assert_int_equal(a->config_read(config, json, NULL), STATUS_OK);
			d = *architecture_dims(config);
			assert_int_equal(d.hidden, size.hidden);
			/* additive2 has heads of 8 channels; each channel of rwkv is a head. */
			if (a != &architecture_rwkv && (a != &architecture_additive2 || !size.usual_heads))
				assert_int_equal(d.heads, size.heads);
			assert_int_equal(d.layers, size.layers);
			assert_int_equal(d.inputs, 77);
			assert_int_equal(d.outputs, d.form->head == HEAD_CLASSES ? 5 : 77);
			assert_int_equal(d.trained, 50);
			assert_true(d.dropout == (a == &architecture_rwkv ? 0 : 0.25f)); /* rwkv has none */
			free(config);
			json_decref(json);
		}
	}
}

static void every_architecture_can_name_a_mask_token_among_its_ids(void **state)
{
	(void)state;
	static const struct {
		const char *given;
		int64_t mask; /* -2: refused */
	} cases[] = {{"7", 7}, {"76", 76}, {"0", 0}, {"null", -1}, {NULL, -1}, {"77", -2}, {"-1", -2}, {"\"7\"", -2}};
	for (int k = 0; architecture_at(k); k++)
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			const architecture *a = architecture_at(k);
			model_size size = {.inputs = 77, .positions = 8, .length = 8, .padding = -1, .dropout = -1};
			model_size_complete(&size);
			json_t *json = json_object(), *kept = json_object();
			void *config = calloc(1, a->config_bytes);
			error err = ERROR_INIT;
			if (cases[i].given)
				json_object_set_new(json, "mask_token_id",
				                    json_loads(cases[i].given, JSON_DECODE_ANY, NULL));
			assert_true(a->complete(json, &size));
			const bool refused = cases[i].mask == -2;
			assert_int_equal(architecture_read(a, config, json, &err),
			                 refused ? STATUS_INVALID : STATUS_OK);
			assert_string_equal(err.param, refused ? "mask_token_id" : "");
			if (!refused)
				assert_int_equal(architecture_dims(config)->mask, cases[i].mask);
			assert_true(config_keep(kept, json));
			assert_ptr_equal(json_object_get(kept, "mask_token_id"),
			                 json_object_get(json, "mask_token_id"));
			json_decref(json);
			json_decref(kept);
			free(config);
		}
}

static void only_a_model_that_reads_a_source_has_a_start_token_among_its_ids(void **state)
{
	(void)state;
	static const struct {
		const char *stack, *given;
		int64_t start; /* -2: refused */
	} cases[] = {{"encoder_decoder", "8", 8},
	             {"encoder_decoder", "0", 0},
	             {"encoder_decoder", "null", -1},
	             {"encoder_decoder", NULL, -1},
	             {"encoder_decoder", "9", -2},
	             {"encoder_decoder", "-1", -2},
	             {"encoder_decoder", "true", -2},
	             {"decoder", "8", -1},
	             {"decoder", "9", -1},
	             {"encoder", "8", -1}};
	const architecture *a = architecture_find("transformer");
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const bool refused = cases[i].start == -2;
		model_size size = {.inputs = 9, .positions = 8, .length = 8, .padding = -1, .dropout = -1};
		model_size_complete(&size);
		json_t *json = json_pack("{s:s}", "stack", cases[i].stack), *kept = json_object();
		void *config = calloc(1, a->config_bytes);
		error err = ERROR_INIT;
		if (cases[i].given)
			json_object_set_new(json, "decoder_start_token_id",
			                    json_loads(cases[i].given, JSON_DECODE_ANY, NULL));
		assert_true(a->complete(json, &size));
		assert_int_equal(architecture_read(a, config, json, &err), refused ? STATUS_INVALID : STATUS_OK);
		assert_string_equal(err.param, refused ? "decoder_start_token_id" : "");
		if (!refused)
			assert_int_equal(architecture_dims(config)->start, cases[i].start);
		assert_true(config_keep(kept, json));
		assert_ptr_equal(json_object_get(kept, "decoder_start_token_id"),
		                 json_object_get(json, "decoder_start_token_id"));
		json_decref(json);
		json_decref(kept);
		free(config);
	}
}

static void an_additive_model_has_the_padding_row_of_its_tokenizer(void **state)
{
	(void)state;
	static const int64_t paddings[] = {0, -1, 5};
	const architecture *a = architecture_find("additive");
	for (size_t i = 0; i < 3; i++) {
		model_size size = {.inputs = 9, .positions = 8, .length = 8, .padding = paddings[i], .dropout = -1};
		model_size_complete(&size);
		json_t *json = json_object();
		void *config = calloc(1, a->config_bytes);
		assert_true(a->complete(json, &size));
		assert_int_equal(a->config_read(config, json, NULL), STATUS_OK);
		json_t *written = a->config_write(config);
		const json_t *row = json_object_get(written, "padding_row");
		assert_true(row ? json_integer_value(row) == paddings[i] : paddings[i] == 0); /* as without the key */
		json_decref(written);
		json_decref(json);
		free(config);
	}
}

static void matrices_with_a_row_for_each_token_or_class_are_not_hidden(void **state)
{
	(void)state;
	for (int k = 0; architecture_at(k); k++) {
		const architecture *a = architecture_at(k);
		parameter_list list = {0};
		int hidden = 0;
		model_size size = {.hidden = 32,
		                   .heads = 2,
		                   .layers = 1,
		                   .inputs = 77,
		                   .positions = 50,
		                   .length = 50,
		                   .classes = 5,
		                   .source = 50};
		json_t *json = json_object();
		void *config = calloc(1, a->config_bytes);
		model_size_complete(&size);
		assert_true(a->complete(json, &size));
		assert_int_equal(a->config_read(config, json, NULL), STATUS_OK);
		a->parameters(config, &list);
		for (int i = 0; i < list.count; i++) {
			const parameter_spec *p = &list.items[i];
			hidden += p->hidden;
			if (p->hidden && (p->shape.rank != 2 || p->shape.dim[0] == 77 || p->shape.dim[0] == 5))
				fail_msg("%s: %s is hidden", a->name, p->name);
		}
		assert_true(hidden > 0);
		parameter_list_free(&list);
		free(config);
		json_decref(json);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_architecture_can_name_a_mask_token_among_its_ids),
	    cmocka_unit_test(only_a_model_that_reads_a_source_has_a_start_token_among_its_ids),
	    cmocka_unit_test(an_architecture_is_found_by_either_name),
	    cmocka_unit_test(the_list_of_architectures_ends_and_its_names_are_unique),
	    cmocka_unit_test(an_empty_configuration_has_the_documented_defaults),
	    cmocka_unit_test(good_configurations_are_accepted),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(a_window_over_all_positions_is_global),
	    cmocka_unit_test(default_windows_double_until_they_are_global),
	    cmocka_unit_test(parameters_have_the_names_and_shapes_of_the_checkpoint),
	    cmocka_unit_test(without_a_position_table_there_is_no_parameter_and_no_bound),
	    cmocka_unit_test(the_state_grows_only_with_the_windows),
	    cmocka_unit_test(an_additive_model_has_the_padding_row_of_its_tokenizer),
	    cmocka_unit_test(a_size_is_completed_to_a_model_of_every_architecture),
	    cmocka_unit_test(matrices_with_a_row_for_each_token_or_class_are_not_hidden),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
