/* attention_stream.c - softmax attention in the recurrent form: to a cache, in one part or several, and to a source. A
 * part is the token's own segment, or the rows of earlier segments as the current one computes them. */
#include "engine/model/mixers/attention_private.h"

enum { BEYOND = INT32_MAX /* segments back, if memories are computed separately */ };

static stream_values stream_of(const builder *b)
{
	return (stream_values){b->pool, b->slot, b->position, b->length, b->mask, b->start};
}

/* Return only the memories and memory tokens, for the recurrent form: [1, m, C], or VALUE_NONE. */
static value memories_alone(const attention_call *a, const char *name, value tokens, int64_t width)
{
	if (!a->o->memories.count)
		return tokens;
	value none = op_fill(a->b->g, SHAPE3(1, 0, a->o->kv_heads * width), 0);
	return attention_after_memories(a, name, VALUE_NONE, tokens == VALUE_NONE ? none : tokens);
}

/* --- a source in the slot ---------------------------------------------------------------------------------- */

static source_params source_place(const attention_call *a)
{
	const attention_options *o = a->o;
	return (source_params){.heads = o->heads,
	                       .kv_heads = o->kv_heads,
	                       .value_width = o->kv_heads * o->value_width,
	                       .capacity = o->reach.capacity,
	                       .offset = builder_state(a->b, ATTENTION_SOURCE, a->layer),
	                       .scale = (float)o->scoring.scale};
}

void attention_store_source(builder *b, const attention_options *o, int layer, const char *prefix, value source,
                            value mask)
{
	const attention_call call = {b, o, layer, 0, prefix, NULL}, *a = &call;
	value k = attention_project(a, ATTENTION_KEY, source);
	value v = o->shared ? k : attention_project(a, ATTENTION_VALUE, source);
	op_source_store(b->g, attention_normalise(a, k, o->kv_heads), v, b->pool, b->slot, VALUE_NONE, mask,
	                source_place(a));
}

static slot_rows stored_at(const attention_call *a)
{
	const int64_t count = attention_stored_memories(a->o);
	return (slot_rows){count, count ? builder_state(a->b, ATTENTION_MEMORIES, a->layer) : 0};
}

void attention_store_memories(builder *b, const attention_options *o, int layer, const char *prefix, value keys,
                              value values)
{
	const attention_call call = {b, o, layer, 0, prefix, NULL}, *a = &call;
	const slot_rows at = stored_at(a);
	source_params params = source_place(a);
	keys = attention_after_memories(a, "mem_k", VALUE_NONE, keys);
	values = attention_after_memories(a, "mem_v", VALUE_NONE, values);
	params.capacity = at.count;
	params.offset = at.offset;
	op_source_store(b->g, attention_normalise(a, keys, o->kv_heads), values, b->pool, b->slot, VALUE_NONE,
	                VALUE_NONE, params);
}

/* Attend with the matrix over the tokens of the source and the memories. */
static value attend_source_matrix(const attention_call *a, value q, attention_keys memories)
{
	const attention_options *o = a->o;
	builder *b = a->b;
	const uint32_t site = builder_site(b);
	stream_values at = stream_of(b);
	matrix_stream_params params = attention_matrix_stream(o);
	at.mask = VALUE_NONE;
	params.offset = builder_state(b, ATTENTION_SOURCE, a->layer);
	params.source = true;
	const stream_scores_values s = op_stream_scores(b->g, q, VALUE_NONE, memories.keys, at, params);
	value weights =
	    attention_weigh(a, s.scores, s.visible, (attention_weights_params){.bidirectional = true}, site);
	return op_stream_apply(b->g, q, weights, memories.values, at, params);
}

value attention_read_source(const attention_call *a, value q)
{
	const attention_options *o = a->o;
	builder *b = a->b;
	value keys = memories_alone(a, "mem_k", VALUE_NONE, o->key_width);
	value values = memories_alone(a, "mem_v", VALUE_NONE, o->value_width);
	if (keys != VALUE_NONE)
		keys = attention_normalise(a, keys, o->kv_heads);
	if (attention_needs_matrix(o))
		return attend_source_matrix(a, q, (attention_keys){keys, values});
	return op_source_attention(b->g, q, b->pool, b->slot, b->length, b->start, keys, values, source_place(a));
}

/* --- the cache ---------------------------------------------------------------------------------------------- */

static bool turns_values(const attention_options *o)
{
	return o->reach.segment && o->rotation.width && o->rotation.values;
}

/* Convert normalised queries, and the output for rotated values, from positions in the sequence to those in a segment.
 * A rotation is linear. */
static value turn_back(const attention_call *a, value x)
{
	const attention_options *o = a->o;
	const attention_rows *r = a->r;
	rotary_params params = {.heads = o->heads,
	                        .width = o->rotation.width,
	                        .base = ATTENTION_ROTARY_BASE,
	                        .first = r->first,
	                        .segment = o->reach.segment,
	                        .memory = o->reach.capacity - o->reach.segment,
	                        .transposed = true};
	return op_rotary(a->b->g, x, r->positions, params);
}

