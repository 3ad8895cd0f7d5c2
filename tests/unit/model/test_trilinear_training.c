/* 3Lin: its published numbers, dropout, initial values, and quantized weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/tensor/ops/hash_rows.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/panel.h"
#include "tests/unit/model/trilinear.h"

/* --- the published toy ----------------------------------------------------------------------------- */

/* Fill a matrix of the toy with sines; `skip`: number of values before its first row. */
static void fill_sines(float *x, int64_t rows, int64_t columns, int id, int64_t skip)
{
	for (int64_t y = 0; y < rows; y++)
		for (int64_t c = 0; c < columns; c++)
			x[y * columns + c] = (float)sin(id + 0.7 * (double)(y + skip) + 0.3 * (double)c + 0.1);
}

static void set_toy(const model *m)
{
	static const struct {
		const char *name;
		int id;
	} ids[] = {{"head.weight", 7},
	           {"attentions.0.query.weight", 2},
	           {"attentions.0.key.weight", 3},
	           {"attentions.0.gate.weight", 4},
	           {"attentions.0.value.weight", 5},
	           {"attentions.0.combiner.weight", 6},
	           {"attentions.1.query.weight", 8},
	           {"attentions.1.key.weight", 9},
	           {"attentions.1.gate.weight", 10},
	           {"attentions.1.value.weight", 11},
	           {"attentions.1.combiner.weight", 12}};
	float *arena = model_arena(m), *words = arena + model_parameter_offset(m, index_of(m, "words.weight"));
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		const int at = index_of(m, ids[i].name);
		const shape s = model_parameter(m, at)->shape;
		fill_sines(arena + model_parameter_offset(m, at), s.dim[0], s.dim[1], ids[i].id, 0);
	}
	fill_sines(words, 3, 4, 1, 2); /* in the toy, rows of tokens follow the start and the unknown token */
	fill_sines(words + 12, 1, 4, 1, 1);
	fill_sines(words + 16, 1, 4, 1, 0);
	memcpy(arena + model_parameter_offset(m, index_of(m, "head.bias")), (float[]){0, 0.5f, -0.25f},
	       3 * sizeof *arena);
}

enum { TOY_VALUES = 4 + 4 + 6 + 5, TOY_DRAWS = 16 };

/* Roundings of a sum of n floats are independent, so its error is at most about sqrt(n) 2^-24 times the sum of the
 * terms' magnitudes. The longest sum of the toy, that of a combiner's row, has 512 terms. */
#define SUM_ERROR (22.63 * 0x1p-24)

/* Change every weight by up to `share` of itself, in a random direction. */
static void perturb(const model *m, float share, uint64_t seed)
{
	float *arena = model_arena(m);
	for (int i = 0; i < model_tensor_count(m); i++) {
		float *x = arena + model_parameter_offset(m, i), change[32 * 64];
		const int64_t count = shape_count(model_parameter(m, i)->shape);
		assert_true(count <= (int64_t)(sizeof change / sizeof *change));
		random_normal(change, count, 1000 * seed + (uint64_t)i, 1);
		for (int64_t k = 0; k < count; k++)
			x[k] *= 1 + (change[k] > 0 ? share : -share);
	}
}

/* The published numbers of the toy: states of the last token after the layers, probabilities after the second and the
 * last token, the score and gradients. draw: 0 for the toy itself, otherwise perturbed weights. */
static void compute_toy(const char *config, int draw, backend *b, double out[TOY_VALUES])
{
	model *m = fixture_created_as(&architecture_trilinear, config, 1, b);
	set_toy(m);
	if (draw > 0)
		perturb(m, (float)SUM_ERROR, (uint64_t)draw);
	const forward_spec spec = {.batch = 1,
	                           .length = 4,
	                           .train.loss = true,
	                           .train.backward = true,
	                           .out.activations = true,
	                           .out.logits = LOGITS_ALL};
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	float states[16], logits[12], loss, gradient[32 * 64];
	assert_int_equal(feed_write(p, PORT_TOKENS, (int32_t[]){0, 1, 2, 1}), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, (int32_t[]){1, 2, 1, 0}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "layers.1.state", states);
	for (int d = 0; d < 4; d++)
		*out++ = (double)states[12 + d];
	fixture_read(p, "state", states);
	for (int d = 0; d < 4; d++)
		*out++ = (double)states[12 + d];
	fixture_read(p, "logits", logits);
	for (int k = 0; k < 2; k++) {
		const float *x = logits + (k ? 9 : 3);
		const double sum = exp((double)x[0]) + exp((double)x[1]) + exp((double)x[2]);
		for (int v = 0; v < 3; v++)
			*out++ = exp((double)x[v]) / sum;
	}
	fixture_read(p, "loss", &loss);
	*out++ = -(double)loss;
	static const struct {
		const char *name;
		int at;
	} gradients[] = {{"grad.attentions.0.query.weight", 2 * 4 + 3},
	                 {"grad.attentions.1.value.weight", 2 * 4 + 3},
	                 {"grad.attentions.1.combiner.weight", 2 * 512 + 3},
	                 {"grad.words.weight", 1 * 4 + 1}};
	for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++) {
		fixture_read(p, gradients[i].name, gradient);
		*out++ = -4 * (double)gradient[gradients[i].at];
	}
	plan_free(p);
	model_free(m);
}

