/* stack_private.h - shared by the sources of a stack: stack.c (options and states), stack_parameters.c, stack_embed.c
 * (tokens to rows, position biases) and stack_forward.c (the entries). */
#ifndef ENGINE_MODEL_TRANSFORMER_STACK_PRIVATE_H
#define ENGINE_MODEL_TRANSFORMER_STACK_PRIVATE_H

#include "engine/model/transformer/stack.h"

#define STACK_TOKENS "%stoken_emb.emb.weight" /* with the stack's prefix */
#define STACK_FRONT "entries.%d.front"        /* state with the rows of memory tokens that a shift reads */
#define STACK_LAYERNORM_EPS 1e-5f
enum { STACK_NAME = 96, STACK_WRAPPERS = 12 };

/* "PREFIXattn_layers.layers.E" of the entry whose parameters are used, followed by ".fn" for each wrapper around its
 * layer. */
typedef struct stack_entry_name {
	char text[STACK_NAME], wrappers[STACK_WRAPPERS];
} stack_entry_name;

stack_entry_name stack_entry_name_of(const stack *s, int e);
/* Write the prefix of the parameters of an entry's layer. */
void stack_layer_prefix(char out[2 * STACK_NAME], const stack_entry_name *n);

/* Return Xavier's deviation times `gain`, for DeepNorm (Wang et al. 2022); 0: the framework's. */
double stack_deep_std(const stack_options *o, int64_t n, int64_t k, double gain);
/* Return `given`, or in place of 0 the framework's deviation of a matrix with that many inputs. */
double stack_std(double given, int64_t inputs);
double stack_deep_gain(const stack_options *o);
/* Return how many layers lower the rows of each earlier segment are taken from. */
int64_t stack_memory_shift(const stack_options *o);

/* True if an entry is followed by a norm. The norm after the last one belongs to the stack. */
static inline bool stack_norm_after(const stack_options *o, int e)
{
	return !o->pre_norm && !(o->final_norm && e == o->n_entries - 1);
}

static inline int64_t stack_value_width(const stack_options *o)
{
	return o->attn_value_dim_head ? o->attn_value_dim_head : o->attn_dim_head;
}

static inline int64_t stack_embedding_width(const stack_options *o)
{
	return o->emb_dim ? o->emb_dim : o->dim;
}

static inline int64_t stack_inner_width(const stack_options *o)
{
	int64_t width = (int64_t)((double)o->dim * o->ff_mult);
	return width > 0 ? width : 1;
}

/* Rows of memory tokens before every segment of a sequence. They read the segments before, so they are rows of the
 * sequence, and a session numbers them with its tokens. */
static inline int64_t stack_segment_front(const stack_options *o)
{
	return o->max_mem_len ? o->num_memory_tokens : 0;
}

/* Rows of a segment; 0: no segments. */
static inline int64_t stack_segment(const stack_options *o)
{
	return o->max_mem_len ? o->max_seq_len + stack_segment_front(o) : 0;
}

/* True if memory tokens read a source, once for the whole sequence. Each session then has its own keys and values for
 * them. */
static inline bool stack_memory_reads_source(const stack_options *o)
{
	return o->cross_attend && o->num_memory_tokens > 0 && !o->max_mem_len;
}

/* Rows of memory tokens that the shift of entry e reads. */
static inline int64_t stack_front_rows(const stack_options *o, int e)
{
	return o->shift[e] < o->num_memory_tokens ? o->shift[e] : o->num_memory_tokens;
}

/* Convert v to f32. */
value stack_f32(const builder *b, value v);
/* Apply the layer norm with these parameters (name printf-style, without ".weight" and ".bias"). */
__attribute__((format(printf, 4, 5))) value stack_layernorm(const builder *b, const stack_options *o, value x,
                                                            const char *format, ...);
/* [count, heads] for the distances first … first + count - 1 of query and key; VALUE_NONE: no bias. */
value stack_bias_table(builder *b, const stack *s, int64_t first, int64_t count);

#endif
