/* Dropout sites (Philox streams), in the order of the graph: the embedding; two of hidden keys; of each entry its layer
 * and its skipping. */
#include "engine/model/transformer/stack.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TOKENS "%stoken_emb.emb.weight"
enum { NAME_BYTES = 96, WRAPPERS_BYTES = 12 };
#define LAYERNORM_EPS 1e-5f
#define UNBIASED_EPS 1e-6f
#define RMSNORM_FLOOR 1e-8
#define SCALENORM_FLOOR 1e-5
#define EMBEDDING_FLOOR 1e-12f

/* --- what follows from the options ---------------------------------------------------------------------- */

static int64_t value_width(const stack_options *o)
{
	return o->attn_value_dim_head ? o->attn_value_dim_head : o->attn_dim_head;
}

static int64_t embedding_width(const stack_options *o)
{
	return o->emb_dim ? o->emb_dim : o->dim;
}

static int64_t inner_width(const stack_options *o)
{
	int64_t width = (int64_t)((double)o->dim * o->ff_mult);
	return width > 0 ? width : 1;
}

/* Entries without a token's place among the others: their rows do not meet. */
static bool apart(const stack_options *o, int entry)
{
	return o->order[entry] == 'f' && o->shift[entry] == 0;
}

/* Xavier's deviation times `gain`, of DeepNorm (Wang et al. 2022); 0: the framework's. */
static double deep_std(const stack_options *o, int64_t n, int64_t k, double gain)
{
	return o->deepnorm ? gain * sqrt(2 / (double)(n + k)) : 0;
}

static double deep_gain(const stack_options *o)
{
	return pow(8 * (double)o->depth, -0.25);
}

/* By how many layers the rows of a segment that is one further back are those of another layer. */
static int64_t memory_shift(const stack_options *o)
{
	const int layers = stack_count(o, 'a', o->n_entries);
	return o->max_mem_len && layers ? o->shift_mem_down % layers : 0;
}

/* A segment makes the keys and values of earlier segments from rows that are shifted nowhere and, with raw_memory, not
 * normalised; with shift_mem_down from rows of another layer for each segment back. */
static int64_t earlier_states(const stack_options *o)
{
	bool shifted = false;
	for (int e = 0; e < o->n_entries; e++)
		shifted |= o->order[e] == 'a' && o->shift[e] > 0;
	if (memory_shift(o))
		return (o->max_mem_len + o->max_seq_len - 1) / o->max_seq_len;
	return o->max_mem_len && ((o->raw_memory && o->pre_norm) || shifted);
}

static attention_options attention_of(const stack *s, bool cross)
{
	const stack_options *o = &s->options;
	int64_t merged = o->heads * value_width(o);
	int64_t kv_heads = o->attn_one_kv_head ? 1 : o->attn_kv_heads ? o->attn_kv_heads : o->heads;
	return (attention_options){
	    .hidden = o->dim,
	    .heads = o->heads,
	    .kv_heads = kv_heads,
	    .key_width = o->attn_dim_head,
	    .value_width = value_width(o),
	    .causal = o->causal && !cross,
	    .cross = cross,
	    .shared = o->attn_shared_kv,
	    .talking = o->attn_talking_heads,
	    .on_attention = o->attn_on_attn,
	    .gated = o->attn_gate_values,
	    .scaled = o->attn_head_scale,
	    .tensor_product = o->attn_tensor_product,
	    .residual = cross ? o->cross_residual_attn : o->residual_attn,
	    .attend_when_hidden = o->attend_when_hidden,
	    .zero_masked_rows = o->zero_masked_rows,
	    .memories = o->attn_num_mem_kv,
	    .memory_tokens = cross ? 0 : o->num_memory_tokens,
	    .top_k = o->attn_sparse_topk,
	    .past = o->attn_max_attend_past,
	    .capacity = cross ? s->source_capacity : o->max_seq_len + o->max_mem_len,
	    .segment = cross || !o->max_mem_len ? 0 : o->max_seq_len,
	    .earlier = cross ? 0 : earlier_states(o),
	    .norm_groups = o->attn_qk_norm ? o->attn_qk_norm_groups : 0,
	    .rotary = cross ? 0 : stack_rotary_width(o),
	    .rotate_values = o->rotate_values,
	    .biased = !cross && (o->rel_pos_bias || o->alibi_pos_bias || o->dynamic_pos_bias),
	    .xpos_base = o->rotary_xpos ? o->rotary_xpos_scale_base : 0,
	    .scale = o->attn_qk_norm ? o->attn_qk_norm_scale : 1 / sqrt((double)o->attn_dim_head),
	    .dropout = o->attn_dropout,
	    .std = deep_std(o, o->heads * o->attn_dim_head, o->dim, 1),
	    .output_std = deep_std(o, merged, o->dim, deep_gain(o)),
	    .zero_output = o->attn_zero_init_output || o->zero_init_branch_output,
	};
}

