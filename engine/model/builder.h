/* builder.h - functions shared by architectures and mixers: common parameters, and a forward's inputs, look-ups, layers
 * and heads.
 *
 *   value h = builder_embed(b, "words", 0, "places");
 *   builder_boundary(b);
 *   for (int l = 0; l < layers; l++, builder_boundary(b))
 *       h = layer(b, l, h);          // mixer_additive.forward(b, …), builder_linear(b, x, "layers.%d.inner", l), …
 *   builder_vocabulary(b, h, …);
 *
 * Names are given printf-style and without ".weight" and ".bias". Like the ops, calls chain without tests in between:
 * the graph remembers the first error. */
#ifndef ENGINE_MODEL_BUILDER_H
#define ENGINE_MODEL_BUILDER_H

#include "engine/model/explainer.h"
#include "engine/model/forward.h"
#include "engine/model/parameters.h"
#include "engine/model/states.h"
#include "engine/tensor/ops.h"

/* NAME.weight = 1 and NAME.bias = 0, [d] each. */
void builder_layernorm_parameters(parameter_list *list, int64_t d, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Parameters of an attention: PREFIX followed by k_proj, v_proj, q_proj and out_proj. NAME.weight [d, d] is from N(0,
 * std²), std in this order; with `bias`, NAME.bias = 0 [d]. */
void builder_projection_parameters(parameter_list *list, int64_t d, const double std[4], bool bias, const char *prefix);

typedef struct builder {
	graph *g;
	const forward_spec *spec;
	const state_list *states;
	value mask, rng;        /* VALUE_NONE unless the spec requests it */
	value pool, slot;       /* VALUE_NONE in PHASE_SCORE, except with builder_carry */
	value pool_before;      /* before any token was read; VALUE_NONE unless a gradient needs it */
	value position, length; /* PHASE_STEP, PHASE_READ */
	value started;          /* 0 where the state of attention is empty: PORT_STARTED; without it, the position */
	value start;            /* PHASE_READ */
	value first;            /* [1, D] row before every sequence, for a mixer that reads one */
	/* Values of the forward, or VALUE_NONE: rows of the tables; words less PORT_BASELINE; these times PORT_FACTOR
	 * plus PORT_BASELINE; a row without a token; the row that the head reads. */
	value words, away, scaled, places[2], front, row, logits;
	int n_places;
	value source_words, source_scaled, source_places[2]; /* those of a source */
	int n_source_places;
	attention_place place; /* place of the mixers being appended */
	/* Low-rank adapters (lora.h). spec->adapters: the entry of each row of the linear layers that follow, and the
	 * bank. scale: alpha / rank of an adapter whose matrices are parameters. */
	const parameter_list *parameters; /* those of the base */
	value entry, lora_rank, lora_places, lora_bank;
	float lora_scale;
	bool last_alone; /* rows of tokens that no output reads have been dropped (builder_needed_rows) */
	uint32_t site;   /* next dropout site: a Philox stream */
} builder;

/* Add the inputs that the spec requests and the pool of state slots. The states are borrowed. */
builder builder_begin(graph *g, const forward_spec *spec, const state_list *states);
/* In PHASE_SCORE, give every row of the batch a slot, as in PHASE_STEP, whose content it starts from. */
void builder_carry(builder *b);
/* Return the pool before any token was read, for a gradient; VALUE_NONE: no pool. Call before anything changes the
 * pool. */
value builder_pool_before(builder *b);

/* Return the parameter of this full name, such as "words.weight". */
value builder_parameter(const builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Append x NAME.weightᵀ + NAME.bias; the bias is optional. */
value builder_linear(const builder *b, value x, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Append x Wᵀ for the matrix W of this full name. */
value builder_product(const builder *b, value x, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Append x Wᵀ + bias, which may be VALUE_NONE. All linear layers that can have a low-rank adapter are appended here, or
 * by the two functions above. */
value builder_affine(const builder *b, value x, value bias, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
value builder_layernorm(const builder *b, value x, float eps, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Append the RMS norm of each of `parts` equal parts of a row, x / √(mean(x²) + eps), times the gain [D] of this full
 * name. */
value builder_rms(const builder *b, value x, int64_t parts, double eps, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Return the tokens or rows of each sequence in v [B, N, D]; 0 for VALUE_NONE (after an error). */
int64_t builder_rows(const builder *b, value v);
/* Return the rows before the tokens (FORWARD_ROWS_BEFORE); 0: none. */
int64_t builder_rows_before(const builder *b);
/* Return the next dropout site, whether or not dropout is on. */
uint32_t builder_site(builder *b);
/* Apply dropout with probability p at the next site. */
value builder_dropout(builder *b, value x, float p);
/* Return the offset of a state in a slot, in floats. */
int64_t builder_state(const builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Mark the boundary before the first layer, between layers and after the last. With spec->train.recompute the
 * activations of a layer are not kept for the backward. */
void builder_boundary(const builder *b);
/* Append words[input_ids] and places[position_ids], [B,N,D], from the parameters of these names, and position_ids
 * themselves. Words may be used once, places by each of two stacks. The look-up of row `padding_row` has no gradient
 * (-1: none). */
value builder_words(builder *b, const char *words, int64_t padding_row);
/* Return input_ids [i32] [B,N]. */
value builder_tokens(const builder *b);
/* Use rows [B,N,D] that the graph has computed from input_ids as the word vectors, in place of builder_words. */
value builder_word_rows(builder *b, value rows);
/* Append the rows x of the tokens shifted one row later, after words[start] and without the last: [B,N,D]. May be used
 * once. */
value builder_words_shifted(builder *b, const char *words, int64_t start, int64_t padding_row, value x);
value builder_places(builder *b, const char *places);
value builder_places_of(builder *b, value table);
value builder_positions(builder *b);
/* Append rows of a table for a source: role is PORT_SOURCE or PORT_SOURCE_POSITIONS. [B, S, D]. */
value builder_source_rows(builder *b, port_role role, const char *table);
/* Append op_sinusoids of the positions of the tokens or of a source, in the type of activations. */
value builder_sinusoids(builder *b, bool source, sinusoids_params params);
/* Append scale · words[input_ids] + places[position_ids], [B,N,D], from the parameters of these names; places may be
 * NULL. The look-up of row `padding_row` has no gradient (-1: none). */
value builder_embed(builder *b, const char *words, int64_t padding_row, float scale, const char *places);
/* Call afterwards if only the word vectors enter a norm; explanations need their length then (PORT_WORD_SQUARES). */
void builder_normed_words(const builder *b);
/* Call in the last layer after its mixer, where rows are independent from here on. Returns the rows [B,D] of the last
 * tokens if only their logits are requested, otherwise h. */
value builder_needed_rows(builder *b, value h);
/* A vector, repeated for each row of `like`: a norm whose weight is 0 gives its bias for any row. */
value builder_repeat_row(const builder *b, value vector, value like);
/* Name an activation as an output, converted to f32. */
void builder_output(const builder *b, value v, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Output a part of attention number `layer` of a place for explanations (explainer.h), if the spec requests it. */
void builder_log(const builder *b, attention_place place, int layer, const char *name, value v);
/* Append the outputs that the spec requests, for logits = alpha (h weightᵀ + bias) of each token; bias may be
 * VALUE_NONE. */
void builder_vocabulary(builder *b, value h, value weight, value bias, float alpha);
/* Append the outputs that the spec requests, for the logits of each sequence, out(dropout(tanh(inner(dropout(p))))),
 * where p is the result of `pool` on h. Two dropout sites. */
void builder_classes(builder *b, value h, pooling pool, float dropout, const char *inner, const char *out);

#endif
