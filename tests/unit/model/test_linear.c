/* Linear attention as a causal language model and as an encoder with a head for classes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/model/class_names.h"
#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"
#include "tests/unit/support/folder.h"

enum { B = 3, N = 23, V = 37, D = 20, CLASSES = 4, SLOTS = 3 };

#include "tests/unit/model/forms.h"

#define CAUSAL                                                                                                         \
	"{\"model_type\": \"linear\", \"hidden_size\": 20, \"n_heads\": 4, \"n_layer\": 3, \"vocab_size\": 37,"        \
	" \"n_positions\": 23, \"position_embedding\": \"learned\"}"
#define ENCODER_KEYS                                                                                                   \
	"\"d_model\": 20, \"encoder_attention_heads\": 4, \"encoder_layers\": 2, \"encoder_ffn_dim\": 36,"             \
	" \"vocab_size\": 37, \"max_position_embeddings\": 23, \"num_labels\": 4"

/* --- the language model ---------------------------------------------------------------- */

static void chunks_of_any_size_give_the_parallel_logits(void **state)
{
	(void)state;
	static const int64_t chunks[] = {1, 5, 23};
	model *m = fixture_model_as(&architecture_linear, CAUSAL, device);
	float whole[B * N * V], stepped[B * N * V];
	int32_t ids[B * N];
	random_ids(ids, B * N, 1);
	parallel_logits(m, ids, whole);
	for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
		memcpy(stepped, whole, sizeof whole);
		for (int64_t b = 0; b < B; b++) /* unwritten logits would show */
			memset(stepped + b * N * V, 0, (size_t)(N / chunks[i] * chunks[i] * V) * sizeof *stepped);
		stepped_logits(m, ids, chunks[i], stepped);
		assert_true(distance(stepped, whole, B * N * V) < 1e-4f);
	}
	model_free(m);
}

static void a_token_changes_no_earlier_output(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_linear, CAUSAL, device);
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

static void the_state_holds_the_sums_of_every_head(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_linear, CAUSAL, 1, device);
	const state_list *states = model_states(m);
	assert_int_equal(states->count, 3);
	for (int l = 0; l < 3; l++) {
		char name[32];
		snprintf(name, sizeof name, "layers.%d.sums", l);
		const state_spec *s = state_list_find(states, name);
		assert_non_null(s);
		assert_int_equal(s->kind, STATE_RECURRENT);
		assert_int_equal(s->floats, D * (D / 4 + 1));
		assert_int_equal(s->offset, l * s->floats);
	}
	assert_int_equal(model_state_floats(m), (3 * D * (D / 4 + 1) + 15) / 16 * 16);
	model_free(m);
}

/* --- the encoder ------------------------------------------------------------------------ */

/* Class logits of B sequences of N tokens; the first `length` of each are unmasked. */
static void classify(const model *m, const int32_t *ids, int64_t length, float *logits, float *embedding)
{
	const forward_spec spec = {
	    .batch = B, .length = N, .masked = true, .out.logits = LOGITS_LAST, .out.embedding = POOL_MEAN};
	int32_t mask[B * N];
	for (int i = 0; i < B * N; i++)
		mask[i] = i % N < length;
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, mask), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_last(p, model_dimensions(m), ids, mask), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	fixture_read(p, "embedding", embedding);
	plan_free(p);
}

static void masked_tokens_have_no_effect_unless_padding_is_read(void **state)
{
	(void)state;
	static const char *const configs[] = {"{" ENCODER_KEYS "}", "{" ENCODER_KEYS ", \"pooling\": \"end\"}",
	                                      "{" ENCODER_KEYS ", \"pad_policy\": \"ignore\"}"};
	for (int i = 0; i < 3; i++) {
		model *m = fixture_model_as(&architecture_linear_encoder, configs[i], device);
		float logits[2][B * CLASSES], embedding[2][B * D];
		int32_t ids[B * N];
		random_ids(ids, B * N, 3);
		classify(m, ids, 15, logits[0], embedding[0]);
		for (int k = 0; k < B * N; k++)
			ids[k] = k % N < 15 ? ids[k] : (ids[k] + 5) % V;
		classify(m, ids, 15, logits[1], embedding[1]);
		if (i < 2) {
			assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
			assert_memory_equal(embedding[0], embedding[1], sizeof embedding[0]);
		} else {
			assert_true(distance(logits[0], logits[1], B * CLASSES) > 1e-4f);
		}
		model_free(m);
	}
}

static void every_token_reaches_the_classes(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_linear_encoder, "{" ENCODER_KEYS ", \"pooling\": \"end\"}", device);
	float before[B * CLASSES], after[B * CLASSES], embedding[B * D];
	int32_t ids[B * N];
	random_ids(ids, B * N, 4);
	classify(m, ids, N, before, embedding);
	ids[0] = (ids[0] + 1) % V;
	classify(m, ids, N, after, embedding);
	assert_true(distance(before, after, CLASSES) > 1e-5f);
	assert_memory_equal(before + CLASSES, after + CLASSES, (B - 1) * CLASSES * sizeof *before);
	model_free(m);
}

