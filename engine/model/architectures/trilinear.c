/* 3Lin, a language model whose layers multiply pairs of channels and have no feed-forward (trilinear).
 *
 *   h = E[token] + P[position] + C[continuation]     P: only with "position_embedding": "learned"
 *   each layer:  h = h + Σ trilinear(N(h ⊙ m))      of its attentions, which all read h; mixers/mixer.h
 *   logits = ln 2 (z (N(h) Fᵀ) + bias)
 *
 * N(x) = x √width / ‖x‖₂. The layers have neither gains nor biases. Without P the only positions are those in the
 * attentions' scores. A token past the rows of P has no position vector, but distances in scores continue to count.
 * Sequences therefore have no limit, and no policy may change their positions. m is the mask of the channels that
 * training drops, one for a whole batch. The bias of the head is not trained: it is log2 of the count of each token in
 * the training text, plus ½.
 *
 * With a "match_window", the continuation is the token that followed the longest earlier match of the tokens read so
 * far (op_longest_match), if there is one. C has one row more than tokens, for a continuation that training drops.
 *
 * With "bidirectional" a token reads all others, P alone gives positions, and the model fills in masks.
 *
 * E has two rows more than tokens: one for a token that training drops, and one for the start, which precedes every
 * sequence and sees nothing. The start's state is therefore the same in all layers, and the key and the value before
 * all others follow from the weights alone. With "input": "hashed" E has 2048 rows for all labels. Label 1 is an
 * unknown token, v + 2 is token v, and the following labels are continuations. Each label has the sum of three rows
 * (op_hash_rows), the start only row 0.
 *
 * Two profiles differ in scales, not in form: "seed" multiplies logits by 4 √(1 / D) and products by 1, "head"
 * multiplies every product of n inputs by √(1 / n). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"
#include "engine/model/trilinear/attentions.h"
#include "engine/tensor/ops/hash_rows.h"
#include "engine/tensor/ops/longest_match.h"

enum {
	DEFAULT_HIDDEN = 256,
	MAX_HIDDEN = 1 << 16,
	MAX_VALUE = 1 << 12, /* the combiner has 16 times as many inputs */
	MAX_ROWS = 1 << 24,  /* vocabulary, positions */
	BLOCK = 16,          /* channels of values that are multiplied with each other */
	UNKNOWN_ROW = 0,     /* rows of E, after those of the tokens */
	START_ROW = 1,
	OWN_ROWS = 2,
	UNKNOWN_LABEL = 1, /* label of an unknown token in hashed rows */
	TOKEN_LABEL = 2,
	MATCH_LENGTH = 32, /* tokens of a match that are compared, as in the original */
	PREFIX_BYTES = 64,
};
#define WORDS "words"
#define HEAD "head"
#define PLACES "positions"
#define MATCHES "matches"
#define ATTENTION "attentions.%d."
#define SOURCE_LN2 0.693147 /* ln 2 in the scales, as in training */

typedef struct trilinear_config {
	model_dims dims;
	int64_t positions; /* n_positions */
	trilinear_profile profile;
	trilinear_attentions attentions;
	int64_t key_size, value_size;
	int weight_bits, vector_bits;
	double token_keep, channel_keep;
	bool learned; /* has a position table of `positions` rows */
	bool hashed;
	int64_t match_window; /* 0: no continuations */
	bool bidirectional;
	bool random_combiner, sequence, train_embeddings, train_head;
	trilinear_options layer[ARCHITECTURE_MAX_LAYERS]; /* one for each attention */
} trilinear_config;

static const char *const profiles[] = {[TRILINEAR_SEED] = "seed", [TRILINEAR_HEAD] = "head", NULL};
static const char *const combiners[] = {"zeros", "random", NULL};
static const char *const inputs[] = {"tokens", "hashed", NULL};
static const char *const generators[] = {"philox", "mt19937", NULL};

/* --- configuration ---------------------------------------------------------------- */

