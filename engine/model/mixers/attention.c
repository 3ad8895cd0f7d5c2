/* attention.c - softmax attention: projections, the parallel form, and the choice of a form. */
#include "engine/model/mixers/attention_private.h"

/* --- queries, keys and values ------------------------------------------------------------------------------ */

static value f32(const builder *b, value v)
{
	return b->spec->bf16 ? op_cast(b->g, v, DTYPE_F32) : v;
}

static value rotate(const builder *b, const attention_options *o, const attention_rows *r, value x, int64_t heads,
                    bool key, int64_t first)
{
	rotary_params params = {.heads = heads,
	                        .width = o->rotation.width,
	                        .base = ATTENTION_ROTARY_BASE,
	                        .first = r->first + first,
	                        .xpos_base = (float)o->rotation.xpos_base,
	                        .xpos_center = (float)r->xpos_center,
	                        .inverse_scale = key};
	return o->rotation.width && !o->cross ? op_rotary(b->g, x, r->positions, params) : x;
}

value attention_normalise(const builder *b, const attention_options *o, value x, int64_t heads)
{
	normalize_params params = {.groups = heads * o->scoring.norm_groups, .scale = 1, .floor = 1e-12f};
	return o->scoring.norm_groups ? op_normalize(b->g, x, VALUE_NONE, params) : x;
}

value attention_project(const builder *b, const attention_options *o, const char *prefix, attention_product which,
                        value x)
{
	return builder_linear(b, x, "%s%s", prefix, o->layout->names[which]);
}

attention_keys attention_project_keys(const builder *b, const attention_options *o, const char *prefix,
                                      const attention_rows *r, value rows)
{
	value k = attention_project(b, o, prefix, ATTENTION_KEY, rows);
	value v = o->shared ? k : attention_project(b, o, prefix, ATTENTION_VALUE, rows);
	k = rotate(b, o, r, k, o->kv_heads, true, 0);
	if (o->shared && o->rotation.values)
		v = k;
	else if (o->rotation.values)
		v = rotate(b, o, r, v, o->kv_heads, true, 0);
	return (attention_keys){k, v};
}

value attention_after_memories(const builder *b, const attention_options *o, const char *prefix, const char *name,
                               value tokens, value x)
{
	if (tokens != VALUE_NONE)
		x = op_join_rows(b->g, tokens, x, (join_rows_params){0});
	if (!o->memories.count)
		return x;
	return op_join_rows(b->g, f32(b, builder_parameter(b, "%s%s", prefix, name)), x,
	                    (join_rows_params){.heads = o->kv_heads});
}

/* --- explanations (attention_explain.c) ---------------------------------------------------------------------- */

static bool is_logged(const builder *b, const attention_rows *r)
{
	return b->spec->explain.log && !r->whole;
}

/* Output the parts that explanations need: of the tokens, and of the tokens that they read. k VALUE_NONE: q is a fused
 * product. */
static void log_parts(builder *b, const attention_options *o, int layer, const attention_rows *r, value q, value k)
{
	graph *g = b->g;
	if (k == VALUE_NONE) {
		builder_log(b, r->place, layer, "qkv", q);
		return;
	}
	value parts[] = {attention_normalise(b, o, q, o->heads), attention_normalise(b, o, k, o->kv_heads)};
	for (int i = 0; i < 2; i++) {
		if (r->memory_rows && !(i && o->cross))
			parts[i] = op_slice_rows(g, parts[i], r->memory_rows, -1);
		builder_log(b, r->place, layer, i ? "key" : "query", parts[i]);
	}
	if (!o->scoring.biased)
		return;
	builder_log(b, r->place, layer, "bias", o->causal ? op_gather(g, r->bias, builder_positions(b), -1) : r->back);
	if (!o->causal)
		builder_log(b, r->place, layer, "ahead", r->ahead);
}

/* --- attention with its matrix ------------------------------------------------------------------------------- */

static value mix(const builder *b, const attention_options *o, const char *prefix, const char *name, value x)
{
	return o->scoring.talking ? op_mix_heads(b->g, x, f32(b, builder_parameter(b, "%s%s.weight", prefix, name)))
	                          : x;
}

value attention_weigh(builder *b, const attention_options *o, int layer, int index, const char *prefix, value scores,
                      value mask, attention_rows *r, attention_weights_params params, uint32_t site)
{
	graph *g = b->g;
	if (o->scoring.residual) {
		if (r->scores != VALUE_NONE)
			scores = op_add(g, scores, r->scores);
		r->scores = scores;
	}
	if (r->outputs)
		graph_output(g, scores, "%sscores.%d", r->outputs, index);
	params.top_k = o->scoring.top_k;
	params.uniform = o->scoring.attend_when_hidden;
	params.bias_first = r->bias_first;
	value weights = op_attention_weights(g, mix(b, o, prefix, "pre_softmax_talking_heads", scores), mask,
	                                     r->visible, o->cross ? VALUE_NONE : r->bias, params);
	if (r->outputs)
		graph_output(g, weights, "%sattn.%d", r->outputs, index);
	if (is_logged(b, r) && (b->pool == VALUE_NONE || (attention_needs_matrix(o) && !o->cross)))
		builder_log(b, r->place, layer, "weights", weights);
	if (b->rng != VALUE_NONE && o->scoring.dropout > 0)
		weights = op_dropout(g, weights, b->rng, (float)o->scoring.dropout, site);
	return mix(b, o, prefix, "post_softmax_talking_heads", weights);
}

/* --- the forms -------------------------------------------------------------------------------------------- */

/* Memories are visible for any number of tokens. */
static int64_t window_of(const attention_options *o, const attention_rows *r, int64_t keys)
{
	if (o->reach.past && o->reach.past + 1 < keys)
		return o->reach.past + 1;
	return o->causal && o->reach.capacity < keys - o->memories.count - r->memory_rows ? o->reach.capacity : 0;
}