/* The part of a token's own segment, or of a state of `earlier`, that is read. */
static matrix_stream_params part_of(const attention_call *a, int64_t back)
{
	const attention_options *o = a->o;
	const builder *b = a->b;
	matrix_stream_params params = attention_matrix_stream(o);
	params.offset = back ? builder_state(b, ATTENTION_EARLIER, a->layer, (int)back)
	                     : builder_state(b, ATTENTION_CACHE, a->layer);
	params.stored = stored_at(a);
	params.near = back;
	params.far = back < o->reach.earlier ? back + 1 : attention_memories_apart(o) ? BEYOND : 0;
	return params;
}

static matrix_stream_params memories_of(const attention_call *a)
{
	matrix_stream_params params = part_of(a, 0);
	params.near = BEYOND;
	params.far = 0;
	return params;
}

void attention_store_earlier(builder *b, const attention_options *o, int layer, int64_t back, const char *prefix,
                             const attention_rows *r, value rows)
{
	attention_rows place = *r;
	const attention_call call = {b, o, layer, 0, prefix, &place}, *a = &call;
	attention_keys later = attention_project_keys(a, rows);
	op_stream_store(b->g, attention_normalise(a, later.keys, o->kv_heads), later.values, stream_of(b),
	                part_of(a, back));
}

/* Attend with the matrix over the parts of the token's own segment and of earlier ones. */
static value attend_parts(const attention_call *a, value q, attention_keys own, attention_keys memories, uint32_t site)
{
	const attention_options *o = a->o;
	const attention_rows *r = a->r;
	builder *b = a->b;
	graph *g = b->g;
	const stream_values at = stream_of(b);
	/* Without `later` no token of the call is in a part of `earlier`. */
	attention_keys later = own;
	if (r->later != VALUE_NONE) {
		later = attention_project_keys(a, r->later);
		later.keys = attention_normalise(a, later.keys, o->kv_heads);
	}
	stream_scores_values s = op_stream_scores(g, q, own.keys, memories.keys, at, part_of(a, 0));
	for (int64_t back = 1; back <= o->reach.earlier; back++)
		s.scores =
		    op_add(g, s.scores, op_stream_scores(g, q, later.keys, memories.keys, at, part_of(a, back)).scores);
	if (attention_memories_apart(o))
		s.scores =
		    op_add(g, s.scores,
		           op_stream_scores(g, turn_back(a, q), own.keys, memories.keys, at, memories_of(a)).scores);
	value weights = attention_weigh(
	    a, s.scores, s.visible, (attention_weights_params){.window = o->reach.past ? o->reach.past + 1 : 0}, site);
	value y = op_stream_apply(g, own.values, weights, memories.values, at, part_of(a, 0));
	for (int64_t back = 1; back <= o->reach.earlier; back++)
		y = op_add(g, y, op_stream_apply(g, later.values, weights, memories.values, at, part_of(a, back)));
	if (turns_values(o))
		y = turn_back(a, y);
	if (attention_memories_apart(o))
		y = op_add(g, y, op_stream_apply(g, own.values, weights, memories.values, at, memories_of(a)));
	op_stream_store(g, own.keys, own.values, at, part_of(a, 0));
	if (r->later != VALUE_NONE)
		op_stream_store(g, later.keys, later.values, at, part_of(a, 1));
	return y;
}

value attention_read_cache(const attention_call *a, value q, attention_keys own)
{
	const attention_options *o = a->o;
	const attention_rows *r = a->r;
	builder *b = a->b;
	uint32_t site = builder_site(b);
	value keys = VALUE_NONE, values = VALUE_NONE;
	if (!o->memories.read_source) {
		keys = memories_alone(a, "mem_k", r->memory_keys, o->key_width);
		values = memories_alone(a, "mem_v", r->memory_values, o->value_width);
	}
	if (keys != VALUE_NONE)
		keys = attention_normalise(a, keys, o->kv_heads);
	if (!attention_needs_matrix(o)) {
		softmax_stream_params params = {.heads = o->heads,
		                                .kv_heads = o->kv_heads,
		                                .window = o->reach.capacity,
		                                .past = o->reach.past,
		                                .segment = o->reach.segment,
		                                .offset = builder_state(b, ATTENTION_CACHE, a->layer),
		                                .stored = stored_at(a),
		                                .scale = (float)o->scoring.scale,
		                                .bf16 = o->reach.bf16};
		value y = op_softmax_stream(b->g, q, own.keys, own.values, b->pool, b->slot, b->position, b->length,
		                            b->mask, b->start, keys, values, r->bias, params);
		return turns_values(o) ? turn_back(a, y) : y;
	}
	return attend_parts(a, q, own, (attention_keys){keys, values}, site);
}
