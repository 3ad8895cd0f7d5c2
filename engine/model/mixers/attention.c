#include "engine/model/mixers/mixer.h"

#include <math.h>

enum { ROTARY_BASE = 10000, BEYOND = INT32_MAX /* segments back, if memories are computed separately */ };
#define SOURCE "layers.%d.source"
#define MEMORIES "layers.%d.memories"
#define CACHE "layers.%d.cache"
#define EARLIER "layers.%d.earlier.%d"

/* --- parameters and state ------------------------------------------------------------------------------- */

static double std_of(double given, int64_t inputs)
{
	return given > 0 ? given : 1 / sqrt(3 * (double)inputs);
}

static void matrix(parameter_list *list, double std, int64_t n, int64_t k, const char *prefix, const char *name)
{
	parameter_list_add_matrix(list, (float)std_of(std, k), n, k, false, "%s%s.weight", prefix, name);
}

/* Rows that every sequence attends to: [heads, memories, width]. */
static void memory(const attention_options *o, parameter_list *list, int64_t width, const char *prefix,
                   const char *name)
{
	parameter_list_add(list, INIT_NORMAL, 1, SHAPE3(o->kv_heads, o->memories, width), "%s%s", prefix, name);
}

static void talking_heads(const attention_options *o, parameter_list *list, const char *prefix, const char *name)
{
	parameter_list_add(list, INIT_NORMAL, (float)std_of(0, o->heads), SHAPE2(o->heads, o->heads), "%s%s.weight",
	                   prefix, name);
	parameter_list_stored(list, SHAPE4(o->heads, o->heads, 1, 1));
}

static void attention_mixer_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const attention_options *o = options;
	int64_t d = o->hidden, merged = o->heads * o->value_width;
	double output = o->zero_output ? 0 : std_of(o->output_std, merged);
	matrix(list, o->std, o->heads * o->key_width, d, prefix, "to_q");
	matrix(list, o->std, o->kv_heads * o->key_width, d, prefix, "to_k");
	if (!o->shared)
		matrix(list, o->output_std, o->kv_heads * o->value_width, d, prefix, "to_v");
	if (o->memories) {
		memory(o, list, o->key_width, prefix, "mem_k");
		memory(o, list, o->value_width, prefix, "mem_v");
	}
	if (o->talking) {
		talking_heads(o, list, prefix, "pre_softmax_talking_heads");
		talking_heads(o, list, prefix, "post_softmax_talking_heads");
	}
	if (o->tensor_product)
		matrix(list, o->std, merged, d, prefix, "to_r");
	if (o->scaled) {
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(o->heads), "%shead_scale_params", prefix);
		parameter_list_stored(list, SHAPE4(1, o->heads, 1, 1));
	}
	if (o->gated) {
		parameter_list_add_matrix(list, 0, merged, d, false, "%sto_v_gate.weight", prefix);
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(merged), "%sto_v_gate.bias", prefix);
	}
	parameter_list_add_matrix(list, (float)output, (o->on_attention ? 2 : 1) * d, merged, false,
	                          "%sto_out%s.weight", prefix, o->on_attention ? ".0" : "");
}

/* True if an option changes the score matrix. All forms test the same options, so the state fits each of them. */
static bool changes_matrix(const attention_options *o)
{
	return o->talking || o->top_k || o->residual;
}

/* A session rotates by positions in the sequence, a segment by positions from the first row that it sees. Scores of
 * tokens are equal in both; scores of memories, which are not rotated, are not. They are computed separately. */
static bool memories_apart(const attention_options *o)
{
	return o->segment && o->rotary && o->memories;
}

static bool turns_values(const attention_options *o)
{
	return o->segment && o->rotary && o->rotate_values;
}

bool attention_needs_matrix(const attention_options *o)
{
	return changes_matrix(o) || o->earlier || memories_apart(o) || (o->front && o->biased);
}

/* For a source the log needs distances of tokens and source; within a window they are those of the matrix. */
bool attention_logs_matrix(const attention_options *o)
{
	return attention_needs_matrix(o) || (o->cross && o->past);
}

