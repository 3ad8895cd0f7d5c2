/* 3Lin: its forms, the rows of its attention, contributions, and its configuration. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/model/attribution.h"
#include "tests/unit/model/trilinear.h"

/* --- forms ------------------------------------------------------------------------------------------- */

static void chunks_of_any_size_give_the_parallel_logits(void **state)
{
	static const char *const configs[] = {SEED, HEAD, TWO_BITS, PLACED, HASHED, MATCHED, HASHED_MATCHES};
	static const int64_t chunks[] = {1, 9, 37};
	(void)state;
	for (size_t c = 0; c < sizeof configs / sizeof *configs; c++) {
		model *m = fixture_model_as(&architecture_trilinear, configs[c], device);
		float whole[B * N * V], stepped[B * N * V];
		int32_t ids[B * N];
		random_ids(ids, B * N, 1);
		parallel_logits(m, ids, whole);
		for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
			memcpy(stepped, whole, sizeof whole);
			for (int64_t b = 0; b < B; b++) /* unwritten logits would show */
				memset(stepped + b * N * V, 0xff,
				       (size_t)(N / chunks[i] * chunks[i] * V) * sizeof *stepped);
			stepped_logits(m, ids, chunks[i], stepped);
			assert_true(distance(stepped, whole, B * N * V) <= 1e-4f);
		}
		model_free(m);
	}
}

static void a_token_changes_no_earlier_output(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_trilinear, SEED, device);
	float before[B * N * V], after[B * N * V];
	int32_t ids[B * N];
	random_ids(ids, B * N, 2);
	parallel_logits(m, ids, before);
	ids[11] = (ids[11] + 1) % V; /* in the first sequence only */
	parallel_logits(m, ids, after);
	assert_memory_equal(before, after, 11 * V * sizeof *before);
	assert_true(distance(before + 12 * V, after + 12 * V, V) > 1e-4f);
	assert_memory_equal(before + N * V, after + N * V, (B * N - N) * V * sizeof *before);
	model_free(m);
}

static void a_bidirectional_model_reads_both_sides_and_has_no_state(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_trilinear, BOTH_WAYS, device);
	float before[B * N * V], after[B * N * V];
	int32_t ids[B * N];
	assert_false(model_dimensions(m)->form->stepwise);
	assert_int_equal(model_states(m)->count, 0);
	random_ids(ids, B * N, 2);
	parallel_logits(m, ids, before);
	ids[11] = (ids[11] + 1) % V; /* in the first sequence only */
	parallel_logits(m, ids, after);
	for (int i = 0; i < N; i++)
		assert_true(distance(before + i * V, after + i * V, V) > 1e-4f);
	assert_memory_equal(before + N * V, after + N * V, (B * N - N) * V * sizeof *before);
	model_free(m);
}

/* The first four tokens are repeated: token 4 follows the longest match of 1 2 3. */
static void the_token_after_the_longest_match_is_a_second_label(void **state)
{
	(void)state;
	model *m = fixture_model_as(&architecture_trilinear, MATCHED, device);
	float before[B * N * V], after[B * N * V];
	float *rows = model_arena(m) + model_parameter_offset(m, index_of(m, "matches.weight"));
	int32_t ids[B * N] = {3, 9, 1, 2, 3, 4, 2, 3, 8, 1, 2, 3};
	for (int i = 12; i < B * N; i++)
		ids[i] = 12 + i % 3; /* token 4 never follows these */
	parallel_logits(m, ids, before);
	for (int d = 0; d < D; d++)
		rows[4 * D + d] += 1;
	parallel_logits(m, ids, after);
	assert_memory_equal(before, after, 7 * V * sizeof *before);
	assert_true(distance(before + 7 * V, after + 7 * V, V) > 1e-4f); /* 2 3 occurred before */
	rows[9 * D] += 1;                                                /* only after the first 3 */
	parallel_logits(m, ids, before);
	assert_true(distance(before, after, 4 * V) == 0 && distance(before + 4 * V, after + 4 * V, V) > 1e-4f);
	model_free(m);
}

