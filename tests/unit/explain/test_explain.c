#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/cpu/cpu.h"
#include "engine/explain/explain.h"
#include "engine/model/model.h"
#include "tests/unit/support/parallel_log.h"

enum { TOKENS = 37, LAYERS = 3, ROUNDS = 2, HEADS = 2, FLOATS = LAYERS * ROUNDS * 2 * HEADS };
static const bool every[4] = {true, true, true, true};
static const explain_selection everything = {every, every, every};

static float *at(float *data, int64_t j, int64_t l, int64_t r, int64_t part, int64_t h)
{
	return data + (((j * LAYERS + l) * ROUNDS + r) * 2 + part) * HEADS + h;
}

static additive_options mixers[LAYERS];

/* A log of a model with these windows. */
static explain_log log_new(const float *data, int64_t tokens, int64_t w0, int64_t w1, int64_t w2)
{
	int64_t windows[] = {w0, w1, w2};
	explain_log l = {.tokens = tokens,
	                 .layers = LAYERS,
	                 .rounds = ROUNDS,
	                 .heads = HEADS,
	                 .floats = FLOATS,
	                 .data = data};
	for (int i = 0; i < LAYERS; i++) {
		mixers[i] = (additive_options){.hidden = HEADS, .heads = HEADS, .window = windows[i]};
		l.layer[i] = (attention_site){&additive_explainer, &mixers[i], HEADS};
		l.at[i] = (int64_t)i * ROUNDS * 2 * HEADS;
	}
	return l;
}

/* Random scores of size `spread` around `offset`, with matching normalizers. */
static explain_log scores_new(float *data, int64_t w0, int64_t w1, int64_t w2, float spread, float offset)
{
	explain_log s = log_new(data, TOKENS, w0, w1, w2);
	for (int64_t i = 0; i < TOKENS * FLOATS; i++)
		data[i] = offset + spread * (2 * philox_uniform(philox(1, 1, 0, (uint64_t)i).word[0]) - 1);
	for (int64_t l = 0; l < LAYERS; l++)
		for (int64_t i = 0; i < TOKENS * ROUNDS * HEADS; i++) {
			int64_t j = i / ROUNDS / HEADS, r = i / HEADS % ROUNDS, h = i % HEADS;
			double sum = 0, max = -INFINITY;
			for (int64_t k = explain_reads(&s, l, j).first; k <= j; k++)
				max = fmax(max, *at(data, k, l, r, 0, h));
			for (int64_t k = explain_reads(&s, l, j).first; k <= j; k++)
				sum += exp(*at(data, k, l, r, 0, h) - max);
			*at(data, j, l, r, 1, h) = (float)(max + log(sum));
		}
	return s;
}

/* The α matrix of one layer, round and head, from its definition. */
static void dense(const explain_log *s, int64_t l, int64_t r, int64_t h, double a[TOKENS][TOKENS])
{
	float *data = (float *)(uintptr_t)s->data;
	memset(a, 0, sizeof(double[TOKENS][TOKENS]));
	for (int64_t i = 0; i < TOKENS; i++) {
		double sum = 0, max = -INFINITY;
		int64_t w = mixers[l].window, k = w > 0 ? w : TOKENS, first = i - k + 1 > 0 ? i - k + 1 : 0;
		for (int64_t j = first; j <= i; j++)
			max = fmax(max, *at(data, j, l, r, 0, h));
		for (int64_t j = first; j <= i; j++)
			sum += a[i][j] = exp(*at(data, j, l, r, 0, h) - max);
		for (int64_t j = first; j <= i; j++)
			a[i][j] /= sum;
	}
}