/* ln 2^(-8 (h + 1) / A) where A is a power of two; else those of the power below it, then every other one of twice
 * that. */
static void set_log_slopes(stack *s)
{
	int64_t heads = s->options.heads, power = 1;
	while (2 * power <= heads)
		power *= 2;
	for (int64_t h = 0; h < heads; h++) {
		double exponent = h < power ? 8 * (double)(h + 1) / (double)power
		                            : 8 * (double)(2 * (h - power) + 1) / (double)(2 * power);
		s->log_slopes[h] = (float)(-exponent * log(2));
	}
}

void stack_prepare(stack *s)
{
	snprintf(s->entries, sizeof s->entries, "%s%s", s->prefix, s->wrapped ? "attn_layers." : "");
	set_log_slopes(s);
	s->self = attention_of(s, false);
	s->cross = attention_of(s, true);
}

bool stack_has_self_attention(const stack *s)
{
	return stack_count(&s->options, 'a', s->options.n_entries) > 0;
}

/* Every segment has rows of memory tokens of its own in front, which read the segments before it: a session would have
 * to put them between its tokens. And rotated keys whose channels are normalised in groups are others in each segment
 * that reads them, because a turn leaves the norm of a head as it is, but not that of a group. */
const char *stack_whole(const stack *s)
{
	const stack_options *o = &s->options;
	return !o->max_mem_len        ? NULL
	       : o->num_memory_tokens ? "max_mem_len with num_memory_tokens"
	       : o->rotary_pos_emb && o->attn_qk_norm && o->attn_qk_norm_groups > 1
	           ? "max_mem_len with rotary_pos_emb and attn_qk_norm_groups"
	           : NULL;
}

bool stack_by_segments(const stack *s)
{
	return memory_shift(&s->options) > 0;
}

int64_t stack_length(const stack *s)
{
	const stack_options *o = &s->options;
	if (o->max_mem_len && o->causal)
		return stack_whole(s) ? o->max_seq_len : MODEL_UNBOUNDED;
	bool relative = !stack_positions(o) && !o->num_memory_tokens && !o->attn_num_mem_kv && !o->rotary_xpos &&
	                !(o->rotary_pos_emb && o->rotate_values);
	return relative && o->causal ? MODEL_UNBOUNDED : o->max_seq_len;
}

/* --- parameters --------------------------------------------------------------------------------------------- */

/* "PREFIXattn_layers.layers.E" of the entry whose parameters are used, and ".fn" for each wrapper around its layer. */
typedef struct entry_name {
	char text[NAME_BYTES], wrappers[WRAPPERS_BYTES];
} entry_name;

static entry_name name_of(const stack *s, int e)
{
	const stack_options *o = &s->options;
	entry_name n = {.wrappers = ""};
	snprintf(n.text, sizeof n.text, "%slayers.%d", s->entries, stack_entry_parameters(o, e));
	snprintf(n.wrappers, sizeof n.wrappers, "%s%s", o->shift[e] ? ".fn" : "",
	         o->macaron && o->order[e] == 'f' ? ".fn" : "");
	return n;
}

/* What the names of the parameters of an entry's layer begin with. */
static void layer_prefix(char out[2 * NAME_BYTES], const entry_name *n)
{
	snprintf(out, 2 * NAME_BYTES, "%s.1%s.", n->text, n->wrappers);
}

static void linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, bool bias, const char *prefix,
                              const char *name)
{
	parameter_list_add_matrix(list, (float)(std > 0 ? std : 1 / sqrt(3 * (double)k)), n, k, false, "%s%s.weight",
	                          prefix, name);
	if (bias)
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s.bias", prefix, name);
}

static void norm_parameters(const stack_options *o, parameter_list *list, const entry_name *n, int k)
{
	if (o->use_rmsnorm)
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(o->dim), "%s.0.%d.g", n->text, k);
	else if (o->use_scalenorm)
		parameter_list_add(list, INIT_CONSTANT, (float)sqrt(o->compat ? 1 / (double)o->dim : (double)o->dim),
		                   SHAPE1(1), "%s.0.%d.g", n->text, k);
	else
		builder_layernorm_parameters(list, o->dim, "%s.0.%d", n->text, k);
}