static bool is_seed(const trilinear_config *c)
{
	return c->profile == TRILINEAR_SEED;
}

/* Factor of a product of n inputs. */
static double product_scale(const trilinear_config *c, int64_t n)
{
	return is_seed(c) ? 1 : sqrt(1 / (double)n);
}

/* Factor in the logits of a product with F and of its bias, which is in exponents of 2. */
static double logit_scale(const trilinear_config *c)
{
	const double d = (double)c->dims.hidden;
	return (is_seed(c) ? 4 * sqrt(1 / d) : product_scale(c, c->dims.hidden)) / SOURCE_LN2;
}

static double score_scale(const trilinear_config *c)
{
	const double width = (double)(c->key_size / c->dims.heads);
	return sqrt(1 / width) * (is_seed(c) ? 1 : 0.5) / SOURCE_LN2;
}

static double combiner_std(const trilinear_config *c)
{
	return !c->random_combiner ? 0 : is_seed(c) ? 0.25 : 0.5;
}

static double matrix_std(const trilinear_config *c)
{
	return is_seed(c) ? sqrt(1 / (double)c->dims.hidden) : 0.5;
}

static int64_t word_rows(const trilinear_config *c)
{
	return c->hashed ? HASH_ROWS_COUNT : c->dims.inputs + OWN_ROWS;
}

/* Rows of C; the last one is that of a dropped continuation. */
static int64_t match_rows(const trilinear_config *c)
{
	return c->match_window && !c->hashed ? c->dims.inputs + 1 : 0;
}

/* Number of scalars in all parameters; the limits of the keys keep this far from overflow. */
static int64_t trilinear_count_parameters(const trilinear_config *c)
{
	const int64_t d = c->dims.hidden, attention = 2 * d * (c->key_size + c->value_size) + BLOCK * c->value_size * d;
	const int64_t rows = word_rows(c) + (c->learned ? c->positions : 0) + match_rows(c);
	return rows * d + c->dims.outputs * (d + 1) + c->dims.layers * attention;
}