static matrix_stream_params matrix_stream(const attention_options *o)
{
	return (matrix_stream_params){.heads = o->heads,
	                              .kv_heads = o->kv_heads,
	                              .window = o->capacity,
	                              .segment = o->segment,
	                              .key_width = o->kv_heads * o->key_width,
	                              .value_width = o->kv_heads * o->value_width,
	                              .scale = (float)o->scale};
}

/* Number of memories and memory tokens that a slot holds. */
static int64_t stored_memories(const attention_options *o)
{
	return o->memory_reads_source ? o->memories + o->memory_tokens : 0;
}

static void attention_states(const void *options, int layer, state_list *list)
{
	const attention_options *o = options;
	int64_t keys = o->kv_heads * o->key_width, values = o->kv_heads * o->value_width;
	const int64_t stored = stored_memories(o);
	if (stored)
		state_list_add(list, STATE_SOURCE, source_state_floats(keys, values, stored), MEMORIES, layer);
	if (o->cross && o->capacity)
		state_list_add(list, STATE_SOURCE, source_state_floats(keys, values, o->capacity), SOURCE, layer);
	if (!o->causal)
		return;
	state_list_add(list, STATE_CACHE,
	               attention_needs_matrix(o) ? matrix_stream_floats(matrix_stream(o))
	                                         : softmax_state_floats(keys, values, o->capacity),
	               CACHE, layer);
	if (!o->front) /* otherwise there are no rows without a token */
		state_list_set_ring(list, o->capacity, keys, values, 1);
	for (int64_t back = 1; back <= o->earlier; back++) {
		state_list_add(list, STATE_CACHE, matrix_stream_floats(matrix_stream(o)), EARLIER, layer, (int)back);
		if (!o->front)
			state_list_set_ring(list, o->capacity, keys, values, 1);
	}
}

/* --- queries, keys and values ------------------------------------------------------------------------------ */

static value f32(const builder *b, value v)
{
	return b->spec->bf16 ? op_cast(b->g, v, DTYPE_F32) : v;
}

static value rotate(const builder *b, const attention_options *o, const attention_rows *r, value x, int64_t heads,
                    bool key, int64_t first)
{
	rotary_params params = {.heads = heads,
	                        .width = o->rotary,
	                        .base = ROTARY_BASE,
	                        .first = r->first + first,
	                        .xpos_base = (float)o->xpos_base,
	                        .xpos_center = (float)r->xpos_center,
	                        .inverse_scale = key};
	return o->rotary && !o->cross ? op_rotary(b->g, x, r->positions, params) : x;
}

/* Convert normalised queries, and the output for rotated values, from positions in the sequence to those in a segment.
 * A rotation is linear. */
static value turn_back(const builder *b, const attention_options *o, const attention_rows *r, value x)
{
	rotary_params params = {.heads = o->heads,
	                        .width = o->rotary,
	                        .base = ROTARY_BASE,
	                        .first = r->first,
	                        .segment = o->segment,
	                        .memory = o->capacity - o->segment,
	                        .transposed = true};
	return op_rotary(b->g, x, r->positions, params);
}

static value normalise(const builder *b, const attention_options *o, value x, int64_t heads)
{
	normalize_params params = {.groups = heads * o->norm_groups, .scale = 1, .floor = 1e-12f};
	return o->norm_groups ? op_normalize(b->g, x, VALUE_NONE, params) : x;
}

typedef struct key_values {
	value keys, values;
} key_values;

/* Keys and values of rows [B, N, D], rotated and not normalised. */
static key_values project(const builder *b, const attention_options *o, const char *prefix, const attention_rows *r,
                          value rows)
{
	value k = builder_linear(b, rows, "%sto_k", prefix);
	value v = o->shared ? k : builder_linear(b, rows, "%sto_v", prefix);
	k = rotate(b, o, r, k, o->kv_heads, true, 0);
	if (o->shared && o->rotate_values)
		v = k;
	else if (o->rotate_values)
		v = rotate(b, o, r, v, o->kv_heads, true, 0);
	return (key_values){k, v};
}

/* Prepend the memories "mem_k" or "mem_v" and the rows of memory tokens to x. */
static value after_memories(const builder *b, const attention_options *o, const char *prefix, const char *name,
                            value tokens, value x)
{
	if (tokens != VALUE_NONE)
		x = op_join_rows(b->g, tokens, x, (join_rows_params){0});
	if (!o->memories)
		return x;
	return op_join_rows(b->g, f32(b, builder_parameter(b, "%s%s", prefix, name)), x,
	                    (join_rows_params){.heads = o->kv_heads});
}