static void feed_forward_parameters(const stack_options *o, parameter_list *list, const entry_name *n)
{
	char prefix[2 * NAME_BYTES];
	int64_t inner = inner_width(o);
	double gain = deep_gain(o);
	snprintf(prefix, sizeof prefix, "%s.1%s.ff.", n->text, n->wrappers);
	if (o->ff_glu)
		linear_parameters(list, deep_std(o, 2 * inner, o->dim, gain), 2 * inner, o->dim, true, prefix,
		                  "0.proj");
	else
		linear_parameters(list, deep_std(o, inner, o->dim, gain), inner, o->dim, !o->ff_no_bias, prefix, "0.0");
	if (o->ff_post_act_ln)
		builder_layernorm_parameters(list, inner, "%s1", prefix);
	bool zero = o->ff_zero_init_output || o->zero_init_branch_output;
	if (zero) {
		parameter_list_add_matrix(list, 0, o->dim, inner, false, "%s3.weight", prefix);
		if (!o->ff_no_bias)
			parameter_list_add(list, INIT_ZERO, 0, SHAPE1(o->dim), "%s3.bias", prefix);
	} else {
		linear_parameters(list, deep_std(o, o->dim, inner, gain), o->dim, inner, !o->ff_no_bias, prefix, "3");
	}
}

static void joiner_parameters(const stack_options *o, parameter_list *list, const entry_name *n)
{
	int64_t d = o->dim;
	double std = 1 / sqrt(3 * (double)d);
	if (o->gate_residual) {
		parameter_list_add_matrix(list, (float)std, 3 * d, d, false, "%s.2.gru.weight_ih", n->text);
		parameter_list_add_matrix(list, (float)std, 3 * d, d, false, "%s.2.gru.weight_hh", n->text);
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(3 * d), "%s.2.gru.bias_ih", n->text);
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(3 * d), "%s.2.gru.bias_hh", n->text);
	}
	if (o->scale_residual)
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(d), "%s.2.residual_scale", n->text);
}

/* Is there a norm behind an entry? The last one's is that of the stack. */
static bool norm_behind(const stack_options *o, int e)
{
	return !o->pre_norm && !(o->final_norm && e == o->n_entries - 1);
}

static void entry_parameters(const stack *s, parameter_list *list, int e)
{
	const stack_options *o = &s->options;
	entry_name n = name_of(s, e);
	char prefix[2 * NAME_BYTES];
	if (o->pre_norm)
		norm_parameters(o, list, &n, 0);
	if (o->sandwich_norm)
		norm_parameters(o, list, &n, 1);
	if (norm_behind(o, e))
		norm_parameters(o, list, &n, 2);
	layer_prefix(prefix, &n);
	if (o->order[e] == 'f')
		feed_forward_parameters(o, list, &n);
	else
		mixer_attention.parameters(o->order[e] == 'c' ? &s->cross : &s->self, prefix, list);
	joiner_parameters(o, list, &n);
}

static void bias_parameters(const stack *s, parameter_list *list)
{
	const stack_options *o = &s->options;
	char prefix[NAME_BYTES];
	snprintf(prefix, sizeof prefix, "%srel_pos.", s->entries);
	if (o->rel_pos_bias)
		parameter_list_add(list, INIT_NORMAL, 1, SHAPE2(o->rel_pos_num_buckets, o->heads),
		                   "%srelative_attention_bias.weight", prefix);
	if (o->alibi_pos_bias && o->alibi_learned) {
		parameter_list_add(list, INIT_VALUES, 0, SHAPE1(o->heads), "%slearned_logslopes", prefix);
		parameter_list_stored(list, SHAPE3(o->heads, 1, 1));
		parameter_list_values(list, s->log_slopes);
	}
	if (!o->dynamic_pos_bias)
		return;
	int64_t width = o->dim / 4 > 0 ? o->dim / 4 : 1;
	char name[NAME_BYTES];
	for (int i = 0; i <= o->dynamic_pos_bias_mlp_depth; i++) {
		bool last = i == o->dynamic_pos_bias_mlp_depth;
		snprintf(name, sizeof name, last ? "mlp.%d" : "mlp.%d.0", i);
		linear_parameters(list, 0, last ? o->heads : width, i ? width : 1, true, prefix, name);
		if (!last && o->dynamic_pos_bias_norm)
			builder_layernorm_parameters(list, width, "%smlp.%d.1", prefix, i);
	}
}

