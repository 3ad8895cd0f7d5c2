/* attention.c - softmax attention: projections, the parallel form, and the choice of a form. */
#include "engine/model/mixers/attention_private.h"

/* --- queries, keys and values ------------------------------------------------------------------------------ */

static value f32(const builder *b, value v)
{
	return b->spec->bf16 ? op_cast(b->g, v, DTYPE_F32) : v;
}

static value rotate(const attention_call *a, value x, int64_t heads, bool key, int64_t first)
{
	const attention_options *o = a->o;
	const attention_rows *r = a->r;
	rotary_params params = {.heads = heads,
	                        .width = o->rotation.width,
	                        .base = ATTENTION_ROTARY_BASE,
	                        .first = r->first + first,
	                        .xpos_base = (float)o->rotation.xpos_base,
	                        .xpos_center = (float)r->xpos_center,
	                        .inverse_scale = key};
	return o->rotation.width && !o->cross ? op_rotary(a->b->g, x, r->positions, params) : x;
}

value attention_normalise(const attention_call *a, value x, int64_t heads)
{
	const int64_t groups = a->o->scoring.norm_groups;
	normalize_params params = {.groups = heads * groups, .scale = 1, .floor = 1e-12f};
	return groups ? op_normalize(a->b->g, x, VALUE_NONE, params) : x;
}

value attention_project(const attention_call *a, attention_product which, value x)
{
	return builder_linear(a->b, x, "%s%s", a->prefix, a->o->layout->names[which]);
}

attention_keys attention_project_keys(const attention_call *a, value rows)
{
	const attention_options *o = a->o;
	value k = attention_project(a, ATTENTION_KEY, rows);
	value v = o->shared ? k : attention_project(a, ATTENTION_VALUE, rows);
	k = rotate(a, k, o->kv_heads, true, 0);
	if (o->shared && o->rotation.values)
		v = k;
	else if (o->rotation.values)
		v = rotate(a, v, o->kv_heads, true, 0);
	return (attention_keys){k, v};
}

value attention_after_memories(const attention_call *a, const char *name, value tokens, value x)
{
	const attention_options *o = a->o;
	const builder *b = a->b;
	if (tokens != VALUE_NONE)
		x = op_join_rows(b->g, tokens, x, (join_rows_params){0});
	if (!o->memories.count)
		return x;
	return op_join_rows(b->g, f32(b, builder_parameter(b, "%s%s", a->prefix, name)), x,
	                    (join_rows_params){.heads = o->kv_heads});
}

/* --- explanations (attention_explain.c) ---------------------------------------------------------------------- */

static bool is_logged(const attention_call *a)
{
	return a->b->spec->explain.log && !a->r->whole;
}

/* Output the parts that explanations need: of the tokens, and of the tokens that they read. k VALUE_NONE: q is a fused
 * product. */
static void log_parts(const attention_call *a, value q, value k)
{
	const attention_options *o = a->o;
	const attention_rows *r = a->r;
	builder *b = a->b;
	graph *g = b->g;
	if (k == VALUE_NONE) {
		builder_log(b, r->place, a->layer, "qkv", q);
		return;
	}
	value parts[] = {attention_normalise(a, q, o->heads), attention_normalise(a, k, o->kv_heads)};
	for (int i = 0; i < 2; i++) {
		if (r->memory_rows && !(i && o->cross))
			parts[i] = op_slice_rows(g, parts[i], r->memory_rows, -1);
		builder_log(b, r->place, a->layer, i ? "key" : "query", parts[i]);
	}
	if (!o->scoring.biased)
		return;
	builder_log(b, r->place, a->layer, "bias",
	            o->causal ? op_gather(g, r->bias, builder_positions(b), -1) : r->back);
	if (!o->causal)
		builder_log(b, r->place, a->layer, "ahead", r->ahead);
}

/* --- attention with its matrix ------------------------------------------------------------------------------- */

static value mix(const attention_call *a, const char *name, value x)
{
	const builder *b = a->b;
	return a->o->scoring.talking
	           ? op_mix_heads(b->g, x, f32(b, builder_parameter(b, "%s%s.weight", a->prefix, name)))
	           : x;
}

