/* builder.h - what architectures and mixers share: their usual parameters, and a forward's inputs, look-ups, layers and
 * heads.
 *
 *   value h = builder_embed(b, "words", 0, "places");
 *   builder_boundary(b);
 *   for (int l = 0; l < layers; l++, builder_boundary(b))
 *       h = layer(b, l, h);          // mixer_additive.forward(b, …), builder_linear(b, x, "layers.%d.inner", l), …
 *   builder_vocabulary(b, h, …);
 *
 * Names are given printf-style and without ".weight" and ".bias". Like the ops, everything
 * chains without tests in between: the graph remembers the first error. */
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

/* Of an attention, PREFIX followed by k_proj, v_proj, q_proj and out_proj: NAME.weight [d, d] from N(0, std²), std in
 * this order, and with `bias` NAME.bias = 0 [d]. */
void builder_projection_parameters(parameter_list *list, int64_t d, const double std[4], bool bias, const char *prefix);

typedef struct builder {
	graph *g;
	const forward_spec *spec;
	const state_list *states;
	value mask, rng;        /* VALUE_NONE unless the spec asks */
	value pool, slot;       /* VALUE_NONE in PHASE_SCORE, but with builder_carry */
	value pool_before;      /* as it was before the tokens, once a gradient has asked for it */
	value position, length; /* PHASE_STEP, PHASE_READ */
	value start;            /* PHASE_READ */
	value first;            /* [1, D]: what stands in front of every sequence, for a mixer that reads such a row */
	/* Of the forward, or VALUE_NONE: rows of the tables, words times PORT_FACTOR, a row that is no token's, what
	 * the head reads. */
	value words, scaled, places[2], front, row, logits;
	int n_places;
	value source_words, source_scaled, source_places[2]; /* the same of a source */
	int n_source_places;
	attention_place place; /* of the mixers that are appended */
	bool last_alone;       /* rows of tokens that no output reads are gone: builder_needed_rows */
	uint32_t site;         /* next dropout site: a Philox stream */
} builder;

/* Adds the inputs that the spec asks for, and the pool of slots that hold the states. The states must stay. */
builder builder_begin(graph *g, const forward_spec *spec, const state_list *states);
/* In PHASE_SCORE: every row of the batch has a slot, as in PHASE_STEP, and begins with what it holds. */
void builder_carry(builder *b);
/* The pool before any token was read, for a gradient; VALUE_NONE: there is none. To be asked for before anything
 * changes the pool. */
value builder_pool_before(builder *b);

value builder_parameter(const builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* x NAME.weightᵀ + NAME.bias, if there is a bias. */
value builder_linear(const builder *b, value x, const char *format, ...) __attribute__((format(printf, 3, 4)));
value builder_layernorm(const builder *b, value x, float eps, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Tokens or rows of each sequence in v [B, N, D]; 0 of VALUE_NONE, after an error. */
int64_t builder_rows(const builder *b, value v);
/* The next dropout site, whether or not dropout is on; and dropout there. */
uint32_t builder_site(builder *b);
value builder_dropout(builder *b, value x, float p);
/* Where a state begins in a slot, in floats. */
int64_t builder_state(const builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Before the first layer, between layers and after the last: with spec->recompute, what a layer computes is not kept
 * for the backward. */
void builder_boundary(const builder *b);
/* words[input_ids] and places[position_ids], [B,N,D], from the parameters of these names; position_ids themselves.
 * Words may be asked for once, places by each of two stacks. The look-up of row `padding_row` has no gradient (-1: none
 * is like that). */
value builder_words(builder *b, const char *words, int64_t padding_row);
/* The same of a table that the graph makes. */
value builder_words_of(builder *b, value table, int64_t padding_row);
/* input_ids [i32] [B,N]; and, in place of builder_words_of, rows [B,N,D] that the graph has made of them. */
value builder_tokens(const builder *b);
value builder_word_rows(builder *b, value rows);
/* The rows x of the tokens one row later, behind words[start] and without the last: [B,N,D]. Once. */
value builder_words_behind(builder *b, const char *words, int64_t start, int64_t padding_row, value x);
value builder_places(builder *b, const char *places);
value builder_places_of(builder *b, value table);
value builder_positions(builder *b);
/* Rows of a table for a source: role is PORT_SOURCE or PORT_SOURCE_POSITIONS. [B, S, D]. */
value builder_source_rows(builder *b, port_role role, const char *table);
/* op_sinusoids of the tokens' positions, or of a source's, in the type of activations. */
value builder_sinusoids(builder *b, bool source, sinusoids_params params);
/* scale · words[input_ids] + places[position_ids], [B,N,D], from the parameters of these names; places may be NULL. The
 * look-up of row `padding_row` has no gradient (-1: none is like that). */
value builder_embed(builder *b, const char *words, int64_t padding_row, float scale, const char *places);
/* Behind it where the word vectors alone go into a norm: how long they are matters to explanations (PORT_WORD_SQUARES).
 */
void builder_normed_words(const builder *b);
/* In the last layer, behind its mixer: from here on rows do not meet. Where the logits of the last tokens are all that
 * is wanted, their rows [B,D], else h. */
value builder_needed_rows(builder *b, value h);
/* Name an activation as an output, as f32. */
void builder_output(const builder *b, value v, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* What attention number `layer` of a place gives to explanations (explainer.h), where the spec asks for it. */
void builder_log(const builder *b, attention_place place, int layer, const char *name, value v);
/* The outputs that the spec asks for, of logits = alpha (h weightᵀ + bias) for each token; bias may be VALUE_NONE. */
void builder_vocabulary(builder *b, value h, value weight, value bias, float alpha);
/* The outputs that the spec asks for, for each sequence, of logits = out(dropout(tanh(inner(dropout(p))))) with p what
 * `pool` makes of h: two dropout sites. */
void builder_classes(builder *b, value h, pooling pool, float dropout, const char *inner, const char *out);

#endif
