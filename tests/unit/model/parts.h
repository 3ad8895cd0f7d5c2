/* parts.h - attributions of scores to tokens, of small models of every architecture. Include after cmocka.h. */
#ifndef TESTS_UNIT_MODEL_PARTS_H
#define TESTS_UNIT_MODEL_PARTS_H

#include <math.h>

#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"

enum { B = 2, N = 23, V = 37, MOST = B * N };

typedef struct kind {
	const architecture *architecture;
	const char *config;
} kind;

static const kind kinds[] = {
    {&architecture_additive, SMALL_CONFIG},
    {&architecture_additive,
     "{\"hidden_size\": 20, \"n_heads\": 4, \"n_layer\": 2, \"vocab_size\": 37, \"n_positions\": 23,"
     " \"use_local_att\": false, \"position_embedding\": \"none\"}"},
    {&architecture_gpt2, "{\"model_type\": \"gpt2\", \"n_embd\": 20, \"n_head\": 4, \"n_layer\": 2, \"vocab_size\": 37,"
                         " \"n_positions\": 23}"},
    {&architecture_linear, "{\"model_type\": \"linear\", \"hidden_size\": 20, \"n_heads\": 4, \"n_layer\": 3,"
                           " \"vocab_size\": 37, \"n_positions\": 23, \"position_embedding\": \"learned\"}"},
    {&architecture_additive2, "{\"model_type\": \"additive2\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2,"
                              " \"vocab_size\": 37, \"window_layers\": [1], \"window\": 7, \"window_heads\": 2}"},
    {&architecture_additive2, "{\"model_type\": \"additive2\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2,"
                              " \"vocab_size\": 37, \"linear_layers\": [1]}"},
    {&architecture_additive2, "{\"model_type\": \"additive2\", \"hidden_size\": 20, \"n_heads\": 5, \"n_layer\": 2,"
                              " \"vocab_size\": 37, \"window_sizes\": [7, 0]}"},
    {&architecture_rwkv, "{\"model_type\": \"rwkv\", \"hidden_size\": 20, \"attention_hidden_size\": 24,"
                         " \"num_hidden_layers\": 2, \"vocab_size\": 37, \"intermediate_size\": 31}"},
    {&architecture_dilated,
     "{\"model_type\": \"dilated\", \"hidden_size\": 20, \"n_heads\": 4, \"n_layer\": 2, \"vocab_size\": 37,"
     " \"n_positions\": 23, \"position_embedding\": \"learned\", \"segment_length\": [4, 10],"
     " \"dilated_ratio\": [1, 2]}"},
    {&architecture_linear_encoder,
     "{\"model_type\": \"linear_encoder\", \"d_model\": 20, \"encoder_attention_heads\": 4, \"encoder_layers\": 2,"
     " \"encoder_ffn_dim\": 36, \"vocab_size\": 37, \"max_position_embeddings\": 23, \"num_labels\": 37}"},
    {&architecture_transformer,
     "{\"model_type\": \"transformer\", \"dim\": 20, \"heads\": 4, \"attn_dim_head\": 5, \"depth\": 2,"
     " \"num_tokens\": 37, \"max_seq_len\": 23, \"sinusoidal_pos_emb\": true, \"scale_embedding\": true,"
     " \"use_unbiased_norm\": true, \"ff_relu\": true}"},
    {&architecture_bart, "{\"d_model\": 20, \"encoder_attention_heads\": 4, \"encoder_layers\": 2,"
                         " \"decoder_layers\": 1, \"decoder_attention_heads\": 2, \"encoder_ffn_dim\": 36,"
                         " \"vocab_size\": 37, \"max_position_embeddings\": 23, \"num_labels\": 37}"},
    {&architecture_bart, "{\"d_model\": 20, \"encoder_attention_heads\": 4, \"encoder_layers\": 2,"
                         " \"encoder_ffn_dim\": 36, \"vocab_size\": 37, \"max_position_embeddings\": 23,"
                         " \"num_labels\": 37, \"encoder_attention\": \"linear\", \"scale_embedding\": true}"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The logits of B sequences, their coefficients, and the parts of the score. */
typedef struct parts {
	float logits[B * V], coefficients[B * V];
	float words[MOST], positions[MOST], biases[MOST], head[B], attention[MOST];
} parts;

static inline void read_part(plan *p, port_role role, float *out)
{
	if (port_find(plan_graph(p), role) != VALUE_NONE)
		fixture_read(p, port_name(role), out);
}

static inline int32_t last_of(int sequence)
{
	return (sequence + 1) * N - 1 - (sequence == B - 1 ? 4 : 0);
}

static inline void feed(plan *p, const model *m)
{
	int32_t ids[MOST], mask[MOST], last[B];
	for (int i = 0; i < MOST; i++) {
		ids[i] = (i + 1) * 7919 % (V - 1) + 1;
		mask[i] = i < MOST - 4; /* the second sequence is shorter */
	}
	for (int b = 0; b < B; b++)
		last[b] = last_of(b);
	assert_int_equal(feed_write(p, PORT_TOKENS, ids), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_MASK, mask), STATUS_OK);
	assert_int_equal(feed_positions(p, model_dimensions(m), POSITION_ERROR, 0), STATUS_OK);
	assert_int_equal(feed_write(p, PORT_LAST, last), STATUS_OK);
	assert_int_equal(feed_baseline(p, NULL), STATUS_OK);
}

/* Write 1 - p for token t of a row and -p for the other tokens. */
static inline void contrast(const float *logits, int t, float *out)
{
	double most = -INFINITY, sum = 0;
	for (int v = 0; v < V; v++)
		most = fmax(most, (double)logits[v]);
	for (int v = 0; v < V; v++)
		sum += exp((double)logits[v] - most);
	for (int v = 0; v < V; v++)
		out[v] = (float)((v == t) - exp((double)logits[v] - most) / sum);
}

/* Advance within a run; rows: one row of a node at a time, if the node can be divided. */
static inline void step(plan *p, int *cursor, bool rows)
{
	int64_t row = 0;
	const int node = *cursor;
	while (rows && *cursor == node)
		assert_int_equal(plan_step_rows(p, cursor, &row, 1), STATUS_OK);
	if (!rows)
		assert_int_equal(plan_step(p, cursor), STATUS_OK);
}

/* The coefficients are chosen in the middle of the run, when the logits are known. */
static inline void attribute(const model *m, attribution way, float share, float factor, bool recompute, bool rows,
                             parts *out)
{
	const forward_spec spec = {.batch = B,
	                           .length = N,
	                           .masked = true,
	                           .out.logits = LOGITS_LAST,
	                           .explain.attribution = way,
	                           .explain.share = share,
	                           .train.recompute = recompute};
	plan *p = fixture_plan(m, &spec, NULL, NULL);
	*out = (parts){0};
	feed(p, m);
	assert_int_equal(feed_write(p, PORT_FACTOR, &factor), STATUS_OK);
	int cursor = 0, logits_node = plan_node_of(p, port_find(plan_graph(p), PORT_LOGITS));
	while (cursor <= logits_node)
		step(p, &cursor, rows);
	fixture_read(p, "logits", out->logits);
	for (int b = 0; b < B; b++)
		contrast(out->logits + b * V, 5 + b, out->coefficients + b * V);
	fixture_write(p, "coefficients", out->coefficients);
	while (cursor < plan_node_count(p))
		step(p, &cursor, rows);
	read_part(p, PORT_WORD_PARTS, out->words);
	read_part(p, PORT_POSITION_PARTS, out->positions);
	read_part(p, PORT_BIAS_PARTS, out->biases);
	float last[B] = {0};
	read_part(p, PORT_LAST_PARTS, last);
	for (int s = 0; s < B; s++)
		out->biases[last_of(s)] += last[s];
	read_part(p, PORT_HEAD_PARTS, out->head);
	read_part(p, PORT_ATTENTION_PARTS, out->attention);
	plan_free(p);
}

#endif
