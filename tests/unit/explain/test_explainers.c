/* The explainers of all mixers: rows are the weights that the ops use; products equal those with the dense matrix. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/explain/explain.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/parallel_log.h"
#include "tests/unit/support/random.h"

enum { N = 37, H = 3, DH = 5, D = H * DH };

static const forgetting_options forgetting = {.hidden = D, .heads = H};
static const rwkv_options rwkv = {.hidden = D, .channels = H};
static const additive_options additive_global = {.hidden = D, .heads = H}, additive_seven = {D, H, .window = 7};
static const attention_layout one_product = {.names = {[ATTENTION_QUERY] = "qkv", [ATTENTION_OUTPUT] = "out"}},
                              four_products = {.names = {"q", "k", "v", "out"}};
#define SOFTMAX(of)                                                                                                    \
	.layout = &(of), .hidden = D, .heads = H, .kv_heads = H, .key_width = DH, .value_width = DH,                   \
	.scoring.scale = 0.4
static const attention_options softmax_wide = {SOFTMAX(one_product), .causal = true, .reach.capacity = 64},
                               softmax_five = {SOFTMAX(one_product), .causal = true, .reach.capacity = 5},
                               softmax_causal = {SOFTMAX(four_products), .causal = true},
                               softmax_both = {SOFTMAX(four_products)};
static const linear_options linear_causal = {.hidden = D, .heads = H, .causal = true},
                            linear_both = {.hidden = D, .heads = H};
static const dilated_options dilated_three = {
    .hidden = D, .heads = H, .pattern = {3, {4, 9, 16}, {1, 2, 3}, DILATED_MOD}, .causal = true, .scale = 0.4};
static const dilated_options dilated_both = {
    .hidden = D, .heads = H, .pattern = {3, {4, 9, 16}, {1, 2, 3}, DILATED_MOD}, .scale = 0.4};

static const struct kind {
	const explainer *explainer;
	const void *options;
	int64_t window; /* 0: none */
	bool causal;
	bool sparse; /* some tokens of a range have no weight; ranges begin where segments begin */
} kinds[] = {
    {&forgetting_explainer, &forgetting, 0, true, false},
    {&rwkv_explainer, &rwkv, 0, true, false},
    {&additive_explainer, &additive_global, 0, true, false}, {&additive_explainer, &additive_seven, 7, true, false},
    {&attention_explainer, &softmax_wide, 0, true, false},   {&attention_explainer, &softmax_five, 5, true, false},
    {&attention_explainer, &softmax_causal, 0, true, false}, {&attention_explainer, &softmax_both, 0, false, false},
    {&linear_explainer, &linear_causal, 0, true, false},     {&linear_explainer, &linear_both, 0, false, false},
    {&dilated_explainer, &dilated_three, 0, true, true},     {&dilated_explainer, &dilated_both, 0, false, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds, SPARE = 3 /* floats of other layers between the entries of two tokens */ };

/* A random log of one layer; the caller frees *data. */
static explain_site site_new(const struct kind *k, double spread, float **data)
{
	log_part parts[EXPLAINER_MAX_PARTS];
	int64_t floats = SPARE;
	for (int i = k->explainer->parts(k->options, parts); i-- > 0;)
		floats += parts[i].width;
	*data = malloc((size_t)(N * floats) * sizeof **data);
	random_normal(*data, N * floats, 1, spread);
	return (explain_site){.options = k->options, .log = *data, .stride = floats, .tokens = N};
}

static void a_row_covers_the_tokens_that_its_position_reads_and_sums_to_one(void **state)
{
	(void)state;
	for (int c = 0; c < KINDS; c++) {
		const explainer *e = kinds[c].explainer;
		float *data;
		explain_site s = site_new(&kinds[c], 2, &data);
		for (s.round = 0; s.round < e->n_rounds; s.round++)
			for (int64_t i = 0; i < N; i++) {
				double alpha[N + 1], sum = 0;
				s.head = i % H;
				explain_range r = e->range(s.options, i, N);
				int64_t w = kinds[c].window ? kinds[c].window : N;
				/* dilated_three and dilated_both */
				const int64_t first = i % 16 > i % 9 ? i - i % 16 : i - i % 9;
				const int64_t last =
				    i / 16 * 16 + 16 > i / 9 * 9 + 9 ? i / 16 * 16 + 16 : i / 9 * 9 + 9;
				assert_int_equal(r.first, kinds[c].sparse ? first : i + 1 > w ? i + 1 - w : 0);
				assert_int_equal(r.end, kinds[c].causal               ? i + 1
				                        : kinds[c].sparse && last < N ? last
				                                                      : N);
				memset(alpha, 0xff, sizeof alpha);
				assert_int_equal(e->row(&s, i, alpha), STATUS_OK);
				for (int64_t j = 0; j < r.end - r.first; j++) {
					assert_true(alpha[j] > 0 || (kinds[c].sparse && alpha[j] == 0));
					sum += alpha[j];
				}
				assert_true(fabs(sum - 1) <= 1e-12);
				assert_true(isnan(alpha[r.end - r.first]));
			}
		free(data);
	}
}

static void a_product_equals_that_with_all_rows(void **state)
{
	(void)state;
	for (int c = 0; c < KINDS; c++) {
		const explainer *e = kinds[c].explainer;
		float *data;
		explain_site s = site_new(&kinds[c], 2, &data);
		for (int64_t n = kinds[c].causal ? 1 : N; n <= N; n += 6) {
			double v[N], y[N], expected[N], alpha[N];
			for (int64_t i = 0; i < n; i++) {
				v[i] = i % 4 == 2 ? 0 : sin((double)i);
				y[i] = expected[i] = cos((double)i);
			}
			s.head = n % H;
			s.round = n % e->n_rounds;
			for (int64_t i = 0; i < n; i++) {
				explain_range r = e->range(s.options, i, N);
				assert_int_equal(e->row(&s, i, alpha), STATUS_OK);
				for (int64_t j = r.first; j < r.end; j++)
					expected[j] += v[i] * alpha[j - r.first];
			}
			assert_int_equal(explain_pull(e, &s, v, n, y), STATUS_OK);
			for (int64_t j = 0; j < n; j++)
				assert_true(fabs(y[j] - expected[j]) <= 1e-12 * N);
		}
		free(data);
	}
}

/* A score is the same for every reader. */
static void scores_and_normalizers_give_every_row(void **state)
{
	(void)state;
	int found = 0;
	for (int c = 0; c < KINDS; c++) {
		const explainer *e = kinds[c].explainer;
		float *data;
		explain_site s = site_new(&kinds[c], 2, &data);
		for (s.round = 0; e->scores && s.round < e->n_rounds; s.round++)
			for (s.head = 0; s.head < H; s.head++) {
				double a[N], m[N], alpha[N], sum = 0;
				e->scores(&s, N, 0, a);
				e->scores(&s, N, 1, m);
				for (int64_t i = 0; i < N; i += 5) {
					explain_range r = e->range(s.options, i, N);
					assert_int_equal(e->row(&s, i, alpha), STATUS_OK);
					for (int64_t j = r.first; j < r.end; j++) {
						const double p = alpha[j - r.first], shift = a[j] - log(p);
						sum = j == r.first ? shift : sum;
						assert_true(fabs(shift - sum) <= 1e-9);
					}
					if (e == &forgetting_explainer)
						assert_true(fabs(sum - m[i]) <= 1e-9);
				}
				found++;
			}
		free(data);
	}
	assert_int_equal(found, 5 * H);
}

/* Heads that keep a half, nine tenths and everything of a token. */
static void a_half_life_follows_from_the_mean_rate(void **state)
{
	(void)state;
	static const double kept[H] = {0.5, 0.9, 1};
	float data[4 * 3 * H] = {0};
	for (int t = 0; t < 4; t++)
		for (int h = 0; h < H; h++)
			data[(t * 3 + 1) * H + h] = (float)log(kept[h]);
	explain_site s = {.options = &forgetting, .log = data, .stride = 3 * H, .tokens = 4};
	assert_true(fabs(forgetting_explainer.half_life(&s, 4) - 1) < 1e-6);
	s.head = 1;
	assert_true(fabs(forgetting_explainer.half_life(&s, 4) - log(0.5) / log(0.9)) < 1e-5);
	assert_true(isinf(forgetting_explainer.half_life(&s, 1)));
	s.head = 2;
	assert_true(isinf(forgetting_explainer.half_life(&s, 4)));
}

/* --- compared with the ops --------------------------------------------------------- */

/* Run the op: y [N, D], for a kind of linear, softmax or dilated attention. */
static void attend(const struct kind *k, float *q, float *keys, float *v, float *y)
{
	backend *b;
	plan *p;
	float qkv[N * 3 * D];
	graph *g = graph_new();
	const attention_options *softmax = k->explainer == &attention_explainer ? k->options : NULL;
	bool apart = !softmax || softmax->layout != &one_product; /* q, k and v are separate */
	value in[3], out;
	for (int i = 0; i < 3 && apart; i++)
		in[i] = graph_input(g, (const char *[]){"q", "k", "v"}[i], DTYPE_F32, SHAPE3(1, N, D));
	if (k->explainer == &linear_explainer) {
		linear_attention_params params = {.heads = H, .causal = k->causal};
		out = op_linear_attention(g, in[0], in[1], in[2], VALUE_NONE, params).y;
	} else if (k->explainer == &dilated_explainer) {
		const dilated_options *o = k->options;
		dilated_params params = {
		    .pattern = o->pattern, .heads = H, .scale = (float)o->scale, .causal = k->causal};
		out = op_dilated_attention(g, in[0], in[1], in[2], VALUE_NONE, VALUE_NONE, params).y;
	} else {
		softmax_params params = {.heads = H,
		                         .window = softmax->reach.capacity,
		                         .bidirectional = !softmax->causal,
		                         .scale = (float)softmax->scoring.scale};
		if (!apart) {
			in[0] = graph_input(g, "qkv", DTYPE_F32, SHAPE3(1, N, 3 * D));
			in[1] = in[2] = VALUE_NONE;
		}
		out = op_softmax_attention(g, in[0], in[1], in[2], VALUE_NONE, VALUE_NONE, VALUE_NONE, params);
	}
	graph_output(g, out, "y");
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	assert_int_equal(plan_new(&p, g, b, NULL, 0, NULL), STATUS_OK);
	for (int i = 0; i < N; i++)
		for (int part = 0; part < 3; part++)
			memcpy(qkv + (i * 3 + part) * D, (float *[]){q, keys, v}[part] + i * D, D * sizeof *qkv);
	for (int i = 0; i < (apart ? 3 : 1); i++)
		assert_int_equal(plan_write(p, in[i], apart ? (float *[]){q, keys, v}[i] : qkv), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, out, y), STATUS_OK);
	plan_free(p);
	backend_close(b);
}

