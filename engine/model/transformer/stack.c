#include "engine/model/transformer/stack_private.h"

#include <math.h>
#include <stdio.h>

/* --- names -------------------------------------------------------------------------------------------------- */

stack_entry_name stack_entry_name_of(const stack *s, int e)
{
	const stack_options *o = &s->options;
	stack_entry_name n = {.wrappers = ""};
	snprintf(n.text, sizeof n.text, "%slayers.%d", s->entries, stack_entry_parameters(o, e));
	snprintf(n.wrappers, sizeof n.wrappers, "%s%s", o->shift[e] ? ".fn" : "",
	         o->macaron && o->order[e] == 'f' ? ".fn" : "");
	return n;
}

void stack_layer_prefix(char out[2 * STACK_NAME], const stack_entry_name *n)
{
	snprintf(out, 2 * STACK_NAME, "%s.1%s.", n->text, n->wrappers);
}

/* --- values derived from the options -------------------------------------------------------------------- */

double stack_deep_std(const stack_options *o, int64_t n, int64_t k, double gain)
{
	return o->deepnorm ? gain * sqrt(2 / (double)(n + k)) : 0;
}

double stack_std(double given, int64_t inputs)
{
	return given > 0 ? given : 1 / sqrt(3 * (double)inputs);
}

double stack_deep_gain(const stack_options *o)
{
	return pow(8 * (double)o->depth, -0.25);
}

int64_t stack_memory_shift(const stack_options *o)
{
	const int layers = stack_count(o, 'a', o->n_entries);
	return o->max_mem_len && layers ? o->shift_mem_down % layers : 0;
}

/* A segment computes the keys and values of earlier segments from rows that are not shifted and, with raw_memory, not
 * normalised; with shift_mem_down, from rows of another layer for each segment back. */
static int64_t earlier_states(const stack_options *o)
{
	bool shifted = false;
	for (int e = 0; e < o->n_entries; e++)
		shifted |= o->order[e] == 'a' && o->shift[e] > 0;
	if (stack_memory_shift(o))
		return (o->max_mem_len + stack_segment(o) - 1) / stack_segment(o);
	return o->max_mem_len && ((o->raw_memory && o->pre_norm) || shifted);
}

static const attention_layout x_transformers_attention = {
    .names = {"to_q", "to_k", "to_v", "to_out"},
    .order = {ATTENTION_QUERY, ATTENTION_KEY, ATTENTION_VALUE},
};

static attention_options attention_of(const stack *s, bool cross)
{
	const stack_options *o = &s->options;
	const int64_t values = stack_value_width(o), merged = o->heads * values;
	const bool zero_output = o->attn_zero_init_output || o->zero_init_branch_output;
	const double output = stack_deep_std(o, merged, o->dim, stack_deep_gain(o));
	return (attention_options){
	    .layout = &x_transformers_attention,
	    .hidden = o->dim,
	    .heads = o->heads,
	    .kv_heads = o->attn_one_kv_head ? 1
	                : o->attn_kv_heads  ? o->attn_kv_heads
	                                    : o->heads,
	    .key_width = o->attn_dim_head,
	    .value_width = values,
	    .causal = o->causal && !cross,
	    .cross = cross,
	    .shared = o->attn_shared_kv,
	    .std = {.query = stack_std(stack_deep_std(o, o->heads * o->attn_dim_head, o->dim, 1), o->dim),
	            .value = stack_std(output, o->dim),
	            .output = zero_output ? 0 : stack_std(output, merged)},
	    .reach = {.past = o->attn_max_attend_past,
	              .capacity = cross ? s->source_capacity : o->max_seq_len + o->max_mem_len + stack_segment_front(o),
	              .segment = cross ? 0 : stack_segment(o),
	              .front = cross ? 0 : stack_segment_front(o),
	              .earlier = cross ? 0 : earlier_states(o),
	              .bf16 = !cross && o->cache_dtype == CONFIG_CACHE_BF16},
	    .memories = {.count = o->attn_num_mem_kv,
	                 .tokens = cross ? 0 : o->num_memory_tokens,
	                 .read_source = !cross && stack_memory_reads_source(o)},
	    .scoring = {.scale = o->attn_qk_norm ? o->attn_qk_norm_scale : 1 / sqrt((double)o->attn_dim_head),
	                .dropout = o->attn_dropout,
	                .norm_groups = o->attn_qk_norm ? o->attn_qk_norm_groups : 0,
	                .top_k = o->attn_sparse_topk,
	                .biased = !cross && (o->rel_pos_bias || o->alibi_pos_bias || o->dynamic_pos_bias),
	                .talking = o->attn_talking_heads,
	                .residual = cross ? o->cross_residual_attn : o->residual_attn,
	                .attend_when_hidden = o->attend_when_hidden},
	    .rotation = {.width = cross ? 0 : stack_rotary_width(o),
	                 .values = o->rotate_values,
	                 .xpos_base = o->rotary_xpos ? o->rotary_xpos_scale_base : 0},
	    .output = {.on_attention = o->attn_on_attn,
	               .gated = o->attn_gate_values,
	               .scaled = o->attn_head_scale,
	               .tensor_product = o->attn_tensor_product,
	               .zero_masked_rows = o->zero_masked_rows},
	};
}

