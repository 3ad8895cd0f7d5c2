/* BART with a head for classes: the row that its head reads, gradients, configuration, saving and loading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"
#include "tests/unit/support/folder.h"

enum { B = 3, N = 11, V = 19, D = 12, CLASSES = 4, PAD = 1, END = 2 };
#define KEYS                                                                                                           \
	"\"model_type\": \"bart\", \"d_model\": 12, \"encoder_attention_heads\": 3, \"decoder_attention_heads\": 2,"   \
	" \"encoder_layers\": 2, \"decoder_layers\": 1, \"encoder_ffn_dim\": 20, \"decoder_ffn_dim\": 14,"             \
	" \"vocab_size\": 19, \"max_position_embeddings\": 11, \"num_labels\": 4, \"attention_dropout\": 0.25"
#define VANILLA "{" KEYS "}"
#define LINEAR "{" KEYS ", \"encoder_attention\": \"linear\"}"
#define IGNORE "{" KEYS ", \"encoder_attention\": \"linear\", \"pad_policy\": \"ignore\"}"
static const char *const configs[] = {VANILLA, LINEAR, IGNORE};
enum { CONFIGS = sizeof configs / sizeof *configs };

/* Pairs of texts of different lengths, each with two end tokens; masked padding follows. */
typedef struct texts {
	int32_t ids[B * N], mask[B * N];
} texts;

static const int64_t lengths[B] = {N, 6, 9};

static texts pairs(void)
{
	texts x;
	for (int i = 0; i < B * N; i++) {
		const int64_t b = i / N, n = i % N;
		x.mask[i] = n < lengths[b];
		x.ids[i] = n >= lengths[b] ? PAD : n == 3 || n == lengths[b] - 1 ? END : (i * 7919 + 5) % (V - 3) + 3;
	}
	return x;
}

static plan *fed(const model *m, const texts *x, forward_spec spec)
{
	spec.batch = B;
	spec.length = N;
	spec.masked = true;
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	assert_int_equal(feed_write(p, PORT_TOKENS, x->ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, x->mask), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_last(p, model_dimensions(m), x->ids, x->mask), STATUS_OK);
	return p;
}

static void classify(const model *m, const texts *x, float logits[B * CLASSES])
{
	plan *p = fed(m, x, (forward_spec){.out.logits = LOGITS_LAST});
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	plan_free(p);
}

static float distance(const float *a, const float *b)
{
	float most = 0;
	for (int k = 0; k < CLASSES; k++)
		most = fmaxf(most, fabsf(a[k] - b[k]));
	return most;
}

/* --- the row that the head reads ------------------------------------------------------------------ */

static void the_head_reads_the_row_of_the_last_end_token(void **state)
{
	(void)state;
	const model_dims end = {.pool = POOL_END, .end = END}, last = {.pool = POOL_LAST};
	const int32_t ids[] = {2, 5, 2, 7, 1, 1};
	assert_int_equal(form_classifier.row(&end, ids, 6), 2);
	assert_int_equal(form_classifier.row(&end, ids, 2), 0);
	assert_int_equal(form_classifier.row(&end, ids + 3, 3), -1);
	assert_int_equal(form_classifier.row(&last, ids, 6), 5);
	model *m = fixture_model_as(&architecture_bart, VANILLA, device);
	const texts x = pairs();
	plan *p = fed(m, &x, (forward_spec){.out.logits = LOGITS_LAST});
	int32_t rows[B];
	fixture_read(p, "last", rows);
	for (int b = 0; b < B; b++)
		assert_int_equal(rows[b], b * N + lengths[b] - 1);
	plan_free(p);
	model_free(m);
}

static void every_token_but_padding_reaches_the_classes_of_its_own_text(void **state)
{
	(void)state;
	for (int c = 0; c < CONFIGS; c++) {
		model *m = fixture_model_as(&architecture_bart, configs[c], device);
		float before[B * CLASSES], after[B * CLASSES];
		const texts x = pairs();
		classify(m, &x, before);
		for (int n = 0; n < N; n++) {
			texts y = x;
			y.ids[N + n] = n < lengths[1] && n != lengths[1] - 1 ? x.ids[N + n] % (V - 3) + 3 : PAD + 3;
			if (n == lengths[1] - 1)
				continue; /* the head reads this row */
			classify(m, &y, after);
			const bool reads = n < lengths[1] || c == 2; /* the last configuration ignores padding */
			assert_true((distance(before + CLASSES, after + CLASSES) > 1e-5f) == reads);
			assert_memory_equal(before, after, CLASSES * sizeof *before);
			assert_memory_equal(before + 2 * CLASSES, after + 2 * CLASSES, CLASSES * sizeof *before);
		}
		model_free(m);
	}
}

