#include "engine/model/builder.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "engine/model/lora.h"

enum { NAME_BYTES = sizeof(((parameter_spec *)NULL)->name), PREFIX_BYTES = NAME_BYTES - 8 };

/* --- parameters and state --------------------------------------------------------- */

void builder_layernorm_parameters(parameter_list *list, int64_t d, const char *format, ...)
{
	char prefix[PREFIX_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(prefix, sizeof prefix, format, args);
	va_end(args);
	parameter_list_add(list, INIT_ONE, 0, SHAPE1(d), "%s.weight", prefix);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(d), "%s.bias", prefix);
}

void builder_projection_parameters(parameter_list *list, int64_t d, const double std[4], bool bias, const char *prefix)
{
	static const char *const names[] = {"k_proj", "v_proj", "q_proj", "out_proj"};
	for (int i = 0; i < 4; i++) {
		parameter_list_add_matrix(list, (float)std[i], d, d, false, "%s%s.weight", prefix, names[i]);
		if (bias)
			parameter_list_add(list, INIT_ZERO, 0, SHAPE1(d), "%s%s.bias", prefix, names[i]);
	}
}

/* --- inputs ------------------------------------------------------------------------ */

static value input(graph *g, port_role role, shape s)
{
	return graph_input(g, port_name(role), DTYPE_I32, s);
}

/* Add the pool and the inputs that place sequences in it. */
static void add_pool(builder *b, int64_t slots)
{
	const shape sequences = SHAPE1(b->spec->batch);
	b->pool = graph_state(b->g, STATE_POOL, SHAPE2(slots, state_list_slot(b->states)));
	b->slot = input(b->g, PORT_SLOT, sequences);
	if (b->spec->phase == PHASE_ENCODE)
		return;
	b->position = input(b->g, PORT_POSITION, sequences);
	b->started = b->spec->initial_states ? input(b->g, PORT_STARTED, sequences) : b->position;
	b->length = input(b->g, PORT_LENGTH, sequences);
}

void builder_carry(builder *b)
{
	add_pool(b, b->spec->batch);
}

builder builder_begin(graph *g, const forward_spec *spec, const state_list *states)
{
	builder b = {.g = g,
	             .spec = spec,
	             .states = states,
	             .mask = VALUE_NONE,
	             .rng = VALUE_NONE,
	             .pool = VALUE_NONE,
	             .pool_before = VALUE_NONE,
	             .slot = VALUE_NONE,
	             .position = VALUE_NONE,
	             .started = VALUE_NONE,
	             .length = VALUE_NONE,
	             .start = VALUE_NONE,
	             .first = VALUE_NONE,
	             .words = VALUE_NONE,
	             .source_words = VALUE_NONE,
	             .source_scaled = VALUE_NONE,
	             .scaled = VALUE_NONE,
	             .away = VALUE_NONE,
	             .front = VALUE_NONE,
	             .row = VALUE_NONE,
	             .logits = VALUE_NONE,
	             .entry = VALUE_NONE,
	             .lora_rank = VALUE_NONE,
	             .lora_places = VALUE_NONE,
	             .lora_bank = VALUE_NONE};
	if (spec->masked)
		b.mask = input(g, PORT_MASK, SHAPE2(spec->batch, builder_rows_before(&b) + spec->length));
	if (spec->train.dropout)
		b.rng = input(g, PORT_RANDOM, SHAPE1(4));
	if (forward_recurrent(spec))
		add_pool(&b, spec->slots);
	if (spec->phase == PHASE_READ)
		b.start = input(g, PORT_START, SHAPE1(spec->batch));
	return b;
}

int64_t builder_rows_before(const builder *b)
{
	const forward_input *before = forward_find_input(b->spec, FORWARD_ROWS_BEFORE);
	return before ? before->rows : 0;
}

value builder_pool_before(builder *b)
{
	if (b->spec->train.backward && b->pool_before == VALUE_NONE)
		b->pool_before = op_scale(b->g, b->pool, 1);
	return b->pool_before;
}

static shape token_shape(const builder *b)
{
	return SHAPE2(b->spec->phase == PHASE_READ ? 1 : b->spec->batch, b->spec->length);
}