/* ln 2^(-8 (h + 1) / A) if A is a power of two; otherwise those of the next lower power, followed by every other one of
 * twice that. */
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

/* Rotated keys whose channels are normalised in groups differ in each segment that reads them: a rotation preserves the
 * norm of a head, but not that of a group. */
const char *stack_parallel_only(const stack *s)
{
	const stack_options *o = &s->options;
	return o->max_mem_len && o->rotary_pos_emb && o->attn_qk_norm && o->attn_qk_norm_groups > 1
	           ? "max_mem_len with rotary_pos_emb and attn_qk_norm_groups"
	           : NULL;
}

bool stack_by_segments(const stack *s)
{
	return stack_memory_shift(&s->options) > 0 || stack_segment_front(&s->options) > 0;
}

int64_t stack_length(const stack *s)
{
	const stack_options *o = &s->options;
	if (o->max_mem_len && o->causal)
		return stack_parallel_only(s)   ? o->max_seq_len
		       : stack_segment_front(o) ? INT32_MAX / stack_segment(o) * o->max_seq_len /* numbers of rows */
		                                : MODEL_UNBOUNDED;
	bool relative = !stack_positions(o) && !o->num_memory_tokens && !o->attn_num_mem_kv && !o->rotary_xpos &&
	                !(o->rotary_pos_emb && o->rotate_values);
	return relative && o->causal ? MODEL_UNBOUNDED : o->max_seq_len;
}

/* --- state ----------------------------------------------------------------------------------------------------- */

void stack_states(const stack *s, state_list *list)
{
	const stack_options *o = &s->options;
	for (int l = 0; l < stack_count(o, 'c', o->n_entries) && stack_has_self_attention(s); l++)
		mixer_attention.states(&s->cross, l, list);
	for (int e = 0; e < o->n_entries && o->causal; e++) {
		if (!o->shift[e])
			continue;
		state_list_add(list, STATE_CACHE, shift_state_floats(o->dim, o->shift[e]), "entries.%d.shift", e);
		if (stack_memory_reads_source(o))
			state_list_add(list, STATE_SOURCE, source_state_floats(o->dim, 0, stack_front_rows(o, e)),
			               STACK_FRONT, e);
	}
}

/* The rows of memory tokens of a block are among those that it passes on. Not with keys hidden at random, which have a
 * mask for the block alone. */
void stack_carried(const stack *s, state_list *list)
{
	const stack_options *o = &s->options;
	bool carries = o->max_mem_len > 0 && !(o->mask_prob > 0);
	for (int l = 0; l < stack_count(o, 'a', o->n_entries) && carries; l++)
		state_list_add(list, STATE_CARRIED, o->max_mem_len * o->dim, "memory.%d", l);
}

int64_t stack_memory(const stack *s, const forward_spec *spec)
{
	const forward_input *memory = forward_find_input(spec, STACK_MEMORY);
	return spec->train.carried ? s->options.max_mem_len : memory ? memory->rows : 0;
}