static const struct {
	int64_t window[LAYERS];
	float spread, offset;
} cases[] = {
    {{3, 5, 0}, 1, 0},  {{1, 2, 36}, 4, 0},   {{37, 38, 7}, 2, 0},   {{4, 0, 16}, 10, 0},
    {{0, 0, 0}, 80, 0}, {{3, 5, 0}, 1, 1e4f}, {{3, 5, 0}, 1, -1e4f}, {{31, 33, 0}, 1e4f, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

static explain_log scores_case(float *data, int c)
{
	return scores_new(data, cases[c].window[0], cases[c].window[1], cases[c].window[2], cases[c].spread,
	                  cases[c].offset);
}

static void a_row_of_alpha_is_the_softmax_over_its_window_and_sums_to_one(void **state)
{
	(void)state;
	float data[TOKENS * FLOATS];
	double alpha[TOKENS + 2];
	double a[TOKENS][TOKENS];
	for (int c = 0; c < CASES; c++) {
		explain_log s = scores_case(data, c);
		for (int64_t l = 0; l < LAYERS; l++)
			for (int64_t r = 0; r < ROUNDS; r++)
				for (int64_t h = 0; h < HEADS; h++) {
					dense(&s, l, r, h, a);
					for (int64_t i = 0; i < TOKENS; i++) {
						int64_t first = explain_reads(&s, l, i).first, n = i - first + 1;
						double sum = 0;
						memset(alpha, 0xff, sizeof alpha);
						assert_int_equal(explain_alpha(&s, l, r, h, i, alpha), STATUS_OK);
						for (int64_t j = 0; j < n; j++) {
							assert_true(fabs(alpha[j] - a[i][first + j]) <= 1e-6);
							sum += alpha[j];
						}
						assert_true(fabs(sum - 1) <= 1e-6);
						assert_true(
						    isnan(alpha[n])); /* entries outside the window are not written */
						assert_true(first == 0 || a[i][first - 1] == 0);
					}
				}
	}
}

static void alpha_follows_from_score_and_log_normalizer(void **state)
{
	(void)state;
	float data[TOKENS * FLOATS];
	double alpha[TOKENS];
	explain_log s = scores_case(data, 0);
	for (int64_t i = 0; i < TOKENS; i++) {
		int64_t first = explain_reads(&s, 1, i).first;
		assert_int_equal(explain_alpha(&s, 1, 0, 1, i, alpha), STATUS_OK);
		for (int64_t j = first; j <= i; j++) {
			double expected = exp((double)*at(data, j, 1, 0, 0, 1) - *at(data, i, 1, 0, 1, 1));
			assert_true(fabs(alpha[j - first] - expected) <= 1e-6);
		}
	}
}

static void the_mean_is_the_average_of_the_chosen_rows(void **state)
{
	(void)state;
	float data[TOKENS * FLOATS];
	double out[TOKENS];
	double a[TOKENS][TOKENS];
	for (int c = 0; c < CASES; c++) {
		explain_log s = scores_case(data, c);
		for (unsigned mask = 0; mask < 128; mask += 3) {
			bool layers[LAYERS], rounds[ROUNDS], heads[HEADS];
			double mean[TOKENS] = {0}, sum = 0;
			int64_t i = mask % TOKENS, n = 0;
			for (unsigned b = 0; b < 3; b++)
				layers[b] = mask >> b & 1;
			for (unsigned b = 0; b < 2; b++)
				rounds[b] = mask >> (3 + b) & 1, heads[b] = mask >> (5 + b) & 1;
			explain_selection pick = {layers, heads, rounds};
			for (int64_t l = 0; l < LAYERS; l++)
				for (int64_t r = 0; r < ROUNDS; r++)
					for (int64_t h = 0; h < HEADS; h++) {
						if (!layers[l] || !rounds[r] || !heads[h])
							continue;
						dense(&s, l, r, h, a);
						n++;
						for (int64_t j = 0; j <= i; j++)
							mean[j] += a[i][j];
					}
			assert_int_equal(explain_mean(&s, &pick, i, out), n ? STATUS_OK : STATUS_INVALID);
			for (int64_t j = 0; j <= i && n; j++) {
				assert_true(fabs(out[j] - mean[j] / (double)n) <= 1e-6);
				sum += out[j];
			}
			assert_true(n == 0 || fabs(sum - 1) <= 1e-6);
		}
	}
}

/* v Ã_L … Ã_1 with dense matrices. */
static void dense_rollout(const explain_log *s, const bool *layers, const bool *rounds, const bool *heads, int64_t i,
                          double v[TOKENS])
{
	double a[TOKENS][TOKENS];
	for (int64_t j = 0; j < TOKENS; j++)
		v[j] = j == i;
	for (int64_t l = LAYERS - 1; l >= 0; l--) {
		double y[TOKENS] = {0}, n = 0;
		if (!layers[l])
			continue;
		for (int64_t r = 0; r < ROUNDS; r++)
			for (int64_t h = 0; h < HEADS; h++) {
				if (!rounds[r] || !heads[h])
					continue;
				dense(s, l, r, h, a);
				n++;
				for (int64_t row = 0; row < TOKENS; row++)
					for (int64_t j = 0; j <= row; j++)
						y[j] += v[row] * a[row][j];
			}
		for (int64_t j = 0; j < TOKENS; j++)
			v[j] = (y[j] / n + v[j]) / 2;
	}
}

static void rollout_is_the_product_of_the_dense_matrices(void **state)
{
	(void)state;
	static const bool masks[][4] = {{1, 1, 1, 1}, {1, 0, 1, 0}, {0, 1, 1, 0}};
	float data[TOKENS * FLOATS];
	double out[TOKENS];
	double v[TOKENS];
	for (int c = 0; c < CASES; c++) {
		explain_log s = scores_case(data, c);
		for (int m = 0; m < 3; m++) {
			const bool *layers = masks[m], *rounds = masks[m == 2 ? 1 : 0], *heads = masks[m];
			explain_selection pick = {layers, heads, rounds};
			for (int64_t i = 0; i < TOKENS; i++) {
				double sum = 0;
				memset(out, 0xff, sizeof out);
				assert_int_equal(explain_rollout(&s, &pick, i, out), STATUS_OK);
				dense_rollout(&s, layers, rounds, heads, i, v);
				for (int64_t j = 0; j <= i; j++) {
					if (!(fabs(out[j] - v[j]) <= 1e-7 + 1e-6 * v[j]))
						fail_msg("case %d, masks %d, %d <- %d: %.9g, must be %.9g", c, m,
						         (int)i, (int)j, out[j], v[j]);
					assert_true(out[j] == 0 || j >= explain_rollout_first(&s, &pick, i));
					sum += out[j];
				}
				assert_true(fabs(sum - 1) <= 1e-6);
				assert_true(i + 1 == TOKENS || isnan(out[i + 1]));
			}
		}
	}
}

static void one_layer_of_window_one_rolls_out_to_the_token_itself(void **state)
{
	(void)state;
	float data[TOKENS * FLOATS];
	double out[TOKENS];
	explain_log s = scores_new(data, 1, 1, 1, 3, 0);
	for (int64_t i = 0; i < TOKENS; i++) {
		assert_int_equal(explain_rollout(&s, &everything, i, out), STATUS_OK);
		for (int64_t j = 0; j <= i; j++)
			assert_true(fabs(out[j] - (j == i)) <= 1e-7);
	}
}

static void windows_begin_at_the_right_token(void **state)
{
	(void)state;
	explain_log s = log_new(NULL, 10, 0, 1, 4);
	assert_int_equal(explain_reads(&s, 0, 9).first, 0);
	assert_int_equal(explain_reads(&s, 1, 9).first, 9);
	assert_int_equal(explain_reads(&s, 2, 2).first, 0);
	assert_int_equal(explain_reads(&s, 2, 3).first, 0);
	assert_int_equal(explain_reads(&s, 2, 4).first, 1);
}

static void requests_that_cannot_be_explained_are_refused(void **state)
{
	(void)state;
	float data[TOKENS * FLOATS];
	double out[TOKENS];
	bool none[4] = {false};
	explain_log s = scores_case(data, 0);
	explain_selection no_layer = {none, every, every}, no_head = {every, none, every},
	                  no_round = {every, every, none};
	assert_int_equal(explain_mean(&s, &no_layer, 3, out), STATUS_INVALID);
	assert_int_equal(explain_mean(&s, &no_head, 3, out), STATUS_INVALID);
	assert_int_equal(explain_rollout(&s, &no_round, 3, out), STATUS_INVALID);
	assert_int_equal(explain_mean(&s, &everything, -1, out), STATUS_INVALID);
	assert_int_equal(explain_mean(&s, &everything, TOKENS, out), STATUS_INVALID);
	assert_int_equal(explain_rollout(&s, &everything, TOKENS, out), STATUS_INVALID);
	float strange[] = {NAN, INFINITY, -INFINITY};
	for (int i = 0; i < 3; i++) {
		*at(data, 0, 0, 0, 0, 0) = strange[i];
		assert_int_equal(explain_mean(&s, &everything, 0, out), STATUS_INVALID);
		assert_int_equal(explain_rollout(&s, &everything, 0, out), STATUS_INVALID);
	}
}

/* --- with a model ------------------------------------------------------------------ */

static model *model_new(backend *b, int64_t positions)
{
	model *m;
	json_t *config = json_pack("{s:i, s:i, s:i, s:I, s:i, s:[i,i,I]}", "hidden_size", 32, "vocab_size", 50,
	                           "n_heads", HEADS, "n_positions", (json_int_t)positions, "n_layer", LAYERS,
	                           "window_sizes", 3, 5, (json_int_t)positions);
	assert_int_equal(model_create(&m, architecture_find("additive"), config, 1, b, NULL), STATUS_OK);
	json_decref(config);
	for (int64_t i = 0; i < model_arena_floats(m); i++)
		model_arena(m)[i] += philox_uniform(philox(2, 2, 0, (uint64_t)i).word[0]) - 0.5f;
	return m;
}

static void a_models_alpha_matches_its_log_normalizers(void **state)
{
	(void)state;
	backend *b;
	explain_log s;
	double alpha[TOKENS], out[TOKENS];
	int32_t ids[TOKENS];
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	model *m = model_new(b, 40);
	for (int64_t n = 1; n <= TOKENS; n += 9) {
		for (int64_t i = 0; i < n; i++)
			ids[i] = (int32_t)((7 * i + n) % 50);
		float *data = parallel_log(m, ids, n, &s);
		assert_true(s.tokens == n && s.layers == LAYERS && s.rounds == 2 && s.heads == HEADS);
		assert_true(explain_reads(&s, 0, 36).first == 34 && explain_reads(&s, 1, 36).first == 32 &&
		            explain_reads(&s, 2, 36).first == 0);
		for (int64_t l = 0; l < LAYERS; l++)
			for (int64_t r = 0; r < 2; r++)
				for (int64_t h = 0; h < HEADS; h++)
					for (int64_t i = 0; i < n; i++) {
						int64_t first = explain_reads(&s, l, i).first;
						double sum = 0;
						assert_int_equal(explain_alpha(&s, l, r, h, i, alpha), STATUS_OK);
						for (int64_t j = first; j <= i; j++) {
							double expected = exp((double)*at(data, j, l, r, 0, h) -
							                      *at(data, i, l, r, 1, h));
							assert_true(fabs(alpha[j - first] - expected) <= 1e-5);
							sum += alpha[j - first];
						}
						assert_true(fabs(sum - 1) <= 1e-6);
					}
		assert_int_equal(explain_rollout(&s, &everything, n - 1, out), STATUS_OK);
		free(data);
	}
	model_free(m);
	backend_close(b);
}

static void inputs_that_do_not_fit_the_model_are_refused(void **state)
{
	(void)state;
	backend *b;
	error err = ERROR_INIT;
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	model *m = model_new(b, 40);
	const architecture *a = model_architecture(m);
	assert_int_equal(explain_check_length(a, model_config(m), 0, &err), STATUS_INVALID);
	assert_string_equal(error_message(&err), "'input' must not be empty");
	assert_string_equal(err.param, "input");
	assert_int_equal(explain_check_length(a, model_config(m), 1, NULL), STATUS_OK);
	assert_int_equal(explain_check_length(a, model_config(m), 40, NULL), STATUS_OK);
	assert_int_equal(explain_check_length(a, model_config(m), 41, NULL), STATUS_INVALID);
	model_free(m);
	backend_close(b);
}

static void a_log_of_more_than_a_gibibyte_is_refused(void **state)
{
	(void)state;
	enum { WIDTH = 4096, MOST = (1 << 30) / (2 * WIDTH * 4) };
	const architecture *a = architecture_find("gpt2");
	void *config = calloc(1, a->config_bytes);
	error err = ERROR_INIT;
	json_t *json =
	    json_pack("{s:i, s:i, s:i, s:i}", "n_embd", WIDTH, "n_layer", 1, "n_head", 8, "n_positions", MOST + 1);
	assert_int_equal(a->config_read(config, json, NULL), STATUS_OK);
	assert_int_equal(explain_check_length(a, config, MOST, NULL), STATUS_OK);
	assert_int_equal(explain_check_length(a, config, MOST + 1, &err), STATUS_TOO_LARGE);
	assert_string_equal(err.param, "input");
	json_decref(json);
	free(config);
}

static void a_log_with_a_number_that_is_not_finite_is_refused(void **state)
{
	(void)state;
	float data[TOKENS * FLOATS];
	explain_log s = scores_case(data, 0);
	assert_true(explain_finite(&s));
	data[TOKENS * FLOATS - 1] = NAN;
	assert_false(explain_finite(&s));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_row_of_alpha_is_the_softmax_over_its_window_and_sums_to_one),
	    cmocka_unit_test(alpha_follows_from_score_and_log_normalizer),
	    cmocka_unit_test(the_mean_is_the_average_of_the_chosen_rows),
	    cmocka_unit_test(rollout_is_the_product_of_the_dense_matrices),
	    cmocka_unit_test(one_layer_of_window_one_rolls_out_to_the_token_itself),
	    cmocka_unit_test(windows_begin_at_the_right_token),
	    cmocka_unit_test(requests_that_cannot_be_explained_are_refused),
	    cmocka_unit_test(a_models_alpha_matches_its_log_normalizers),
	    cmocka_unit_test(inputs_that_do_not_fit_the_model_are_refused),
	    cmocka_unit_test(a_log_of_more_than_a_gibibyte_is_refused),
	    cmocka_unit_test(a_log_with_a_number_that_is_not_finite_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