static void the_loss_of_classes_has_a_label_for_each_sequence(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_linear_encoder, "{" ENCODER_KEYS "}", device);
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .masked = true,
	                           .out.logits = LOGITS_LAST,
	                           .train.loss = true,
	                           .train.backward = true};
	const int32_t labels[B] = {2, -1, 0};
	float logits[B * CLASSES], loss, count;
	int32_t ids[B * N], mask[B * N];
	double want = 0;
	random_ids(ids, B * N, 5);
	for (int i = 0; i < B * N; i++)
		mask[i] = 1;
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, mask), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_last(p, model_dimensions(m), ids, mask), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	fixture_read(p, "loss", &loss);
	fixture_read(p, "count", &count);
	for (int b = 0; b < B; b += 2) {
		double sum = 0;
		for (int k = 0; k < CLASSES; k++)
			sum += exp((double)logits[b * CLASSES + k]);
		want += (log(sum) - (double)logits[b * CLASSES + labels[b]]) / 2;
	}
	assert_true(count == 2);
	assert_true(fabs((double)loss - want) < 1e-5);
	assert_true(graph_find(plan_graph(p), "grad.classification_head.out_proj.weight") != VALUE_NONE);
	assert_true(graph_find(plan_graph(p), "grad.model.encoder.layers.0.self_attn.q_proj.bias") != VALUE_NONE);
	plan_free(p);
	model_free(m);
}

static void an_encoder_has_no_recurrent_form(void **state)
{
	(void)state;
	const forward_spec spec = {.phase = PHASE_STEP, .batch = 1, .length = 1, .slots = 1};
	model *m = fixture_created_as(&architecture_linear_encoder, "{" ENCODER_KEYS "}", 1, device);
	float pool[16];
	plan *p;
	error err = ERROR_INIT;
	assert_false(model_dimensions(m)->form->stepwise);
	assert_int_equal(model_plan(&p, m, &spec, NULL, pool, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.message, "token by token"));
	model_free(m);
}

/* --- configuration ------------------------------------------------------------------------ */

static void a_configuration_is_written_as_it_was_read(void **state)
{
	(void)state;
	static const char *const texts[] = {CAUSAL, "{" ENCODER_KEYS "}",
	                                    "{" ENCODER_KEYS ", \"pad_policy\": \"ignore\", \"pooling\": \"end\","
	                                    " \"scale_embedding\": true, \"classifier_dropout\": 0.25}"};
	for (int i = 0; i < 3; i++) {
		const architecture *a = i == 0 ? &architecture_linear : &architecture_linear_encoder;
		fixture_check_written(a, texts[i]);
	}
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
	(void)state;
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"d_model\": 0}", "d_model"},
	    {"{\"encoder_attention_heads\": 7}", "encoder_attention_heads"},
	    {"{\"pooling\": \"max\"}", "pooling"},
	    {"{\"pad_policy\": 1}", "pad_policy"},
	    {"{\"num_labels\": 0}", "num_labels"},
	    {"{\"id2label\": [\"a\", \"b\"]}", "id2label"},
	    {"{\"id2label\": {\"0\": \"a\"}, \"num_labels\": 2}", "id2label"},
	    {"{\"id2label\": {\"0\": \"a\", \"2\": \"b\"}}", "id2label"},
	    {"{\"id2label\": {\"0\": \"a\", \"1\": 7}}", "id2label"},
	    {"{\"id2label\": {\"0\": \"a\", \"1\": \"\"}}", "id2label"},
	    {"{\"id2label\": {\"0\": \"a\", \"1\": \"a\"}}", "id2label"},
	    {"{\"decoder_layers\": 2}", "decoder_layers"},
	    {"{\"window_sizes\": [4]}", "window_sizes"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_linear_encoder, cases[i].text, cases[i].key);
}

static const char *class_name(const model *m, size_t i)
{
	return json_string_value(json_array_get(model_class_names(m), i));
}

static void names_of_classes_are_kept_with_the_model_and_define_their_number(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	const char *named = "{\"d_model\": 4, \"encoder_attention_heads\": 1, \"encoder_layers\": 1, \"vocab_size\": 9,"
	                    " \"id2label\": {\"0\": \"no\", \"1\": \"perhaps\", \"2\": \"yes\"}}";
	model *m = fixture_created_as(&architecture_linear_encoder, named, 1, device), *again;
	assert_int_equal(model_dimensions(m)->outputs, 3);
	folder_new(folder);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	assert_int_equal(model_open(&again, folder, DTYPE_PANEL_F32, device, NULL), STATUS_OK);
	assert_int_equal(json_array_size(model_class_names(again)), 3);
	assert_string_equal(class_name(again, 1), "perhaps");
	assert_true(json_equal(model_class_names(m), model_class_names(again)));
	model_free(again);
	model_free(m);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void classes_without_names_are_numbered_and_a_head_without_classes_has_none(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_linear_encoder, "{" ENCODER_KEYS "}", 1, device);
	assert_int_equal(json_array_size(model_class_names(m)), CLASSES);
	assert_string_equal(class_name(m, 3), "LABEL_3");
	json_t *written = json_object();
	assert_true(class_names_write(written, model_class_names(m)));
	assert_int_equal(json_object_size(written), 0);
	json_decref(written);
	model_free(m);
	m = fixture_created_as(&architecture_linear, CAUSAL, 1, device);
	assert_null(model_class_names(m));
	model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_logits),
	    cmocka_unit_test(a_token_changes_no_earlier_output),
	    cmocka_unit_test(the_state_holds_the_sums_of_every_head),
	    cmocka_unit_test(masked_tokens_have_no_effect_unless_padding_is_read),
	    cmocka_unit_test(every_token_reaches_the_classes),
	    cmocka_unit_test(the_loss_of_classes_has_a_label_for_each_sequence),
	    cmocka_unit_test(an_encoder_has_no_recurrent_form),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	    cmocka_unit_test(names_of_classes_are_kept_with_the_model_and_define_their_number),
	    cmocka_unit_test(classes_without_names_are_numbered_and_a_head_without_classes_has_none),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