static void rows_are_the_weights_with_which_the_ops_mix_values(void **state)
{
	(void)state;
	static float q[N * D], keys[N * D], v[N * D], y[N * D], data[N * 2 * D];
	random_normal(q, N * D, 3, 1);
	random_normal(keys, N * D, 4, 1);
	random_normal(v, N * D, 5, 1);
	for (int i = 0; i < N; i++) {
		memcpy(data + (size_t)i * 2 * D, q + i * D, sizeof(float[D]));
		memcpy(data + (size_t)i * 2 * D + D, keys + i * D, sizeof(float[D]));
	}
	for (int c = 4; c < KINDS; c++) {
		const explainer *e = kinds[c].explainer;
		memset(y, 0xff, sizeof y);
		attend(&kinds[c], q, keys, v, y);
		for (int64_t i = 0; i < N; i++)
			for (int64_t h = 0; h < H; h++) {
				double alpha[N];
				explain_site s = {
				    .options = kinds[c].options, .log = data, .stride = 2 * D, .tokens = N, .head = h};
				explain_range r = e->range(s.options, i, N);
				assert_int_equal(e->row(&s, i, alpha), STATUS_OK);
				for (int64_t d = h * DH; d < (h + 1) * DH; d++) {
					double expected = 0;
					for (int64_t j = r.first; j < r.end; j++)
						expected += alpha[j - r.first] * (double)v[j * D + d];
					if (!(fabs(y[i * D + d] - expected) <= 1e-5))
						fail_msg("kind %d, token %d: %g and %g", c, (int)i, y[i * D + d],
						         expected);
				}
			}
	}
}