/* Attention adds the tokens' values and a share of the first value, the share of no token. So the remainder of every
 * row is parallel to the remainder of the others. */
static void check_rows_of_alpha(const char *config)
{
	model *m = fixture_model_as(&architecture_trilinear, config, device);
	const forward_spec spec = {
	    .batch = 1, .length = N, .explain.log = true, .out.activations = true, .out.logits = LOGITS_ALL};
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	const trilinear_options *o = model_mixer_options(m, 1);
	const int64_t q = o->key_size, width = 2 * q + H, w = T / H;
	float parts[N * 64], query[N * 12], key[N * 12], normalizer[N * H], values[N * T], pooled[N * T];
	int32_t ids[N];
	random_ids(ids, N, 3);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "layers.1.query", query);
	fixture_read(p, "layers.1.key", key);
	fixture_read(p, "layers.1.log_normalizer", normalizer);
	fixture_read(p, "layers.1.value", values);
	fixture_read(p, "layers.1.pooled", pooled);
	for (int64_t i = 0; i < N; i++) {
		memcpy(parts + i * width, query + i * q, (size_t)q * sizeof *parts);
		memcpy(parts + i * width + q, key + i * q, (size_t)q * sizeof *parts);
		memcpy(parts + i * width + 2 * q, normalizer + i * H, H * sizeof *parts);
	}
	for (int h = 0; h < H; h++) {
		double rest[N * T] = {0}, most = 0;
		const double *longest = rest;
		for (int64_t i = 0; i < N; i++) {
			const explain_site s = {.options = o, .log = parts, .stride = width, .tokens = N, .head = h};
			const explain_range r = trilinear_explainer.range(o, i, N);
			double alpha[N], sum = 0, square = 0;
			assert_int_equal(r.first, !o->bidirectional && i > o->reach ? i - o->reach : 0);
			assert_int_equal(r.end, o->bidirectional ? N : i + 1);
			assert_int_equal(trilinear_explainer.row(&s, i, alpha), STATUS_OK);
			for (int64_t j = r.first; j < r.end; j++) {
				assert_true(alpha[j - r.first] > 0);
				sum += alpha[j - r.first];
			}
			assert_true(fabs(sum - 1) <= 1e-12);
			for (int64_t d = 0; d < w; d++) {
				rest[i * w + d] = (double)pooled[i * T + h * w + d];
				for (int64_t j = r.first; j < r.end; j++)
					if (j != i)
						rest[i * w + d] -=
						    alpha[j - r.first] * (double)values[j * T + h * w + d];
				square += rest[i * w + d] * rest[i * w + d];
			}
			if (square > most) {
				most = square;
				longest = rest + i * w;
			}
		}
		for (int64_t i = 0; i < N; i++) {
			double along = 0;
			for (int64_t d = 0; d < w; d++)
				along += rest[i * w + d] * longest[d];
			for (int64_t d = 0; d < w; d++)
				assert_true(fabs(rest[i * w + d] - along / most * longest[d]) <= 1e-5);
		}
	}
	plan_free(p);
	model_free(m);
}

static void rows_of_alpha_are_the_weights_of_the_values(void **state)
{
	(void)state;
	check_rows_of_alpha(SEED);
	check_rows_of_alpha(BOTH_WAYS);
}