static void the_decoder_starts_with_its_start_token(void **state)
{
	(void)state;
	float logits[2][B * CLASSES];
	const texts x = pairs();
	for (int i = 0; i < 2; i++) {
		model *m = fixture_model_as(&architecture_bart,
		                            i ? "{" KEYS ", \"decoder_start_token_id\": 7}" : VANILLA, device);
		classify(m, &x, logits[i]);
		model_free(m);
	}
	assert_true(distance(logits[0], logits[1]) > 1e-5f);
}

/* --- gradients ------------------------------------------------------------------------------------ */

static double loss_of(const model *m, const texts *x, const int32_t *labels)
{
	float loss;
	plan *p = fed(m, x, (forward_spec){.train.loss = true});
	assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "loss", &loss);
	plan_free(p);
	return (double)loss;
}

/* The loss at weights + factor · direction. */
static double loss_along(const model *m, const texts *x, const int32_t *labels, const float *weights,
                         const float *direction, int64_t offset, int64_t count, float factor)
{
	float *moved = malloc((size_t)count * sizeof *moved);
	for (int64_t i = 0; i < count; i++)
		moved[i] = weights[offset + i] + factor * direction[i];
	const size_t bytes = (size_t)count * sizeof *moved;
	assert_int_equal(device->upload(device, model_arena(m) + offset, moved, bytes), STATUS_OK);
	const double loss = loss_of(m, x, labels);
	assert_int_equal(device->upload(device, model_arena(m) + offset, weights + offset, bytes), STATUS_OK);
	free(moved);
	return loss;
}