/* Return only the memories and memory tokens, for the recurrent form: [1, m, C], or VALUE_NONE. */
static value memories_alone(const builder *b, const attention_options *o, const char *prefix, const char *name,
                            value tokens, int64_t width)
{
	if (!o->memories)
		return tokens;
	value none = op_fill(b->g, SHAPE3(1, 0, o->kv_heads * width), 0);
	return after_memories(b, o, prefix, name, VALUE_NONE, tokens == VALUE_NONE ? none : tokens);
}

/* --- explanations (attention_explain.c) ---------------------------------------------------------------------- */

static bool is_logged(const builder *b, const attention_rows *r)
{
	return b->spec->explain.log && !r->whole;
}

/* Output the parts that explanations need: of the tokens, and of the tokens that they read. */
static void log_parts(builder *b, const attention_options *o, int layer, const attention_rows *r, value q, value k)
{
	graph *g = b->g;
	value parts[] = {normalise(b, o, q, o->heads), normalise(b, o, k, o->kv_heads)};
	for (int i = 0; i < 2; i++) {
		if (r->memory_rows && !(i && o->cross))
			parts[i] = op_slice_rows(g, parts[i], r->memory_rows, -1);
		builder_log(b, r->place, layer, i ? "key" : "query", parts[i]);
	}
	if (!o->biased)
		return;
	builder_log(b, r->place, layer, "bias", o->causal ? op_gather(g, r->bias, builder_positions(b), -1) : r->back);
	if (!o->causal)
		builder_log(b, r->place, layer, "ahead", r->ahead);
}

/* --- attention with its matrix ------------------------------------------------------------------------------- */

static value mix(const builder *b, const attention_options *o, const char *prefix, const char *name, value x)
{
	return o->talking ? op_mix_heads(b->g, x, f32(b, builder_parameter(b, "%s%s.weight", prefix, name))) : x;
}

/* Compute weights from scores. `window` applies to the whole form; the recurrent form's cache has that length. */
static value weigh(builder *b, const attention_options *o, int layer, int index, const char *prefix, value scores,
                   value mask, attention_rows *r, attention_weights_params params, uint32_t site)
{
	graph *g = b->g;
	if (o->residual) {
		if (r->scores != VALUE_NONE)
			scores = op_add(g, scores, r->scores);
		r->scores = scores;
	}
	if (r->outputs)
		graph_output(g, scores, "%sscores.%d", r->outputs, index);
	params.top_k = o->top_k;
	params.uniform = o->attend_when_hidden;
	params.bias_first = r->bias_first;
	value weights = op_attention_weights(g, mix(b, o, prefix, "pre_softmax_talking_heads", scores), mask,
	                                     r->visible, o->cross ? VALUE_NONE : r->bias, params);
	if (r->outputs)
		graph_output(g, weights, "%sattn.%d", r->outputs, index);
	if (is_logged(b, r) && (b->pool == VALUE_NONE || (attention_needs_matrix(o) && !o->cross)))
		builder_log(b, r->place, layer, "weights", weights);
	if (b->rng != VALUE_NONE && o->dropout > 0)
		weights = op_dropout(g, weights, b->rng, (float)o->dropout, site);
	return mix(b, o, prefix, "post_softmax_talking_heads", weights);
}

/* --- the forms -------------------------------------------------------------------------------------------- */

/* Memories are visible for any number of tokens. */
static int64_t window_of(const attention_options *o, const attention_rows *r, int64_t keys)
{
	if (o->past && o->past + 1 < keys)
		return o->past + 1;
	return o->causal && o->capacity < keys - o->memories - r->memory_rows ? o->capacity : 0;
}