/* One decay and one bonus for each head, as the log has them. */
static void rows_of_rwkv_count_the_bonus_as_the_op_does(void **state)
{
	(void)state;
	backend *b;
	plan *p;
	float v[N * H], k[N * H], f[H] = {-0.01f, -1, -9}, bonus[H] = {0.7f, -2, 1}, y[N * H], data[N * 3 * H];
	graph *g = graph_new();
	const value in[] = {graph_input(g, "v", DTYPE_F32, SHAPE3(1, N, H)), graph_input(g, "k", DTYPE_F32, SHAPE3(1, N, H)),
	                    graph_input(g, "f", DTYPE_F32, SHAPE1(H)), graph_input(g, "bonus", DTYPE_F32, SHAPE1(H))};
	const value out = op_forgetting_attention(g, in[0], in[1], in[2], in[3], VALUE_NONE).pooled;
	graph_output(g, out, "y");
	random_normal(v, N * H, 3, 1);
	random_normal(k, N * H, 4, 2);
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	assert_int_equal(plan_new(&p, g, b, NULL, 0, NULL), STATUS_OK);
	for (int i = 0; i < 4; i++)
		assert_int_equal(plan_write(p, in[i], (float *[]){v, k, f, bonus}[i]), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, out, y), STATUS_OK);
	for (int i = 0; i < N; i++)
		for (int part = 0; part < 3; part++)
			memcpy(data + (i * 3 + part) * H, (float *[]){k + i * H, f, bonus}[part], sizeof f);
	for (int i = 0; i < N * H; i++) {
		double alpha[N], expected = 0;
		const explain_site s = {
		    .options = &rwkv, .log = data, .stride = 3 * H, .tokens = N, .head = i % H};
		assert_int_equal(rwkv_explainer.row(&s, i / H, alpha), STATUS_OK);
		for (int j = 0; j <= i / H; j++)
			expected += alpha[j] * (double)v[j * H + i % H];
		assert_true(fabs((double)y[i] - expected) <= 1e-5);
		assert_true(fabs(rwkv_explainer.half_life(&s, N) + log(2) / (double)f[i % H]) < 1e-6);
	}
	plan_free(p);
	backend_close(b);
}

