#include "engine/model/transformer/stack_private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define UNBIASED_EPS 1e-6f
#define EMBEDDING_FLOOR 1e-12f

value stack_f32(const builder *b, value v)
{
	return b->spec->bf16 ? op_cast(b->g, v, DTYPE_F32) : v;
}

value stack_layernorm(const builder *b, const stack_options *o, value x, const char *format, ...)
{
	char name[STACK_NAME];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	if (!o->use_unbiased_norm)
		return builder_layernorm(b, x, STACK_LAYERNORM_EPS, "%s", name);
	return op_layernorm_unbiased(b->g, x, builder_parameter(b, "%s.weight", name),
	                             builder_parameter(b, "%s.bias", name), UNBIASED_EPS);
}

/* --- tokens to rows ------------------------------------------------------------------------------------------ */

static value unit_rows(const builder *b, value x)
{
	return op_normalize(b->g, x, VALUE_NONE, (normalize_params){.groups = 1, .scale = 1, .floor = EMBEDDING_FLOOR});
}

static void name_words(const stack *s, char out[STACK_NAME])
{
	snprintf(out, STACK_NAME, STACK_TOKENS, s->tied_tokens ? "encoder." : s->prefix);
}

value stack_words(const builder *b, const stack *s)
{
	char words[STACK_NAME];
	name_words(s, words);
	return builder_parameter(b, "%s", words);
}

value stack_embed(builder *b, const stack *s, bool source, value before)
{
	const stack_options *o = &s->options;
	graph *g = b->g;
	char words[STACK_NAME], places[STACK_NAME];
	name_words(s, words);
	snprintf(places, sizeof places, "%spos_emb.emb.weight", s->prefix);
	value x = source ? builder_source_rows(b, PORT_SOURCE, words) : builder_words(b, words, -1);
	if (o->l2norm_embed) {
		if (!source)
			builder_normed_words(b);
		x = unit_rows(b, x);
	}
	if (o->scale_embedding)
		x = op_scale(g, x, (float)sqrt((double)stack_embedding_width(o)));
	if (o->sinusoidal_pos_emb) {
		sinusoids_params params = {stack_embedding_width(o), (sinusoids_form)o->sinusoidal_form};
		x = op_add(g, x, builder_sinusoids(b, source, params));
	}
	if (stack_positions(o)) {
		value p = source ? builder_source_rows(b, PORT_SOURCE_POSITIONS, places) : builder_places(b, places);
		p = o->l2norm_embed ? unit_rows(b, p)
		                    : op_scale(g, p, (float)(1 / sqrt((double)stack_embedding_width(o))));
		x = op_add(g, x, p);
	}
	if (o->post_emb_norm)
		x = stack_layernorm(b, o, x, "%spost_emb_norm", s->prefix);
	if (before != VALUE_NONE)
		x = op_join_rows(g, before, x, (join_rows_params){0});
	if (o->emb_frac_gradient < 1)
		x = op_scale_gradient(g, x, (float)o->emb_frac_gradient);
	x = builder_dropout(b, x, (float)o->emb_dropout);
	return stack_embedding_width(o) == o->dim ? x : builder_linear(b, x, "%sproject_emb", s->prefix);
}

/* --- position biases ------------------------------------------------------------------------------------------- */

value stack_bias_table(builder *b, const stack *s, int64_t first, int64_t count)
{
	const stack_options *o = &s->options;
	graph *g = b->g;
	char prefix[STACK_NAME];
	snprintf(prefix, sizeof prefix, "%srel_pos.", s->entries);
	if (o->rel_pos_bias) {
		t5_buckets_params params = {first, count, o->rel_pos_num_buckets, o->rel_pos_max_distance, !o->causal};
		value rows = op_gather(g, builder_parameter(b, "%srelative_attention_bias.weight", prefix),
		                       op_t5_buckets(g, params), -1);
		return op_scale(g, stack_f32(b, rows), (float)sqrt((double)o->attn_dim_head));
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
			x = builder_layernorm(b, x, STACK_LAYERNORM_EPS, "%smlp.%d.1", prefix, i);
		x = op_activation(g, x, ACTIVATION_RELU);
	}
	return stack_f32(b, builder_linear(b, x, "%smlp.%d", prefix, (int)o->dynamic_pos_bias_mlp_depth));
}