static value attention_attend(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                              value k, value v, attention_rows *r)
{
	uint32_t site = builder_site(b);
	graph *g = b->g;
	int64_t keys = builder_rows(b, k);
	value mask = r->key_mask;
	int64_t extra = mask == VALUE_NONE ? 0 : keys - builder_rows(b, mask);
	if (extra > 0)
		mask = op_pad_mask(g, mask, extra, 1);
	if (changes_matrix(o) || r->visible != VALUE_NONE || r->outputs ||
	    (is_logged(b, r) && attention_logs_matrix(o))) {
		attention_matrix_params heads = {o->heads, o->kv_heads, (float)o->scale};
		attention_weights_params params = {.window = window_of(o, r, keys), .bidirectional = !o->causal};
		value scores = op_attention_scores(g, q, k, heads);
		return op_attention_apply(g, weigh(b, o, layer, index, prefix, scores, mask, r, params, site), v,
		                          heads);
	}
	softmax_params params = {.heads = o->heads,
	                         .kv_heads = o->kv_heads,
	                         .window = window_of(o, r, keys),
	                         .bidirectional = !o->causal,
	                         .bias_first = r->bias_first,
	                         .uniform = o->attend_when_hidden,
	                         .scale = (float)o->scale,
	                         .stream = site};
	if (b->rng != VALUE_NONE)
		params.p = (float)o->dropout;
	return op_softmax_attention(g, q, k, v, mask, o->cross ? VALUE_NONE : r->bias,
	                            params.p > 0 ? b->rng : VALUE_NONE, params);
}

static source_params source_place(const builder *b, const attention_options *o, int layer)
{
	return (source_params){.heads = o->heads,
	                       .kv_heads = o->kv_heads,
	                       .value_width = o->kv_heads * o->value_width,
	                       .capacity = o->capacity,
	                       .offset = builder_state(b, SOURCE, layer),
	                       .scale = (float)o->scale};
}

void attention_store_source(builder *b, const attention_options *o, int layer, const char *prefix, value source,
                            value mask)
{
	value k = builder_linear(b, source, "%sto_k", prefix);
	value v = o->shared ? k : builder_linear(b, source, "%sto_v", prefix);
	op_source_store(b->g, normalise(b, o, k, o->kv_heads), v, b->pool, b->slot, VALUE_NONE, mask,
	                source_place(b, o, layer));
}

static slot_rows stored_at(const builder *b, const attention_options *o, int layer)
{
	const int64_t count = stored_memories(o);
	return (slot_rows){count, count ? builder_state(b, MEMORIES, layer) : 0};
}

void attention_store_memories(builder *b, const attention_options *o, int layer, const char *prefix, value keys,
                              value values)
{
	const slot_rows at = stored_at(b, o, layer);
	source_params params = source_place(b, o, layer);
	keys = after_memories(b, o, prefix, "mem_k", VALUE_NONE, keys);
	values = after_memories(b, o, prefix, "mem_v", VALUE_NONE, values);
	params.capacity = at.count;
	params.offset = at.offset;
	op_source_store(b->g, normalise(b, o, keys, o->kv_heads), values, b->pool, b->slot, VALUE_NONE, VALUE_NONE,
	                params);
}

static stream_values stream_of(const builder *b)
{
	return (stream_values){b->pool, b->slot, b->position, b->length, b->mask, b->start};
}

/* Attend with the matrix over the tokens of the source and the memories. */
static value attend_source_matrix(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                                  value q, key_values memories, attention_rows *r)
{
	const uint32_t site = builder_site(b);
	stream_values at = stream_of(b);
	matrix_stream_params params = matrix_stream(o);
	at.mask = VALUE_NONE;
	params.offset = builder_state(b, SOURCE, layer);
	params.source = true;
	const stream_scores_values s = op_stream_scores(b->g, q, VALUE_NONE, memories.keys, at, params);
	value weights = weigh(b, o, layer, index, prefix, s.scores, s.visible, r,
	                      (attention_weights_params){.bidirectional = true}, site);
	return op_stream_apply(b->g, q, weights, memories.values, at, params);
}

static value attend_source(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                           attention_rows *r)
{
	value keys = memories_alone(b, o, prefix, "mem_k", VALUE_NONE, o->key_width);
	value values = memories_alone(b, o, prefix, "mem_v", VALUE_NONE, o->value_width);
	if (keys != VALUE_NONE)
		keys = normalise(b, o, keys, o->kv_heads);
	if (attention_needs_matrix(o))
		return attend_source_matrix(b, o, layer, index, prefix, q, (key_values){keys, values}, r);
	return op_source_attention(b->g, q, b->pool, b->slot, b->length, b->start, keys, values,
	                           source_place(b, o, layer));
}