static void contributions_sum_to_the_score(void **state)
{
	static const char *const configs[] = {SEED, HEAD, TWO_BITS, PLACED, HASHED, MATCHED, HASHED_MATCHES, BOTH_WAYS};
	(void)state;
	for (size_t c = 0; c < sizeof configs / sizeof *configs; c++) {
		model *m = fixture_model_as(&architecture_trilinear, configs[c], device);
		const forward_spec spec = {.batch = 1,
		                           .length = N,
		                           .masked = true,
		                           .out.logits = LOGITS_LAST,
		                           .explain.attribution = ATTRIBUTION_FROZEN,
		                           .explain.share = 0.5f};
		plan *p = fixture_plan(m, &spec, NULL, NULL);
		int32_t ids[N], mask[N];
		float coefficients[V], logits[V], words[N], places[N] = {0}, head;
		double score = 0, sum = 0;
		random_ids(ids, N, 4);
		for (int i = 0; i < N; i++)
			mask[i] = i != 5;
		random_normal(coefficients, V, 9, 1);
		assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_MASK, mask), STATUS_OK);
		assert_int_equal(feed_write(p, PORT_LAST, (int32_t[]){N - 1}), STATUS_OK);
		assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
		fixture_write(p, "coefficients", coefficients);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", logits);
		fixture_read(p, "parts.words", words);
		if (strcmp(configs[c], PLACED) == 0 || strcmp(configs[c], BOTH_WAYS) == 0) {
			fixture_read(p, "parts.positions", places);
			assert_true(fabsf(places[9]) > 1e-6f);
			assert_true((places[29] == 0) ==
			            (strcmp(configs[c], PLACED) == 0)); /* past the end of the table */
		}
		fixture_read(p, "parts.head", &head);
		for (int v = 0; v < V; v++)
			score += (double)coefficients[v] * (double)logits[v];
		for (int i = 0; i < N; i++)
			sum += (double)words[i] + (double)places[i];
		assert_true(fabs(sum + (double)head - score) <= 1e-4 * fmax(fabs(score), 1));
		assert_true(words[5] == 0 && fabsf(head) > 1e-3f);
		plan_free(p);
		model_free(m);
	}
}

/* --- configuration ----------------------------------------------------------------------------------------- */

static const trilinear_options *options_of(const void *config, int64_t layer)
{
	const void *options;
	architecture_trilinear.mixer(config, layer, &options);
	return options;
}

static void tables_of_attention_equal_the_published_ones(void **state)
{
	static const double hyper[] = {20 / 3.0, 0, 40 / 3.0, 0, 20, 0}, slope[] = {0, 0, 0, 0.25, 0, 0.5};
	static const int64_t widths[] = {1, 4, 16, 64, 99};
	void *config;
	(void)state;
	assert_int_equal(
	    fixture_config(&architecture_trilinear, "{\"n_layer\": 12, \"wide_window_size\": 99}", &config, NULL),
	    STATUS_OK);
	for (int l = 0; l < 12; l++) {
		const trilinear_options *o = options_of(config, l);
		assert_true(fabs(o->hyper - hyper[l % 6]) < 1e-5 && o->slope == slope[l % 6]);
		assert_int_equal(o->reach, l % 6 == 1 ? 98 : 63);
		assert_true(fabs(o->score_scale - sqrt(1 / 128.0) / 0.693147) < 1e-12);
	}
	free(config);
	assert_int_equal(fixture_config(&architecture_trilinear,
	                                "{\"profile\": \"head\", \"n_layer\": 65, \"wide_window_size\": 99}", &config,
	                                NULL),
	                 STATUS_OK);
	assert_int_equal(architecture_dims(config)->layers, 65);
	for (int n = 1, l = 0; n <= 5; n++)
		for (int group = 0; group < (n < 5 ? 4 : 5); group++)
			for (int k = 0; k < n; k++)
				assert_int_equal(options_of(config, l++)->reach, widths[k]);
	free(config);
}

static void a_configuration_is_written_as_it_was_read(void **state)
{
	static const char *const texts[] = {
	    SEED,
	    HEAD,
	    "{" SIZES ", \"profile\": \"head\", \"positions\": \"alibi\", \"n_layer\": 3, \"weight_bits\": 4,"
	    " \"vector_bits\": 8, \"token_keep\": 0.5, \"channel_keep\": 0.75, \"train_head\": false,"
	    " \"train_embeddings\": false, \"init_generator\": \"mt19937\", \"n_positions\": 77}",
	    PLACED,
	    HASHED,
	    HASHED_MATCHES,
	    BOTH_WAYS,
	    "{" SIZES ", \"attentions\": [[{\"slope\": 0.25, \"hyper\": 0.5, \"window\": 3}],"
	    " [{\"slope\": 0.5, \"hyper\": 1.5, \"window\": 2}, {\"slope\": 0.125, \"hyper\": 2.5, \"window\": 9}]]}"};
	const architecture *a = &architecture_trilinear;
	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		fixture_check_written(a, texts[i]);
}