static void a_token_whose_weights_vanish_reads_nothing(void **state)
{
	(void)state;
	float data[4 * 2 * D];
	double alpha[4], v[4] = {1, 1, 1, 1}, y[4] = {0};
	for (int i = 0; i < 4 * 2 * D; i++)
		data[i] = i < 2 * D ? -2000 : 1; /* φ is 0 */
	explain_site s = {.options = &linear_causal, .log = data, .stride = 2 * D, .tokens = 4};
	assert_int_equal(linear_explainer.row(&s, 0, alpha), STATUS_OK);
	assert_true(alpha[0] == 0);
	assert_int_equal(linear_explainer.row(&s, 2, alpha), STATUS_OK);
	assert_true(alpha[0] == 0 && fabs(alpha[1] - 0.5) <= 1e-12 && fabs(alpha[2] - 0.5) <= 1e-12);
	assert_int_equal(linear_explainer.pull(&s, v, 4, y), STATUS_OK);
	assert_true(y[0] == 0 && fabs(y[1] + y[2] + y[3] - 3) <= 1e-12);
}

/* --- with models ---------------------------------------------------------------------- */

static const struct {
	const char *architecture, *config;
	bool causal;
} models[] = {
    {"gpt2", "{\"n_embd\": 15, \"n_head\": 3, \"n_layer\": 2, \"n_positions\": 40, \"vocab_size\": 50}", true},
    {"linear", "{\"hidden_size\": 15, \"n_heads\": 3, \"n_layer\": 2, \"n_positions\": 40, \"vocab_size\": 50}", true},
    {"linear_encoder",
     "{\"d_model\": 15, \"encoder_attention_heads\": 3, \"encoder_layers\": 2, \"max_position_embeddings\": 40, "
     "\"vocab_size\": 50, \"encoder_ffn_dim\": 20}",
     false},
};
enum { MODELS = sizeof models / sizeof *models, LAYERS = 2 };