/* A sum in float is the exact sum of terms that are changed by SUM_ERROR. So the reference, which adds in double, with
 * weights changed that much, shows how far float sums move each number. */
static void measure_moves(const char *config, backend *reference, const double exact[TOY_VALUES],
                          double moves[TOY_VALUES])
{
	memset(moves, 0, TOY_VALUES * sizeof *moves);
	for (int draw = 1; draw <= TOY_DRAWS; draw++) {
		double moved[TOY_VALUES];
		compute_toy(config, draw, reference, moved);
		for (int i = 0; i < TOY_VALUES; i++)
			moves[i] = fmax(moves[i], fabs(moved[i] - exact[i]));
	}
}

static void assert_near(double got, double want, double tolerance)
{
	if (!(fabs(got - want) <= tolerance))
		fail_msg("%.9f is not %.9f (+- %.9f)", got, want, tolerance);
}

static void both_profiles_give_the_published_numbers(void **state)
{
#define LAYERS                                                                                                         \
	"\"hidden_size\": 4, \"key_size\": 4, \"value_size\": 32, \"vocab_size\": 3, \"attentions\":"                  \
	" [[{\"slope\": 0, \"hyper\": 6.666666666666667, \"window\": 64}], [{\"slope\": 0.25, \"hyper\": 0, "          \
	"\"window\": 2}]]"
	enum { QUERY = TOY_VALUES - 4, VALUE, COMBINER };
	static const struct {
		const char *config;
		double want[TOY_VALUES]; /* as compute_toy returns them; gradients before the factors of products */
		double scale, combiner_scale; /* these factors */
	} toys[] = {
	    {"{" LAYERS ", \"profile\": \"head\", \"n_heads\": 2}",
	     {0.020396, -0.294896, -0.605138, -0.863885, 0.081425, -0.233592, -0.572393, -0.875098, 0.182402, 0.324870,
	      0.492729, 0.171644, 0.341692, 0.486665, -1.075745, -0.000089, 0.001265, -0.027959, 0.005259},
	     0.5,
	     0.04419417382},
	    {"{" LAYERS "}",
	     {1.926007, 1.144105, -0.309532, -1.850702, 0.053749, 0.122452, -0.000081, -0.355686, 0.029851, 0.051052,
	      0.919096, 0.034783, 0.213178, 0.752039, -1.080230, -0.010415, -10.896502, 9.022786, 3.579517},
	     1,
	     1},
	};
	backend *reference;
	(void)state;
	assert_int_equal(cpu_reference_open(&reference, 0, NULL), STATUS_OK);
	for (int i = 0; i < 2; i++) {
		double exact[TOY_VALUES], moves[TOY_VALUES], found[TOY_VALUES];
		compute_toy(toys[i].config, 0, reference, exact);
		compute_toy(toys[i].config, 0, device, found);
		measure_moves(toys[i].config, reference, exact, moves);
		for (int k = 0; k < TOY_VALUES; k++) {
			const double scale = k == QUERY || k == VALUE ? toys[i].scale
			                     : k == COMBINER          ? toys[i].combiner_scale
			                                              : 1;
			const double want = scale * toys[i].want[k];
			assert_near(exact[k], want, 2e-6 + 2e-5 * fabs(want));
			assert_near(found[k], exact[k], moves[k]);
		}
	}
	backend_close(reference);
}

/* --- training ----------------------------------------------------------------------------------------- */

