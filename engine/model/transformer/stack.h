/* stack.h - a stack of entries, with its embedding and last norm: its parameters, session states and rows.
 *
 *   stack_prepare(&s);                        once its options have been read
 *   stack_parameters(&s, list);
 *   value h = stack_embed(b, &s, …);          tokens to rows, preceded by memory tokens
 *   h = stack_forward(b, &s, &rows);          through the entries and the last norm
 *
 * Each entry:   y = norm(x);  o = layer(y);  x = join(o, x)        with pre_norm
 *               o = layer(x);  x = norm(join(o, x))                 without
 * and the names of parameters are those of x-transformers: PREFIX "attn_layers.layers.E.0.K" norms, ".E.1" the layer,
 * ".E.2" the joiner. Names of outputs (spec.out.activations): "PREFIXhidden.L" the rows that enter self-attention L,
 * "PREFIXbranch.E" the output of entry E's layer, "PREFIXlast" the rows before the last norm, and those of
 * mixers/attention.c. */
#ifndef ENGINE_MODEL_TRANSFORMER_STACK_H
#define ENGINE_MODEL_TRANSFORMER_STACK_H

#include "engine/model/mixers/mixer.h"
#include "engine/model/transformer/options.h"

enum { STACK_PREFIX = 32, STACK_MAX_HEADS = 1024 };

typedef struct stack {
	stack_options options;
	char prefix[STACK_PREFIX]; /* for its parameters: "", "encoder." */
	bool wrapped;              /* reads tokens and has a last norm */
	bool logits;               /* its rows become logits */
	bool tied_tokens;          /* uses the encoder's word vectors */
	const char *tied_prefix;   /* prefix of the stack that uses this one's word vectors; NULL: none */
	int64_t source_capacity;   /* rows of the longest source of a session */
	/* derived from the above */
	char entries[STACK_PREFIX + 16]; /* prefix of parameters' names, except those of the wrapper */
	attention_options self, cross;
	float log_slopes[STACK_MAX_HEADS]; /* for ALiBi */
} stack;

void stack_prepare(stack *s);
void stack_parameters(const stack *s, parameter_list *list);
/* Return an upper bound of the scalars of all parameters, to check a configuration. */
double stack_parameter_count(const stack *s);
/* True if its layers are those of self-attention; otherwise those of cross-attention. */
bool stack_has_self_attention(const stack *s);
/* List the states of sessions besides those of its layers. */
void stack_states(const stack *s, state_list *list);
/* Return the property for which a stack with max_mem_len has no recurrent form (model_dims.whole); NULL: it has one. */
const char *stack_whole(const stack *s);
/* True if later segments read rows of one layer in another (model_dims.by_segments). */
bool stack_by_segments(const stack *s);
/* List what a row passes on in training: with max_mem_len the rows that enter each self-attention. */
void stack_carried(const stack *s, state_list *list);
/* Listed input (forward_input): each layer L attends to "memory.L" [B, rows, D], rows of earlier segments, and outputs
 * "next.memory.L", those for the next segment. */
#define STACK_MEMORY "memory"
/* Listed input [1, entries, 1]: 0 if an entry is skipped, otherwise 1. */
#define STACK_KEPT "kept"
/* Return the number of rows of earlier segments that self-attention reads. */
int64_t stack_memory(const stack *s, const forward_spec *spec);
/* Return the maximum tokens of a sequence. */
int64_t stack_length(const stack *s);

/* Inputs of a stack; VALUE_NONE: absent. */
typedef struct stack_rows {
	value x;                   /* [B, N, dim] */
	value mask;                /* [B, N] */
	value key_mask;            /* [B, N] for the keys of self-attention; VALUE_NONE: mask */
	value visible;             /* for self-attention, as in attention_rows */
	value source_visible;      /* for cross-attention */
	value source, source_mask; /* [B, S, dim], [B, S] */
} stack_rows;

/* Convert tokens to rows [B, N, dim]: word and position vectors, norm, `before` [B, P, dim] (VALUE_NONE: none)
 * prepended, dropout, projection. source: uses PORT_SOURCE. */
value stack_embed(builder *b, const stack *s, bool source, value before);
/* Return its table of word vectors, which may be the encoder's. */
value stack_words(const builder *b, const stack *s);
/* Return the rows after the entries and, in a wrapped stack, after its last norm, without those of memory tokens. */
value stack_forward(builder *b, const stack *s, stack_rows rows);

/* Store an encoded source, and which of its rows count, in the slots that the recurrent form of cross-attention
 * reads. */
void stack_store_source(builder *b, const stack *s, value source, value mask);

#endif
