/* The transformer with every option alone, and with many drawn together. Three steps of gradient descent, gradients
 * against central differences, saving and loading, and sessions against complete sequences.
 * Order and conflicts of options: test_transformer_options.c; segments: test_transformer_segments.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/base/philox.h"
#include "engine/model/feed.h"
#include "engine/model/transformer/transformer.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/transformer.h"
#include "tests/unit/support/folder.h"

enum { B = 2, N = 7, S = 5, V = 11, DIM = 12, SLOTS = 3, STEPS = 3, DRAWN = 200, MOST_OPTIONS = 7 };

/* --- one model ------------------------------------------------------------------------------------------ */

typedef struct trial {
	backend *b;
	model *m;
	const char *text; /* the configuration as text, for messages */
	bool source, encodes, jumps, rounds;
	float rows[B * S * DIM];
	int32_t ids[B * N], labels[B * N], mask[B * N], source_ids[B * S], source_mask[B * S];
} trial;

static void fail_with(const trial *t, const char *what, double a, double b)
{
	fail_msg("%s: %g, %g with %s", what, a, b, t->text);
}

static void fill_inputs(trial *t)
{
	for (int i = 0; i < B * N; i++) {
		t->ids[i] = i * 5 % V;
		t->labels[i] = i % N == N - 1 ? -1 : (i + 1) * 5 % V;
		t->mask[i] = i < 2 * N - 2;
	}
	for (int i = 0; i < B * S; i++) {
		t->source_ids[i] = i * 7 % V;
		t->source_mask[i] = i < 2 * S - 2;
	}
	random_normal(t->rows, B * S * DIM, 3, 1);
}

static void feed(const trial *t, plan *p)
{
	assert_int_equal(feed_write(p, PORT_TOKENS, t->ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LABELS, t->labels), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, t->mask), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE_ROWS, t->rows), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE, t->source_ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE_MASK, t->source_mask), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(t->m), POSITION_ERROR, 0), STATUS_OK);
}

static float loss_of(plan *p)
{
	float loss;
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "loss", &loss);
	return loss;
}

/* θ += step · u over the entire arena. */
static void move(const trial *t, float *weights, const float *u, double step)
{
	int64_t n = model_arena_floats(t->m);
	float *moved = malloc((size_t)n * sizeof *moved);
	for (int64_t i = 0; i < n; i++)
		moved[i] = weights[i] + (float)(step * (double)u[i]);
	assert_int_equal(t->b->upload(t->b, model_arena(t->m), moved, (size_t)n * sizeof *moved), STATUS_OK);
	free(moved);
}

/* The derivative along the gradient is the gradient's length. */
static void train(const trial *t)
{
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .source = t->source ? S : 0,
	                           .source_masked = t->encodes,
	                           .masked = true,
	                           .train.loss = true,
	                           .train.backward = true};
	/* The loss jumps where the set of the largest scores changes. */
	const double epsilon = t->jumps ? 3e-5 : 5e-4, noise = 1e-6 / epsilon;
	int64_t n = model_arena_floats(t->m);
	float *weights = calloc((size_t)n, sizeof *weights), *gradient = calloc((size_t)n, sizeof *gradient);
	plan *p;
	error err = ERROR_INIT;
	if (model_plan(&p, t->m, &spec, gradient, NULL, &err) != STATUS_OK)
		fail_msg("%s with %s", err.message, t->text);
	feed(t, p);
	for (int step = 0; step < STEPS; step++) {
		memset(gradient, 0, (size_t)n * sizeof *gradient);
		float loss = loss_of(p);
		if (!isfinite(loss))
			fail_with(t, "loss", (double)loss, step);
		double square = 0;
		float *u = malloc((size_t)n * sizeof *u);
		memcpy(u, gradient, (size_t)n * sizeof *u);
		for (int64_t i = 0; i < n; i++)
			square += (double)u[i] * (double)u[i];
		double length = sqrt(square);
		for (int64_t i = 0; i < n; i++)
			u[i] = (float)((double)u[i] / length);
		memcpy(weights, model_arena(t->m), (size_t)n * sizeof *weights);
		move(t, weights, u, epsilon);
		double above = (double)loss_of(p);
		move(t, weights, u, -epsilon);
		double below = (double)loss_of(p), slope = (above - below) / (2 * epsilon);
		if (!(fabs(slope - length) <= 0.02 * length + noise))
			fail_with(t, "slope along the gradient, its length", slope, length);
		move(t, weights, u, -0.02);
		free(u);
	}
	plan_free(p);
	free(weights);
	free(gradient);
}

