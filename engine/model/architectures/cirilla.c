/* cirilla.c - checkpoints of Cirilla's encoder-decoder for text infilling (its Transformer_from_scratch): a transformer
 * with sinusoidal positions, norms by the unbiased deviation, no biases in attention, and its own tensor names.
 *
 *   {"model_type": "cirilla", "vocab": 30000, "max_len": 320, "d_model": 512, "heads": 8, "enc_layers": 3,
 *    "dec_layers": 3, "d_ff": 2048, "norm": "pre" | "post", "ln_kind": "std_unbiased" | "variance",
 *    "pe_form": "exp" | "pow" | "exact", "dropout": 0.1, "attn_dropout": 0.1}
 *
 * "norm": "post" has no norms after the stacks. "ln_kind": "variance" is the usual layer norm, with eps 1e-5. The
 * checkpoints' tables of positions ("….pe") are skipped, because they are computed. */
#include <stdio.h>
#include <string.h>

#include "engine/model/transformer/transformer.h"

enum { NAME_BYTES = sizeof(((parameter_spec *)NULL)->alias) };

static const char *const norms[] = {"pre", "post", NULL}, *const kinds[] = {"std_unbiased", "variance", NULL},
                         *const forms[] = {"exp", "pow", "exact", NULL};

/* --- configuration --------------------------------------------------------------------------------------- */

/* Build a stack's options from the configuration. ff_mult is half a row too large, so that rounding removes none. */
static json_t *stack_of(const config_reader *r, int64_t d, int64_t depth, bool decoder)
{
	config_reader k = *r;
	int64_t heads = config_integer(&k, "heads", 8, 1, d);
	double dropout = config_number(&k, "dropout", 0.1, 0, 0.999);
	int post = config_choice(&k, "norm", norms), variance = config_choice(&k, "ln_kind", kinds);
	return json_pack(
	    "{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:b, s:s, s:b, s:b, s:b, s:b, s:b, s:b, s:f, s:f, "
	    "s:f, s:f}",
	    "num_tokens", (json_int_t)config_integer(&k, "vocab", 30000, 1, TRANSFORMER_MAX_ROWS), "max_seq_len",
	    (json_int_t)config_integer(&k, "max_len", 320, 2, TRANSFORMER_MAX_ROWS), "dim", (json_int_t)d, "depth",
	    (json_int_t)depth, "heads", (json_int_t)heads, "attn_dim_head", (json_int_t)(d / heads), "ff_mult",
	    ((double)config_integer(&k, "d_ff", 2048, 1, TRANSFORMER_MAX_WIDTH) + 0.5) / (double)d, "cross_attend",
	    decoder, "sinusoidal_pos_emb", 1, "sinusoidal_form", forms[config_choice(&k, "pe_form", forms)],
	    "scale_embedding", 1, "use_unbiased_norm", !variance, "pre_norm", !post, "final_norm", !post, "ff_relu", 1,
	    "xavier_init", 1, "emb_dropout", dropout, "residual_dropout", dropout, "ff_dropout", dropout,
	    "attn_dropout", config_number(&k, "attn_dropout", 0.1, 0, 0.999));
}

/* Read every key once, to report the first error. */
static void cirilla_check(config_reader *r, int64_t d)
{
	config_integer(r, "vocab", 30000, 1, TRANSFORMER_MAX_ROWS);
	config_integer(r, "max_len", 320, 2, TRANSFORMER_MAX_ROWS);
	config_integer(r, "d_ff", 2048, 1, TRANSFORMER_MAX_WIDTH);
	config_number(r, "dropout", 0.1, 0, 0.999);
	config_number(r, "attn_dropout", 0.1, 0, 0.999);
	config_choice(r, "norm", norms);
	config_choice(r, "ln_kind", kinds);
	config_choice(r, "pe_form", forms);
	if (r->status == STATUS_OK && d % config_integer(r, "heads", 8, 1, d) != 0)
		config_fail(r, "heads", "heads must divide d_model");
}

static status cirilla_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {"vocab",      "max_len",      "d_model", "heads",   "enc_layers",
	                                   "dec_layers", "d_ff",         "norm",    "ln_kind", "pe_form",
	                                   "dropout",    "attn_dropout", NULL};
	config_reader r = config_begin(json, &architecture_cirilla, keys, err);
	int64_t d = config_integer(&r, "d_model", 512, 2, TRANSFORMER_MAX_WIDTH);
	int64_t layers[2] = {config_integer(&r, "enc_layers", 3, 1, ARCHITECTURE_MAX_LAYERS),
	                     config_integer(&r, "dec_layers", 3, 1, ARCHITECTURE_MAX_LAYERS)};
	cirilla_check(&r, d);
	if (r.status != STATUS_OK)
		return r.status;
	json_t *own = json_pack("{s:s, s:o, s:o}", "stack", "encoder_decoder", "encoder",
	                        stack_of(&r, d, layers[0], false), "decoder", stack_of(&r, d, layers[1], true));
	json_t *trained = json_object_get(json, CONFIG_TRAINED);
	status s = STATUS_NOMEM;
	if (own && (!trained || json_object_set(own, CONFIG_TRAINED, trained) == 0))
		s = architecture_transformer.config_read(config, own, err);
	else
		error_set(err, STATUS_NOMEM, NULL, "out of memory");
	json_decref(own);
	return s;
}