static model *model_new(backend *b, int i)
{
	model *m;
	json_t *config = json_loads(models[i].config, 0, NULL);
	assert_int_equal(model_create(&m, architecture_find(models[i].architecture), config, 1, b, NULL), STATUS_OK);
	json_decref(config);
	return m;
}

/* The mean matrix of a layer's heads, from its definition, for kinds whose log is query and key. */
static void dense(const explain_log *l, int64_t layer, bool softmax, double a[N][N])
{
	const float *data = l->data + l->at[layer];
	memset(a, 0, sizeof(double[N][N]));
	for (int64_t h = 0; h < H; h++)
		for (int64_t i = 0; i < N; i++) {
			explain_range r = explain_reads(l, layer, i);
			double row[N], sum = 0;
			for (int64_t j = r.first; j < r.end; j++) {
				double dot = 0;
				for (int64_t d = h * DH; d < (h + 1) * DH; d++) {
					double x = data[i * l->floats + d], y = data[j * l->floats + D + d];
					dot += softmax ? x * y / sqrt(DH)
					               : (x > 0 ? x + 1 : exp(x)) * (y > 0 ? y + 1 : exp(y));
				}
				sum += row[j] = softmax ? exp(dot) : dot;
			}
			for (int64_t j = r.first; j < r.end; j++)
				a[i][j] += row[j] / sum / H;
		}
}

static void mean_and_rollout_of_a_model_are_those_of_its_dense_matrices(void **state)
{
	(void)state;
	static double a[LAYERS][N][N];
	static const bool every[H] = {true, true, true};
	const explain_selection pick = {every, every, every};
	backend *b;
	int32_t ids[N];
	random_integers(ids, N, 6, 0, 49);
	assert_int_equal(cpu_open(&b, 1, NULL), STATUS_OK);
	for (int k = 0; k < MODELS; k++) {
		explain_log l;
		model *m = model_new(b, k);
		float *data = parallel_log(m, ids, N, &l);
		assert_true(explain_finite(&l) && l.floats == LAYERS * 2 * D);
		for (int64_t layer = 0; layer < LAYERS; layer++)
			dense(&l, layer, k == 0, a[layer]);
		for (int64_t i = 0; i < N; i += 4) {
			double mean[N], rollout[N], v[N];
			int64_t n = models[k].causal ? i + 1 : N;
			assert_int_equal(explain_reach(&l, i), n);
			assert_int_equal(explain_mean(&l, &pick, i, mean), STATUS_OK);
			assert_int_equal(explain_rollout(&l, &pick, i, rollout), STATUS_OK);
			for (int64_t j = 0; j < n; j++)
				v[j] = (a[1][i][j] + (j == i)) / 2;
			for (int64_t j = 0; j < n; j++) {
				double y = v[j] / 2;
				for (int64_t r = 0; r < n; r++)
					y += v[r] * a[0][r][j] / 2;
				assert_true(fabs(mean[j] - (a[0][i][j] + a[1][i][j]) / 2) <= 1e-6);
				assert_true(fabs(rollout[j] - y) <= 1e-9);
			}
		}
		free(data);
		model_free(m);
	}
	backend_close(b);
}