static int64_t round_up(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* 32: not quantised; otherwise 8, or a power of two from `least` on. */
static int read_bits(config_reader *r, const char *key, int least)
{
	const int bits = (int)config_integer(r, key, 32, least, 32);
	if (bits != 32 && bits != 8 && bits != 4 && bits != 2)
		config_fail(r, key, "%s must be 32 or 8%s", key, least < 8 ? ", 4 or 2" : "");
	return bits;
}

static void set_layers(trilinear_config *c)
{
	for (int64_t l = 0; l < c->dims.layers; l++) {
		const trilinear_attention *a = &c->attentions.items[l];
		c->layer[l] = (trilinear_options){
		    .hidden = c->dims.hidden,
		    .key_size = c->key_size,
		    .value_size = c->value_size,
		    .heads = c->dims.heads,
		    .reach = c->bidirectional ? 0 : trilinear_reach(c->profile, a->window),
		    .bidirectional = c->bidirectional,
		    .slope = a->slope,
		    .hyper = a->hyper,
		    .score_scale = score_scale(c),
		    .input_scale = product_scale(c, c->dims.hidden),
		    .combiner_scale = product_scale(c, BLOCK * c->value_size),
		    .weight_bits = c->weight_bits,
		    .vector_bits = c->vector_bits,
		    .std = matrix_std(c),
		    .combiner_std = combiner_std(c),
		    .sequence = c->sequence,
		};
	}
}

static void read_sizes(trilinear_config *c, config_reader *r)
{
	c->dims.hidden = config_integer(r, "hidden_size", DEFAULT_HIDDEN, 1, MAX_HIDDEN);
	c->dims.heads = config_integer(r, "n_heads", 1, 1, MAX_VALUE / BLOCK);
	c->key_size =
	    config_integer(r, "key_size", round_up((c->dims.hidden + 1) / 2, c->dims.heads), 1, 2 * MAX_HIDDEN);
	const int64_t quarter = c->dims.hidden / 4 < MAX_VALUE ? (c->dims.hidden + 3) / 4 : MAX_VALUE;
	c->value_size = config_integer(r, "value_size", round_up(quarter, BLOCK * c->dims.heads), BLOCK, MAX_VALUE);
	if (c->key_size % c->dims.heads != 0)
		config_fail(r, "key_size", "n_heads must divide key_size");
	if (c->value_size % (BLOCK * c->dims.heads) != 0)
		config_fail(r, "value_size", "value_size must be a multiple of %d for each of n_heads", BLOCK);
}

/* Read the keys that determine which other tokens a token sees. */
static void read_reading(trilinear_config *c, config_reader *r)
{
	c->bidirectional = config_bool(r, "bidirectional", false);
	if (c->bidirectional && !c->learned)
		config_fail(r, "bidirectional",
		            "bidirectional attention knows no distances: it needs \"position_embedding\": \"learned\"");
	c->match_window = config_integer(r, "match_window", 0, 0, LONGEST_MATCH_MAX_WINDOW);
	if (c->match_window && c->match_window <= MATCH_LENGTH)
		config_fail(r, "match_window", "match_window must be 0 or more than %d", MATCH_LENGTH);
	if (c->match_window && c->bidirectional)
		config_fail(r, "match_window",
		            "what stands behind a match is not to be guessed by a bidirectional model");
}

static status trilinear_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "position_embedding", "hidden_size",   "key_size",
	    "value_size",         "vocab_size",    "n_heads",
	    "n_positions",        "profile",       TRILINEAR_ATTENTION_KEYS,
	    "weight_bits",        "vector_bits",   "token_keep",
	    "channel_keep",       "combiner_init", "init_generator",
	    "train_embeddings",   "train_head",    "input",
	    "match_window",       "bidirectional", NULL,
	};
	trilinear_config *c = config;
	config_reader r = config_begin(json, &architecture_trilinear, keys, err);
	read_sizes(c, &r);
	c->dims.inputs = c->dims.outputs = config_integer(&r, "vocab_size", 259, 1, MAX_ROWS);
	c->positions = config_integer(&r, "n_positions", 1024, 1, MAX_ROWS);
	c->learned = config_positions(&r, false);
	c->hashed = config_choice(&r, "input", inputs);
	if (c->hashed && c->learned)
		config_fail(&r, "position_embedding", "hashed rows have no table of positions beside them");
	read_reading(c, &r);
	c->dims.positions = c->bidirectional ? c->positions : MODEL_UNBOUNDED;
	c->dims.trained = config_trained(&r, c->positions, c->dims.positions);
	c->profile = (trilinear_profile)config_choice(&r, "profile", profiles);
	trilinear_attentions_read(&r, c->profile, c->bidirectional, &c->attentions);
	c->dims.layers = c->attentions.count;
	c->weight_bits = read_bits(&r, "weight_bits", 2);
	c->vector_bits = read_bits(&r, "vector_bits", 8);
	c->token_keep = config_number(&r, "token_keep", 1, 0.001, 1);
	c->channel_keep = config_number(&r, "channel_keep", 1, 0.001, 1);
	c->random_combiner = config_choice(&r, "combiner_init", combiners);
	c->sequence = config_choice(&r, "init_generator", generators);
	if (c->sequence && c->learned)
		config_fail(&r, "init_generator", "the source's order of drawing has no table of positions of its own");
	c->train_embeddings = config_bool(&r, "train_embeddings", true);
	c->train_head = config_bool(&r, "train_head", true);
	config_check_parameters(&r, trilinear_count_parameters(c));
	c->dims.form = c->bidirectional ? &form_masked : &form_causal;
	c->dims.dropout = (float)(1 - fmin(c->token_keep, c->channel_keep));
	if (r.status == STATUS_OK)
		set_layers(c);
	return r.status;
}