/* Logits of every token in a forward with dropout. */
static void dropped_loss(const model *m, int32_t step, const int32_t *ids, float *logits)
{
	const forward_spec spec = {.batch = B, .length = N, .train.dropout = true, .out.logits = LOGITS_ALL};
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_RANDOM, (int32_t[]){7, 0, step, 0}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	plan_free(p);
}

/* The rows of the unknown token are set to those of token 5. */
static void a_dropped_token_has_the_rows_of_the_unknown_token(void **state)
{
	static const char *const configs[] = {
	    "{" SIZES ", \"n_layer\": 2, \"token_keep\": 0.001}",
	    "{" SIZES ", \"n_layer\": 2, \"token_keep\": 0.001, \"input\": \"hashed\"}",
	    "{" SIZES ", \"n_layer\": 2, \"token_keep\": 0.001, \"match_window\": 50}"};
	(void)state;
	for (int c = 0; c < 3; c++) {
		const bool hashed = c == 1, matched = c == 2;
		model *m = fixture_model_as(&architecture_trilinear, configs[c], device);
		float *words = model_arena(m) + model_parameter_offset(m, index_of(m, "words.weight"));
		float some[B * N * V], fives[B * N * V];
		int32_t ids[B * N];
		for (int round = 0; round < (hashed ? 3 : 1); round++)
			memcpy(words + D * (int64_t)(hashed ? hash_row(1, round) : V),
			       words + D * (int64_t)(hashed ? hash_row(2 + 5, round) : 5), D * sizeof *words);
		random_ids(ids, B * N, 1);
		if (matched) { /* all but the first token have a continuation */
			float *rows = model_arena(m) + model_parameter_offset(m, index_of(m, "matches.weight"));
			memcpy(rows + D * (int64_t)V, rows + D * 5, D * sizeof *rows);
			for (int i = 0; i < B * N; i++)
				ids[i] = 7;
		}
		dropped_loss(m, 1, ids, some);
		for (int i = 0; i < B * N; i++)
			ids[i] = 5;
		parallel_logits(m, ids, fives);
		assert_true(distance(some, fives, B * N * V) <= 1e-4f);
		model_free(m);
	}
}

static void channels_are_dropped_for_an_entire_batch(void **state)
{
	(void)state;
	model *m =
	    fixture_model_as(&architecture_trilinear, "{" SIZES ", \"n_layer\": 2, \"channel_keep\": 0.5}", device);
	float some[B * N * V], others[B * N * V];
	int32_t ids[B * N];
	for (int i = 0; i < B * N; i++)
		ids[i] = i % N % V;
	dropped_loss(m, 1, ids, some);
	assert_true(distance(some, some + N * V, N * V) <= 1e-4f);
	dropped_loss(m, 2, ids, others);
	assert_true(distance(some, others, B * N * V) > 1e-2f);
	model_free(m);
}

/* Numbers that the source drew with the same seed: the first of the start's row, and the last of all. */
static void a_new_model_has_the_initial_values_of_the_source(void **state)
{
	(void)state;
	model *m = fixture_created_as(
	    &architecture_trilinear,
	    "{\"hidden_size\": 32, \"key_size\": 24, \"value_size\": 32, \"vocab_size\": 11, \"n_layer\": 3,"
	    " \"combiner_init\": \"random\", \"init_generator\": \"mt19937\"}",
	    1313, device);
	const float *words = model_arena(m) + model_parameter_offset(m, index_of(m, "words.weight"));
	const float *head = model_arena(m) + model_parameter_offset(m, index_of(m, "head.weight"));
	assert_near((double)words[12 * 32], -0x1.ba287ap-3, 1e-6);
	assert_near((double)head[11 * 32 - 1], -0x1.332148p-1, 1e-6);
	model_free(m);
}

static void the_bias_of_the_head_depends_on_the_counts_of_tokens(void **state)
{
	(void)state;
	model *m = fixture_created_as(&architecture_trilinear, TWO_BITS, 1, device);
	const float *bias = model_arena(m) + model_parameter_offset(m, index_of(m, "head.bias"));
	int64_t counts[V] = {[2] = 7};
	assert_true(bias[2] == -1);
	assert_int_equal(model_set_counts(m, counts, NULL), STATUS_OK);
	assert_true(bias[2] == log2f(7.5f) && bias[1] == -1);
	assert_true(model_parameter(m, index_of(m, "head.bias"))->fixed);
	model_free(m);
}

/* --- quantized weights ---------------------------------------------------------------------------------- */

