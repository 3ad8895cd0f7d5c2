/* Dropout sites (Philox streams), in graph order: the embedding; two for hidden keys; for each entry its layer and its
 * skipping. */
#include "engine/model/transformer/stack_private.h"

#include <math.h>
#include <stdio.h>

#define RMSNORM_FLOOR 1e-8
#define SCALENORM_FLOOR 1e-5

/* --- entries --------------------------------------------------------------------------------------------------- */

/* State of the rows as they pass through the entries. */
typedef struct journey {
	builder *b;
	const stack *s;
	stack_rows in;
	bool whole;              /* rows of memory tokens beside a recurrent form */
	value bias, back, ahead; /* as in attention_rows */
	int64_t bias_first;
	value positions;
	int64_t first;
	double xpos_center;
	value scores, source_scores;
	value keys, values; /* for the last self-attention */
	value memory_keys, memory_values;
	value unshifted, front; /* inputs of the last entry's shift; those of memory tokens */
	value kept;             /* [1, entries, 1]: given instead of drawn */
	int64_t memory_rows;    /* leading rows of memory tokens */
	const char *outputs;    /* prefix of its outputs' names; NULL: no outputs */
} journey;

static value norm(const journey *j, value x, const stack_entry_name *n, int k)
{
	const stack_options *o = &j->s->options;
	double d = (double)o->dim;
	if (!o->use_rmsnorm && !o->use_scalenorm)
		return stack_layernorm(j->b, o, x, "%s.0.%d", n->text, k);
	double scale = o->use_rmsnorm ? sqrt(d) : 1, floor = o->use_rmsnorm ? RMSNORM_FLOOR * scale : SCALENORM_FLOOR;
	normalize_params params = {.groups = 1, .scale = (float)scale, .floor = (float)floor};
	return op_normalize(j->b->g, x, builder_parameter(j->b, "%s.0.%d.g", n->text, k), params);
}

static value shift(const journey *j, value x, int e)
{
	const stack_options *o = &j->s->options;
	builder *b = j->b;
	int64_t s = o->shift[e], segment = stack_segment(o);
	const bool session = b->pool != VALUE_NONE && !j->whole;
	const value mask = o->order[e] == 'f' ? VALUE_NONE : session ? b->mask : j->in.mask;
	if (!s)
		return x;
	if (session) {
		shift_stream_params params = {
		    .high = s, .offset = builder_state(b, "entries.%d.shift", e), .segment = segment};
		if (stack_memory_reads_source(o))
			params.stored = (slot_rows){stack_front_rows(o, e), builder_state(b, STACK_FRONT, e)};
		return op_shift_stream(b->g, x, b->pool, b->slot, b->position, b->length, mask, b->start, j->front,
		                       params);
	}
	return op_shift_rows(b->g, x, mask, (shift_params){.low = o->causal ? 0 : -s, .high = s});
}

static value feed_forward(const journey *j, value x, const stack_entry_name *n)
{
	const stack_options *o = &j->s->options;
	builder *b = j->b;
	graph *g = b->g;
	char prefix[2 * STACK_NAME];
	snprintf(prefix, sizeof prefix, "%s.1%s.ff.", n->text, n->wrappers);
	activation_kind kind = o->ff_relu_squared ? ACTIVATION_RELU2
	                       : o->ff_swish      ? ACTIVATION_SILU
	                       : o->ff_relu       ? ACTIVATION_RELU
	                                          : ACTIVATION_GELU;
	x = builder_linear(b, x, o->ff_glu ? "%s0.proj" : "%s0.0", prefix);
	if (o->ff_glu)
		x = op_glu(g, x, kind);
	else
		x = kind == ACTIVATION_GELU ? op_gelu(g, x, false) : op_activation(g, x, kind);
	if (o->ff_post_act_ln)
		x = builder_layernorm(b, x, STACK_LAYERNORM_EPS, "%s1", prefix);
	return builder_linear(b, builder_dropout(b, x, (float)o->ff_dropout), "%s3", prefix);
}

