/* GPT-2: its configuration, and that its forms agree with each other. The golden files check its numbers
 * (tests/e2e/test_golden.py). Its parameters and checkpoints: test_gpt2_checkpoints.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "engine/model/feed.h"
#include "engine/tensor/ops/softmax_attention.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"
#include "tests/unit/support/compare.h"

/* Fewer positions than tokens: a session continues past its window. */
enum { B = 2, N = 33, V = 29, D = 12, H = 3, LAYERS = 2, POSITIONS = 10, SLOTS = 4 };
#define CONFIG                                                                                                         \
	"{\"model_type\": \"gpt2\", \"vocab_size\": 29, \"n_positions\": 10, \"n_embd\": 12, \"n_layer\": 2,"          \
	" \"n_head\": 3, \"n_inner\": 20, \"resid_pdrop\": 0.25, \"embd_pdrop\": 0.125, \"attn_pdrop\": 0.5}"
#define TOLERANCE 1e-5
#define LOGITS_TOLERANCE 1e-4

static model *random_model(void)
{
	return fixture_model_as(&architecture_gpt2, CONFIG, device);
}

/* --- configuration -------------------------------------------------------------------------- */

static void an_empty_configuration_is_the_small_gpt2(void **state)
{
	(void)state;
	void *config;
	model_dims dims;
	assert_int_equal(fixture_config(&architecture_gpt2, "{}", &config, NULL), STATUS_OK);
	dims = *architecture_dims(config);
	assert_int_equal(dims.outputs, 50257);
	assert_int_equal(dims.positions, 1024);
	assert_int_equal(dims.hidden, 768);
	assert_int_equal(dims.layers, 12);
	assert_int_equal(dims.heads, 12);
	assert_true(dims.dropout == 0.1f);
	assert_int_equal(fixture_state_floats(&architecture_gpt2, config), 12 * 1024 * (2 * 768 + 1));
	parameter_list list = {0};
	int64_t count = 0;
	architecture_gpt2.parameters(config, &list);
	for (int i = 0; i < list.count; i++)
		count += shape_count(list.items[i].shape);
	assert_int_equal(count, 124439808);
	parameter_list_free(&list);
	free(config);
}

