/* stack.h - a stack of entries with what stands before and behind it: its parameters, what a session keeps, its rows.
 *
 *   stack_prepare(&s);                        once its options have been read
 *   stack_parameters(&s, list);
 *   value h = stack_embed(b, &s, …);          tokens to rows, memory tokens in front
 *   h = stack_forward(b, &s, &rows);          through the entries and the last norm
 *
 * Each entry:   y = norm(x);  o = layer(y);  x = join(o, x)        with pre_norm
 *               o = layer(x);  x = norm(join(o, x))                 without
 * and the names of parameters are those of x-transformers: PREFIX "attn_layers.layers.E.0.K" norms, ".E.1" the layer,
 * ".E.2" the joiner. Names of outputs (spec.activations): "PREFIXhidden.L" the rows that enter self-attention L,
 * "PREFIXbranch.E" what the layer of entry E gives, "PREFIXlast" the rows before the last norm, and those of
 * mixers/attention.c. */
#ifndef ENGINE_MODEL_TRANSFORMER_STACK_H
#define ENGINE_MODEL_TRANSFORMER_STACK_H

#include "engine/model/mixers/mixer.h"
#include "engine/model/transformer/options.h"

enum { STACK_PREFIX = 32, STACK_MAX_HEADS = 1024 };

typedef struct stack {
	stack_options options;
	char prefix[STACK_PREFIX]; /* of its parameters: "", "encoder." */
	bool wrapped;              /* tokens go in, and a last norm stands behind it */
	bool logits;               /* its rows become logits */
	bool tied_tokens;          /* its word vectors are the encoder's */
	const char *tied_prefix;   /* of the stack that uses this one's word vectors; NULL: none */
	int64_t source_capacity;   /* rows of the longest source of a session */
	/* what follows from these */
	char entries[STACK_PREFIX + 16]; /* what names of parameters begin with but for the wrapper's */
	attention_options self, cross;
	float log_slopes[STACK_MAX_HEADS]; /* ALiBi's */
} stack;

void stack_prepare(stack *s);
void stack_parameters(const stack *s, parameter_list *list);
/* Scalars of all parameters, from above: for the check of a configuration. */
double stack_parameter_count(const stack *s);
/* Are its layers those of self-attention? Else they are those of cross-attention. */
bool stack_has_self_attention(const stack *s);
/* What sessions keep beside the states of its layers. */
void stack_states(const stack *s, state_list *list);
/* What leaves a stack with max_mem_len no recurrent form (model_dims.whole); NULL: nothing. */
const char *stack_whole(const stack *s);
/* Are rows of one layer read by those of another in later segments (model_dims.by_segments)? */
bool stack_by_segments(const stack *s);
/* What a row carries in training: with max_mem_len the rows that enter each self-attention. */
void stack_carried(const stack *s, state_list *list);
/* Rows of earlier segments that self-attention attends to. */
int64_t stack_memory(const stack *s, const forward_spec *spec);
/* Tokens that a sequence may have. */
int64_t stack_length(const stack *s);

/* What goes through a stack; VALUE_NONE where there is none. */
typedef struct stack_rows {
	value x;                   /* [B, N, dim] */
	value mask;                /* [B, N] */
	value key_mask;            /* [B, N] of self-attention's keys; none: mask */
	value visible;             /* of self-attention, as in attention_rows */
	value source_visible;      /* of cross-attention */
	value source, source_mask; /* [B, S, dim], [B, S] */
} stack_rows;

/* Tokens as rows [B, N, dim]: word and position vectors, norm, `before` [B, P, dim] (VALUE_NONE: nothing) in front of
 * them, dropout, projection. source: those of PORT_SOURCE. */
value stack_embed(builder *b, const stack *s, bool source, value before);
/* Its table of word vectors, which may be the encoder's. */
value stack_words(const builder *b, const stack *s);
/* The rows behind the entries and, of a wrapped stack, behind its last norm, without those of memory tokens. */
value stack_forward(builder *b, const stack *s, stack_rows rows);

/* A source that has been encoded, and which of its rows count, into the slots that the recurrent form of
 * cross-attention reads. */
void stack_store_source(builder *b, const stack *s, value source, value mask);

#endif