static void wrapper_parameters(const stack *s, parameter_list *list)
{
	const stack_options *o = &s->options;
	int64_t width = embedding_width(o);
	double std = o->l2norm_embed ? 1e-5 : sqrt(2 / (double)width);
	if (!s->tied_tokens) {
		parameter_list_add_matrix(list, (float)std, o->num_tokens, width, false, TOKENS, s->prefix);
		parameter_list_by_row(list);
	}
	if (s->tied_prefix) {
		char name[NAME_BYTES];
		snprintf(name, sizeof name, TOKENS, s->tied_prefix);
		parameter_list_alias(list, name, o->compat);
	}
	if (stack_positions(o))
		parameter_list_add(list, INIT_NORMAL, o->l2norm_embed ? 1e-5f : 1, SHAPE2(o->max_seq_len, width),
		                   "%spos_emb.emb.weight", s->prefix);
	if (o->post_emb_norm)
		builder_layernorm_parameters(list, width, "%spost_emb_norm", s->prefix);
	if (width != o->dim)
		linear_parameters(list, 0, o->dim, width, true, s->prefix, "project_emb");
	if (o->num_memory_tokens)
		parameter_list_add(list, INIT_NORMAL, 1, SHAPE2(o->num_memory_tokens, o->dim), "%smemory_tokens",
		                   s->prefix);
}

/* Matrices and tables from `first` on are drawn from a uniform distribution (Glorot and Bengio 2010); those that begin
 * as zeros stay so. */
static void draw_xavier(parameter_list *list, int first)
{
	for (parameter_spec *p = list->items + first; p < list->items + list->count; p++) {
		if (p->init != INIT_NORMAL || p->std == 0 || p->shape.rank != 2)
			continue;
		p->init = INIT_UNIFORM;
		p->std = (float)sqrt(2 / (double)(p->shape.dim[0] + p->shape.dim[1]));
	}
}

void stack_parameters(const stack *s, parameter_list *list)
{
	const stack_options *o = &s->options;
	int first = list->count;
	if (s->wrapped)
		wrapper_parameters(s, list);
	bias_parameters(s, list);
	for (int e = 0; e < o->n_entries && stack_entry_parameters(o, e) == e; e++)
		entry_parameters(s, list, e);
	if (s->wrapped && o->final_norm)
		builder_layernorm_parameters(list, o->dim, "%snorm", s->prefix);
	if (s->logits && !o->tie_embedding)
		linear_parameters(list, 0, o->num_tokens, o->dim, true, s->prefix, "to_logits");
	if (o->xavier_init)
		draw_xavier(list, first);
}

double stack_parameter_count(const stack *s)
{
	const stack_options *o = &s->options;
	double d = (double)o->dim, heads = (double)o->heads, inner = (double)inner_width(o);
	double keys = heads * (double)o->attn_dim_head, values = heads * (double)value_width(o);
	double attention = d * (2 * keys + 6 * values), feed_forward = d * inner * (o->ff_glu ? 3 : 2);
	double entries = (double)o->n_entries, rows = (double)(o->num_tokens + o->max_seq_len);
	return rows * d * 2 + entries * (attention + feed_forward + (o->gate_residual ? 6 * d * d : 0));
}

/* --- state ----------------------------------------------------------------------------------------------------- */

void stack_states(const stack *s, state_list *list)
{
	const stack_options *o = &s->options;
	for (int l = 0; l < stack_count(o, 'c', o->n_entries) && stack_has_self_attention(s); l++)
		mixer_attention.states(&s->cross, l, list);
	for (int e = 0; e < o->n_entries && o->causal; e++) {
		if (o->shift[e])
			state_list_add(list, STATE_CACHE, shift_state_floats(o->dim, o->shift[e]), "entries.%d.shift",
			               e);
	}
}

/* Rows of memory tokens would be carried too, and keys that are hidden at random have a mask of the block alone. */
void stack_carried(const stack *s, state_list *list)
{
	const stack_options *o = &s->options;
	bool carries = o->max_mem_len > 0 && !o->num_memory_tokens && !(o->mask_prob > 0);
	for (int l = 0; l < stack_count(o, 'a', o->n_entries) && carries; l++)
		state_list_add(list, STATE_CARRIED, o->max_mem_len * o->dim, "memory.%d", l);
}