/* The configuration may lack the key or have a wrong value, which read_config reports. */
static trilinear_positions positions_of(const json_t *json)
{
	const char *profile = json_string_value(json_object_get(json, "profile"));
	const char *positions = json_string_value(json_object_get(json, "positions"));
	if (positions)
		return strcmp(positions, "widths") == 0 ? TRILINEAR_WIDTHS : TRILINEAR_ALIBI;
	return trilinear_positions_of(profile && strcmp(profile, "head") == 0 ? TRILINEAR_HEAD : TRILINEAR_SEED);
}

static bool trilinear_complete(json_t *json, const model_size *size)
{
	if (!json_object_get(json, "attentions") &&
	    !config_set_size(json, "n_layer", trilinear_attentions_round(positions_of(json), size->layers)))
		return false;
	return config_set_size(json, "hidden_size", size->hidden) && config_set_size(json, "n_heads", size->heads) &&
	       config_set_size(json, "vocab_size", size->inputs) &&
	       (size->dropout < 0 || config_set_missing(json, "channel_keep", json_real(1 - size->dropout))) &&
	       config_set_positions(json, "n_positions", size);
}

static json_t *trilinear_write_config(const void *config)
{
	const trilinear_config *c = config;
	json_t *json = json_pack(
	    "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:s, s:s, s:b, s:b, s:I, s:b}",
	    "model_type", architecture_trilinear.model_type, "hidden_size", (json_int_t)c->dims.hidden, "key_size",
	    (json_int_t)c->key_size, "value_size", (json_int_t)c->value_size, "vocab_size", (json_int_t)c->dims.inputs,
	    "n_heads", (json_int_t)c->dims.heads, "n_positions", (json_int_t)c->positions, CONFIG_TRAINED,
	    (json_int_t)c->dims.trained, "position_embedding", c->learned ? "learned" : "none", "input",
	    inputs[c->hashed], "profile", profiles[c->profile], "weight_bits", c->weight_bits, "vector_bits",
	    c->vector_bits, "token_keep", c->token_keep, "channel_keep", c->channel_keep, "combiner_init",
	    combiners[c->random_combiner], "init_generator", generators[c->sequence], "train_embeddings",
	    c->train_embeddings, "train_head", c->train_head, "match_window", (json_int_t)c->match_window,
	    "bidirectional", c->bidirectional);
	if (json && trilinear_attentions_write(json, &c->attentions))
		return json;
	json_decref(json);
	return NULL;
}

static const mixer *trilinear_layer_mixer(const void *config, int64_t layer, const void **options)
{
	*options = &((const trilinear_config *)config)->layer[layer];
	return &mixer_trilinear;
}

/* --- parameters ------------------------------------------------------------------------ */

/* Bits of E and F, at least 8. */
static int table_bits(const trilinear_config *c)
{
	return c->weight_bits < 8 ? 8 : c->weight_bits;
}

/* `own`: number of rows after those of the tokens. */
static void table_parameters(const trilinear_config *c, const char *name, int64_t rows, int64_t own, double std,
                             bool trained, parameter_list *list)
{
	parameter_list_add_matrix(list, (float)std, rows, c->dims.hidden, false, "%s.weight", name);
	if (c->sequence)
		parameter_list_sequence(list, (int)own); /* drawn first */
	parameter_list_quantized(list, table_bits(c));
	parameter_list_by_row(list);
	if (!trained)
		parameter_list_fixed(list);
}