static void configurations_of_the_ecosystem_are_accepted(void **state)
{
	(void)state;
	static const char *const good[] = {
	    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1,"
	    " \"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02,"
	    " \"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\", \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": "
	    "12,"
	    " \"n_layer\": 12, \"n_positions\": 1024, \"n_special\": 0, \"predict_special_tokens\": true,"
	    " \"resid_pdrop\": 0.1, \"summary_activation\": null, \"summary_first_dropout\": 0.1,"
	    " \"summary_proj_to_labels\": true, \"summary_type\": \"cls_index\", \"summary_use_proj\": true,"
	    " \"task_specific_params\": {\"text-generation\": {\"do_sample\": true}}, \"vocab_size\": 50257}",
	    "{\"add_cross_attention\": false, \"dtype\": \"float32\", \"n_inner\": null, \"pad_token_id\": null,"
	    " \"reorder_and_upcast_attn\": false, \"scale_attn_by_inverse_layer_idx\": false,"
	    " \"scale_attn_weights\": true, \"tie_word_embeddings\": true, \"transformers_version\": \"5.23.0\","
	    " \"use_cache\": true, \"resid_pdrop\": 0}",
	    "{\"activation_function\": \"gelu_pytorch_tanh\"}",
	    "{\"activation_function\": \"gelu\"}",
	    "{\"n_inner\": 5}",
	    "{\"cache_dtype\": \"f32\"}",
	    "{\"cache_dtype\": \"bf16\"}",
	    "{\"n_embd\": 1, \"n_head\": 1, \"n_layer\": 1, \"vocab_size\": 1, \"n_positions\": 1}",
	};
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		void *config;
		error err = ERROR_INIT;
		status s = fixture_config(&architecture_gpt2, good[i], &config, &err);
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
	    {"{\"model_type\": \"additive\"}", "model_type"},
	    {"{\"hidden_size\": 768}", "hidden_size"},
	    {"{\"n_embd\": 0}", "n_embd"},
	    {"{\"n_embd\": 65537}", "n_embd"},
	    {"{\"n_embd\": \"768\"}", "n_embd"},
	    {"{\"n_head\": 5}", "n_head"},
	    {"{\"n_head\": 0}", "n_head"},
	    {"{\"n_layer\": 0}", "n_layer"},
	    {"{\"n_layer\": 257}", "n_layer"},
	    {"{\"n_positions\": 0}", "n_positions"},
	    {"{\"n_positions\": 8, \"trained_length\": 9}", "trained_length"},
	    {"{\"vocab_size\": 16777217}", "vocab_size"},
	    {"{\"n_inner\": 0}", "n_inner"},
	    {"{\"n_inner\": 3.5}", "n_inner"},
	    {"{\"n_inner\": 262145}", "n_inner"},
	    {"{\"activation_function\": \"relu\"}", "activation_function"},
	    {"{\"activation_function\": null}", "activation_function"},
	    {"{\"cache_dtype\": \"fp16\"}", "cache_dtype"},
	    {"{\"cache_dtype\": 16}", "cache_dtype"},
	    {"{\"resid_pdrop\": 1}", "resid_pdrop"},
	    {"{\"embd_pdrop\": -0.1}", "embd_pdrop"},
	    {"{\"attn_pdrop\": null}", "attn_pdrop"},
	    {"{\"layer_norm_epsilon\": 0}", "layer_norm_epsilon"},
	    {"{\"initializer_range\": -1}", "initializer_range"},
	    {"{\"scale_attn_weights\": 1}", "scale_attn_weights"},
	    {"{\"scale_attn_by_inverse_layer_idx\": null}", "scale_attn_by_inverse_layer_idx"},
	    {"{\"tie_word_embeddings\": false}", "tie_word_embeddings"},
	    {"{\"add_cross_attention\": true}", "add_cross_attention"},
	    {"{\"n_embd\": 65536, \"n_head\": 1, \"n_layer\": 256}", ""},
	    {"{\"n_embd\": 65536, \"n_head\": 1, \"vocab_size\": 16777216, \"n_layer\": 1}", ""},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		void *config;
		error err = ERROR_INIT;
		status s = fixture_config(&architecture_gpt2, bad[i].text, &config, &err);
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
	    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 50257,"
	    " \"n_positions\": 10, \"trained_length\": 8, \"n_embd\": 12, \"n_layer\": 2, \"n_head\": 3, \"n_inner\": "
	    "20,"
	    " \"activation_function\": \"gelu\", \"resid_pdrop\": 0.25, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.5,"
	    " \"layer_norm_epsilon\": 0.001, \"initializer_range\": 0.5, \"scale_attn_weights\": false,"
	    " \"scale_attn_by_inverse_layer_idx\": true, \"tie_word_embeddings\": true}",
	    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 50256,"
	    " \"n_positions\": 10, \"trained_length\": 10, \"n_embd\": 12, \"n_layer\": 2, \"n_head\": 3, \"n_inner\": "
	    "null,"
	    " \"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.25, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.5,"
	    " \"layer_norm_epsilon\": 0.001, \"initializer_range\": 0.5, \"scale_attn_weights\": true,"
	    " \"scale_attn_by_inverse_layer_idx\": false, \"tie_word_embeddings\": true, \"bos_token_id\": null,"
	    " \"eos_token_id\": null}",
	    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 50257,"
	    " \"n_positions\": 10, \"trained_length\": 8, \"n_embd\": 12, \"n_layer\": 2, \"n_head\": 3, \"n_inner\": "
	    "20,"
	    " \"activation_function\": \"gelu\", \"resid_pdrop\": 0.25, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.5,"
	    " \"layer_norm_epsilon\": 0.001, \"initializer_range\": 0.5, \"scale_attn_weights\": false,"
	    " \"scale_attn_by_inverse_layer_idx\": true, \"tie_word_embeddings\": true, \"cache_dtype\": \"bf16\"}",
	};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		void *config;
		assert_int_equal(fixture_config(&architecture_gpt2, texts[i], &config, NULL), STATUS_OK);
		json_t *got = architecture_gpt2.config_write(config), *want = fixture_json(texts[i]);
		assert_true(json_equal(got, want));
		json_decref(got);
		json_decref(want);
		free(config);
	}
}

/* --- the forms ----------------------------------------------------------------------------------- */

static void fill_positions(int32_t *positions, int64_t length, int64_t first)
{
	for (int64_t i = 0; i < B * length; i++)
		positions[i] = (int32_t)((first + i % length) % POSITIONS);
}