int64_t stack_memory(const stack *s, const forward_spec *spec)
{
	return spec->carried ? s->options.max_mem_len : spec->memory;
}

/* --- tokens to rows -------------------------------------------------------------------------------------------------
 */

static value f32(const builder *b, value v)
{
	return b->spec->bf16 ? op_cast(b->g, v, DTYPE_F32) : v;
}

static value unit_rows(const builder *b, value x)
{
	return op_normalize(b->g, x, VALUE_NONE, (normalize_params){.groups = 1, .scale = 1, .floor = EMBEDDING_FLOOR});
}

/* The layer norm of these parameters (printf-style, without ".weight" and ".bias"). */
__attribute__((format(printf, 4, 5))) static value layernorm(const builder *b, const stack_options *o, value x,
                                                             const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	if (!o->use_unbiased_norm)
		return builder_layernorm(b, x, LAYERNORM_EPS, "%s", name);
	return op_layernorm_unbiased(b->g, x, builder_parameter(b, "%s.weight", name),
	                             builder_parameter(b, "%s.bias", name), UNBIASED_EPS);
}

value stack_embed(builder *b, const stack *s, bool source, value before)
{
	const stack_options *o = &s->options;
	graph *g = b->g;
	char words[NAME_BYTES], places[NAME_BYTES];
	snprintf(words, sizeof words, TOKENS, s->tied_tokens ? "encoder." : s->prefix);
	snprintf(places, sizeof places, "%spos_emb.emb.weight", s->prefix);
	value x = source ? builder_source_rows(b, PORT_SOURCE, words) : builder_words(b, words, -1);
	if (o->l2norm_embed) {
		if (!source)
			builder_normed_words(b);
		x = unit_rows(b, x);
	}
	if (o->scale_embedding)
		x = op_scale(g, x, (float)sqrt((double)embedding_width(o)));
	if (o->sinusoidal_pos_emb) {
		sinusoids_params params = {embedding_width(o), (sinusoids_form)o->sinusoidal_form};
		x = op_add(g, x, builder_sinusoids(b, source, params));
	}
	if (stack_positions(o)) {
		value p = source ? builder_source_rows(b, PORT_SOURCE_POSITIONS, places) : builder_places(b, places);
		p = o->l2norm_embed ? unit_rows(b, p) : op_scale(g, p, (float)(1 / sqrt((double)embedding_width(o))));
		x = op_add(g, x, p);
	}
	if (o->post_emb_norm)
		x = layernorm(b, o, x, "%spost_emb_norm", s->prefix);
	if (before != VALUE_NONE)
		x = op_join_rows(g, before, x, (join_rows_params){0});
	if (o->emb_frac_gradient < 1)
		x = op_scale_gradient(g, x, (float)o->emb_frac_gradient);
	x = builder_dropout(b, x, (float)o->emb_dropout);
	return embedding_width(o) == o->dim ? x : builder_linear(b, x, "%sproject_emb", s->prefix);
}

/* --- position biases
 * -------------------------------------------------------------------------------------------------- */

/* [count, heads] for the distances first … first + count - 1 of query and key. */
static value bias_table(builder *b, const stack *s, int64_t first, int64_t count)
{
	const stack_options *o = &s->options;
	graph *g = b->g;
	char prefix[NAME_BYTES];
	snprintf(prefix, sizeof prefix, "%srel_pos.", s->entries);
	if (o->rel_pos_bias) {
		t5_buckets_params params = {first, count, o->rel_pos_num_buckets, o->rel_pos_max_distance, !o->causal};
		value rows = op_gather(g, builder_parameter(b, "%srelative_attention_bias.weight", prefix),
		                       op_t5_buckets(g, params), -1);
		return op_scale(g, f32(b, rows), (float)sqrt((double)o->attn_dim_head));
	}
	if (o->alibi_pos_bias) {
		alibi_params params = {first, count, o->heads, o->alibi_num_heads ? o->alibi_num_heads : o->heads};
		value slopes = o->alibi_learned ? builder_parameter(b, "%slearned_logslopes", prefix) : VALUE_NONE;
		return op_alibi(g, slopes, params);
	}
	if (!o->dynamic_pos_bias)
		return VALUE_NONE;
	value x = op_distances(g, (distances_params){first, count, false, o->dynamic_pos_bias_log_distance});
	if (b->spec->bf16)
		x = op_cast(g, x, DTYPE_BF16);
	for (int i = 0; i < o->dynamic_pos_bias_mlp_depth; i++) {
		x = builder_linear(b, x, "%smlp.%d.0", prefix, i);
		if (o->dynamic_pos_bias_norm)
			x = builder_layernorm(b, x, LAYERNORM_EPS, "%smlp.%d.1", prefix, i);
		x = op_activation(g, x, ACTIVATION_RELU);
	}
	return f32(b, builder_linear(b, x, "%smlp.%d", prefix, (int)o->dynamic_pos_bias_mlp_depth));
}