/* The part of a token's own segment, or of a state of `earlier`, that is read. */
static matrix_stream_params part_of(const builder *b, const attention_options *o, int layer, int64_t back)
{
	matrix_stream_params params = matrix_stream(o);
	params.offset = back ? builder_state(b, EARLIER, layer, (int)back) : builder_state(b, CACHE, layer);
	params.stored = stored_at(b, o, layer);
	params.near = back;
	params.far = back < o->earlier ? back + 1 : memories_apart(o) ? BEYOND : 0;
	return params;
}

static matrix_stream_params memories_of(const builder *b, const attention_options *o, int layer)
{
	matrix_stream_params params = part_of(b, o, layer, 0);
	params.near = BEYOND;
	params.far = 0;
	return params;
}

void attention_store_earlier(builder *b, const attention_options *o, int layer, int64_t back, const char *prefix,
                             const attention_rows *r, value rows)
{
	key_values later = project(b, o, prefix, r, rows);
	op_stream_store(b->g, normalise(b, o, later.keys, o->kv_heads), later.values, stream_of(b),
	                part_of(b, o, layer, back));
}

/* Attend with the matrix over the parts of the token's own segment and of earlier ones. */
static value attend_parts(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                          key_values own, key_values memories, attention_rows *r, uint32_t site)
{
	graph *g = b->g;
	const stream_values at = stream_of(b);
	/* Without `later` no token of the call is in a part of `earlier`. */
	key_values later = own;
	if (r->later != VALUE_NONE) {
		later = project(b, o, prefix, r, r->later);
		later.keys = normalise(b, o, later.keys, o->kv_heads);
	}
	stream_scores_values s = op_stream_scores(g, q, own.keys, memories.keys, at, part_of(b, o, layer, 0));
	for (int64_t back = 1; back <= o->earlier; back++)
		s.scores =
		    op_add(g, s.scores,
		           op_stream_scores(g, q, later.keys, memories.keys, at, part_of(b, o, layer, back)).scores);
	if (memories_apart(o))
		s.scores = op_add(
		    g, s.scores,
		    op_stream_scores(g, turn_back(b, o, r, q), own.keys, memories.keys, at, memories_of(b, o, layer))
		        .scores);
	value weights = weigh(b, o, layer, index, prefix, s.scores, s.visible, r,
	                      (attention_weights_params){.window = o->past ? o->past + 1 : 0}, site);
	value y = op_stream_apply(g, own.values, weights, memories.values, at, part_of(b, o, layer, 0));
	for (int64_t back = 1; back <= o->earlier; back++)
		y = op_add(g, y,
		           op_stream_apply(g, later.values, weights, memories.values, at, part_of(b, o, layer, back)));
	if (turns_values(o))
		y = turn_back(b, o, r, y);
	if (memories_apart(o))
		y = op_add(g, y,
		           op_stream_apply(g, own.values, weights, memories.values, at, memories_of(b, o, layer)));
	op_stream_store(g, own.keys, own.values, at, part_of(b, o, layer, 0));
	if (r->later != VALUE_NONE)
		op_stream_store(g, later.keys, later.values, at, part_of(b, o, layer, 1));
	return y;
}

static value attend_recurrent(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                              value k, value v, attention_rows *r)
{
	uint32_t site = builder_site(b);
	value keys = VALUE_NONE, values = VALUE_NONE;
	if (!o->memory_reads_source) {
		keys = memories_alone(b, o, prefix, "mem_k", r->memory_keys, o->key_width);
		values = memories_alone(b, o, prefix, "mem_v", r->memory_values, o->value_width);
	}
	if (keys != VALUE_NONE)
		keys = normalise(b, o, keys, o->kv_heads);
	if (!attention_needs_matrix(o)) {
		softmax_stream_params params = {.heads = o->heads,
		                                .kv_heads = o->kv_heads,
		                                .window = o->capacity,
		                                .past = o->past,
		                                .segment = o->segment,
		                                .offset = builder_state(b, CACHE, layer),
		                                .stored = stored_at(b, o, layer),
		                                .scale = (float)o->scale};
		value y = op_softmax_stream(b->g, q, k, v, b->pool, b->slot, b->position, b->length, b->mask, b->start,
		                            keys, values, r->bias, params);
		return turns_values(o) ? turn_back(b, o, r, y) : y;
	}
	return attend_parts(b, o, layer, index, prefix, q, (key_values){k, v}, (key_values){keys, values}, r, site);
}