static void packed_weights_equal_the_codes_used_in_training(void **state)
{
	static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_INT8};
	static const int bits[] = {8, 4, 2};
	char folder[] = "/tmp/additive-trilinear-XXXXXX", path[64];
	(void)state;
	assert_non_null(mkdtemp(folder));
	for (int i = 0; i < 6; i++) {
		char config[256];
		snprintf(config, sizeof config, "{" SIZES ", \"n_layer\": 1, \"weight_bits\": %d}", bits[i / 2]);
		model *m = fixture_model_as(&architecture_trilinear, config, device), *packed;
		assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
		assert_int_equal(model_open(&packed, folder, types[i % 2], device, NULL), STATUS_OK);
		for (int k = 0; k < model_tensor_count(m); k++) {
			const parameter_spec *spec = model_parameter(m, k);
			const float *x = model_arena(m) + model_parameter_offset(m, k);
			const void *panels = model_arena(packed) + model_parameter_offset(packed, k);
			const int64_t rows = shape_rows(spec->shape), width = shape_last(spec->shape);
			if (!spec->matrix)
				continue;
			assert_int_equal(spec->bits, strncmp(spec->name, "attentions", 10) == 0 ? bits[i / 2] : 8);
			const float step = quantize_tensor_step(x, rows * width);
			for (int64_t r = 0; r < rows; r++) {
				float stored[16 * T];
				const float scale = panel_stored(types[i % 2], panels, width, r, stored);
				for (int64_t c = 0; c < width; c++)
					assert_true(scale * stored[c] ==
					            quantize_value(x[r * width + c], step, spec->bits));
			}
		}
		model_free(packed);
		model_free(m);
	}
	snprintf(path, sizeof path, "%s/config.json", folder);
	unlink(path);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	unlink(path);
	rmdir(folder);
}

/* Their products are then integers, which no type of weight rounds. */
static void codes_of_vectors_are_multiplied_exactly(void **state)
{
	static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_INT8};
	static const char *const names[] = {"query", "gate", "value", "key"};
	enum { FEW = 9, WIDEST = 64 };
	char folder[] = "/tmp/additive-trilinear-XXXXXX";
	float found[4][2][FEW * WIDEST];
	const int32_t ids[FEW] = {1, 4, 0, 2, 2, 5, 3, 1, 0};
	(void)state;
	assert_non_null(mkdtemp(folder));
	model *m = fixture_model_as(&architecture_trilinear,
	                            "{" SIZES ", \"n_layer\": 1, \"weight_bits\": 8, \"vector_bits\": 8}", device);
	assert_int_equal(model_save(m, folder, NULL), STATUS_OK);
	int64_t counts[4];
	for (int i = 0; i < 2; i++) {
		const forward_spec spec = {
		    .batch = 1, .length = FEW, .out.activations = true, .out.logits = LOGITS_ALL};
		model *packed;
		assert_int_equal(model_open(&packed, folder, types[i], device, NULL), STATUS_OK);
		plan *p = fixture_plan(packed, &spec, NULL, NULL);
		assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		for (int k = 0; k < 4; k++) {
			char name[32];
			snprintf(name, sizeof name, "layers.0.%s", names[k]);
			counts[k] = shape_count(graph_value(plan_graph(p), graph_find(plan_graph(p), name))->shape);
			assert_true(counts[k] <= FEW * WIDEST);
			fixture_read(p, name, found[k][i]);
		}
		plan_free(p);
		model_free(packed);
	}
	for (int k = 0; k < 4; k++)
		for (int64_t i = 0; i < counts[k]; i++) {
			const double a = (double)found[k][0][i], b = (double)found[k][1][i];
			assert_true(k < 3 ? a == b : fabs(a - b) <= 1e-6 * fmax(1, fabs(a)));
		}
	model_free(m);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(both_profiles_give_the_published_numbers),
	    cmocka_unit_test(a_dropped_token_has_the_rows_of_the_unknown_token),
	    cmocka_unit_test(channels_are_dropped_for_an_entire_batch),
	    cmocka_unit_test(a_new_model_has_the_initial_values_of_the_source),
	    cmocka_unit_test(the_bias_of_the_head_depends_on_the_counts_of_tokens),
	    cmocka_unit_test(packed_weights_equal_the_codes_used_in_training),
	    cmocka_unit_test(codes_of_vectors_are_multiplied_exactly),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