/* Check each tensor along a random direction. */
static void gradients_are_central_differences_of_the_loss(void **state)
{
	(void)state;
	const int32_t labels[B] = {2, 0, 3};
	const float step = 4e-3f;
	for (int c = 0; c < CONFIGS; c++) {
		model *m = fixture_model_as(&architecture_bart, configs[c], device);
		const texts x = pairs();
		float *weights = fixture_weights(m);
		plan *p = fed(m, &x, (forward_spec){.train.loss = true, .train.backward = true});
		assert_int_equal(feed_write(p, PORT_LABELS, labels), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		for (int i = 0; i < model_tensor_count(m); i++) {
			const parameter_spec *spec = model_parameter(m, i);
			const int64_t count = shape_count(spec->shape), offset = model_parameter_offset(m, i);
			float *gradient = malloc((size_t)count * sizeof *gradient),
			      *direction = malloc((size_t)count * sizeof *direction);
			char name[160];
			double slope = 0;
			snprintf(name, sizeof name, "grad.%s", spec->name);
			fixture_read(p, name, gradient);
			random_normal(direction, count, 500 + (uint64_t)i, 1 / sqrt((double)count));
			for (int64_t k = 0; k < count; k++) {
				const bool padding = i == 0 && k / D == PAD; /* the padding row is fixed */
				direction[k] = padding ? 0 : direction[k];
				slope += (double)gradient[k] * (double)direction[k];
				assert_true(!padding || gradient[k] == 0);
			}
			const double change = loss_along(m, &x, labels, weights, direction, offset, count, step) -
			                      loss_along(m, &x, labels, weights, direction, offset, count, -step);
			if (!(fabs(change / (2 * (double)step) - slope) < 2e-3 * fabs(slope) + 4e-4))
				fail_msg("%s: %g, must be %g", spec->name, slope, change / (2 * (double)step));
			free(gradient);
			free(direction);
		}
		plan_free(p);
		free(weights);
		model_free(m);
	}
}

/* --- configuration and files ---------------------------------------------------------------------- */

/* The keys of the published base model. */
static const char published[] =
    "{\"_name_or_path\": \"bart-base\", \"activation_dropout\": 0.1, \"activation_function\": \"gelu\","
    " \"add_bias_logits\": false, \"add_final_layer_norm\": false,"
    " \"architectures\": [\"BartForSequenceClassification\"], \"attention_dropout\": 0.1, \"bos_token_id\": 0,"
    " \"classif_dropout\": 0.1, \"classifier_dropout\": 0.0, \"d_model\": 768, \"decoder_attention_heads\": 12,"
    " \"decoder_ffn_dim\": 3072, \"decoder_layerdrop\": 0.0, \"decoder_layers\": 6, \"decoder_start_token_id\": 2,"
    " \"dropout\": 0.1, \"early_stopping\": true, \"encoder_attention_heads\": 12, \"encoder_ffn_dim\": 3072,"
    " \"encoder_layerdrop\": 0.0, \"encoder_layers\": 6, \"eos_token_id\": 2, \"forced_eos_token_id\": 2,"
    " \"gradient_checkpointing\": false, \"id2label\": {\"0\": \"entailment\", \"1\": \"not_entailment\"},"
    " \"init_std\": 0.02, \"is_encoder_decoder\": true,"
    " \"label2id\": {\"entailment\": 0, \"not_entailment\": 1}, \"max_position_embeddings\": 1024,"
    " \"model_type\": \"bart\", \"no_repeat_ngram_size\": 3, \"normalize_before\": false,"
    " \"normalize_embedding\": true, \"num_beams\": 4, \"num_hidden_layers\": 6, \"pad_token_id\": 1,"
    " \"scale_embedding\": false, \"torch_dtype\": \"float32\", \"use_cache\": true, \"vocab_size\": 50265}";

static void a_published_configuration_is_read(void **state)
{
	(void)state;
	void *config;
	assert_int_equal(fixture_config(&architecture_bart, published, &config, NULL), STATUS_OK);
	const model_dims *d = architecture_dims(config);
	parameter_list list = {0};
	int64_t count = 0; /* sizes of the published base model, with a head for two classes */
	architecture_bart.parameters(config, &list);
	for (int i = 0; i < list.count; i++)
		count += shape_count(list.items[i].shape);
	assert_int_equal(count, 139420416 + 592130);
	assert_int_equal(d->outputs, 2);
	assert_int_equal(d->pool, POOL_END);
	assert_int_equal(d->end, 2);
	assert_false(d->reads_padding || d->form->stepwise);
	parameter_list_free(&list);
	free(config);
}

static void a_configuration_is_written_as_it_was_read(void **state)
{
	(void)state;
	for (int i = 0; i < CONFIGS; i++)
		fixture_check_written(&architecture_bart, configs[i]);
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
	(void)state;
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"decoder_attention_heads\": 7}", "decoder_attention_heads"},
	    {"{\"decoder_layers\": 0}", "decoder_layers"},
	    {"{\"encoder_attention\": \"additive\"}", "encoder_attention"},
	    {"{\"pad_policy\": \"ignore\"}", "pad_policy"},
	    {"{\"eos_token_id\": 50265}", "eos_token_id"},
	    {"{\"eos_token_id\": -1}", "eos_token_id"},
	    {"{\"decoder_start_token_id\": 50265}", "decoder_start_token_id"},
	    {"{\"pooling\": \"mean\"}", "pooling"},
	    {"{\"activation_function\": \"relu\"}", "activation_function"},
	    {"{\"normalize_before\": true}", "normalize_before"},
	    {"{\"normalize_embedding\": false}", "normalize_embedding"},
	    {"{\"add_final_layer_norm\": true}", "add_final_layer_norm"},
	    {"{\"tie_word_embeddings\": false}", "tie_word_embeddings"},
	    {"{\"decoder_layerdrop\": 0.1}", "decoder_layerdrop"},
	    {"{\"encoder_layers\": 4, \"num_hidden_layers\": 6}", "num_hidden_layers"},
	    {"{\"attention_dropout\": 1}", "attention_dropout"},
	    {"{\"problem_type\": \"multi_label_classification\"}", "problem_type"},
	    {"{\"problem_type\": \"regression\", \"num_labels\": 1}", "problem_type"},
	    {"{\"d_model\": 65536, \"encoder_attention_heads\": 8, \"decoder_layers\": 256}", ""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_bart, cases[i].text, cases[i].key);
}

static void a_saved_model_is_loaded_bit_for_bit_and_gives_the_same_classes(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	float logits[2][B * CLASSES];
	const texts x = pairs();
	model *m = fixture_model_as(&architecture_bart, LINEAR, device), *again;
	folder_new(folder);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	assert_int_equal(model_open(&again, folder, DTYPE_F32, device, NULL), STATUS_OK);
	fixture_same_weights(m, again);
	classify(m, &x, logits[0]);
	classify(again, &x, logits[1]);
	assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
	model_free(again);
	model_free(m);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_head_reads_the_row_of_the_last_end_token),
	    cmocka_unit_test(every_token_but_padding_reaches_the_classes_of_its_own_text),
	    cmocka_unit_test(the_decoder_starts_with_its_start_token),
	    cmocka_unit_test(gradients_are_central_differences_of_the_loss),
	    cmocka_unit_test(a_published_configuration_is_read),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	    cmocka_unit_test(a_saved_model_is_loaded_bit_for_bit_and_gives_the_same_classes),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