/* memory, later: as in attention_rows. */
static value attention(journey *j, value x, value memory, value later, const stack_entry_name *n, int e)
{
	const stack *s = j->s;
	const stack_options *o = &s->options;
	bool cross = o->order[e] == 'c';
	char prefix[2 * STACK_NAME];
	stack_layer_prefix(prefix, n);
	value self_mask = j->in.key_mask == VALUE_NONE ? j->in.mask : j->in.key_mask;
	attention_rows r = attention_rows_of(j->b, x);
	r.memory = cross || j->whole ? VALUE_NONE : memory;
	r.later = later;
	r.source = cross ? j->in.source : VALUE_NONE;
	r.query_mask = j->in.mask;
	r.key_mask = cross ? j->in.source_mask : self_mask;
	r.visible = cross ? j->in.source_visible : j->in.visible;
	r.bias = j->bias;
	r.back = j->back;
	r.ahead = j->ahead;
	r.bias_first = j->bias_first;
	r.scores = cross ? j->source_scores : j->scores;
	r.positions = j->positions;
	r.first = j->first;
	r.xpos_center = j->xpos_center;
	r.whole = j->whole;
	r.memory_rows = j->memory_rows;
	r.memory_keys = j->memory_keys;
	r.memory_values = j->memory_values;
	r.outputs = j->outputs;
	r.place = cross ? ATTENTION_TO_SOURCE : s->logits ? ATTENTION_OF_TOKENS : ATTENTION_OF_SOURCE;
	int layer = stack_count(o, o->order[e], e);
	int index = stack_count(o, 'a', e) + stack_count(o, 'c', e);
	value y = attention_forward(j->b, cross ? &s->cross : &s->self, layer, index, prefix, &r);
	j->keys = r.keys;
	j->values = r.values;
	*(cross ? &j->source_scores : &j->scores) = r.scores;
	return y;
}

static value stack_forward_join(const journey *j, value branch, value x, const stack_entry_name *n)
{
	const stack_options *o = &j->s->options;
	builder *b = j->b;
	graph *g = b->g;
	double constant = stack_residual_constant(o);
	if (o->scale_residual)
		x = op_scale_columns(g, x, builder_parameter(b, "%s.2.residual_scale", n->text), 1);
	if (o->gate_residual) {
		value in[2], of[2] = {branch, x};
		for (int i = 0; i < 2; i++)
			in[i] = builder_affine(
			    b, of[i], builder_parameter(b, "%s.2.gru.bias_%s", n->text, i ? "hh" : "ih"),
			    "%s.2.gru.weight_%s", n->text, i ? "hh" : "ih");
		return op_gru(g, in[0], in[1], x);
	}
	return op_add(g, branch, constant == 1 ? x : op_scale(g, x, (float)constant));
}

/* In training an entry is skipped as a whole with its probability: x + keep (y - x). */
static value skip(const journey *j, value y, value x, int e)
{
	const stack_options *o = &j->s->options;
	builder *b = j->b;
	graph *g = b->g;
	uint32_t site = builder_site(b);
	value keep;
	if (j->kept != VALUE_NONE) {
		keep = op_slice_rows(g, j->kept, e, 1);
	} else {
		if (b->rng == VALUE_NONE || o->skip[e] == 0)
			return y;
		keep = op_dropout(g, op_fill(g, SHAPE1(1), 1), b->rng, (float)o->skip[e], site);
		keep = op_scale(g, keep, (float)(1 - o->skip[e]));
	}
	value change = op_add(g, y, op_scale(g, x, -1));
	return op_add(g, x, op_scale_columns(g, change, keep, o->dim));
}

/* Rows of earlier segments for a self-attention. `old`: those that it reads, not normalised. The next segment gets the
 * last max_mem_len of these and its own. */