/* --- entries
 * -------------------------------------------------------------------------------------------------------------- */

/* Rows on their way through the entries. */
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
	value keys, values; /* of the last self-attention */
	value memory_keys, memory_values;
	value unshifted, front; /* what went into the last entry's shift; of memory tokens */
	value kept;             /* [1, entries, 1]: given in place of chance */
	int64_t memory_rows;    /* in front */
	const char *outputs;    /* what the names of its outputs begin with; NULL: there are none */
} journey;

static value norm(const journey *j, value x, const entry_name *n, int k)
{
	const stack_options *o = &j->s->options;
	double d = (double)o->dim;
	if (!o->use_rmsnorm && !o->use_scalenorm)
		return layernorm(j->b, o, x, "%s.0.%d", n->text, k);
	double scale = o->use_rmsnorm ? sqrt(d) : 1, floor = o->use_rmsnorm ? RMSNORM_FLOOR * scale : SCALENORM_FLOOR;
	normalize_params params = {.groups = 1, .scale = (float)scale, .floor = (float)floor};
	return op_normalize(j->b->g, x, builder_parameter(j->b, "%s.0.%d.g", n->text, k), params);
}

static value shift(const journey *j, value x, int e)
{
	const stack_options *o = &j->s->options;
	builder *b = j->b;
	int64_t s = o->shift[e], segment = o->max_mem_len ? o->max_seq_len : 0;
	if (!s)
		return x;
	if (b->pool != VALUE_NONE && !j->whole)
		return op_shift_stream(b->g, x, b->pool, b->slot, b->position, b->length, b->mask, b->start, j->front,
		                       (shift_stream_params){s, builder_state(b, "entries.%d.shift", e), segment});
	value mask = o->order[e] == 'f' ? VALUE_NONE : j->in.mask;
	return op_shift_rows(b->g, x, mask, (shift_params){.low = o->causal ? 0 : -s, .high = s});
}

static value feed_forward(const journey *j, value x, const entry_name *n)
{
	const stack_options *o = &j->s->options;
	builder *b = j->b;
	graph *g = b->g;
	char prefix[2 * NAME_BYTES];
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
		x = builder_layernorm(b, x, LAYERNORM_EPS, "%s1", prefix);
	return builder_linear(b, builder_dropout(b, x, (float)o->ff_dropout), "%s3", prefix);
}

/* memory, later: as in attention_rows. */
static value attention(journey *j, value x, value memory, value later, const entry_name *n, int e)
{
	const stack *s = j->s;
	const stack_options *o = &s->options;
	bool cross = o->order[e] == 'c';
	char prefix[2 * NAME_BYTES];
	layer_prefix(prefix, n);
	value self_mask = j->in.key_mask == VALUE_NONE ? j->in.mask : j->in.key_mask;
	attention_rows r = {.x = x,
	                    .memory = cross || j->whole ? VALUE_NONE : memory,
	                    .later = later,
	                    .source = cross ? j->in.source : VALUE_NONE,
	                    .query_mask = j->in.mask,
	                    .key_mask = cross ? j->in.source_mask : self_mask,
	                    .visible = cross ? j->in.source_visible : j->in.visible,
	                    .bias = j->bias,
	                    .back = j->back,
	                    .ahead = j->ahead,
	                    .bias_first = j->bias_first,
	                    .scores = cross ? j->source_scores : j->scores,
	                    .positions = j->positions,
	                    .first = j->first,
	                    .xpos_center = j->xpos_center,
	                    .whole = j->whole,
	                    .memory_rows = j->memory_rows,
	                    .memory_keys = j->memory_keys,
	                    .memory_values = j->memory_values,
	                    .outputs = j->outputs,
	                    .place = cross       ? ATTENTION_TO_SOURCE
	                             : s->logits ? ATTENTION_OF_TOKENS
	                                         : ATTENTION_OF_SOURCE};
	int layer = stack_count(o, o->order[e], e);
	int index = stack_count(o, 'a', e) + stack_count(o, 'c', e);
	value y = attention_forward(j->b, cross ? &s->cross : &s->self, layer, index, prefix, &r);
	j->keys = r.keys;
	j->values = r.values;
	*(cross ? &j->source_scores : &j->scores) = r.scores;
	return y;
}

