#include "engine/model/transformer/transformer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DECODER "decoder.net." /* prefix of its parameters in an encoder-decoder */

const stack *transformer_head(const transformer_config *c)
{
	return c->arrangement == ARRANGED_ENCODER ? &c->encoder : &c->decoder;
}

/* --- configuration ------------------------------------------------------------------------------------- */

static double largest_dropout(const stack_options *o)
{
	double p = fmax(fmax(o->emb_dropout, o->attn_dropout), fmax(o->ff_dropout, o->residual_dropout));
	p = fmax(p, fmax(o->mask_prob, o->cross_attn_tokens_dropout));
	for (int e = 0; e < o->n_entries; e++)
		p = fmax(p, o->skip[e]);
	return p;
}

static void finish_stack(stack *s, const char *prefix, bool logits)
{
	snprintf(s->prefix, sizeof s->prefix, "%s", prefix);
	s->wrapped = true;
	s->logits = logits;
	stack_prepare(s);
}

static void check_both(config_reader *r, transformer_config *c)
{
	const stack_options *e = &c->encoder.options, *d = &c->decoder.options;
	if (e->dim != d->dim)
		config_fail(r, "dim", "dim must be the same of encoder and decoder");
	if (!d->cross_attend)
		config_fail(r, "cross_attend", "cross_attend must be true of the decoder");
	if (e->cross_attend)
		config_fail(r, "cross_attend", "cross_attend must be false of the encoder");
	if (!stack_count(d, 'c', d->n_entries))
		config_fail(r,
		            d->custom          ? "custom_layers"
		            : d->sandwich_coef ? "sandwich_coef"
		                               : "cross_attend",
		            "the decoder has no cross-attention: no layer reads the source");
	if (c->tie_token_emb && (e->num_tokens != d->num_tokens || e->emb_dim != d->emb_dim))
		config_fail(r, "tie_token_emb", "tie_token_emb needs equal num_tokens and emb_dim");
}

/* Feed-forward has no mask, so a shift there mixes padding rows into neighbouring rows. */
static bool shifts_feed_forward(const stack_options *o)
{
	for (int e = 0; e < o->n_entries; e++)
		if (o->order[e] == 'f' && o->shift[e])
			return true;
	return false;
}

/* True if values depend on the number of rows read together: rotated values are scaled from their middle. */
static bool centres_rotation(const stack_options *o)
{
	return o->rotary_xpos && o->rotate_values;
}

/* Return the property for which a decoder with a source has no recurrent form; NULL: it has one. attn_max_attend_past
 * counts from the last token to the last row of the source, so what a token sees depends on later tokens. */
static const char *without_recurrent_form(const transformer_config *c)
{
	const stack_options *o = &c->decoder.options;
	return c->arrangement != ARRANGED_BOTH ? "cross_attend without an encoder"
	       : o->attn_max_attend_past       ? "attn_max_attend_past, and attends to a source"
	                                       : NULL;
}

/* cache_dtype is about the ring of softmax_stream. A stack that needs its score matrix has another ring; an encoder, or
 * a decoder that sessions cannot read, has none. */
static void check_cache(config_reader *r, const stack *s, bool sessions)
{
	const bool ring =
	    sessions && s->options.causal && stack_has_self_attention(s) && !attention_needs_matrix(&s->self);
	if (s->options.cache_dtype != CONFIG_CACHE_F32 && !ring)
		config_fail(r, CONFIG_CACHE,
		            "cache_dtype must be f32: sessions of this stack have no ring of softmax attention");
}