static void trilinear_parameters(const void *config, parameter_list *list)
{
	const trilinear_config *c = config;
	table_parameters(c, WORDS, word_rows(c), c->hashed ? 0 : OWN_ROWS, 1, c->train_embeddings, list);
	if (match_rows(c))
		table_parameters(c, MATCHES, match_rows(c), 1, 1, c->train_embeddings, list);
	if (c->learned)
		table_parameters(c, PLACES, c->positions, 0, 1, c->train_embeddings, list);
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		mixer_trilinear.parameters(&c->layer[l], prefix, list);
	}
	table_parameters(c, HEAD, c->dims.outputs, 0, is_seed(c) ? 4 * matrix_std(c) : 0.5, c->train_head, list);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(c->dims.outputs), HEAD ".bias");
	parameter_list_log_counts(list);
	parameter_list_fixed(list);
}

static void trilinear_states(const void *config, state_list *list)
{
	const trilinear_config *c = config;
	if (!c->match_window)
		return;
	state_list_add(list, STATE_CACHE, longest_match_state_floats(c->match_window), MATCHES);
	state_list_set_ring(list, c->match_window, 1, 0, 0);
}

/* --- forward --------------------------------------------------------------------------- */

/* Labels of tokens or of continuations: rows of the table, or, with hashed rows, the hash inputs. */
typedef struct label_set {
	value table;
	int64_t first, unknown; /* label of token 0; label of a dropped one */
	bool some;              /* a token may have none, index -1 */
} label_set;

static label_set word_labels(const trilinear_config *c, value table)
{
	if (c->hashed)
		return (label_set){table, TOKEN_LABEL, UNKNOWN_LABEL, false};
	return (label_set){table, 0, c->dims.inputs + UNKNOWN_ROW, false};
}

static label_set match_labels(const builder *b, const trilinear_config *c, value words)
{
	const int64_t unknown = TOKEN_LABEL + c->dims.inputs;
	if (c->hashed)
		return (label_set){words, unknown + 1, unknown, true};
	return (label_set){trilinear_weight(b, table_bits(c), MATCHES), 0, c->dims.inputs, true};
}

/* [1] i32 */
static value trilinear_number(const builder *b, int64_t x)
{
	return op_fill_integer(b->g, SHAPE1(1), (int32_t)x);
}

/* [..., D]: the rows of labels first + index, or sums of hashed rows. */
static value look_up(const builder *b, const trilinear_config *c, value table, value index, int64_t first)
{
	value sum = VALUE_NONE;
	for (int round = 0; round < HASH_ROWS_ROUNDS && c->hashed; round++) {
		value rows = op_hash_rows(b->g, index, (hash_rows_params){first, round});
		rows = op_gather(b->g, table, rows, -1);
		sum = round == 0 ? rows : op_add(b->g, sum, rows);
	}
	return c->hashed ? sum : op_gather(b->g, table, index, -1);
}

/* [1, D] */
static value unknown_row(const builder *b, const trilinear_config *c, const label_set *l)
{
	return look_up(b, c, l->table, trilinear_number(b, c->hashed ? 0 : l->unknown), l->unknown);
}

/* [B, N, D]: the rows of the labels of `index`, zeros for those below 0. In training some, drawn independently, become
 * the row of a dropped label. */
static value label_rows(builder *b, const trilinear_config *c, label_set l, value index)
{
	const uint32_t site = builder_site(b);
	const double keep = c->token_keep;
	value rows = look_up(b, c, l.table, index, l.first);
	if (b->rng == VALUE_NONE || keep == 1 || rows == VALUE_NONE)
		return rows;
	const shape s = graph_value(b->g, rows)->shape;
	value present = l.some ? op_gather(b->g, op_fill(b->g, SHAPE2(c->dims.inputs, 1), 1), index, -1)
	                       : op_fill(b->g, SHAPE3(s.dim[0], s.dim[1], 1), 1);
	value kept = op_scale(b->g, op_dropout(b->g, present, b->rng, (float)(1 - keep), site), (float)keep);
	value dropped = op_add(b->g, present, op_scale(b->g, kept, -1));
	value mask = op_matmul(b->g, kept, op_fill(b->g, SHAPE2(1, s.dim[2]), 1), false, false, 1);
	value others = op_matmul(b->g, dropped, unknown_row(b, c, &l), false, false, 1);
	return op_gate(b->g, others, rows, mask);
}