void stack_store_source(builder *b, const stack *s, value source, value mask)
{
	const stack_options *o = &s->options;
	for (int e = 0; e < o->n_entries; e++) {
		entry_name n = name_of(s, e);
		char prefix[2 * NAME_BYTES];
		layer_prefix(prefix, &n);
		if (o->order[e] == 'c')
			attention_store_source(b, &s->cross, stack_count(o, 'c', e), prefix, source, mask);
	}
}

static value join(const journey *j, value branch, value x, const entry_name *n)
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
			in[i] =
			    op_linear(g, of[i], builder_parameter(b, "%s.2.gru.weight_%s", n->text, i ? "hh" : "ih"),
			              builder_parameter(b, "%s.2.gru.bias_%s", n->text, i ? "hh" : "ih"), 1);
		return op_gru(g, in[0], in[1], x);
	}
	return op_add(g, branch, constant == 1 ? x : op_scale(g, x, (float)constant));
}

/* In training an entry is skipped as a whole, with its probability: x + keep (y - x). */
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

/* Rows of earlier segments for a self-attention: old, those that it attends to, not normalised; the next segment gets
 * the last max_mem_len of these and of its own. */
static value remember(const journey *j, value x, int layer)
{
	const stack_options *o = &j->s->options;
	const forward_spec *spec = j->b->spec;
	graph *g = j->b->g;
	if (!o->max_mem_len || !(spec->memories || spec->carried) || j->whole)
		return VALUE_NONE;
	int64_t earlier = stack_memory(j->s, spec), rows = builder_rows(j->b, x), all = rows + earlier;
	int64_t kept = all < o->max_mem_len ? all : o->max_mem_len;
	int layers = stack_count(o, 'a', o->n_entries), from = (int)((layer + o->shift_mem_down) % layers);
	value old = VALUE_NONE, both = x;
	char name[NAME_BYTES];
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

/* Rows that enter an attention, or entered one in a segment before, as the attention of entry e reads them in a later
 * segment. */
static value read_by_others(const journey *j, value x, int e)
{
	const stack_options *o = &j->s->options;
	const entry_name n = name_of(j->s, e);
	return x != VALUE_NONE && o->pre_norm && !o->raw_memory ? norm(j, x, &n, 0) : x;
}

/* In a session rows x that enter the attention of entry e are read by later segments: returned if by this attention
 * alone; else they are put where others find them, those of the layer `shift` layers below for each segment back. */
static value leave(const journey *j, value x, int e)
{
	const stack *s = j->s;
	const stack_options *o = &s->options;
	const int64_t layers = stack_count(o, 'a', o->n_entries), by = memory_shift(o);
	if (!by)
		return read_by_others(j, x, e);
	const attention_rows place = {.positions = j->positions, .first = j->first, .xpos_center = j->xpos_center};
	for (int64_t back = 1; back <= s->self.earlier; back++) {
		const int64_t layer = (stack_count(o, 'a', e) + (layers - by) * back) % layers;
		int reader = 0;
		while (o->order[reader] != 'a' || stack_count(o, 'a', reader) < layer)
			reader++;
		const entry_name n = name_of(s, reader);
		char prefix[2 * NAME_BYTES];
		layer_prefix(prefix, &n);
		attention_store_earlier(j->b, &s->self, (int)layer, back, prefix, &place, read_by_others(j, x, reader));
	}
	return VALUE_NONE;
}

static value entry(journey *j, value x, int e)
{
	const stack_options *o = &j->s->options;
	entry_name n = name_of(j->s, e);
	builder *b = j->b;
	if (j->outputs && o->order[e] == 'a')
		builder_output(b, x, "%shidden.%d", j->outputs, stack_count(o, 'a', e));
	value memory = VALUE_NONE, later = VALUE_NONE;
	if (o->order[e] == 'a' && b->pool == VALUE_NONE)
		memory = read_by_others(j, remember(j, x, stack_count(o, 'a', e)), e);
	else if (o->order[e] == 'a' && j->s->self.earlier && !j->whole)
		later = leave(j, x, e);
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
	y = join(j, y, x, &n);
	if (norm_behind(o, e))
		y = norm(j, y, &n, 2);
	return skip(j, y, x, e);
}

/* --- the whole
 * ---------------------------------------------------------------------------------------------------------------- */

static journey begin(builder *b, const stack *s, stack_rows rows)
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
	                 .kept = port_find(b->g, PORT_KEPT)};
}