/* Return vectors times PORT_FACTOR if a gradient is requested. */
static value scaled_words(const builder *b, value words)
{
	if (b->spec->explain.attribution != ATTRIBUTION_GRADIENT)
		return words;
	value factor = port_find(b->g, PORT_FACTOR);
	return op_scale_by(b->g, words,
	                   factor == VALUE_NONE ? graph_input(b->g, port_name(PORT_FACTOR), DTYPE_F32, SHAPE0())
	                                        : factor);
}

value builder_repeat_row(const builder *b, value vector, value like)
{
	const value zeros = op_fill(b->g, SHAPE1(shape_last(graph_value(b->g, like)->shape)), 0);
	return op_layernorm(b->g, like, zeros, vector, 1);
}

/* Return PORT_BASELINE in as many rows as `words`. */
static value baseline_rows(const builder *b, value words)
{
	const shape row = SHAPE1(shape_last(graph_value(b->g, words)->shape));
	return builder_repeat_row(b, graph_input(b->g, port_name(PORT_BASELINE), DTYPE_F32, row), words);
}

value builder_words(builder *b, const char *words, int64_t padding_row)
{
	return builder_word_rows(b, op_gather(b->g, graph_find(b->g, words), builder_tokens(b), padding_row));
}

value builder_tokens(const builder *b)
{
	return input(b->g, PORT_TOKENS, token_shape(b));
}

value builder_word_rows(builder *b, value rows)
{
	b->words = b->away = rows;
	if (b->spec->explain.attribution != ATTRIBUTION_GRADIENT)
		return b->scaled = rows;
	graph_output(b->g, rows, "%s", port_name(PORT_WORDS));
	const value baseline = baseline_rows(b, rows);
	b->away = op_axpby(b->g, rows, baseline, 1, -1);
	return b->scaled = op_add(b->g, scaled_words(b, b->away), baseline);
}

/* The shifted ids are the only ids computed by an op. Only the first of the rows that they select is new. */
value builder_words_shifted(builder *b, const char *words, int64_t start, int64_t padding_row, value x)
{
	value ids = op_pad_mask(b->g, port_find(b->g, PORT_TOKENS), 1, (int32_t)start);
	value rows = op_gather(b->g, graph_find(b->g, words), ids, padding_row);
	b->front = op_slice_rows(b->g, rows, 0, 1);
	return op_slice_rows(b->g, op_join_rows(b->g, b->front, x, (join_rows_params){0}), 0, -2);
}

value builder_positions(builder *b)
{
	value positions = port_find(b->g, PORT_POSITIONS);
	return positions == VALUE_NONE ? input(b->g, PORT_POSITIONS, token_shape(b)) : positions;
}

static value add_places(builder *b, value rows)
{
	assert(b->n_places < (int)(sizeof b->places / sizeof *b->places));
	return b->places[b->n_places++] = rows;
}

value builder_places(builder *b, const char *places)
{
	return builder_places_of(b, graph_find(b->g, places));
}

value builder_places_of(builder *b, value table)
{
	return add_places(b, op_gather(b->g, table, builder_positions(b), -1));
}

static value source_input(const builder *b, port_role role)
{
	return input(b->g, role, SHAPE2(b->spec->batch, b->spec->source));
}

static value add_source_places(builder *b, value rows)
{
	assert(b->n_source_places < (int)(sizeof b->source_places / sizeof *b->source_places));
	return b->source_places[b->n_source_places++] = rows;
}

value builder_source_rows(builder *b, port_role role, const char *table)
{
	value rows = op_gather(b->g, graph_find(b->g, table), source_input(b, role), -1);
	if (role != PORT_SOURCE)
		return add_source_places(b, rows);
	b->source_words = rows;
	return b->source_scaled = scaled_words(b, rows);
}

value builder_sinusoids(builder *b, bool source, sinusoids_params params)
{
	value positions = source ? source_input(b, PORT_SOURCE_POSITIONS) : builder_positions(b);
	value y = op_sinusoids(b->g, positions, params);
	if (b->spec->bf16)
		y = op_cast(b->g, y, DTYPE_BF16);
	return source ? add_source_places(b, y) : add_places(b, y);
}