/* Both stacks have the same number of positions. */
static bool cirilla_complete(json_t *json, const model_size *size)
{
	model_size both = *size;
	if (size->source > size->positions)
		both.positions = size->source;
	return config_set_size(json, "d_model", size->hidden) && config_set_size(json, "heads", size->heads) &&
	       config_set_size(json, "enc_layers", size->layers) && config_set_size(json, "dec_layers", size->layers) &&
	       config_set_size(json, "d_ff", 4 * json_integer_value(json_object_get(json, "d_model"))) &&
	       config_set_size(json, "vocab", size->inputs) && config_set_positions(json, "max_len", &both) &&
	       config_set_dropout(json, "dropout", size->dropout) &&
	       config_set_dropout(json, "attn_dropout", size->dropout);
}

static json_t *cirilla_write_config(const void *config)
{
	static const char *const of_transformer[] = {"exact", "exp", "pow"};
	const transformer_config *c = config;
	const stack_options *e = &c->encoder.options, *d = &c->decoder.options;
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:f, s:f}", "model_type",
	                 architecture_cirilla.model_type, CONFIG_TRAINED, (json_int_t)c->dims.trained, "vocab",
	                 (json_int_t)d->num_tokens, "max_len", (json_int_t)d->max_seq_len, "d_model",
	                 (json_int_t)d->dim, "heads", (json_int_t)d->heads, "enc_layers", (json_int_t)e->depth,
	                 "dec_layers", (json_int_t)d->depth, "d_ff", (json_int_t)((double)d->dim * d->ff_mult), "norm",
	                 norms[!d->pre_norm], "ln_kind", kinds[!d->use_unbiased_norm], "pe_form",
	                 of_transformer[d->sinusoidal_form], "dropout", d->emb_dropout, "attn_dropout",
	                 d->attn_dropout);
}

/* --- names --------------------------------------------------------------------------------------------------- */

/* Suffixes of the names of an entry and of a block. %d: number of the entry in its block, from 1. */
static const struct {
	char kind; /* kind of the entry; 0: any */
	const char *own, *theirs;
} tails[] = {
    {0, "0.0.weight", "add_and_norm%d.norm.gamma"},      {0, "0.0.bias", "add_and_norm%d.norm.beta"},
    {0, "0.2.weight", "add_and_norm%d.norm.gamma"},      {0, "0.2.bias", "add_and_norm%d.norm.beta"},
    {'a', "1.to_q.weight", "self_attention.wq.weight"},  {'a', "1.to_k.weight", "self_attention.wk.weight"},
    {'a', "1.to_v.weight", "self_attention.wv.weight"},  {'a', "1.to_out.weight", "self_attention.wout.weight"},
    {'c', "1.to_q.weight", "cross_attention.wq.weight"}, {'c', "1.to_k.weight", "cross_attention.wk.weight"},
    {'c', "1.to_v.weight", "cross_attention.wv.weight"}, {'c', "1.to_out.weight", "cross_attention.wout.weight"},
    {'f', "1.ff.0.0.weight", "feed_forward.w1.weight"},  {'f', "1.ff.0.0.bias", "feed_forward.w1.bias"},
    {'f', "1.ff.3.weight", "feed_forward.w2.weight"},    {'f', "1.ff.3.bias", "feed_forward.w2.bias"},
};

/* Names outside the entries. %s: "enc" or "dec". */
static const struct {
	const char *own, *theirs;
} others[] = {
    {"token_emb.emb.weight", "input_emb_%s.positional_embeddings.weight"},
    {"norm.weight", "%s_norm.gamma"},
    {"norm.bias", "%s_norm.beta"},
    {"to_logits.weight", "linear.linear.weight"},
    {"to_logits.bias", "linear.linear.bias"},
};

/* Write the checkpoint's name of a parameter; "": it has none. */
static void their_name(const char *name, const transformer_config *c, char out[NAME_BYTES])
{
	bool decoder = strncmp(name, c->decoder.prefix, strlen(c->decoder.prefix)) == 0;
	const stack *s = decoder ? &c->decoder : &c->encoder;
	const char *rest = name + strlen(s->prefix);
	int entry, n = 0, each = decoder ? 3 : 2;
	out[0] = '\0';
	if (sscanf(rest, "attn_layers.layers.%d.%n", &entry, &n) == 1 && n > 0) {
		for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
			if ((tails[i].kind && tails[i].kind != s->options.order[entry]) ||
			    strcmp(rest + n, tails[i].own) != 0)
				continue;
			int at =
			    snprintf(out, NAME_BYTES, "%s_blocks.%d.", decoder ? "decoder" : "encoder", entry / each);
			snprintf(out + at, (size_t)(NAME_BYTES - at), tails[i].theirs, entry % each + 1);
		}
		return;
	}
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (strcmp(rest, others[i].own) == 0)
			snprintf(out, NAME_BYTES, others[i].theirs, decoder ? "dec" : "enc");
}

static void cirilla_parameters(const void *config, parameter_list *list)
{
	transformer_parameters(config, list);
	for (parameter_spec *p = list->items; p < list->items + list->count; p++) {
		their_name(p->name, config, p->alias);
		p->written = WRITE_ALIAS;
	}
}

static bool ignores(const char *name)
{
	return strstr(name, "pos_enc_") && parameter_name_ends(name, ".pe");
}

const architecture architecture_cirilla = {
    .name = "cirilla",
    .model_type = "cirilla",
    .config_bytes = sizeof(transformer_config),
    .config_read = cirilla_read_config,
    .complete = cirilla_complete,
    .config_write = cirilla_write_config,
    .parameters = cirilla_parameters,
    .ignores = ignores,
    .mixer = transformer_mixer,
    .source_attention = transformer_source_attention,
    .states = transformer_states,
    .forward = transformer_forward,
};