static void whole_logits(const trial *t, const model *m, float *logits)
{
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .source = t->source ? S : 0,
	                           .source_masked = t->encodes,
	                           .out.logits = LOGITS_ALL};
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	feed(t, p);
	assert_int_equal(plan_run(p), STATUS_OK);
	fixture_read(p, "logits", logits);
	plan_free(p);
}

static void save_and_load(const trial *t, const float *logits)
{
	char folder[FOLDER_BYTES];
	float again[B * N * V];
	model *m;
	error err = ERROR_INIT;
	folder_new(folder);
	assert_int_equal(model_save(t->m, folder, NULL), STATUS_OK);
	if (model_open(&m, folder, DTYPE_F32, t->b, &err) != STATUS_OK)
		fail_msg("%s with %s", err.message, t->text);
	whole_logits(t, m, again);
	if (memcmp(logits, again, sizeof again) != 0)
		fail_with(t, "logits of the loaded model", distance(logits, again, B * N * V), 0);
	model_free(m);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* Encode the sources into the slots of their sequences, with a plan that has room for longer ones. */
static void encode_sources(const trial *t, float *pool)
{
	const int64_t room = model_dimensions(t->m)->reads_padding ? S : S + 3;
	const forward_spec spec = {
	    .phase = PHASE_ENCODE, .batch = B, .source = room, .slots = SLOTS, .source_masked = true};
	int32_t ids[B * (S + 3)] = {0}, mask[B * (S + 3)] = {0}, slots[B] = {0, 1};
	plan *p = fixture_plan(t->m, &spec, NULL, pool);
	for (int b = 0; b < B; b++)
		for (int i = 0; i < S; i++) {
			ids[b * room + i] = t->source_ids[b * S + i];
			mask[b * room + i] = t->source_mask[b * S + i];
		}
	assert_int_equal(feed_write(p, PORT_SOURCE, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SOURCE_MASK, mask), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_SLOT, slots), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(t->m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	plan_free(p);
}

/* Read sequences in pieces of `chunk` tokens and compare the logits. */
static void read_in_pieces(const trial *t, int64_t chunk, const float *logits)
{
	const forward_spec spec = {
	    .phase = PHASE_STEP, .batch = B, .length = chunk, .slots = SLOTS, .out.logits = LOGITS_ALL};
	float *pool = calloc((size_t)(SLOTS * model_state_floats(t->m)), sizeof *pool), some[B * N * V];
	int32_t part[B * N];
	plan *p = fixture_plan(t->m, &spec, NULL, pool);
	double scale = 1;
	const double bound = t->rounds ? 1.0 / 64 : 1e-5;
	if (t->encodes)
		encode_sources(t, pool);
	for (int64_t i = 0; i < B * N * V; i++)
		scale = fmax(scale, fabs((double)logits[i]));
	for (int64_t at = 0; at + chunk <= N; at += chunk) {
		for (int64_t b = 0; b < B; b++)
			memcpy(part + b * chunk, t->ids + b * N + at, (size_t)chunk * sizeof *part);
		assert_int_equal(feed_write(p, PORT_TOKENS, part), STATUS_OK);
		assert_int_equal(feed_step(p, at, chunk), STATUS_OK);
		assert_int_equal(feed_positions(p, model_dimensions(t->m), POSITION_ERROR, at), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		fixture_read(p, "logits", some);
		for (int64_t b = 0; b < B; b++) {
			double off = distance(some + b * chunk * V, logits + (b * N + at) * V, chunk * V);
			if (!(off <= bound * scale))
				fail_with(t, "logits of a session off by, at", off, (double)at);
		}
	}
	plan_free(p);
	free(pool);
}

static void sessions_are_refused(const trial *t)
{
	float pool[1];
	plan *p;
	error err = ERROR_INIT;
	for (int i = PHASE_STEP; i <= PHASE_ENCODE; i++) {
		const forward_spec spec = {.phase = (phase)i, .batch = B, .length = 1, .source = S, .slots = SLOTS};
		assert_int_equal(model_plan(&p, t->m, &spec, NULL, pool, &err), STATUS_UNSUPPORTED);
		assert_string_equal(err.param, "model");
	}
	assert_non_null(strstr(error_message(&err), t->encodes ? "_" : "encoder"));
}

/* Try a configuration. False: it was refused, with a param. */
static bool try(backend *b, json_t *config)
{
	char *text = json_dumps(config, JSON_SORT_KEYS);
	trial t = {.b = b, .text = text};
	error err = ERROR_INIT;
	float logits[B * N * V];
	status s = model_create(&t.m, &architecture_transformer, config, 7, b, &err);
	if (s != STATUS_OK) {
		if (s != STATUS_INVALID || !err.param[0] || !err.message[0])
			fail_msg("refused with status %d and no param: %s", (int)s, text);
		free(text);
		return false;
	}
	const transformer_config *c = model_config(t.m);
	const stack_options *o = &transformer_head(c)->options;
	const model_dims *d = model_dimensions(t.m);
	t.source = o->cross_attend;
	t.encodes = d->source > 0;
	t.jumps = o->attn_sparse_topk > 0;
	t.rounds = o->cache_dtype == CONFIG_CACHE_BF16;
	fill_inputs(&t);
	stir(t.m);
	train(&t);
	if (t.source) {
		plan *p;
		const forward_spec spec = {.batch = B, .length = N, .out.logits = LOGITS_ALL};
		assert_int_equal(model_plan(&p, t.m, &spec, NULL, NULL, &err), STATUS_UNSUPPORTED);
	}
	whole_logits(&t, t.m, logits);
	save_and_load(&t, logits);
	/* When values are scaled by the length of the sequence, a session takes that to be max_seq_len. */
	if (o->causal && !d->parallel_only && (!(o->rotary_xpos && o->rotate_values) || o->max_seq_len == N)) {
		read_in_pieces(&t, 1, logits);
		read_in_pieces(&t, 3, logits);
	} else if (d->parallel_only) {
		sessions_are_refused(&t);
	}
	model_free(t.m);
	free(text);
	return true;
}

/* --- the options --------------------------------------------------------------------------------------------- */

/* A value of each option other than its default. */
static const struct {
	const char *key, *value;
} options[] = {
    {"emb_dim", "8"},
    {"use_abs_pos_emb", "false"},
    {"l2norm_embed", "true"},
    {"scale_embedding", "true"},
    {"post_emb_norm", "true"},
    {"tie_embedding", "true"},
    {"emb_dropout", "0.1"},
    {"emb_frac_gradient", "1.0"},
    {"num_memory_tokens", "2"},
    {"cross_attend", "true"},
    {"only_cross", "true"},
    {"macaron", "true"},
    {"sandwich_coef", "1"},
    {"par_ratio", "2"},
    {"weight_tie_layers", "true"},
    {"pre_norm", "false"},
    {"sandwich_norm", "true"},
    {"use_scalenorm", "true"},
    {"use_rmsnorm", "true"},
    {"use_unbiased_norm", "true"},
    {"final_norm", "false"},
    {"residual_dropout", "0.1"},
    {"xavier_init", "true"},
    {"deepnorm", "true"},
    {"gate_residual", "true"},
    {"scale_residual", "true"},
    {"scale_residual_constant", "1.25"},
    {"residual_attn", "true"},
    {"cross_residual_attn", "true"},
    {"zero_init_branch_output", "true"},
    {"sinusoidal_pos_emb", "true"},
    {"sinusoidal_form", "\"pow\""},
    {"rel_pos_bias", "true"},
    {"rel_pos_num_buckets", "8"},
    {"rel_pos_max_distance", "20"},
    {"alibi_pos_bias", "true"},
    {"alibi_num_heads", "1"},
    {"alibi_learned", "true"},
    {"dynamic_pos_bias", "true"},
    {"dynamic_pos_bias_log_distance", "true"},
    {"dynamic_pos_bias_mlp_depth", "3"},
    {"dynamic_pos_bias_norm", "true"},
    {"rotary_pos_emb", "true"},
    {"rotary_emb_dim", "4"},
    {"rotary_xpos", "true"},
    {"attn_value_dim_head", "5"},
    {"attn_kv_heads", "2"},
    {"attn_one_kv_head", "true"},
    {"attn_shared_kv", "true"},
    {"attn_num_mem_kv", "2"},
    {"attn_dropout", "0.1"},
    {"attn_talking_heads", "true"},
    {"attn_sparse_topk", "3"},
    {"attn_max_attend_past", "3"},
    {"attn_qk_norm", "true"},
    {"attn_qk_norm_groups", "2"},
    {"attn_qk_norm_scale", "4.0"},
    {"attn_on_attn", "true"},
    {"attn_gate_values", "true"},
    {"attn_head_scale", "true"},
    {"attn_tensor_product", "true"},
    {"attn_zero_init_output", "true"},
    {"cache_dtype", "\"bf16\""},
    {"ff_dropout", "0.1"},
    {"ff_glu", "true"},
    {"ff_swish", "true"},
    {"ff_relu", "true"},
    {"ff_relu_squared", "true"},
    {"ff_post_act_ln", "true"},
    {"ff_no_bias", "true"},
    {"ff_zero_init_output", "true"},
    {"rotate_values", "true"},
    {"attend_when_hidden", "true"},
    {"zero_masked_rows", "true"},
    {"custom_layers", "[\"a\", \"f\", \"f\", \"a\"]"},
    {"shift_tokens", "1"},
    {"shift_tokens", "[2, 0, 1, 0]"},
    {"layer_dropout", "0.2"},
};
enum { OPTIONS = sizeof options / sizeof *options };

static json_t *base(const char *form)
{
	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "stack", form, "num_tokens", V, "max_seq_len", 16,
	                 "dim", DIM, "depth", 2, "heads", 4, "attn_dim_head", 6, "ff_mult", 1.5);
}

static void set(json_t *config, int option)
{
	json_t *json = json_loads(options[option].value, JSON_DECODE_ANY, NULL);
	assert_int_equal(json_object_set_new(config, options[option].key, json), 0);
}

/* An encoder-decoder with this decoder, and with an encoder of the same options, except those that an encoder cannot
 * have. */
static json_t *with_encoder(json_t *decoder)
{
	json_t *encoder = json_copy(decoder);
	static const char *const not [] = {"stack",       "cross_attend",  "only_cross",  "cross_residual_attn",
	                                   "rotary_xpos", "custom_layers", "cache_dtype", NULL};
	for (int i = 0; not [i]; i++)
		json_object_del(encoder, not [i]);
	json_object_del(decoder, "stack");
	json_object_set_new(decoder, "cross_attend", json_true());
	json_object_set_new(encoder, "cross_attend", json_false());
	return json_pack("{s:s, s:o, s:o}", "stack", "encoder_decoder", "encoder", encoder, "decoder", decoder);
}

static void every_single_option_trains_saves_loads_and_decodes(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	/* Each of these needs an option that is off. */
	static const char *const refused[] = {"only_cross",
	                                      "sinusoidal_form",
	                                      "rel_pos_num_buckets",
	                                      "rel_pos_max_distance",
	                                      "alibi_num_heads",
	                                      "alibi_learned",
	                                      "dynamic_pos_bias_log_distance",
	                                      "dynamic_pos_bias_mlp_depth",
	                                      "dynamic_pos_bias_norm",
	                                      "rotary_emb_dim",
	                                      "rotate_values",
	                                      "attn_qk_norm_groups",
	                                      "attn_qk_norm_scale",
	                                      "cross_residual_attn",
	                                      NULL};
	for (int form = 0; form < 3; form++)
		for (int i = 0; i < OPTIONS; i++) {
			json_t *config = base(form == 1 ? "encoder" : "decoder");
			set(config, i);
			config = form == 2 ? with_encoder(config) : config;
			bool expected = true;
			for (int k = 0; refused[k]; k++)
				expected &= strcmp(options[i].key, refused[k]) != 0;
			if (form == 1 &&
			    (strcmp(options[i].key, "rotary_xpos") == 0 || strcmp(options[i].key, "cache_dtype") == 0))
				expected = false;
			if (form == 2)
				expected |= strcmp(options[i].key, "only_cross") == 0 ||
				            strcmp(options[i].key, "cross_residual_attn") == 0;
			if (form == 2 && options[i].value[0] == '[' && options[i].key[0] == 's')
				expected = false; /* a decoder has more entries than there are shifts */
			if (form == 2 && strcmp(options[i].key, "custom_layers") == 0)
				expected = false; /* these layers do not read the source */
			if (try(b, config) != expected)
				fail_msg("%s %s: %s", options[i].key, options[i].value,
				         expected ? "refused" : "not refused");
			json_decref(config);
		}
	b->close(b);
}

static void random_combinations_train_save_load_and_decode_or_are_refused_by_name(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	int taken = 0;
	for (uint64_t draw = 0; taken < DRAWN; draw++) {
		philox_block words = philox(11, 0, 0, 2 * draw), more = philox(11, 0, 0, 2 * draw + 1);
		json_t *config = base(words.word[0] % 3 ? "decoder" : "encoder");
		int n = 2 + (int)(words.word[1] % (MOST_OPTIONS - 1));
		for (int i = 0; i < n; i++)
			set(config,
			    (int)((i < 2 ? words.word[2 + i] : more.word[(i - 2) % 4] >> 8 * ((i - 2) / 4)) % OPTIONS));
		config = words.word[0] % 4 == 1 ? with_encoder(config) : config;
		taken += try(b, config);
		json_decref(config);
		assert_true(draw < 40 * (uint64_t)DRAWN);
	}
	b->close(b);
}

/* --- explanations ------------------------------------------------------------------------------------------- */

/* Copy a part of the first sequence's tokens from a plan's output to `to`, in logs of `floats` floats per token. */
static void log_part_of(plan *p, const char *name, const log_part *part, float *to, int64_t floats)
{
	const shape s = graph_value(plan_graph(p), graph_find(plan_graph(p), name))->shape;
	const int64_t pieces = part->heads ? part->heads : 1, width = part->width / pieces;
	const int64_t row = part->heads ? s.dim[3] : part->width, n = row - part->skipped;
	float *rows = malloc((size_t)shape_count(s) * sizeof *rows);
	fixture_read(p, name, rows);
	for (int64_t h = 0; h < pieces; h++)
		for (int64_t t = 0; t < N; t++) {
			const float *from = rows + (part->heads ? h * s.dim[2] + s.dim[2] - N + t : t) * row;
			memcpy(to + t * floats + h * width, from + part->skipped,
			       (size_t)(n < width ? n : width) * sizeof *rows);
		}
	free(rows);
}

/* Assemble the log of one sequence from the outputs of a plan, by layer and part. */
static float *log_of(plan *p, const model *m, int64_t at[8], int64_t *floats)
{
	log_part parts[EXPLAINER_MAX_PARTS];
	int64_t layers = model_dimensions(m)->layers, used = 0;
	float *log = calloc((size_t)(N * 1024), sizeof *log);
	for (int64_t pass = 0; pass < 2; pass++, *floats = pass ? used : *floats, used = 0) {
		for (int64_t l = 0; l < layers; l++) {
			int n = model_explainer(m)->parts(model_mixer_options(m, l), parts);
			at[l] = used;
			for (int i = 0; i < n; used += parts[i++].width) {
				char name[64];
				snprintf(name, sizeof name, "layers.%d.%s", (int)l, parts[i].name);
				if (pass)
					log_part_of(p, name, &parts[i], log + used, *floats);
			}
		}
	}
	return log;
}

static void weights_of_explanations_equal_those_of_the_model(void **state)
{
	(void)state;
	/* Columns of the matrix before the columns of tokens. */
	static const struct {
		const char *keys;
		int64_t memories;
	} cases[] = {
	    {"\"rotary_pos_emb\": true, \"attn_kv_heads\": 2, \"attn_max_attend_past\": 3", 0},
	    {"\"rel_pos_bias\": true, \"rel_pos_num_buckets\": 8, \"rel_pos_max_distance\": 20, \"num_memory_tokens\": "
	     "2",
	     2},
	    {"\"alibi_pos_bias\": true, \"attn_qk_norm\": true, \"attn_num_mem_kv\": 3", 3},
	    {"\"stack\": \"encoder\", \"attn_value_dim_head\": 3", 0},
	    {"\"attn_talking_heads\": true, \"attn_num_mem_kv\": 1, \"num_memory_tokens\": 2, \"rel_pos_bias\": true",
	     3},
	    {"\"attn_sparse_topk\": 3, \"residual_attn\": true, \"attn_max_attend_past\": 4", 0},
	    {"\"max_mem_len\": 6, \"rel_pos_bias\": true, \"num_memory_tokens\": 2", 2},
	    {"\"max_mem_len\": 6, \"rotary_pos_emb\": true, \"num_memory_tokens\": 2, \"attn_max_attend_past\": 3", 2},
	    {"\"stack\": \"encoder\", \"rel_pos_bias\": true, \"rel_pos_num_buckets\": 8, \"num_memory_tokens\": 2", 2},
	    {"\"stack\": \"encoder\", \"alibi_pos_bias\": true, \"attn_max_attend_past\": 4, \"attn_num_mem_kv\": 1",
	     1},
	    {"\"stack\": \"encoder\", \"dynamic_pos_bias\": true, \"attn_kv_heads\": 2", 0},
	    {"\"stack\": \"encoder\", \"attn_talking_heads\": true, \"attn_num_mem_kv\": 1, \"num_memory_tokens\": 2,"
	     " \"alibi_pos_bias\": true",
	     3},
	    {"\"stack\": \"encoder\", \"attn_sparse_topk\": 3, \"residual_attn\": true", 0},
	};
	backend *b = fixture_backend();
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		char text[512], name[32];
		float weights[B * 4 * (N + 3) * (N + 3)];
		trial t = {.b = b, .text = cases[c].keys};
		snprintf(text, sizeof text,
		         "{\"num_tokens\": %d, \"max_seq_len\": 16, \"dim\": %d, \"depth\": 2, \"heads\": 4,"
		         " \"attn_dim_head\": 6, %s}",
		         V, DIM, cases[c].keys);
		t.m = fixture_created_as(&architecture_transformer, text, 3, b);
		stir(t.m);
		fill_inputs(&t);
		const bool stepped = model_explainer(t.m)->recurrent;
		const forward_spec logged = {.phase = stepped ? PHASE_STEP : PHASE_SCORE,
		                             .batch = B,
		                             .length = N,
		                             .slots = SLOTS,
		                             .explain.log = true};
		float *pool = calloc((size_t)(SLOTS * model_state_floats(t.m)), sizeof *pool);
		plan *parts = fixture_plan(t.m, &logged, NULL, stepped ? pool : NULL),
		     *whole = fixture_plan(t.m, &(forward_spec){.batch = B, .length = N, .out.activations = true}, NULL,
		                           NULL);
		feed(&t, parts);
		if (stepped)
			assert_int_equal(feed_step(parts, 0, N), STATUS_OK);
		feed(&t, whole);
		assert_int_equal(plan_run(parts), STATUS_OK);
		assert_int_equal(plan_run(whole), STATUS_OK);
		int64_t at[8], floats = 0, m = cases[c].memories;
		float *log = log_of(parts, t.m, at, &floats);
		for (int64_t l = 0; l < 2; l++) {
			snprintf(name, sizeof name, "attn.%d", (int)l);
			fixture_read(whole, name, weights);
			shape s = graph_value(plan_graph(whole), graph_find(plan_graph(whole), name))->shape;
			for (int64_t h = 0; h < 4; h++)
				for (int64_t i = 0; i < N; i++) {
					const explainer *e = model_explainer(t.m);
					explain_site site = {.options = model_mixer_options(t.m, l),
					                     .log = log + at[l],
					                     .stride = floats,
					                     .tokens = N,
					                     .head = h};
					explain_range r = e->range(site.options, i, N);
					double alpha[N] = {0}, sum = 0;
					const float *row = weights + (h * s.dim[2] + s.dim[2] - N + i) * s.dim[3] + m;
					for (int64_t j = 0; j < N; j++)
						sum += (double)row[j];
					assert_int_equal(e->row(&site, i, alpha), STATUS_OK);
					for (int64_t j = 0; j < N; j++) {
						bool in = j >= r.first && j < r.end;
						double want = in ? alpha[j - r.first] : 0;
						if (!(fabs((double)row[j] / sum - want) <= 1e-5))
							fail_with(&t, "weight, of the explanation",
							          (double)row[j] / sum, want);
					}
				}
		}
		free(log);
		plan_free(parts);
		plan_free(whole);
		free(pool);
		model_free(t.m);
	}
	b->close(b);
}

static void a_session_of_full_length_scales_values_as_the_whole_text_does(void **state)
{
	(void)state;
	backend *b = fixture_backend();
	for (int memories = 0; memories < 4; memories++) {
		json_t *config = base("decoder");
		json_object_set_new(config, "max_seq_len", json_integer(N));
		json_object_set_new(config, "num_memory_tokens", json_integer(memories));
		json_object_set_new(config, "rotary_xpos", json_true());
		json_object_set_new(config, "rotate_values", json_true());
		assert_true(try(b, config));
		json_decref(config);
	}
	b->close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_single_option_trains_saves_loads_and_decodes),
	    cmocka_unit_test(random_combinations_train_save_load_and_decode_or_are_refused_by_name),
	    cmocka_unit_test(a_session_of_full_length_scales_values_as_the_whole_text_does),
	    cmocka_unit_test(weights_of_explanations_equal_those_of_the_model),
	};
	return cmocka_run_group_tests_name("transformer", tests, NULL, NULL);
}
