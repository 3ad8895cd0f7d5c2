#include "engine/model/transformer/stack_private.h"

#include <math.h>
#include <stdio.h>

static void stack_parameters_linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, bool bias,
                                               const char *prefix, const char *name)
{
	parameter_list_add_matrix(list, (float)stack_std(std, k), n, k, false, "%s%s.weight", prefix, name);
	if (bias)
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s.bias", prefix, name);
}

static void norm_parameters(const stack_options *o, parameter_list *list, const stack_entry_name *n, int k)
{
	if (o->use_rmsnorm)
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(o->dim), "%s.0.%d.g", n->text, k);
	else if (o->use_scalenorm)
		parameter_list_add(list, INIT_CONSTANT, (float)sqrt(o->compat ? 1 / (double)o->dim : (double)o->dim),
		                   SHAPE1(1), "%s.0.%d.g", n->text, k);
	else
		builder_layernorm_parameters(list, o->dim, "%s.0.%d", n->text, k);
}

static void feed_forward_parameters(const stack_options *o, parameter_list *list, const stack_entry_name *n)
{
	char prefix[2 * STACK_NAME];
	int64_t inner = stack_inner_width(o);
	double gain = stack_deep_gain(o);
	snprintf(prefix, sizeof prefix, "%s.1%s.ff.", n->text, n->wrappers);
	if (o->ff_glu)
		stack_parameters_linear_parameters(list, stack_deep_std(o, 2 * inner, o->dim, gain), 2 * inner, o->dim,
		                                   true, prefix, "0.proj");
	else
		stack_parameters_linear_parameters(list, stack_deep_std(o, inner, o->dim, gain), inner, o->dim,
		                                   !o->ff_no_bias, prefix, "0.0");
	if (o->ff_post_act_ln)
		builder_layernorm_parameters(list, inner, "%s1", prefix);
	bool zero = o->ff_zero_init_output || o->zero_init_branch_output;
	if (zero) {
		parameter_list_add_matrix(list, 0, o->dim, inner, false, "%s3.weight", prefix);
		if (!o->ff_no_bias)
			parameter_list_add(list, INIT_ZERO, 0, SHAPE1(o->dim), "%s3.bias", prefix);
	} else {
		stack_parameters_linear_parameters(list, stack_deep_std(o, o->dim, inner, gain), o->dim, inner,
		                                   !o->ff_no_bias, prefix, "3");
	}
}

static void joiner_parameters(const stack_options *o, parameter_list *list, const stack_entry_name *n)
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

static void entry_parameters(const stack *s, parameter_list *list, int e)
{
	const stack_options *o = &s->options;
	stack_entry_name n = stack_entry_name_of(s, e);
	char prefix[2 * STACK_NAME];
	if (o->pre_norm)
		norm_parameters(o, list, &n, 0);
	if (o->sandwich_norm)
		norm_parameters(o, list, &n, 1);
	if (stack_norm_after(o, e))
		norm_parameters(o, list, &n, 2);
	stack_layer_prefix(prefix, &n);
	if (o->order[e] == 'f')
		feed_forward_parameters(o, list, &n);
	else
		mixer_attention.parameters(o->order[e] == 'c' ? &s->cross : &s->self, prefix, list);
	joiner_parameters(o, list, &n);
}

static void bias_parameters(const stack *s, parameter_list *list)
{
	const stack_options *o = &s->options;
	char prefix[STACK_NAME];
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
	char name[STACK_NAME];
	for (int i = 0; i <= o->dynamic_pos_bias_mlp_depth; i++) {
		bool last = i == o->dynamic_pos_bias_mlp_depth;
		snprintf(name, sizeof name, last ? "mlp.%d" : "mlp.%d.0", i);
		stack_parameters_linear_parameters(list, 0, last ? o->heads : width, i ? width : 1, true, prefix, name);
		if (!last && o->dynamic_pos_bias_norm)
			builder_layernorm_parameters(list, width, "%smlp.%d.1", prefix, i);
	}
}

static void wrapper_parameters(const stack *s, parameter_list *list)
{
	const stack_options *o = &s->options;
	int64_t width = stack_embedding_width(o);
	double std = o->l2norm_embed ? 1e-5 : sqrt(2 / (double)width);
	if (!s->tied_tokens) {
		parameter_list_add_matrix(list, (float)std, o->num_tokens, width, false, STACK_TOKENS, s->prefix);
		parameter_list_by_row(list);
	}
	if (s->tied_prefix) {
		char name[STACK_NAME];
		snprintf(name, sizeof name, STACK_TOKENS, s->tied_prefix);
		parameter_list_alias(list, name, o->compat);
	}
	if (stack_positions(o))
		parameter_list_add(list, INIT_NORMAL, o->l2norm_embed ? 1e-5f : 1, SHAPE2(o->max_seq_len, width),
		                   "%spos_emb.emb.weight", s->prefix);
	if (o->post_emb_norm)
		builder_layernorm_parameters(list, width, "%spost_emb_norm", s->prefix);
	if (width != o->dim)
		stack_parameters_linear_parameters(list, 0, o->dim, width, true, s->prefix, "project_emb");
	if (o->num_memory_tokens)
		parameter_list_add(list, INIT_NORMAL, 1, SHAPE2(o->num_memory_tokens, o->dim), "%smemory_tokens",
		                   s->prefix);
}

/* Draw matrices and tables from `first` on from a uniform distribution (Glorot and Bengio 2010), except those that
 * start as zeros. */
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
	if (s->logits && !o->tie_embedding) {
		stack_parameters_linear_parameters(list, 0, o->num_tokens, o->dim, false, s->prefix, "to_logits");
		parameter_list_head(list);
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(o->num_tokens), "%sto_logits.bias", s->prefix);
	}
	if (o->xavier_init)
		draw_xavier(list, first);
}

double stack_parameter_count(const stack *s)
{
	const stack_options *o = &s->options;
	double d = (double)o->dim, heads = (double)o->heads, inner = (double)stack_inner_width(o);
	double keys = heads * (double)o->attn_dim_head, values = heads * (double)stack_value_width(o);
	double attention = d * (2 * keys + 6 * values), feed_forward = d * inner * (o->ff_glu ? 3 : 2);
	double entries = (double)o->n_entries, rows = (double)(o->num_tokens + o->max_seq_len);
	return rows * d * 2 + entries * (attention + feed_forward + (o->gate_residual ? 6 * d * d : 0));
}
