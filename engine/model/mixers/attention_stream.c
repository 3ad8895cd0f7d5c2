/* attention_stream.c - softmax attention in the recurrent form: to a cache, in one part or several, and to a source. A
 * part is the token's own segment, or the rows of earlier segments as the current one computes them. */
#include "engine/model/mixers/attention_private.h"

enum { BEYOND = INT32_MAX /* segments back, if memories are computed separately */ };

static stream_values stream_of(const builder *b)
{
	return (stream_values){b->pool, b->slot, b->position, b->length, b->mask, b->start};
}

/* Return only the memories and memory tokens, for the recurrent form: [1, m, C], or VALUE_NONE. */
static value memories_alone(const builder *b, const attention_options *o, const char *prefix, const char *name,
                            value tokens, int64_t width)
{
	if (!o->memories.count)
		return tokens;
	value none = op_fill(b->g, SHAPE3(1, 0, o->kv_heads * width), 0);
	return attention_after_memories(b, o, prefix, name, VALUE_NONE, tokens == VALUE_NONE ? none : tokens);
}

/* --- a source in the slot ---------------------------------------------------------------------------------- */

static source_params source_place(const builder *b, const attention_options *o, int layer)
{
	return (source_params){.heads = o->heads,
	                       .kv_heads = o->kv_heads,
	                       .value_width = o->kv_heads * o->value_width,
	                       .capacity = o->reach.capacity,
	                       .offset = builder_state(b, ATTENTION_SOURCE, layer),
	                       .scale = (float)o->scoring.scale};
}

void attention_store_source(builder *b, const attention_options *o, int layer, const char *prefix, value source,
                            value mask)
{
	value k = attention_project(b, o, prefix, ATTENTION_KEY, source);
	value v = o->shared ? k : attention_project(b, o, prefix, ATTENTION_VALUE, source);
	op_source_store(b->g, attention_normalise(b, o, k, o->kv_heads), v, b->pool, b->slot, VALUE_NONE, mask,
	                source_place(b, o, layer));
}

static slot_rows stored_at(const builder *b, const attention_options *o, int layer)
{
	const int64_t count = attention_stored_memories(o);
	return (slot_rows){count, count ? builder_state(b, ATTENTION_MEMORIES, layer) : 0};
}

void attention_store_memories(builder *b, const attention_options *o, int layer, const char *prefix, value keys,
                              value values)
{
	const slot_rows at = stored_at(b, o, layer);
	source_params params = source_place(b, o, layer);
	keys = attention_after_memories(b, o, prefix, "mem_k", VALUE_NONE, keys);
	values = attention_after_memories(b, o, prefix, "mem_v", VALUE_NONE, values);
	params.capacity = at.count;
	params.offset = at.offset;
	op_source_store(b->g, attention_normalise(b, o, keys, o->kv_heads), values, b->pool, b->slot, VALUE_NONE,
	                VALUE_NONE, params);
}

/* Attend with the matrix over the tokens of the source and the memories. */
static value attend_source_matrix(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                                  value q, attention_keys memories, attention_rows *r)
{
	const uint32_t site = builder_site(b);
	stream_values at = stream_of(b);
	matrix_stream_params params = attention_matrix_stream(o);
	at.mask = VALUE_NONE;
	params.offset = builder_state(b, ATTENTION_SOURCE, layer);
	params.source = true;
	const stream_scores_values s = op_stream_scores(b->g, q, VALUE_NONE, memories.keys, at, params);
	value weights = attention_weigh(b, o, layer, index, prefix, s.scores, s.visible, r,
	                                (attention_weights_params){.bidirectional = true}, site);
	return op_stream_apply(b->g, q, weights, memories.values, at, params);
}

value attention_read_source(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                            attention_rows *r)
{
	value keys = memories_alone(b, o, prefix, "mem_k", VALUE_NONE, o->key_width);
	value values = memories_alone(b, o, prefix, "mem_v", VALUE_NONE, o->value_width);
	if (keys != VALUE_NONE)
		keys = attention_normalise(b, o, keys, o->kv_heads);
	if (attention_needs_matrix(o))
		return attend_source_matrix(b, o, layer, index, prefix, q, (attention_keys){keys, values}, r);
	return op_source_attention(b->g, q, b->pool, b->slot, b->length, b->start, keys, values,
	                           source_place(b, o, layer));
}

/* --- the cache ---------------------------------------------------------------------------------------------- */

static bool turns_values(const attention_options *o)
{
	return o->reach.segment && o->rotation.width && o->rotation.values;
}

/* Convert normalised queries, and the output for rotated values, from positions in the sequence to those in a segment.
 * A rotation is linear. */