static value stack_forward_remember(const journey *j, value x, int layer)
{
	const stack_options *o = &j->s->options;
	const forward_spec *spec = j->b->spec;
	graph *g = j->b->g;
	if (!o->max_mem_len || !(spec->train.carried || forward_find_input(spec, STACK_MEMORY)) || j->whole)
		return VALUE_NONE;
	int64_t earlier = stack_memory(j->s, spec), rows = builder_rows(j->b, x), all = rows + earlier;
	int64_t kept = all < o->max_mem_len ? all : o->max_mem_len;
	int layers = stack_count(o, 'a', o->n_entries), from = (int)((layer + o->shift_mem_down) % layers);
	value old = VALUE_NONE, both = x;
	char name[STACK_NAME];
	snprintf(name, sizeof name, "memory.%d", from);
	if (earlier) {
		old = graph_find(g, name);
		if (old == VALUE_NONE)
			old = graph_input(g, name, DTYPE_F32, SHAPE3(spec->batch, earlier, o->dim));
		if (spec->bf16)
			old = op_cast(g, old, DTYPE_BF16);
		both = op_join_rows(g, old, x, (join_rows_params){0});
	}
	builder_output(j->b, op_slice_rows(g, both, all - kept, kept), "next.memory.%d", layer);
	return old;
}

/* Return rows that entered an attention, now or in an earlier segment, in the form in which the attention of entry e
 * reads them in a later segment. */
static value read_by_others(const journey *j, value x, int e)
{
	const stack_options *o = &j->s->options;
	const stack_entry_name n = stack_entry_name_of(j->s, e);
	return x != VALUE_NONE && o->pre_norm && !o->raw_memory ? norm(j, x, &n, 0) : x;
}

/* In a session later segments read the rows x that enter the attention of entry e. Return them if only this attention
 * does. Otherwise store them for the others, the layer `shift` layers below for each segment back. */
static value stack_forward_leave(const journey *j, value x, int e)
{
	const stack *s = j->s;
	const stack_options *o = &s->options;
	const int64_t layers = stack_count(o, 'a', o->n_entries), by = stack_memory_shift(o);
	if (!by)
		return read_by_others(j, x, e);
	const attention_rows place = {.positions = j->positions, .first = j->first, .xpos_center = j->xpos_center};
	for (int64_t back = 1; back <= s->self.reach.earlier; back++) {
		const int64_t layer = (stack_count(o, 'a', e) + (layers - by) * back) % layers;
		int reader = 0;
		while (o->order[reader] != 'a' || stack_count(o, 'a', reader) < layer)
			reader++;
		const stack_entry_name n = stack_entry_name_of(s, reader);
		char prefix[2 * STACK_NAME];
		stack_layer_prefix(prefix, &n);
		attention_store_earlier(j->b, &s->self, (int)layer, back, prefix, &place, read_by_others(j, x, reader));
	}
	return VALUE_NONE;
}

static value entry(journey *j, value x, int e)
{
	const stack_options *o = &j->s->options;
	stack_entry_name n = stack_entry_name_of(j->s, e);
	builder *b = j->b;
	if (j->outputs && o->order[e] == 'a')
		builder_output(b, x, "%shidden.%d", j->outputs, stack_count(o, 'a', e));
	value memory = VALUE_NONE, later = VALUE_NONE;
	if (o->order[e] == 'a' && b->pool == VALUE_NONE)
		memory = read_by_others(j, stack_forward_remember(j, x, stack_count(o, 'a', e)), e);
	else if (o->order[e] == 'a' && j->s->self.reach.earlier && !j->whole)
		later = stack_forward_leave(j, x, e);
	j->unshifted = o->pre_norm ? norm(j, x, &n, 0) : x;
	value y = shift(j, j->unshifted, e);
	y = o->order[e] == 'f' ? feed_forward(j, y, &n) : attention(j, y, memory, later, &n, e);
	if (j->outputs)
		builder_output(b, y, "%sbranch.%d", j->outputs, e);
	if (o->macaron && o->order[e] == 'f')
		y = op_scale(b->g, y, 0.5f);
	if (o->sandwich_norm)
		y = norm(j, y, &n, 1);
	if (o->residual_dropout > 0)
		y = builder_dropout(b, y, (float)o->residual_dropout);
	y = stack_forward_join(j, y, x, &n);
	if (stack_norm_after(o, e))
		y = norm(j, y, &n, 2);
	return skip(j, y, x, e);
}