static void bad_configurations_are_refused_by_the_name_of_the_key(void **state)
{
#define ONE(members) "{\"attentions\": [[{" members "}]]}"
#define BOTH "\"bidirectional\": true, \"position_embedding\": \"learned\""
	static const struct {
		const char *text, *key;
	} cases[] = {
	    {"{\"hidden_size\": 0}", "hidden_size"},
	    {"{\"n_heads\": 3, \"key_size\": 16}", "key_size"},
	    {"{\"n_heads\": 2, \"value_size\": 16}", "value_size"},
	    {"{\"profile\": \"tail\"}", "profile"},
	    {"{\"positions\": \"widths\"}", "positions"},
	    {"{\"profile\": \"head\", \"n_layer\": 6}", "n_layer"},
	    {"{\"profile\": \"head\", \"window_size\": 6}", "window_size"},
	    {"{\"window_size\": 1}", "window_size"},
	    {"{\"combine_layers\": true}", "combine_layers"},
	    {"{\"weight_bits\": 3}", "weight_bits"},
	    {"{\"vector_bits\": 4}", "vector_bits"},
	    {"{\"token_keep\": 0}", "token_keep"},
	    {"{\"channel_keep\": 1.5}", "channel_keep"},
	    {"{\"combiner_init\": \"ones\"}", "combiner_init"},
	    {"{\"attentions\": []}", "attentions"},
	    {"{\"attentions\": [[]]}", "attentions"},
	    {"{\"attentions\": 3}", "attentions"},
	    {ONE("\"slope\": 0, \"hyper\": 0, \"window\": 1"), "attentions"},
	    {ONE("\"slope\": 0, \"hyper\": 0"), "attentions"},
	    {ONE("\"slope\": \"0\", \"hyper\": 0, \"window\": 2"), "attentions"},
	    {ONE("\"slope\": 0, \"hyper\": 0, \"window\": 2, \"wide\": 1"), "attentions"},
	    {"{\"n_layer\": 1, \"attentions\": [[{\"slope\": 0, \"hyper\": 0, \"window\": 2}]]}", "n_layer"},
	    {"{\"init_generator\": \"pcg\"}", "init_generator"},
	    {"{\"init_generator\": \"mt19937\", \"position_embedding\": \"learned\"}", "init_generator"},
	    {"{\"input\": \"hash\"}", "input"},
	    {"{\"input\": \"hashed\", \"position_embedding\": \"learned\"}", "position_embedding"},
	    {"{\"position_embedding\": \"sinusoidal\"}", "position_embedding"},
	    {"{\"hidden_dropout_prob\": 0.1}", "hidden_dropout_prob"},
	    {"{\"match_window\": 32}", "match_window"},
	    {"{\"match_window\": 8193}", "match_window"},
	    {"{\"bidirectional\": true}", "bidirectional"},
	    {"{" BOTH ", \"match_window\": 64}", "match_window"},
	    {"{" BOTH ", \"positions\": \"alibi\"}", "positions"},
	    {"{" BOTH ", \"window_size\": 6}", "window_size"},
	    {"{" BOTH ", \"attentions\": [[{\"slope\": 0.5, \"hyper\": 0, \"window\": 9}]]}", "attentions"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		fixture_check_refused(&architecture_trilinear, cases[i].text, cases[i].key);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(chunks_of_any_size_give_the_parallel_logits),
	    cmocka_unit_test(a_token_changes_no_earlier_output),
	    cmocka_unit_test(a_bidirectional_model_reads_both_sides_and_has_no_state),
	    cmocka_unit_test(the_token_after_the_longest_match_is_a_second_label),
	    cmocka_unit_test(rows_of_alpha_are_the_weights_of_the_values),
	    cmocka_unit_test(contributions_sum_to_the_score),
	    cmocka_unit_test(tables_of_attention_equal_the_published_ones),
	    cmocka_unit_test(a_configuration_is_written_as_it_was_read),
	    cmocka_unit_test(bad_configurations_are_refused_by_the_name_of_the_key),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