/* mask may be NULL. */
static void run_parallel(const model *m, const int32_t *ids, const int32_t *mask, float *logits)
{
	const forward_spec spec = {.batch = B, .length = N, .masked = mask != NULL, .out.logits = LOGITS_ALL};
	int32_t positions[B * N];
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	fill_positions(positions, N, 0);
	fixture_write(p, "input_ids", ids);
	fixture_write(p, "position_ids", positions);
	if (mask)
		fixture_write(p, "attention_mask", mask);
	memset(logits, 0xff, B * N * V * sizeof *logits);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	plan_free(p);
}

static void run_in_chunks(const model *m, const int32_t *ids, const int32_t *mask, int64_t chunk, float *logits)
{
	const forward_spec spec = {.batch = B,
	                           .length = chunk,
	                           .phase = PHASE_STEP,
	                           .slots = SLOTS,
	                           .masked = mask != NULL,
	                           .out.logits = LOGITS_ALL};
	static const int32_t slots[B] = {3, 1};
	size_t bytes = (size_t)(SLOTS * model_state_floats(m)) * sizeof(float);
	float *pool, *junk = malloc(bytes), out[B * N * V];
	assert_non_null(junk);
	memset(junk, 0xff, bytes); /* position 0 must not depend on the slot's earlier content: NaN here */
	assert_int_equal(device->allocate(device, bytes, (void **)&pool), STATUS_OK);
	assert_int_equal(device->upload(device, pool, junk, bytes), STATUS_OK);
	plan *p = fixture_plan(m, &spec, NULL, pool);
	for (int64_t begin = 0; begin < N; begin += chunk) {
		int32_t some[B * N] = {0}, positions[B * N], read[B], length[B], masked[B * N] = {0};
		int64_t n = N - begin < chunk ? N - begin : chunk;
		for (int b = 0; b < B; b++) {
			read[b] = (int32_t)begin;
			length[b] = (int32_t)n;
			memcpy(some + b * chunk, ids + b * N + begin, (size_t)n * sizeof *some);
			if (mask)
				memcpy(masked + b * chunk, mask + b * N + begin, (size_t)n * sizeof *some);
		}
		fill_positions(positions, chunk, begin);
		fixture_write(p, "input_ids", some);
		fixture_write(p, "position_ids", positions);
		fixture_write(p, "slot", slots);
		fixture_write(p, "position", read);
		fixture_write(p, "length", length);
		if (mask)
			fixture_write(p, "attention_mask", masked);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", out);
		for (int b = 0; b < B; b++)
			memcpy(logits + (b * N + begin) * V, out + b * chunk * V, (size_t)(n * V) * sizeof *out);
	}
	plan_free(p);
	device->release(device, pool);
	free(junk);
}

static void chunks_of_any_size_give_the_parallel_logits_even_past_the_window(void **state)
{
	(void)state;
	static const int64_t chunks[] = {1, 3, POSITIONS, 13, N};
	static float want[B * N * V], got[B * N * V];
	int32_t ids[B * N], mask[B * N];
	model *m = random_model();
	random_integers(ids, B * N, 3, 0, V - 1);
	random_integers(mask, B * N, 4, 0, 3);
	for (int i = 0; i < B * N; i++)
		mask[i] = mask[i] > 0;
	for (int masked = 0; masked < 2; masked++) {
		run_parallel(m, ids, masked ? mask : NULL, want);
		for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
			memset(got, 0xff, sizeof got);
			run_in_chunks(m, ids, masked ? mask : NULL, chunks[i], got);
			assert_true(compare_close("logits", got, want, B * N * V, LOGITS_TOLERANCE, LOGITS_TOLERANCE));
		}
	}
	model_free(m);
}

static void a_token_reaches_later_tokens_within_the_windows(void **state)
{
	(void)state;
	enum { FIRST = 4, REACH = LAYERS * (POSITIONS - 1) };
	static float before[B][N][V], after[B][N][V];
	int32_t ids[B * N];
	model *m = random_model();
	random_integers(ids, B * N, 3, 0, V - 1);
	run_parallel(m, ids, NULL, before[0][0]);
	ids[FIRST] = (ids[FIRST] + 1) % V;
	run_parallel(m, ids, NULL, after[0][0]);
	assert_memory_equal(before[1], after[1], sizeof before[1]);
	assert_true(compare_close("before", after[0][0], before[0][0], FIRST * V, TOLERANCE, 0));
	for (int n = FIRST; n < N; n++) {
		float largest = 0;
		for (int v = 0; v < V; v++)
			largest = fmaxf(largest, fabsf(after[0][n][v] - before[0][n][v]));
		assert_true(n <= FIRST + REACH ? largest > 1e-6f : largest <= (float)TOLERANCE);
	}
	model_free(m);
}