/* [B, N] i32, -1: none */
static value continuations(const builder *b, const trilinear_config *c, value tokens)
{
	longest_match_params params = {.window = c->match_window, .length = MATCH_LENGTH};
	if (!forward_recurrent(b->spec))
		return op_longest_match(b->g, tokens, b->mask, params);
	params.offset = builder_state(b, MATCHES);
	return op_longest_match_stream(b->g, tokens, b->pool, b->slot, b->position, b->length, b->mask, b->start,
	                               params);
}

static value word_vectors(builder *b, const trilinear_config *c, value table)
{
	value tokens = builder_tokens(b), rows = label_rows(b, c, word_labels(c, table), tokens);
	if (c->match_window)
		rows = op_add(b->g, rows, label_rows(b, c, match_labels(b, c, table), continuations(b, c, tokens)));
	return builder_word_rows(b, rows);
}

/* [D]: 0 for dropped channels, otherwise a constant, which the following norms cancel; or VALUE_NONE. */
static value channel_mask(builder *b, double keep, int64_t d)
{
	const uint32_t site = builder_site(b);
	if (b->rng == VALUE_NONE || keep == 1)
		return VALUE_NONE;
	return op_dropout(b->g, op_fill(b->g, SHAPE1(d), 1), b->rng, (float)(1 - keep), site);
}

static value trilinear_model_normalize(const builder *b, const trilinear_config *c, value mask, value h)
{
	if (mask != VALUE_NONE)
		h = op_scale_columns(b->g, h, mask, 1);
	return trilinear_normalize(b, c->vector_bits, h);
}

static value layers(builder *b, const trilinear_config *c, value mask, value h)
{
	value n = VALUE_NONE;
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		if (!c->attentions.items[l].joins) {
			builder_boundary(b);
			n = trilinear_model_normalize(b, c, mask, h);
			if (b->spec->out.activations) {
				builder_output(b, h, "layers.%d.state", l);
				builder_output(b, n, "layers.%d.normed", l);
			}
		}
		h = op_add(b->g, h, mixer_trilinear.forward(b, &c->layer[l], l, prefix, n));
	}
	builder_boundary(b);
	return h;
}

static void trilinear_forward(const void *config, builder *b)
{
	const trilinear_config *c = config;
	const double scale = logit_scale(c);
	value table = trilinear_weight(b, table_bits(c), WORDS);
	value h = word_vectors(b, c, table);
	b->front = op_gather(b->g, table, trilinear_number(b, c->hashed ? 0 : c->dims.inputs + START_ROW), -1);
	if (c->learned)
		h = op_add(b->g, h, builder_places_of(b, trilinear_weight(b, table_bits(c), PLACES)));
	value mask = channel_mask(b, c->channel_keep, c->dims.hidden);
	b->first = trilinear_model_normalize(b, c, mask, b->front);
	h = layers(b, c, mask, h);
	if (b->spec->out.activations)
		builder_output(b, h, "state");
	h = trilinear_normalize(b, 32, builder_needed_rows(b, h));
	if (b->spec->out.activations)
		builder_output(b, h, "normed");
	value bias = op_scale(b->g, builder_parameter(b, HEAD ".bias"), (float)(1 / scale));
	builder_vocabulary(b, h, trilinear_weight(b, table_bits(c), HEAD), bias, (float)(scale * M_LN2));
}

const architecture architecture_trilinear = {
    .name = "trilinear",
    .model_type = "trilinear",
    .config_bytes = sizeof(trilinear_config),
    .config_read = trilinear_read_config,
    .complete = trilinear_complete,
    .config_write = trilinear_write_config,
    .parameters = trilinear_parameters,
    .counts_tokens = true,
    .mixer = trilinear_layer_mixer,
    .states = trilinear_states,
    .forward = trilinear_forward,
};