void transformer_finish(config_reader *r, transformer_config *c)
{
	bool both = c->arrangement == ARRANGED_BOTH;
	if (r->status == STATUS_OK && both)
		check_both(r, c);
	if (r->status != STATUS_OK)
		return;
	c->decoder.tied_tokens = both && c->tie_token_emb;
	c->encoder.tied_prefix = c->decoder.tied_tokens ? DECODER : NULL;
	finish_stack(&c->encoder, both ? "encoder." : "", !both);
	c->decoder.source_capacity = both ? c->encoder.options.max_seq_len : 0;
	finish_stack(&c->decoder, both ? DECODER : "", true);
	const stack *head = transformer_head(c);
	const stack_options *o = &head->options;
	model_dims *d = &c->dims;
	d->inputs = d->outputs = o->num_tokens;
	d->hidden = o->dim;
	d->layers = stack_count(o, stack_has_self_attention(head) ? 'a' : 'c', o->n_entries);
	d->other_layers = both ? c->encoder.options.depth : 0;
	d->heads = o->heads;
	d->form = o->cross_attend ? &form_encoder_decoder : o->causal ? &form_causal : &form_masked;
	d->source = both ? c->encoder.options.max_seq_len : 0;
	d->source_inputs = both ? c->encoder.options.num_tokens : 0;
	d->reads_padding = c->arrangement != ARRANGED_DECODER &&
	                   (shifts_feed_forward(&c->encoder.options) || centres_rotation(&c->encoder.options));
	d->parallel_only = stack_parallel_only(head);
	if (!d->parallel_only && o->cross_attend)
		d->parallel_only = without_recurrent_form(c);
	check_cache(r, head, !d->parallel_only);
	if (both)
		check_cache(r, &c->encoder, false);
	d->by_segments = stack_by_segments(head);
	d->positions = stack_length(head);
	d->segment = o->causal && o->max_mem_len ? o->max_seq_len : 0;
	d->period = stack_positions(o) ? d->segment : 0;
	d->dropout = (float)largest_dropout(o);
	if (both)
		d->dropout = (float)fmax((double)d->dropout, largest_dropout(&c->encoder.options));
	d->trained = config_trained(r, o->max_seq_len, d->positions);
	double scalars = stack_parameter_count(head) + (both ? stack_parameter_count(&c->encoder) : 0);
	config_check_parameters(r, scalars < 1e18 ? (int64_t)scalars : INT64_MAX);
}

/* --- components -------------------------------------------------------------------------------------------- */

/* The log of a causal stack is that of sessions, unless the sequence is read again with its source. */
const mixer *transformer_mixer(const void *config, int64_t layer, const void **options)
{
	const transformer_config *c = config;
	const stack *s = transformer_head(c);
	(void)layer;
	const bool self = stack_has_self_attention(s);
	*options = self ? &s->self : &s->cross;
	if (self && attention_logs_matrix(&s->self))
		return s->self.causal && !c->dims.form->source ? &mixer_attention_stepped : &mixer_attention_whole;
	/* Biases are stored by the tokens' positions, which must then be their indices in the sequence. */
	bool hidden = s->self.scoring.biased && s->self.causal && s->self.reach.segment && stack_positions(&s->options);
	return !self || hidden ? &mixer_attention_unexplained : &mixer_attention;
}

bool transformer_source_attention(const void *config, attention_place place, int64_t layer, attention_site *out)
{
	const transformer_config *c = config;
	const bool cross = place == ATTENTION_TO_SOURCE;
	const stack *s = cross ? &c->decoder : &c->encoder;
	const stack_options *o = &s->options;
	if (c->arrangement != ARRANGED_BOTH || layer >= stack_count(o, cross ? 'c' : 'a', o->n_entries))
		return false;
	const attention_options *at = cross ? &s->cross : &s->self;
	const bool whole = attention_logs_matrix(at);
	const explainer *const explainers[] = {&attention_explainer, &attention_whole_explainer,
	                                       &attention_source_explainer, &attention_source_whole_explainer};
	*out = (attention_site){explainers[2 * cross + whole], at, o->heads};
	return true;
}

void transformer_states(const void *config, state_list *list)
{
	stack_states(transformer_head(config), list);
}

void transformer_carried(const void *config, state_list *list)
{
	stack_carried(transformer_head(config), list);
}

void transformer_parameters(const void *config, parameter_list *list)
{
	const transformer_config *c = config;
	if (c->arrangement == ARRANGED_BOTH)
		stack_parameters(&c->encoder, list);
	stack_parameters(transformer_head(c), list);
}

bool transformer_ignores(const char *name)
{
	return parameter_name_ends(name, "rotary_pos_emb.inv_freq") ||
	       parameter_name_ends(name, "rotary_pos_emb.scale") || strcmp(name, "encoder.to_logits.weight") == 0 ||
	       strcmp(name, "encoder.to_logits.bias") == 0;
}