/* Attend to the keys and values of rows in the graph: the sequence's own, or those of a source. */
static value attend_rows(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                         attention_rows *r)
{
	graph *g = b->g;
	value x = r->x, read = r->source == VALUE_NONE ? x : r->source;
	int64_t earlier = builder_rows(b, r->memory);
	if (earlier)
		read = op_join_rows(g, r->memory, x, (join_rows_params){0});
	const key_values made = project(b, o, prefix, r, read);
	value k = made.keys, v = made.values;
	q = rotate(b, o, r, q, o->heads, false, earlier);
	bool recurrent = b->pool != VALUE_NONE && !r->whole;
	r->keys = k;
	r->values = v;
	if (is_logged(b, r) && !attention_logs_matrix(o))
		log_parts(b, o, layer, r, q, k);
	if (r->outputs) {
		builder_output(b, k, "%skeys.%d", r->outputs, index);
		builder_output(b, v, "%svalues.%d", r->outputs, index);
	}
	if (!recurrent) {
		k = after_memories(b, o, prefix, "mem_k", VALUE_NONE, k);
		v = after_memories(b, o, prefix, "mem_v", VALUE_NONE, v);
	}
	q = normalise(b, o, q, o->heads);
	k = normalise(b, o, k, o->kv_heads);
	return recurrent ? attend_recurrent(b, o, layer, index, prefix, q, k, v, r)
	                 : attention_attend(b, o, layer, index, prefix, q, k, v, r);
}

value attention_forward(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                        attention_rows *r)
{
	graph *g = b->g;
	value x = r->x, q = builder_linear(b, x, "%sto_q", prefix);
	const bool stored = o->cross && b->pool != VALUE_NONE && !r->whole;
	value y = stored ? attend_source(b, o, layer, index, prefix, normalise(b, o, q, o->heads), r)
	                 : attend_rows(b, o, layer, index, prefix, q, r);
	if (o->tensor_product)
		y = op_gate(g, y, y, builder_linear(b, x, "%sto_r", prefix));
	if (o->scaled)
		y = op_scale_columns(g, y, builder_parameter(b, "%shead_scale_params", prefix), o->value_width);
	if (o->gated)
		y = op_mul(g, y, op_activation(g, builder_linear(b, x, "%sto_v_gate", prefix), ACTIVATION_SIGMOID));
	y = o->on_attention ? op_glu(g, builder_linear(b, y, "%sto_out.0", prefix), ACTIVATION_SIGMOID)
	                    : builder_linear(b, y, "%sto_out", prefix);
	return o->zero_masked_rows && r->query_mask != VALUE_NONE ? op_mask_rows(g, y, r->query_mask) : y;
}

static value attention_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	attention_rows r = {.x = x,
	                    .memory = VALUE_NONE,
	                    .later = VALUE_NONE,
	                    .source = VALUE_NONE,
	                    .query_mask = b->mask,
	                    .key_mask = b->mask,
	                    .visible = VALUE_NONE,
	                    .bias = VALUE_NONE,
	                    .back = VALUE_NONE,
	                    .ahead = VALUE_NONE,
	                    .scores = VALUE_NONE,
	                    .positions = VALUE_NONE,
	                    .memory_keys = VALUE_NONE,
	                    .memory_values = VALUE_NONE};
	return attention_forward(b, options, layer, layer, prefix, &r);
}

const mixer mixer_attention = {
    .name = "attention",
    .parameters = attention_mixer_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
    .explainer = &attention_explainer,
};

const mixer mixer_attention_stepped = {
    .name = "attention_stepped",
    .parameters = attention_mixer_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
    .explainer = &attention_stepped_explainer,
};

const mixer mixer_attention_whole = {
    .name = "attention_whole",
    .parameters = attention_mixer_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
    .explainer = &attention_whole_explainer,
};

const mixer mixer_attention_unexplained = {
    .name = "attention_unexplained",
    .parameters = attention_mixer_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
};