value attention_weigh(const attention_call *a, value scores, value mask, attention_weights_params params, uint32_t site)
{
	const attention_options *o = a->o;
	attention_rows *r = a->r;
	builder *b = a->b;
	graph *g = b->g;
	if (o->scoring.residual) {
		if (r->scores != VALUE_NONE)
			scores = op_add(g, scores, r->scores);
		r->scores = scores;
	}
	if (r->outputs)
		graph_output(g, scores, "%sscores.%d", r->outputs, a->index);
	params.top_k = o->scoring.top_k;
	params.uniform = o->scoring.attend_when_hidden;
	params.bias_first = r->bias_first;
	value weights = op_attention_weights(g, mix(a, "pre_softmax_talking_heads", scores), mask, r->visible,
	                                     o->cross ? VALUE_NONE : r->bias, params);
	if (r->outputs)
		graph_output(g, weights, "%sattn.%d", r->outputs, a->index);
	if (is_logged(a) && (b->pool == VALUE_NONE || (attention_needs_matrix(o) && !o->cross)))
		builder_log(b, r->place, a->layer, "weights", weights);
	if (b->rng != VALUE_NONE && o->scoring.dropout > 0)
		weights = op_dropout(g, weights, b->rng, (float)o->scoring.dropout, site);
	return mix(a, "post_softmax_talking_heads", weights);
}

/* --- the forms -------------------------------------------------------------------------------------------- */

/* Memories are visible for any number of tokens. */
static int64_t window_of(const attention_call *a, int64_t keys)
{
	const attention_options *o = a->o;
	if (o->reach.past && o->reach.past + 1 < keys)
		return o->reach.past + 1;
	return o->causal && o->reach.capacity < keys - o->memories.count - a->r->memory_rows ? o->reach.capacity : 0;
}

/* Attend in the parallel form. own.keys VALUE_NONE: q is a fused product. */
static value attend_all(const attention_call *a, value q, attention_keys own)
{
	const attention_options *o = a->o;
	const attention_rows *r = a->r;
	builder *b = a->b;
	uint32_t site = builder_site(b);
	graph *g = b->g;
	int64_t keys = builder_rows(b, own.keys == VALUE_NONE ? q : own.keys);
	value mask = r->key_mask;
	int64_t extra = mask == VALUE_NONE ? 0 : keys - builder_rows(b, mask);
	if (extra > 0)
		mask = op_pad_mask(g, mask, extra, 1);
	if (attention_changes_matrix(o) || r->visible != VALUE_NONE || r->outputs ||
	    (is_logged(a) && attention_logs_matrix(o))) {
		attention_matrix_params heads = {o->heads, o->kv_heads, (float)o->scoring.scale};
		attention_weights_params params = {.window = window_of(a, keys), .bidirectional = !o->causal};
		value scores = op_attention_scores(g, q, own.keys, heads);
		return op_attention_apply(g, attention_weigh(a, scores, mask, params, site), own.values, heads);
	}
	softmax_params params = {.heads = o->heads,
	                         .kv_heads = o->kv_heads,
	                         .window = window_of(a, keys),
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
static value attend_rows(const attention_call *a, value q)
{
	const attention_options *o = a->o;
	attention_rows *r = a->r;
	builder *b = a->b;
	const bool recurrent = b->pool != VALUE_NONE && !r->whole, fused = attention_is_fused(o);
	const int64_t earlier = builder_rows(b, r->memory);
	value x = r->x, read = r->source == VALUE_NONE ? x : r->source;
	if (earlier)
		read = op_join_rows(b->g, r->memory, x, (join_rows_params){0});
	attention_keys own = {VALUE_NONE, VALUE_NONE};
	if (!fused)
		own = attention_project_keys(a, read);
	q = rotate(a, q, o->heads, false, earlier);
	r->keys = own.keys;
	r->values = own.values;
	if (is_logged(a) && !attention_logs_matrix(o))
		log_parts(a, q, own.keys);
	if (r->outputs) {
		builder_output(b, own.keys, "%skeys.%d", r->outputs, a->index);
		builder_output(b, own.values, "%svalues.%d", r->outputs, a->index);
	}
	if (!recurrent && !fused) {
		own.keys = attention_after_memories(a, "mem_k", VALUE_NONE, own.keys);
		own.values = attention_after_memories(a, "mem_v", VALUE_NONE, own.values);
	}
	q = attention_normalise(a, q, o->heads);
	own.keys = attention_normalise(a, own.keys, o->kv_heads);
	return (recurrent ? attention_read_cache : attend_all)(a, q, own);
}

value attention_forward(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                        attention_rows *r)
{
	const attention_call call = {b, o, layer, index, prefix, r}, *a = &call;
	graph *g = b->g;
	value x = r->x, q = attention_project(a, ATTENTION_QUERY, x);
	const bool stored = o->cross && b->pool != VALUE_NONE && !r->whole;
	value y = stored ? attention_read_source(a, attention_normalise(a, q, o->heads)) : attend_rows(a, q);
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