/* --- the graph ------------------------------------------------------------------------------------ */

/* The graph of a configuration; the caller frees it. */
static graph *build(const char *text, const forward_spec *spec)
{
	void *config;
	assert_int_equal(fixture_config(&architecture_gpt2, text, &config, NULL), STATUS_OK);
	graph *g = fixture_graph(&architecture_gpt2, config, spec);
	free(config);
	return g;
}

static void every_dropout_has_its_own_random_stream_and_probability(void **state)
{
	(void)state;
	const forward_spec spec = {.batch = B, .length = N, .train.dropout = true, .train.loss = true};
	graph *g = build(CONFIG, &spec);
	uint32_t expected = 0;
	for (int i = 0; i < graph_node_count(g); i++) {
		const op_node *node = graph_node(g, i);
		if (node->id == OP_dropout) {
			const dropout_params *p = node->params;
			assert_int_equal(p->stream, expected);
			assert_true(p->p == (expected == 0 ? 0.125f : 0.25f));
			expected++;
		} else if (node->id == OP_softmax_attention) {
			const softmax_params *p = node->params;
			assert_int_equal(p->stream, expected++);
			assert_true(p->p == 0.5f && node->in[SOFTMAX_RNG] != VALUE_NONE);
		}
	}
	assert_int_equal(expected, 1 + 3 * LAYERS);
	graph_free(g);
}

static void without_dropout_in_the_spec_no_unit_is_dropped(void **state)
{
	(void)state;
	const forward_spec spec = {.batch = B, .length = N, .train.loss = true};
	graph *g = build(CONFIG, &spec);
	for (int i = 0; i < graph_node_count(g); i++) {
		const op_node *node = graph_node(g, i);
		assert_int_not_equal(node->id, OP_dropout);
		if (node->id == OP_softmax_attention)
			assert_true(((const softmax_params *)node->params)->p == 0);
	}
	graph_free(g);
}

static void scores_are_scaled_as_configured(void **state)
{
	(void)state;
	static const struct {
		const char *keys;
		float scale[2];
	} cases[] = {
	    {"", {0.25f, 0.25f}},
	    {", \"scale_attn_weights\": false", {1, 1}},
	    {", \"scale_attn_by_inverse_layer_idx\": true", {0.25f, 0.125f}},
	    {", \"scale_attn_weights\": false, \"scale_attn_by_inverse_layer_idx\": true", {1, 0.5f}},
	};
	for (size_t i = 0; i < 2 * (sizeof cases / sizeof cases[0]); i++) {
		const forward_spec spec = {
		    .batch = B, .length = 3, .phase = i % 2 ? PHASE_STEP : PHASE_SCORE, .slots = SLOTS};
		char text[256];
		int layer = 0;
		snprintf(text, sizeof text, "{\"n_embd\": 32, \"n_head\": 2, \"n_layer\": 2%s}", cases[i / 2].keys);
		graph *g = build(text, &spec);
		for (int k = 0; k < graph_node_count(g); k++) {
			const op_node *node = graph_node(g, k);
			if (node->id == OP_softmax_attention)
				assert_true(((const softmax_params *)node->params)->scale ==
				            cases[i / 2].scale[layer++]);
			if (node->id == OP_softmax_stream)
				assert_true(((const softmax_stream_params *)node->params)->scale ==
				            cases[i / 2].scale[layer++]);
		}
		assert_int_equal(layer, 2);
		graph_free(g);
	}
}

static void the_caches_of_the_layers_are_adjacent(void **state)
{
	(void)state;
	const forward_spec spec = {.batch = B, .length = 4, .phase = PHASE_STEP, .slots = SLOTS};
	graph *g = build(CONFIG, &spec);
	int64_t offset = 0;
	for (int i = 0; i < graph_node_count(g); i++) {
		const op_node *node = graph_node(g, i);
		if (node->id != OP_softmax_stream)
			continue;
		const softmax_stream_params *p = node->params;
		assert_int_equal(p->offset, offset);
		assert_int_equal(p->window, POSITIONS);
		offset += softmax_state_floats(D, D, POSITIONS);
	}
	assert_int_equal(offset, LAYERS * (2 * D + 1) * POSITIONS);
	graph_free(g);
}

