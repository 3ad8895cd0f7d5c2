/* attention_parameters.c - softmax attention: parameters, states, and properties that follow from the options. */
#include "engine/model/mixers/attention_private.h"

#include <math.h>

#include "engine/tensor/ops/softmax_stream.h"

/* --- parameters ------------------------------------------------------------------------------------------- */

static void add_projection(const attention_options *o, parameter_list *list, attention_product which, double std,
                           int64_t n, int64_t k, const char *prefix)
{
	const attention_layout *l = o->layout;
	const char *part = which == ATTENTION_OUTPUT ? attention_output_part(o) : "";
	parameter_list_add_matrix(list, (float)std, n, k, l->transposed, "%s%s%s.weight", prefix, l->names[which],
	                          part);
	if (l->bias)
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s%s.bias", prefix, l->names[which], part);
}

static void add_inputs(const attention_options *o, parameter_list *list, const char *prefix)
{
	const int64_t keys = o->kv_heads * o->key_width, values = o->kv_heads * o->value_width;
	const int64_t widths[] = {o->heads * o->key_width, keys, values};
	const double std[] = {o->std.query, o->std.query, o->std.value};
	if (attention_is_fused(o)) {
		add_projection(o, list, ATTENTION_QUERY, o->std.query, widths[0] + keys + values, o->hidden, prefix);
		return;
	}
	for (int i = 0; i < ATTENTION_OUTPUT; i++) {
		const attention_product which = o->layout->order[i];
		if (which != ATTENTION_VALUE || !o->shared)
			add_projection(o, list, which, std[which], widths[which], o->hidden, prefix);
	}
}

/* Rows that every sequence attends to: [heads, memories, width]. */
static void add_memory(const attention_options *o, parameter_list *list, int64_t width, const char *prefix,
                       const char *name)
{
	parameter_list_add(list, INIT_NORMAL, 1, SHAPE3(o->kv_heads, o->memories.count, width), "%s%s", prefix, name);
}

static void add_talking_heads(const attention_options *o, parameter_list *list, const char *prefix, const char *name)
{
	const float std = (float)(1 / sqrt(3 * (double)o->heads));
	parameter_list_add(list, INIT_NORMAL, std, SHAPE2(o->heads, o->heads), "%s%s.weight", prefix, name);
	parameter_list_stored(list, SHAPE4(o->heads, o->heads, 1, 1));
}

void attention_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const attention_options *o = options;
	const int64_t d = o->hidden, merged = o->heads * o->value_width;
	add_inputs(o, list, prefix);
	if (o->memories.count) {
		add_memory(o, list, o->key_width, prefix, "mem_k");
		add_memory(o, list, o->value_width, prefix, "mem_v");
	}
	if (o->scoring.talking) {
		add_talking_heads(o, list, prefix, "pre_softmax_talking_heads");
		add_talking_heads(o, list, prefix, "post_softmax_talking_heads");
	}
	if (o->output.tensor_product)
		parameter_list_add_matrix(list, (float)o->std.query, merged, d, false, "%sto_r.weight", prefix);
	if (o->output.scaled) {
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(o->heads), "%shead_scale_params", prefix);
		parameter_list_stored(list, SHAPE4(1, o->heads, 1, 1));
	}
	if (o->output.gated) {
		parameter_list_add_matrix(list, 0, merged, d, false, "%sto_v_gate.weight", prefix);
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(merged), "%sto_v_gate.bias", prefix);
	}
	add_projection(o, list, ATTENTION_OUTPUT, o->std.output, (o->output.on_attention ? 2 : 1) * d, merged, prefix);
}

/* --- properties ------------------------------------------------------------------------------------------- */

const char *attention_output_part(const attention_options *o)
{
	return o->output.on_attention ? ".0" : "";
}

bool attention_is_fused(const attention_options *o)
{
	return !o->layout->names[ATTENTION_KEY];
}

bool attention_changes_matrix(const attention_options *o)
{
	return o->scoring.talking || o->scoring.top_k || o->scoring.residual;
}

bool attention_memories_apart(const attention_options *o)
{
	return o->reach.segment && o->rotation.width && o->memories.count;
}

bool attention_needs_matrix(const attention_options *o)
{
	return attention_changes_matrix(o) || o->reach.earlier || attention_memories_apart(o) ||
	       (o->reach.front && o->scoring.biased);
}

/* For a source the log needs distances of tokens and source; within a window they are those of the matrix. */
bool attention_logs_matrix(const attention_options *o)
{
	return attention_needs_matrix(o) || (o->cross && o->reach.past);
}

int64_t attention_stored_memories(const attention_options *o)
{
	return o->memories.read_source ? o->memories.count + o->memories.tokens : 0;
}

/* --- states ----------------------------------------------------------------------------------------------- */

matrix_stream_params attention_matrix_stream(const attention_options *o)
{
	return (matrix_stream_params){.heads = o->heads,
	                              .kv_heads = o->kv_heads,
	                              .window = o->reach.capacity,
	                              .segment = o->reach.segment,
	                              .key_width = o->kv_heads * o->key_width,
	                              .value_width = o->kv_heads * o->value_width,
	                              .scale = (float)o->scoring.scale};
}

void attention_states(const void *options, int layer, state_list *list)
{
	const attention_options *o = options;
	int64_t keys = o->kv_heads * o->key_width, values = o->kv_heads * o->value_width;
	const int64_t stored = attention_stored_memories(o);
	if (stored)
		state_list_add(list, STATE_SOURCE, source_state_floats(keys, values, stored), ATTENTION_MEMORIES,
		               layer);
	if (o->cross && o->reach.capacity)
		state_list_add(list, STATE_SOURCE, source_state_floats(keys, values, o->reach.capacity),
		               ATTENTION_SOURCE, layer);
	if (!o->causal || !o->reach.capacity)
		return;
	const softmax_store ring =
	    softmax_store_of(keys, values, o->reach.capacity, softmax_format_of(false, o->reach.bf16));
	state_list_add(list, STATE_CACHE,
	               attention_needs_matrix(o) ? matrix_stream_floats(attention_matrix_stream(o))
	                                         : softmax_ring_floats(ring),
	               ATTENTION_CACHE, layer);
	if (!o->reach.front) /* otherwise there are no rows without a token */
		state_list_set_ring(list, ring.places, ring.key_width, ring.value_width, 1);
	for (int64_t back = 1; back <= o->reach.earlier; back++) {
		state_list_add(list, STATE_CACHE, matrix_stream_floats(attention_matrix_stream(o)), ATTENTION_EARLIER,
		               layer, (int)back);
		if (!o->reach.front)
			state_list_set_ring(list, o->reach.capacity, keys, values, 1);
	}
}