/* True for entries in which rows are independent. */
static bool apart(const stack_options *o, int entry)
{
	return o->order[entry] == 'f' && o->shift[entry] == 0;
}

/* --- the whole ------------------------------------------------------------------------------------------------- */

static journey stack_forward_begin(builder *b, const stack *s, stack_rows rows)
{
	return (journey){.b = b,
	                 .s = s,
	                 .in = rows,
	                 .bias = VALUE_NONE,
	                 .back = VALUE_NONE,
	                 .ahead = VALUE_NONE,
	                 .positions = VALUE_NONE,
	                 .scores = VALUE_NONE,
	                 .source_scores = VALUE_NONE,
	                 .memory_keys = VALUE_NONE,
	                 .memory_values = VALUE_NONE,
	                 .unshifted = VALUE_NONE,
	                 .front = VALUE_NONE,
	                 .kept = graph_find(b->g, STACK_KEPT)};
}

static segment_rows_params numbering(const stack_options *o)
{
	return (segment_rows_params){o->max_seq_len, stack_segment_front(o)};
}

/* A session does not know how long its text will be: values are scaled as in a text of full length. */
static double session_center(const stack_options *o)
{
	return (double)((o->max_seq_len + o->num_memory_tokens) / 2);
}

/* Set the table of position biases and the positions of the rows. */
static void stack_forward_place(journey *j, int64_t rows)
{
	const stack_options *o = &j->s->options;
	int64_t memories = o->attn_num_mem_kv;
	/* Scores depend on no centre, but values do: x-transformers' centre is the middle of what is read. */
	j->xpos_center = o->rotate_values && rows ? (double)(rows / 2) : session_center(o);
	if (j->b->pool != VALUE_NONE) {
		int64_t seen = o->max_seq_len + o->max_mem_len + memories + o->num_memory_tokens;
		const int64_t front = stack_segment_front(o);
		j->bias = stack_bias_table(j->b, j->s, 0, seen);
		if (o->rotary_pos_emb)
			j->positions = builder_positions(j->b);
		if (o->rotary_pos_emb && front)
			j->positions = op_segment_rows(j->b->g, j->positions, numbering(o));
		j->first = front ? 0 : o->num_memory_tokens;
		return;
	}
	j->bias_first = o->causal ? 0 : 1 - rows;
	int64_t keys = rows + memories + stack_memory(j->s, j->b->spec);
	j->bias = stack_bias_table(j->b, j->s, j->bias_first, keys - j->bias_first);
	if (j->b->spec->explain.log && !o->causal) {
		const int64_t tokens = rows - o->num_memory_tokens;
		j->back = stack_bias_table(j->b, j->s, 0, tokens);
		j->ahead = stack_bias_table(j->b, j->s, 1 - tokens, tokens);
	}
}

/* All rows are unmasked. */
static journey begin_unmasked(builder *b, const stack *s, value source, value source_mask)
{
	return stack_forward_begin(b, s,
	                           (stack_rows){.x = VALUE_NONE,
	                                        .mask = VALUE_NONE,
	                                        .key_mask = VALUE_NONE,
	                                        .visible = VALUE_NONE,
	                                        .source_visible = VALUE_NONE,
	                                        .source = source,
	                                        .source_mask = source_mask});
}