/* The table of position biases, and where the rows stand. */
static void place(journey *j, int64_t rows)
{
	const stack_options *o = &j->s->options;
	int64_t memories = o->attn_num_mem_kv;
	/* Scores depend on no centre, values do: x-transformers' is the middle of what is read. */
	j->xpos_center = (double)((o->rotate_values && rows ? rows : o->max_seq_len) / 2);
	if (j->b->pool != VALUE_NONE) {
		int64_t seen = o->max_seq_len + o->max_mem_len + memories + o->num_memory_tokens;
		j->bias = bias_table(j->b, j->s, 0, seen);
		if (o->rotary_pos_emb)
			j->positions = builder_positions(j->b);
		j->first = o->num_memory_tokens;
		return;
	}
	j->bias_first = o->causal ? 0 : 1 - rows;
	int64_t keys = rows + memories + stack_memory(j->s, j->b->spec);
	j->bias = bias_table(j->b, j->s, j->bias_first, keys - j->bias_first);
	if (j->b->spec->explain && !o->causal) {
		const int64_t tokens = rows - o->num_memory_tokens;
		j->back = bias_table(j->b, j->s, 0, tokens);
		j->ahead = bias_table(j->b, j->s, 1 - tokens, tokens);
	}
}

/* In training: keys that are drawn at random not to be seen, of self-attention and of a source. */
static void hide_some_keys(builder *b, const stack_options *o, stack_rows *rows)
{
	uint32_t site = builder_site(b), source_site = builder_site(b);
	if (b->rng == VALUE_NONE)
		return;
	const forward_spec *spec = b->spec;
	hide_keys_params self = {spec->batch, spec->before + spec->length, 1, 1, o->mask_prob, site};
	hide_keys_params source = {spec->batch, spec->source, 0, 0, o->cross_attn_tokens_dropout, source_site};
	if (o->mask_prob > 0 && rows->key_mask == VALUE_NONE)
		rows->key_mask = op_hide_keys(b->g, b->rng, rows->mask, self);
	if (o->cross_attn_tokens_dropout > 0 && rows->source != VALUE_NONE)
		rows->source_mask = op_hide_keys(b->g, b->rng, rows->source_mask, source);
}

/* Where the last entry is at which rows meet: behind it. */
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
	value x = rows.x, tokens = VALUE_NONE;
	hide_some_keys(b, o, &rows);
	if (memory)
		tokens = f32(b, builder_parameter(b, "%smemory_tokens", s->prefix));
	int64_t in_front = recurrent ? 0 : memory;
	if (in_front) {
		rows.x = x = op_join_rows(g, tokens, x, (join_rows_params){0});
		if (rows.mask != VALUE_NONE)
			rows.mask = op_pad_mask(g, rows.mask, memory, 1);
	}
	const stack_rows source = {VALUE_NONE, VALUE_NONE,  VALUE_NONE,      VALUE_NONE,
	                           VALUE_NONE, rows.source, rows.source_mask};
	journey j = begin(b, s, rows), m = begin(b, s, source);
	j.memory_rows = in_front;
	if (b->spec->activations)
		j.outputs = s->logits ? "" : s->prefix;
	place(&j, recurrent ? 0 : n + memory);
	/* Rows of memory tokens see nothing but each other: in the recurrent form they go through the entries by
	 * themselves, and what later rows see of them are their keys and values. */
	value before = VALUE_NONE;
	if (memory && recurrent) {
		m.whole = true;
		m.bias = j.bias;
		m.xpos_center = j.xpos_center;
		before = op_join_rows(g, tokens, op_fill(g, SHAPE3(1, 0, o->dim), 0), (join_rows_params){0});
	}
	builder_boundary(b);
	int meeting = last_meeting(o);
	for (int e = 0; e < o->n_entries; e++) {
		if (before != VALUE_NONE && e < meeting) {
			before = entry(&m, before, e);
			j.memory_keys = m.keys;
			j.memory_values = m.values;
			j.front = m.unshifted;
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
	if (j.outputs)
		builder_output(b, x, "%slast", j.outputs);
	return s->wrapped && o->final_norm ? layernorm(b, o, x, "%snorm", s->prefix) : x;
}