static value turn_back(const builder *b, const attention_options *o, const attention_rows *r, value x)
{
	rotary_params params = {.heads = o->heads,
	                        .width = o->rotation.width,
	                        .base = ATTENTION_ROTARY_BASE,
	                        .first = r->first,
	                        .segment = o->reach.segment,
	                        .memory = o->reach.capacity - o->reach.segment,
	                        .transposed = true};
	return op_rotary(b->g, x, r->positions, params);
}

/* The part of a token's own segment, or of a state of `earlier`, that is read. */
static matrix_stream_params part_of(const builder *b, const attention_options *o, int layer, int64_t back)
{
	matrix_stream_params params = attention_matrix_stream(o);
	params.offset =
	    back ? builder_state(b, ATTENTION_EARLIER, layer, (int)back) : builder_state(b, ATTENTION_CACHE, layer);
	params.stored = stored_at(b, o, layer);
	params.near = back;
	params.far = back < o->reach.earlier ? back + 1 : attention_memories_apart(o) ? BEYOND : 0;
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
	attention_keys later = attention_project_keys(b, o, prefix, r, rows);
	op_stream_store(b->g, attention_normalise(b, o, later.keys, o->kv_heads), later.values, stream_of(b),
	                part_of(b, o, layer, back));
}

/* Attend with the matrix over the parts of the token's own segment and of earlier ones. */
static value attend_parts(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                          attention_keys own, attention_keys memories, attention_rows *r, uint32_t site)
{
	graph *g = b->g;
	const stream_values at = stream_of(b);
	/* Without `later` no token of the call is in a part of `earlier`. */
	attention_keys later = own;
	if (r->later != VALUE_NONE) {
		later = attention_project_keys(b, o, prefix, r, r->later);
		later.keys = attention_normalise(b, o, later.keys, o->kv_heads);
	}
	stream_scores_values s = op_stream_scores(g, q, own.keys, memories.keys, at, part_of(b, o, layer, 0));
	for (int64_t back = 1; back <= o->reach.earlier; back++)
		s.scores =
		    op_add(g, s.scores,
		           op_stream_scores(g, q, later.keys, memories.keys, at, part_of(b, o, layer, back)).scores);
	if (attention_memories_apart(o))
		s.scores = op_add(
		    g, s.scores,
		    op_stream_scores(g, turn_back(b, o, r, q), own.keys, memories.keys, at, memories_of(b, o, layer))
		        .scores);
	value weights =
	    attention_weigh(b, o, layer, index, prefix, s.scores, s.visible, r,
	                    (attention_weights_params){.window = o->reach.past ? o->reach.past + 1 : 0}, site);
	value y = op_stream_apply(g, own.values, weights, memories.values, at, part_of(b, o, layer, 0));
	for (int64_t back = 1; back <= o->reach.earlier; back++)
		y = op_add(g, y,
		           op_stream_apply(g, later.values, weights, memories.values, at, part_of(b, o, layer, back)));
	if (turns_values(o))
		y = turn_back(b, o, r, y);
	if (attention_memories_apart(o))
		y = op_add(g, y,
		           op_stream_apply(g, own.values, weights, memories.values, at, memories_of(b, o, layer)));
	op_stream_store(g, own.keys, own.values, at, part_of(b, o, layer, 0));
	if (r->later != VALUE_NONE)
		op_stream_store(g, later.keys, later.values, at, part_of(b, o, layer, 1));
	return y;
}

value attention_read_cache(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                           attention_keys own, attention_rows *r)
{
	uint32_t site = builder_site(b);
	value keys = VALUE_NONE, values = VALUE_NONE;
	if (!o->memories.read_source) {
		keys = memories_alone(b, o, prefix, "mem_k", r->memory_keys, o->key_width);
		values = memories_alone(b, o, prefix, "mem_v", r->memory_values, o->value_width);
	}
	if (keys != VALUE_NONE)
		keys = attention_normalise(b, o, keys, o->kv_heads);
	if (!attention_needs_matrix(o)) {
		softmax_stream_params params = {.heads = o->heads,
		                                .kv_heads = o->kv_heads,
		                                .window = o->reach.capacity,
		                                .past = o->reach.past,
		                                .segment = o->reach.segment,
		                                .offset = builder_state(b, ATTENTION_CACHE, layer),
		                                .stored = stored_at(b, o, layer),
		                                .scale = (float)o->scoring.scale};
		value y = op_softmax_stream(b->g, q, own.keys, own.values, b->pool, b->slot, b->position, b->length,
		                            b->mask, b->start, keys, values, r->bias, params);
		return turns_values(o) ? turn_back(b, o, r, y) : y;
	}
	return attend_parts(b, o, layer, index, prefix, q, own, (attention_keys){keys, values}, r, site);
}