/* k and v VALUE_NONE: q is a fused product. */
static value attend_all(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                        attention_keys own, attention_rows *r)
{
	uint32_t site = builder_site(b);
	graph *g = b->g;
	int64_t keys = builder_rows(b, own.keys == VALUE_NONE ? q : own.keys);
	value mask = r->key_mask;
	int64_t extra = mask == VALUE_NONE ? 0 : keys - builder_rows(b, mask);
	if (extra > 0)
		mask = op_pad_mask(g, mask, extra, 1);
	if (attention_changes_matrix(o) || r->visible != VALUE_NONE || r->outputs ||
	    (is_logged(b, r) && attention_logs_matrix(o))) {
		attention_matrix_params heads = {o->heads, o->kv_heads, (float)o->scoring.scale};
		attention_weights_params params = {.window = window_of(o, r, keys), .bidirectional = !o->causal};
		value scores = op_attention_scores(g, q, own.keys, heads);
		return op_attention_apply(g, attention_weigh(b, o, layer, index, prefix, scores, mask, r, params, site),
		                          own.values, heads);
	}
	softmax_params params = {.heads = o->heads,
	                         .kv_heads = o->kv_heads,
	                         .window = window_of(o, r, keys),
	                         .bidirectional = !o->causal,
	                         .bias_first = r->bias_first,
	                         .uniform = o->scoring.attend_when_hidden,
	                         .scale = (float)o->scoring.scale,
	                         .stream = site};
	if (b->rng != VALUE_NONE)
		params.p = (float)o->scoring.dropout;
	return op_softmax_attention(g, q, own.keys, own.values, mask, o->cross ? VALUE_NONE : r->bias,
	                            params.p > 0 ? b->rng : VALUE_NONE, params);
}

/* Attend to the keys and values of rows in the graph: the sequence's own, or those of a source. */
static value attend_rows(builder *b, const attention_options *o, int layer, int index, const char *prefix, value q,
                         attention_rows *r)
{
	const bool recurrent = b->pool != VALUE_NONE && !r->whole, fused = attention_is_fused(o);
	const int64_t earlier = builder_rows(b, r->memory);
	value x = r->x, read = r->source == VALUE_NONE ? x : r->source;
	if (earlier)
		read = op_join_rows(b->g, r->memory, x, (join_rows_params){0});
	attention_keys own = {VALUE_NONE, VALUE_NONE};
	if (!fused)
		own = attention_project_keys(b, o, prefix, r, read);
	q = rotate(b, o, r, q, o->heads, false, earlier);
	r->keys = own.keys;
	r->values = own.values;
	if (is_logged(b, r) && !attention_logs_matrix(o))
		log_parts(b, o, layer, r, q, own.keys);
	if (r->outputs) {
		builder_output(b, own.keys, "%skeys.%d", r->outputs, index);
		builder_output(b, own.values, "%svalues.%d", r->outputs, index);
	}
	if (!recurrent && !fused) {
		own.keys = attention_after_memories(b, o, prefix, "mem_k", VALUE_NONE, own.keys);
		own.values = attention_after_memories(b, o, prefix, "mem_v", VALUE_NONE, own.values);
	}
	q = attention_normalise(b, o, q, o->heads);
	own.keys = attention_normalise(b, o, own.keys, o->kv_heads);
	return (recurrent ? attention_read_cache : attend_all)(b, o, layer, index, prefix, q, own, r);
}

value attention_forward(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                        attention_rows *r)
{
	graph *g = b->g;
	value x = r->x, q = attention_project(b, o, prefix, ATTENTION_QUERY, x);
	const bool stored = o->cross && b->pool != VALUE_NONE && !r->whole;
	value y = stored ? attention_read_source(b, o, layer, index, prefix, attention_normalise(b, o, q, o->heads), r)
	                 : attend_rows(b, o, layer, index, prefix, q, r);
	if (o->output.tensor_product)
		y = op_gate(g, y, y, builder_linear(b, x, "%sto_r", prefix));
	if (o->output.scaled)
		y = op_scale_columns(g, y, builder_parameter(b, "%shead_scale_params", prefix), o->value_width);
	if (o->output.gated)
		y = op_mul(g, y, op_activation(g, builder_linear(b, x, "%sto_v_gate", prefix), ACTIVATION_SIGMOID));
	y = builder_linear(b, y, "%s%s%s", prefix, o->layout->names[ATTENTION_OUTPUT], attention_output_part(o));
	if (o->output.on_attention)
		y = op_glu(g, y, ACTIVATION_SIGMOID);
	return o->output.zero_masked_rows && r->query_mask != VALUE_NONE ? op_mask_rows(g, y, r->query_mask) : y;
}

attention_rows attention_rows_of(const builder *b, value x)
{
	return (attention_rows){.x = x,
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
	                        .memory_values = VALUE_NONE,
	                        .place = b->place};
}

static value attention_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	attention_rows r = attention_rows_of(b, x);
	return attention_forward(b, options, layer, layer, prefix, &r);
}

const mixer mixer_attention = {
    .name = "attention",
    .parameters = attention_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
    .explainer = &attention_explainer,
};

const mixer mixer_attention_stepped = {
    .name = "attention_stepped",
    .parameters = attention_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
    .explainer = &attention_stepped_explainer,
};

const mixer mixer_attention_whole = {
    .name = "attention_whole",
    .parameters = attention_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
    .explainer = &attention_whole_explainer,
};

const mixer mixer_attention_unexplained = {
    .name = "attention_unexplained",
    .parameters = attention_parameters,
    .states = attention_states,
    .forward = attention_mixer_forward,
};
