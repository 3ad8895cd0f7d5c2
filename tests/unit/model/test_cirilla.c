/* Cirilla's encoder-decoder: its configuration, initial values, and checkpoints under its own names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/model/safetensors.h"
#include "engine/model/transformer/transformer.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"

#define KEYS "\"vocab\": 11, \"max_len\": 9, \"d_model\": 12, \"heads\": 2, \"enc_layers\": 2, \"dec_layers\": 1"

static void configurations_map_to_a_transformer_and_are_written_as_they_were_read(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		const char *text = i ? "{" KEYS ", \"d_ff\": 100, \"norm\": \"post\", \"ln_kind\": \"variance\","
		                       " \"pe_form\": \"pow\", \"dropout\": 0, \"attn_dropout\": 0.25}"
		                     : "{" KEYS "}";
		transformer_config *c;
		error err = ERROR_INIT;
		assert_int_equal(fixture_config(&architecture_cirilla, text, (void **)&c, &err), STATUS_OK);
		const stack_options *e = &c->encoder.options, *d = &c->decoder.options;
		assert_int_equal(c->arrangement, ARRANGED_BOTH);
		assert_string_equal(e->order, "afaf");
		assert_string_equal(d->order, "acf");
		assert_int_equal((int64_t)((double)d->dim * d->ff_mult), i ? 100 : 2048);
		assert_int_equal(e->sinusoidal_form, i ? SINUSOIDS_POW : SINUSOIDS_EXP);
		assert_true(e->final_norm == !i && d->pre_norm == !i && d->use_unbiased_norm == !i);
		json_t *written = architecture_cirilla.config_write(c), *asked = fixture_json(text);
		const char *key;
		json_t *member;
		json_object_foreach(asked, key, member)
		{
			json_t *found = json_object_get(written, key);
			if (json_is_number(member))
				assert_true(json_number_value(found) == json_number_value(member));
			else
				assert_true(json_equal(found, member));
		}
		json_decref(asked);
		json_decref(written);
		free(c);
	}
}

static void unsupported_options_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *keys, *param;
	} cases[] = {
	    {"\"heads\": 5", "heads"},        {"\"d_model\": 13", "heads"},         {"\"norm\": \"middle\"", "norm"},
	    {"\"ln_kind\": true", "ln_kind"}, {"\"pe_form\": \"sine\"", "pe_form"}, {"\"layers\": 3", "layers"},
	    {"\"d_ff\": 0", "d_ff"},          {"\"dropout\": 1", "dropout"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[128];
		void *config;
		error err = ERROR_INIT;
		snprintf(text, sizeof text, "{\"d_model\": 12, \"heads\": 2, %s}", cases[i].keys);
		if (i < 2)
			snprintf(text, sizeof text, "{%s%s}", cases[i].keys,
			         i ? ", \"heads\": 2" : ", \"d_model\": 12");
		assert_int_equal(fixture_config(&architecture_cirilla, text, &config, &err), STATUS_INVALID);
		assert_string_equal(err.param, cases[i].param);
		free(config);
	}
}

static void every_allocation_of_a_configuration_may_fail(void **state)
{
	(void)state;
	json_t *json = fixture_json("{" KEYS ", \"d_ff\": 100, \"trained_length\": 7}");
	transformer_config *c = calloc(1, sizeof *c);
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		error err = ERROR_INIT;
		allocations_fail(n, false);
		status s = architecture_cirilla.config_read(c, json, &err);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
	}
	assert_int_equal(c->dims.trained, 7);
	refused = true;
	for (int64_t n = 0; refused; n++) {
		allocations_fail(n, false);
		json_t *written = architecture_cirilla.config_write(c);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true((written == NULL) == refused);
		json_decref(written);
	}
	free(c);
	json_decref(json);
}

static void matrices_and_tables_are_initialized_uniformly_within_xaviers_bound(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	model *m = fixture_created_as(&architecture_cirilla, "{" KEYS ", \"d_ff\": 100}", 3, b);
	int matrices = 0;
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const float *x = model_arena(m) + model_parameter_offset(m, i);
		int64_t count = shape_count(p->shape);
		if (p->shape.rank != 2)
			continue;
		matrices++;
		double bound = sqrt(6 / (double)(p->shape.dim[0] + p->shape.dim[1])), most = 0, squares = 0;
		for (int64_t k = 0; k < count; k++) {
			most = fmax(most, fabs((double)x[k]));
			squares += (double)x[k] * (double)x[k] / (double)count;
		}
		assert_true(most <= bound * (1 + 1e-6) && most > 0.9 * bound);
		/* The fourth moment of a uniform draw is 9/5 of its variance squared: four standard errors. */
		assert_true(fabs(squares * 3 / (bound * bound) - 1) < 4 * sqrt(0.8 / (double)count));
	}
	assert_int_equal(matrices, 2 * (4 + 2) + 1 * (8 + 2) + 3); /* those of the blocks; two tables and the head */
	model_free(m);
	b->close(b);
}