static void a_cache_of_bf16_has_half_the_bytes_of_each_key_and_value(void **state)
{
	(void)state;
	void *config;
	state_list list = {0};
	assert_int_equal(fixture_config(&architecture_gpt2, "{\"cache_dtype\": \"bf16\"}", &config, NULL), STATUS_OK);
	architecture_states(&architecture_gpt2, config, &list);
	assert_int_equal(list.status, STATUS_OK);
	assert_int_equal(list.floats, 12 * 1024 * (768 + 1));
	assert_int_equal(list.items[3].places, 1024);
	assert_int_equal(list.items[3].widths[0], 384);
	assert_int_equal(list.items[3].widths[1], 384);
	assert_int_equal(list.items[3].widths[2], 1);
	state_list_free(&list);
	free(config);
}

/* Chunks of any size, past the window too, give the same tokens to the cache; their logits differ by rounding alone. */
static void logits_with_a_cache_of_bf16_are_within_a_64th_of_the_parallel_ones(void **state)
{
	(void)state;
	static const int64_t chunks[] = {1, 3, POSITIONS, N};
	static const char halves[] =
	    "{\"model_type\": \"gpt2\", \"vocab_size\": 29, \"n_positions\": 10, \"n_embd\": 12,"
	    " \"n_layer\": 2, \"n_head\": 3, \"n_inner\": 20, \"cache_dtype\": \"bf16\"}";
	static float want[B * N * V], got[B * N * V];
	int32_t ids[B * N];
	double largest = 0;
	model *m = fixture_model_as(&architecture_gpt2, halves, device);
	random_integers(ids, B * N, 3, 0, V - 1);
	run_parallel(m, ids, NULL, want);
	for (int i = 0; i < B * N * V; i++)
		largest = fmax(largest, fabs((double)want[i]));
	for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
		double off = 0;
		memset(got, 0xff, sizeof got);
		run_in_chunks(m, ids, NULL, chunks[i], got);
		for (int k = 0; k < B * N * V; k++)
			off = fmax(off, fabs((double)got[k] - (double)want[k]));
		print_message("chunks of %d: %.2e of logits up to %.2f\n", (int)chunks[i], off, largest);
		assert_true(off > 1e-6 * largest && off <= largest / 64);
		assert_true(compare_close("logits", got, want, B * N * V, largest / 64, 0));
	}
	model_free(m);
}

static void queries_and_keys_are_outputs_for_explanations(void **state)
{
	(void)state;
	const forward_spec specs[] = {
	    {.batch = B, .length = 3, .explain.log = true},
	    {.batch = B, .length = 1, .phase = PHASE_STEP, .slots = SLOTS, .explain.log = true}};
	for (int i = 0; i < 2; i++) {
		graph *g = build(CONFIG, &specs[i]);
		for (int l = 0; l < LAYERS; l++) {
			char name[32];
			snprintf(name, sizeof name, "layers.%d.qkv", l);
			value v = graph_find(g, name);
			assert_int_not_equal(v, VALUE_NONE);
			assert_int_equal(shape_last(graph_value(g, v)->shape), 3 * D);
		}
		graph_free(g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_empty_configuration_is_the_small_gpt2),
	    cmocka_unit_test(configurations_of_the_ecosystem_are_accepted),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_logits_even_past_the_window),
	    cmocka_unit_test(a_token_reaches_later_tokens_within_the_windows),
	    cmocka_unit_test(every_dropout_has_its_own_random_stream_and_probability),
	    cmocka_unit_test(without_dropout_in_the_spec_no_unit_is_dropped),
	    cmocka_unit_test(scores_are_scaled_as_configured),
	    cmocka_unit_test(the_caches_of_the_layers_are_adjacent),
	    cmocka_unit_test(a_cache_of_bf16_has_half_the_bytes_of_each_key_and_value),
	    cmocka_unit_test(logits_with_a_cache_of_bf16_are_within_a_64th_of_the_parallel_ones),
	    cmocka_unit_test(queries_and_keys_are_outputs_for_explanations),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