static void the_mean_of_all_positions_is_the_average_of_their_means(void **state)
{
	(void)state;
	static const bool every[H] = {true, true, true}, first[LAYERS] = {true}, last[H] = {false, false, true};
	const explain_selection picks[] = {{every, every, every}, {first, last, every}};
	backend *b;
	int32_t ids[N];
	random_integers(ids, N, 6, 0, 49);
	assert_int_equal(cpu_open(&b, 1, NULL), STATUS_OK);
	for (int k = 0; k < MODELS; k++) {
		explain_log l;
		model *m = model_new(b, k);
		float *data = parallel_log(m, ids, N, &l);
		for (size_t p = 0; p < sizeof picks / sizeof *picks; p++) {
			double mean[N], all[N], average[N] = {0};
			for (int64_t i = 0; i < N; i++) {
				assert_int_equal(explain_mean(&l, &picks[p], i, mean), STATUS_OK);
				for (int64_t j = 0; j < explain_reach(&l, i); j++)
					average[j] += mean[j] / N;
			}
			assert_int_equal(explain_mean_of_all(&l, &picks[p], all), STATUS_OK);
			for (int64_t j = 0; j < N; j++)
				assert_true(fabs(all[j] - average[j]) <= 1e-6);
		}
		free(data);
		model_free(m);
	}
	backend_close(b);
}

static void a_rollout_that_would_take_minutes_is_refused(void **state)
{
	(void)state;
	static const bool one[] = {true};
	const explain_selection pick = {one, one, one};
	const attention_options o = {.layout = &one_product,
	                             .hidden = 1,
	                             .heads = 1,
	                             .kv_heads = 1,
	                             .key_width = 1,
	                             .value_width = 1,
	                             .causal = true,
	                             .reach.capacity = 1 << 20,
	                             .scoring.scale = 1};
	int64_t most = attention_explainer.pull_tokens;
	float *data = calloc((size_t)most + 1, 2 * sizeof *data);
	double *out = calloc((size_t)most + 1, sizeof *out);
	explain_log l = {.tokens = most + 1,
	                 .layers = 1,
	                 .rounds = 1,
	                 .heads = 1,
	                 .floats = 2,
	                 .data = data,
	                 .layer = {{&attention_explainer, &o, 1}}};
	assert_int_equal(explain_rollout(&l, &pick, most, out), STATUS_TOO_LARGE);
	assert_int_equal(explain_mean_of_all(&l, &pick, out), STATUS_TOO_LARGE);
	assert_int_equal(explain_rollout(&l, &pick, 9, out), STATUS_OK);
	assert_int_equal(explain_mean(&l, &pick, most, out), STATUS_OK);
	free(data);
	free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_row_covers_the_tokens_that_its_position_reads_and_sums_to_one),
	    cmocka_unit_test(a_product_equals_that_with_all_rows),
	    cmocka_unit_test(scores_and_normalizers_give_every_row),
	    cmocka_unit_test(a_half_life_follows_from_the_mean_rate),
	    cmocka_unit_test(rows_are_the_weights_with_which_the_ops_mix_values),
	    cmocka_unit_test(rows_of_rwkv_count_the_bonus_as_the_op_does),
	    cmocka_unit_test(a_token_whose_weights_vanish_reads_nothing),
	    cmocka_unit_test(mean_and_rollout_of_a_model_are_those_of_its_dense_matrices),
	    cmocka_unit_test(the_mean_of_all_positions_is_the_average_of_their_means),
	    cmocka_unit_test(a_rollout_that_would_take_minutes_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