/* Rows of memory tokens alone. */
static journey begin_memory(builder *b, const stack *s, value source, value mask)
{
	const stack_options *o = &s->options;
	journey m = begin_unmasked(b, s, source, mask);
	m.whole = true;
	m.memory_rows = o->num_memory_tokens; /* not bounded by a cache */
	m.bias = stack_bias_table(b, s, 0, o->num_memory_tokens + o->attn_num_mem_kv);
	m.xpos_center = session_center(o);
	return m;
}

/* Rows of memory tokens of starting segments, which go through the entries before the tokens, as rows of the same
 * sequences. front and spec: of the journey. *x: [B, m, dim]. From here on b counts rows instead of positions. */
static journey begin_segments(builder *b, const stack *s, const journey *tokens, builder *front, forward_spec *spec,
                              value *x)
{
	const segment_rows_params params = numbering(&s->options);
	const segment_begin_values at = op_segment_begin(b->g, b->position, b->length, params);
	*spec = *b->spec;
	spec->phase = PHASE_STEP;
	spec->length = params.front;
	spec->explain.log = spec->out.activations = spec->masked = false;
	*front = *b;
	front->spec = spec;
	front->position = at.first;
	front->length = at.count;
	front->start = front->mask = VALUE_NONE;
	b->position = op_segment_rows(b->g, b->position, params);
	journey m = begin_unmasked(front, s, VALUE_NONE, VALUE_NONE);
	m.bias = tokens->bias;
	m.positions = s->options.rotary_pos_emb ? at.rows : VALUE_NONE;
	*x = op_gather(b->g, stack_f32(b, builder_parameter(b, "%smemory_tokens", s->prefix)), at.which, -1);
	return m;
}

/* [sequences, m, dim] */
static value memory_rows(builder *b, const stack *s, int64_t sequences)
{
	value tokens = stack_f32(b, builder_parameter(b, "%smemory_tokens", s->prefix));
	return op_join_rows(b->g, tokens, op_fill(b->g, SHAPE3(sequences, 0, s->options.dim), 0),
	                    (join_rows_params){0});
}

/* In training, draw keys of self-attention and of a source that are hidden at random. */
static void hide_some_keys(builder *b, const stack_options *o, stack_rows *rows)
{
	uint32_t site = builder_site(b), source_site = builder_site(b);
	if (b->rng == VALUE_NONE)
		return;
	const forward_spec *spec = b->spec;
	hide_keys_params self = {spec->batch, builder_rows(b, rows->x), 1, 1, o->mask_prob, site};
	hide_keys_params source = {spec->batch, spec->source, 0, 0, o->cross_attn_tokens_dropout, source_site};
	if (o->mask_prob > 0 && rows->key_mask == VALUE_NONE)
		rows->key_mask = op_hide_keys(b->g, b->rng, rows->mask, self);
	if (o->cross_attn_tokens_dropout > 0 && rows->source != VALUE_NONE)
		rows->source_mask = op_hide_keys(b->g, b->rng, rows->source_mask, source);
}

/* Return the index after the last entry in which rows depend on each other. */
static int last_meeting(const stack_options *o)
{
	int e = o->n_entries;
	while (e > 0 && apart(o, e - 1))
		e--;
	return e;
}