/* Write the weights of a folder again, under the names of a compiled module's state. */
static void write_compiled(const char *folder)
{
	char path[FOLDER_BYTES + 32], names[64][160];
	safetensors *st;
	safetensors_item items[64];
	static float *data[64];
	static const float table[9 * 12];
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	int n = safetensors_count(st);
	assert_true(n < 64);
	for (int i = 0; i < n; i++) {
		const safetensors_entry *e = safetensors_at(st, i);
		data[i] = malloc(e->bytes);
		memcpy(data[i], e->data, e->bytes);
		snprintf(names[i], sizeof names[i], "_orig_mod.%s", e->name);
		items[i] = (safetensors_item){.name = names[i], .type = ST_F32, .rank = e->rank, .data = data[i]};
		memcpy(items[i].dim, e->dim, sizeof items[i].dim);
	}
	items[n] = (safetensors_item){
	    .name = "_orig_mod.pos_enc_dec.pe", .type = ST_F32, .rank = 3, .dim = {1, 9, 12}, .data = table};
	safetensors_close(st);
	assert_int_equal(safetensors_write(path, items, n + 1, NULL, NULL), STATUS_OK);
	for (int i = 0; i < n; i++)
		free(data[i]);
}

static void checkpoints_have_cirillas_names_compiled_or_not(void **state)
{
	(void)state;
	static const char *const some[] = {"input_emb_enc.positional_embeddings.weight",
	                                   "input_emb_dec.positional_embeddings.weight",
	                                   "encoder_blocks.1.self_attention.wout.weight",
	                                   "encoder_blocks.1.add_and_norm2.norm.gamma",
	                                   "decoder_blocks.0.cross_attention.wk.weight",
	                                   "decoder_blocks.0.add_and_norm3.norm.beta",
	                                   "decoder_blocks.0.feed_forward.w2.bias",
	                                   "enc_norm.gamma",
	                                   "dec_norm.beta",
	                                   "linear.linear.bias"};
	char folder[FOLDER_BYTES], path[FOLDER_BYTES + 32];
	backend *b = fixture_backend();
	model *m = fixture_created_as(&architecture_cirilla, "{" KEYS ", \"d_ff\": 100}", 3, b);
	folder_new(folder);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	safetensors *st;
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	assert_int_equal(safetensors_count(st), model_tensor_count(m));
	for (size_t i = 0; i < sizeof some / sizeof *some; i++)
		assert_non_null(safetensors_find(st, some[i]));
	safetensors_close(st);
	for (int compiled = 0; compiled < 2; compiled++) {
		model *again;
		error err = ERROR_INIT;
		if (compiled)
			write_compiled(folder);
		if (model_open(&again, folder, DTYPE_F32, b, &err) != STATUS_OK)
			fail_msg("%s", err.message);
		assert_memory_equal(model_arena(again), model_arena(m), (size_t)model_arena_floats(m) * sizeof(float));
		model_free(again);
	}
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	model_free(m);
	b->close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(configurations_map_to_a_transformer_and_are_written_as_they_were_read),
	    cmocka_unit_test(unsupported_options_are_refused_by_name),
	    cmocka_unit_test(every_allocation_of_a_configuration_may_fail),
	    cmocka_unit_test(matrices_and_tables_are_initialized_uniformly_within_xaviers_bound),
	    cmocka_unit_test(checkpoints_have_cirillas_names_compiled_or_not),
	};
	return cmocka_run_group_tests_name("cirilla", tests, NULL, NULL);
}