/* --- forward ------------------------------------------------------------------------------------------------- */

/* Return an input that only tests and checkpoints' reference files give; VALUE_NONE: the spec does not list it. */
static value optional_input(const builder *b, const char *name, dtype type, shape s)
{
	return forward_find_input(b->spec, name) ? graph_input(b->g, name, type, s) : VALUE_NONE;
}

/* Return the rows that the decoder attends to. */
static value source_of(builder *b, const transformer_config *c, value mask)
{
	const forward_spec *spec = b->spec;
	const stack_options *o = &c->decoder.options;
	if (c->arrangement == ARRANGED_DECODER && o->cross_attend) {
		value rows = graph_input(b->g, port_name(PORT_SOURCE_ROWS), DTYPE_F32,
		                         SHAPE3(spec->batch, spec->source, o->dim));
		graph_want_gradient(b->g, rows);
		return rows;
	}
	if (c->arrangement != ARRANGED_BOTH || spec->phase == PHASE_STEP || spec->phase == PHASE_READ)
		return VALUE_NONE;
	stack_rows rows = {
	    .x = stack_embed(b, &c->encoder, true, VALUE_NONE),
	    .mask = mask,
	    .key_mask = VALUE_NONE,
	    .visible = optional_input(b, "source_visible", DTYPE_I32,
	                              SHAPE4(spec->batch, c->encoder.options.heads, spec->source, spec->source)),
	    .source_visible = VALUE_NONE,
	    .source = VALUE_NONE,
	    .source_mask = VALUE_NONE};
	builder whole = *b; /* an encoder only has the parallel form */
	whole.pool = VALUE_NONE;
	value encodings = stack_forward(&whole, &c->encoder, rows);
	b->site = whole.site;
	if (spec->out.activations)
		builder_output(b, encodings, "%s", port_name(PORT_ENCODINGS));
	return encodings;
}

void transformer_forward(const void *config, builder *b)
{
	const transformer_config *c = config;
	const stack *s = transformer_head(c);
	const stack_options *o = &s->options;
	const forward_spec *spec = b->spec;
	const int64_t in_front = builder_rows_before(b), rows = in_front + spec->length;
	optional_input(b, STACK_KEPT, DTYPE_F32, SHAPE3(1, o->n_entries, 1));
	const shape source = SHAPE2(spec->batch, spec->source);
	value source_mask =
	    spec->source_masked ? graph_input(b->g, port_name(PORT_SOURCE_MASK), DTYPE_I32, source) : VALUE_NONE;
	value source_kept = optional_input(b, "source_kept", DTYPE_I32, source);
	if (spec->phase == PHASE_ENCODE) {
		stack_store_source(b, s, source_of(b, c, source_mask), source_mask);
		return;
	}
	stack_rows in = {
	    .mask = b->mask,
	    .key_mask = optional_input(b, "key_mask", DTYPE_I32, SHAPE2(spec->batch, rows)),
	    .visible = optional_input(b, "visible", DTYPE_I32, SHAPE4(spec->batch, o->heads, rows, rows)),
	    .source_visible =
	        optional_input(b, "cross_visible", DTYPE_I32, SHAPE4(spec->batch, o->heads, rows, spec->source)),
	    .source = source_of(b, c, source_mask),
	    .source_mask = source_kept != VALUE_NONE ? source_kept : source_mask,
	};
	if (spec->train.carried)
		in.key_mask = graph_input(b->g, port_name(PORT_MEMORY_MASK), DTYPE_I32,
		                          SHAPE2(spec->batch, stack_memory(s, spec) + o->num_memory_tokens + rows));
	value before = optional_input(b, FORWARD_ROWS_BEFORE, DTYPE_F32, SHAPE3(spec->batch, in_front, o->dim));
	in.x = stack_embed(b, s, false, before);
	value h = stack_forward(b, s, in);
	if (spec->out.activations)
		builder_output(b, h, "embeddings");
	value weight = o->tie_embedding ? stack_words(b, s) : builder_parameter(b, "%sto_logits.weight", s->prefix);
	value bias = o->tie_embedding ? VALUE_NONE : builder_parameter(b, "%sto_logits.bias", s->prefix);
	builder_vocabulary(b, h, weight, bias, 1);
}