value stack_forward(builder *b, const stack *s, stack_rows rows)
{
	const stack_options *o = &s->options;
	graph *g = b->g;
	int64_t memory = o->num_memory_tokens, n = builder_rows(b, rows.x);
	bool recurrent = b->pool != VALUE_NONE;
	value x = rows.x;
	hide_some_keys(b, o, &rows);
	int64_t in_front = recurrent ? 0 : memory;
	if (in_front) {
		value tokens = stack_f32(b, builder_parameter(b, "%smemory_tokens", s->prefix));
		rows.x = x = op_join_rows(g, tokens, x, (join_rows_params){0});
		if (rows.mask != VALUE_NONE)
			rows.mask = op_pad_mask(g, rows.mask, memory, 1);
	}
	journey j = stack_forward_begin(b, s, rows), m = j;
	j.memory_rows = in_front;
	if (b->spec->out.activations)
		j.outputs = s->logits ? "" : s->prefix;
	stack_forward_place(&j, recurrent ? 0 : n + memory);
	/* Without segments, rows of memory tokens see only each other and the source, which stack_store_source
	 * provides. In the recurrent form they go through the entries alone, and later rows see only their keys and
	 * values. */
	value before = VALUE_NONE;
	builder front;
	forward_spec spec;
	const bool segments = recurrent && stack_segment_front(o);
	const value position = b->position;
	if (segments) {
		m = begin_segments(b, s, &j, &front, &spec, &before);
	} else if (memory && recurrent && !stack_memory_reads_source(o)) {
		m = begin_memory(b, s, VALUE_NONE, VALUE_NONE);
		before = memory_rows(b, s, 1);
	}
	builder_boundary(b);
	int meeting = last_meeting(o);
	for (int e = 0; e < o->n_entries; e++) {
		if (before != VALUE_NONE && e < meeting) {
			before = entry(&m, before, e);
			j.memory_keys = segments ? VALUE_NONE : m.keys;
			j.memory_values = segments ? VALUE_NONE : m.values;
			j.front = segments ? VALUE_NONE : m.unshifted;
		}
		x = entry(&j, x, e);
		if (e + 1 == meeting) {
			if (in_front)
				x = op_slice_rows(g, x, memory, -1);
			if (s->logits)
				x = builder_needed_rows(b, x);
		}
		if (o->order[e] == 'f')
			builder_boundary(b);
	}
	b->position = position;
	if (j.outputs)
		builder_output(b, x, "%slast", j.outputs);
	return s->wrapped && o->final_norm ? stack_layernorm(b, o, x, "%snorm", s->prefix) : x;
}

/* --- a source into the slots ----------------------------------------------------------------------------------------
 */

/* Store the data of memory tokens that a session's tokens read: keys and values, and the inputs of shifts. */
static void store_memory(builder *b, const stack *s, value source, value mask)
{
	const stack_options *o = &s->options;
	const int64_t sequences = b->spec->batch, memory = o->num_memory_tokens;
	journey m = begin_memory(b, s, source, mask);
	value x = memory_rows(b, s, sequences);
	for (int e = 0; e < last_meeting(o); e++) {
		x = entry(&m, x, e);
		const stack_entry_name n = stack_entry_name_of(s, e);
		char prefix[2 * STACK_NAME];
		stack_layer_prefix(prefix, &n);
		if (o->order[e] == 'a')
			attention_store_memories(b, &s->self, stack_count(o, 'a', e), prefix, m.keys, m.values);
		if (!o->shift[e])
			continue;
		const int64_t rows = stack_front_rows(o, e);
		const source_params params = {.heads = 1, .capacity = rows, .offset = builder_state(b, STACK_FRONT, e)};
		op_source_store(b->g, op_slice_rows(b->g, m.unshifted, memory - rows, rows),
		                op_fill(b->g, SHAPE3(sequences, rows, 0), 0), b->pool, b->slot, VALUE_NONE, VALUE_NONE,
		                params);
	}
}

void stack_store_source(builder *b, const stack *s, value source, value mask)
{
	const stack_options *o = &s->options;
	for (int e = 0; e < o->n_entries; e++) {
		stack_entry_name n = stack_entry_name_of(s, e);
		char prefix[2 * STACK_NAME];
		stack_layer_prefix(prefix, &n);
		if (o->order[e] == 'c')
			attention_store_source(b, &s->cross, stack_count(o, 'c', e), prefix, source, mask);
	}
	if (stack_memory_reads_source(o))
		store_memory(b, s, source, mask);
}