value builder_embed(builder *b, const char *words, int64_t padding_row, float scale, const char *places)
{
	value embedded = builder_words(b, words, padding_row);
	if (scale != 1)
		embedded = op_scale(b->g, embedded, scale);
	return places ? op_add(b->g, embedded, builder_places(b, places)) : embedded;
}

void builder_normed_words(const builder *b)
{
	if (b->spec->explain.attribution == ATTRIBUTION_GRADIENT)
		graph_output(b->g, op_dot_rows(b->g, b->words, b->words, 1), "%s", port_name(PORT_WORD_SQUARES));
}

/* --- layers ------------------------------------------------------------------------- */

value builder_parameter(const builder *b, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	return graph_find(b->g, name);
}

value builder_linear(const builder *b, value x, const char *format, ...)
{
	char prefix[PREFIX_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(prefix, sizeof prefix, format, args);
	va_end(args);
	return builder_affine(b, x, builder_parameter(b, "%s.bias", prefix), "%s.weight", prefix);
}

value builder_affine(const builder *b, value x, value bias, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	return lora_layer(b, x, op_linear(b->g, x, builder_parameter(b, "%s", name), bias, 1), name);
}

value builder_product(const builder *b, value x, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	return builder_affine(b, x, VALUE_NONE, "%s", name);
}

value builder_layernorm(const builder *b, value x, float eps, const char *format, ...)
{
	char prefix[PREFIX_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(prefix, sizeof prefix, format, args);
	va_end(args);
	value weight = builder_parameter(b, "%s.weight", prefix), bias = builder_parameter(b, "%s.bias", prefix);
	return op_layernorm(b->g, x, weight, bias, eps);
}

value builder_rms(const builder *b, value x, int64_t parts, double eps, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	const value gain = builder_parameter(b, "%s", name);
	if (x == VALUE_NONE)
		return x;
	const double width = (double)(shape_last(graph_value(b->g, x)->shape) / parts);
	return op_normalize(
	    b->g, x, gain,
	    (normalize_params){
	        .groups = parts, .scale = (float)sqrt(width), .floor = FLT_MIN, .eps = (float)(width * eps)});
}

int64_t builder_rows(const builder *b, value v)
{
	return v == VALUE_NONE ? 0 : graph_value(b->g, v)->shape.dim[1];
}

uint32_t builder_site(builder *b)
{
	return b->site++;
}

value builder_dropout(builder *b, value x, float p)
{
	uint32_t site = builder_site(b);
	return b->rng == VALUE_NONE || p == 0 ? x : op_dropout(b->g, x, b->rng, p, site);
}

int64_t builder_state(const builder *b, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	const state_spec *state = state_list_find(b->states, name);
	assert(state);
	return state->offset;
}

void builder_boundary(const builder *b)
{
	if (b->spec->train.recompute)
		graph_checkpoint(b->g);
}

/* --- heads --------------------------------------------------------------------------- */

void builder_output(const builder *b, value v, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	graph_output(b->g, b->spec->bf16 ? op_cast(b->g, v, DTYPE_F32) : v, "%s", name);
}

void builder_log(const builder *b, attention_place place, int layer, const char *name, value v)
{
	static const char *const places[] = {"layers.%d.%s", "source.layers.%d.%s", "cross.%d.%s"};
	if (b->spec->explain.log)
		builder_output(b, v, places[place], layer, name);
}

static void name_output(const builder *b, value v, port_role role)
{
	builder_output(b, v, "%s", port_name(role));
}

static value last_rows(const builder *b, value x)
{
	value last = port_find(b->g, PORT_LAST);
	if (last == VALUE_NONE)
		last = input(b->g, PORT_LAST, SHAPE1(b->spec->out.rows ? b->spec->out.rows : b->spec->batch));
	return op_gather(b->g, x, last, -1);
}

value builder_needed_rows(builder *b, value h)
{
	const forward_spec *spec = b->spec;
	const bool first = !b->last_alone; /* a layer may need rows of several values */
	b->last_alone = spec->out.logits == LOGITS_LAST && spec->out.embedding == POOL_NONE && !spec->train.loss;
	if (first && b->last_alone && b->entry != VALUE_NONE)
		b->entry = last_rows(b, b->entry);
	return b->last_alone ? last_rows(b, h) : h;
}

/* With all scores zero, additive attention gives the last token the mean of all unmasked tokens. */
static value pool_rows(const builder *b, value h, pooling pool)
{
	if (pool == POOL_MEAN)
		h = op_additive_attention(b->g, h, op_fill(b->g, SHAPE1(shape_last(graph_value(b->g, h)->shape)), 0),
		                          b->mask, 1, 0)
		        .pooled;
	return last_rows(b, h);
}

static void builder_add_loss(const builder *b, value h, value weight, value bias, float alpha, shape labels)
{
	const forward_training *train = &b->spec->train;
	const value weights =
	    train->weighted ? graph_input(b->g, port_name(PORT_LABEL_WEIGHTS), DTYPE_F32, labels) : VALUE_NONE;
	const value label = input(b->g, PORT_LABELS, labels);
	/* A node of their own: weights may depend on them, and the loss computes its gradients at once. */
	const value log_probabilities = train->log_probabilities
	                                    ? op_linear_cross_entropy(b->g, h, weight, bias, label, VALUE_NONE,
	                                                              (linear_cross_entropy_params){alpha, 0})
	                                          .log_probability
	                                    : VALUE_NONE;
	const linear_cross_entropy_values out = op_linear_cross_entropy(
	    b->g, h, weight, bias, label, weights, (linear_cross_entropy_params){alpha, train->smoothing});
	graph_output(b->g, out.loss, "%s", port_name(PORT_LOSS));
	graph_output(b->g, out.count, "%s", port_name(PORT_COUNT));
	if (train->hits)
		graph_output(b->g, out.hit, "%s", port_name(PORT_HITS));
	if (train->log_probabilities)
		graph_output(b->g, log_probabilities, "%s", port_name(PORT_LOG_PROBABILITIES));
}

void builder_vocabulary(builder *b, value h, value weight, value bias, float alpha)
{
	const forward_spec *spec = b->spec;
	graph *g = b->g;
	if (spec->out.logits == LOGITS_LAST) {
		value hidden = b->row = b->last_alone ? h : last_rows(b, h);
		name_output(b, hidden, PORT_HIDDEN);
		linear_values out = spec->out.maxima
		                        ? op_linear_maxima(g, hidden, weight, bias, alpha)
		                        : (linear_values){op_linear(g, hidden, weight, bias, alpha), VALUE_NONE};
		name_output(b, b->logits = out.y, PORT_LOGITS);
		if (spec->out.maxima)
			graph_output(g, out.maxima, "%s", port_name(PORT_MAXIMA));
	}
	if (spec->out.logits == LOGITS_ALL)
		name_output(b, op_linear(g, h, weight, bias, alpha), PORT_LOGITS);
	if (spec->out.embedding != POOL_NONE)
		name_output(b, pool_rows(b, h, spec->out.embedding), PORT_EMBEDDING);
	if (spec->train.loss && builder_rows_before(b))
		h = op_slice_rows(g, h, builder_rows_before(b), -1);
	if (spec->train.loss)
		builder_add_loss(b, h, weight, bias, alpha, SHAPE2(spec->batch, spec->length));
}

void builder_classes(builder *b, value h, pooling pool, float dropout, const char *inner, const char *out)
{
	const forward_spec *spec = b->spec;
	if (spec->out.embedding != POOL_NONE)
		name_output(b, pool_rows(b, h, spec->out.embedding), PORT_EMBEDDING);
	if (spec->out.logits == LOGITS_NONE && !spec->train.loss)
		return;
	value row = builder_dropout(b, b->row = pool_rows(b, h, pool), dropout);
	row = builder_dropout(b, op_tanh(b->g, builder_linear(b, row, "%s", inner)), dropout);
	if (spec->out.logits != LOGITS_NONE)
		name_output(b, b->logits = builder_linear(b, row, "%s", out), PORT_LOGITS);
	if (spec->train.loss)
		builder_add_loss(b, row, builder_parameter(b, "%s.weight", out), builder_parameter(b, "%s.bias", out),
		                 1, SHAPE1(spec->batch));
}
