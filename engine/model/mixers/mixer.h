/* mixer.h - one kind of attention: how the tokens of a sequence exchange what they know.
 *
 * An architecture composes its layers of mixers and does not know how one works. A mixer is one source in this folder:
 * a struct of options, which an architecture keeps in its configuration, one for each layer, and a const mixer. It has
 * the parallel form and the recurrent one, and chooses by the builder's phase. `prefix` is what the names of its
 * parameters begin with in the checkpoint; its states and outputs are named after the layer. */
#ifndef ENGINE_MODEL_MIXERS_MIXER_H
#define ENGINE_MODEL_MIXERS_MIXER_H

#include "engine/model/builder.h"

typedef struct mixer {
	const char *name;
	void (*parameters)(const void *options, const char *prefix, parameter_list *list);
	/* What it keeps of the tokens of a session. */
	void (*states)(const void *options, int layer, state_list *list);
	/* Appends itself: x [B, N, D] [real] -> [B, N, D] [real]; with spec.explain the parts of the log as outputs. */
	value (*forward)(builder *b, const void *options, int layer, const char *prefix, value x);
	const explainer *explainer; /* in NAME_explain.c; NULL: its weights cannot be had */
	bool any_pieces;            /* no bit depends on the pieces in which a sequence is read */
} mixer;

/* Additive attention (Wu et al. 2021, causal, in windows), with the norm before it and the residual in it:
 *   n = LN(x);  q, k, v = n Wqᵀ, n Wkᵀ, n Wvᵀ
 *   r = n + (dropout(A(q; w_q, window)) Wpᵀ) ⊙ k      round "query"
 *   y = r + dropout(A(LN(r); w_k, window)) ⊙ v        round "key"
 * A is op_additive_attention or op_additive_stream. The residual starts from the normalised n. Parameters: Wquery,
 * Wkeys, Wvalues, attn_proj [D, D]; query_attn, key_attn [D]; attn_norm, mid_norm. Two dropout sites. */
typedef struct additive_options {
	int64_t hidden, heads;
	int64_t window; /* 0: global */
	double dropout, std;
} additive_options;
extern const mixer mixer_additive;
extern const explainer additive_explainer;

/* Causal softmax attention with one product for queries, keys and values:
 *   y = A(x W_qkvᵀ + b) W_oᵀ + b
 * A is op_softmax_attention or op_softmax_stream, with dropout on its weights. The state is a ring of the last `window`
 * tokens' keys and values. Parameters: c_attn [3D, D], c_proj [D, D] with biases, stored [inputs, outputs]. One dropout
 * site. */
typedef struct softmax_options {
	int64_t hidden, heads, window;
	double scale;
	double dropout, std, residual_std; /* of c_attn and of c_proj */
} softmax_options;
extern const mixer mixer_softmax;
extern const explainer softmax_explainer;

/* Dilated attention (Ding et al. 2023, LongNet), causal or of whole segments:
 *   y = LN(A(x W_qᵀ + b, x W_kᵀ + b, x W_vᵀ + b)) W_oᵀ + b     LN: with subln
 * A is op_dilated_attention or, causal only, op_dilated_stream. The state is a ring of the keys and values of as many
 * tokens as the longest segment has. Parameters: q_proj, k_proj, v_proj, out_proj [D, D] with biases, inner_attn_ln. No
 * dropout site.
 */
typedef struct dilated_options {
	int64_t hidden, heads;
	dilated_pattern pattern; /* some dilation is 1, so that every token reads itself */
	double scale;
	bool causal;
	bool subln, detach_weights;
	double eps;       /* of LN */
	double std, gain; /* gain: of v_proj and out_proj over std */
} dilated_options;
extern const mixer mixer_dilated;
extern const explainer dilated_explainer;

/* Linear attention (Katharopoulos et al. 2020, elu + 1), causal or over the whole sequence:
 *   y = A(x W_qᵀ + b, x W_kᵀ + b, x W_vᵀ + b) W_oᵀ + b
 * A is op_linear_attention or, causal only, op_linear_stream. The state is S and z of each head. Parameters: q_proj,
 * k_proj, v_proj, out_proj [D, D], with biases where wanted. No dropout site. */
typedef struct linear_options {
	int64_t hidden, heads;
	bool causal, bias;
	bool reads_padding;       /* masked tokens count like others */
	double std, residual_std; /* of out_proj */
} linear_options;
extern const mixer mixer_linear;
extern const explainer linear_explainer;

/* Products of pairs of channels with what attention that decays with distance gives (3Lin):
 *   q, g, v = N(x W_qᵀ), N(x W_gᵀ), N(x W_vᵀ);  k = x W_kᵀ;  u = A(q, k, v);  y = (g ⊗ u) Cᵀ
 * x is normalised, N(x) = x √width / ‖x‖₂, A is op_decay_attention or op_decay_stream, ⊗ is op_trilinear. The key and
 * the value in front of all tokens are made in the same way of builder.first, so they depend on no layer's result.
 * Products with weights are multiplied by input_scale, those with C by combiner_scale. The state is a ring of the keys
 * and values of reach + 1 tokens. Parameters: query, key [Q, D], gate, value [T, D], combiner [D, 16T]. No dropout
 * site.
 *
 * Weights are quantised to weight_bits (op_quantize; 32: not at all). With vector_bits 8 so are q, g and v, in steps of
 * 1 / 32, and each k in steps of its own; the ring of a state holds the codes of k and v then.
 *
 * Rows of α sum to 1: the shares of the first key and of the sink, which are no tokens, stand at the reading token,
 * which does not read itself. */
typedef struct trilinear_options {
	int64_t hidden, key_size, value_size, heads; /* D, Q, T */
	int64_t reach;                               /* tokens read, from 1 on; 0: all others */
	bool bidirectional;                          /* those behind it too; parallel form only */
	double slope, hyper;                         /* of the scores, in exponents of 2, as is score_scale · q·k */
	double score_scale, input_scale, combiner_scale;
	int weight_bits, vector_bits;
	double std, combiner_std; /* combiner_std 0: C begins as zeros */
	bool sequence;            /* first values are of parameter_list_sequence */
} trilinear_options;
/* The parameter NAME.weight as a product or a look-up reads it: quantised to `bits`, unless it is packed. */
value trilinear_weight(const builder *b, int bits, const char *name);
/* N(x), quantised to vector_bits in steps of 1 / 32. */
value trilinear_normalize(const builder *b, int vector_bits, value x);
extern const mixer mixer_trilinear;
extern const explainer trilinear_explainer;

/* Softmax attention with four projections, to a sequence itself, causal or not, or to a source:
 *   y = A(x W_qᵀ + b, s W_kᵀ + b, s W_vᵀ + b) W_oᵀ + b     s: the source, or x
 * A is op_softmax_attention with scale 1 / √(hidden / heads) and dropout on its weights. Parallel form only.
 * Parameters: q_proj, k_proj, v_proj, out_proj [D, D] with biases. One dropout site. */
typedef struct projected_options {
	int64_t hidden, heads;
	bool causal;
	double dropout, std;
} projected_options;
/* source [B, S, D], or VALUE_NONE: x. mask [B, S], or VALUE_NONE: of the keys. */
value projected_forward(builder *b, const projected_options *o, int layer, const char *prefix, value x, value source,
                        value mask);
extern const mixer mixer_projected;
extern const explainer projected_explainer, projected_source_explainer; /* of itself; to a source */

/* Softmax attention with the options of x-transformers, to a sequence itself or to a source:
 *   q = x W_qᵀ, k, v = s W_kᵀ, s W_vᵀ (s: the source, or x), rotated, behind memory keys and values, normalised
 *   y = A(q, k, v) [⊙ (1 + x W_rᵀ)] [⊙ head scale] [⊙ σ(x W_gᵀ + b)] W_oᵀ
 *   or, on attention, y = a ⊙ σ(b) with a | b the halves of that
 * A is op_softmax_attention, or op_softmax_stream in the recurrent form. Talking heads, sparse attention, residual
 * attention and explicit masks need the matrix of scores in memory: op_attention_scores and what follows it; so does,
 * in sessions, `earlier`. To a source, the recurrent form is op_source_attention, or the matrix over its tokens. One
 * dropout site. Parameters: to_q, to_k, to_v, to_out (or to_out.0), to_r, to_v_gate, mem_k, mem_v,
 * head_scale_params, pre_ and post_softmax_talking_heads. */
typedef struct attention_options {
	int64_t hidden;
	int64_t heads, kv_heads, key_width, value_width; /* of a head */
	bool causal, cross;
	bool shared, talking, on_attention, gated, scaled, tensor_product;
	bool residual;            /* scores go on to the next attention */
	bool attend_when_hidden;  /* a query that sees no key attends to all of them */
	bool zero_masked_rows;    /* a masked query gets 0, in place of what it sees */
	int64_t memories;         /* learned keys and values */
	int64_t memory_tokens;    /* rows in front of every sequence */
	bool memory_reads_source; /* of sessions: memory tokens have read the source; their keys and values are in the
	                             slot */
	int64_t top_k;            /* 0: all */
	int64_t past;             /* keys further away are hidden; 0: none */
	int64_t capacity;         /* of the cache, in rows; of a source's */
	int64_t segment;          /* of sessions: as in softmax_stream */
	int64_t front;            /* rows of a segment that are no token's: the first ones */
	int64_t earlier;          /* of sessions: states of keys and values that later segments make otherwise than a
	                           * token's own, for 1, 2, … segments behind and the last for all others; 0: they do not */
	int64_t norm_groups;      /* of a head's queries and keys; 0: they are not normalised */
	int64_t rotary;           /* channels of a head; 0: none */
	bool rotate_values;
	bool biased;      /* scores have a bias by distance */
	double xpos_base; /* 0: none */
	double scale, dropout;
	double std, output_std; /* of W_q, W_k; of the rest. 0: 1 / √(3 inputs), the framework's variance */
	bool zero_output;
} attention_options;

/* What one attention is asked for, beside its options, and what it gives. VALUE_NONE where nothing is. */
typedef struct attention_rows {
	value x;                          /* [B, N, D] */
	value memory;                     /* [B, M, D]: rows whose keys and values stand in front of those of x */
	value later;                      /* [B, N, D]: the rows as the next segments read them, into state 1 of
	                                   * `earlier`; none: attention_store_earlier fills the states */
	value source;                     /* [B, S, D]; none in the recurrent form, where it stands in the slot */
	value query_mask, key_mask;       /* of the rows of x; of the keys, without memories */
	value visible;                    /* [N, S], [H, N, S] or [B, H, N, S]: 0 hides */
	value bias;                       /* [T, H] by distance */
	value back, ahead;                /* [N, H] for explanations of both directions: of it the distances 0 … N - 1
	                                   * and 1 - N … 0 */
	int64_t bias_first;               /* the distance of its first row */
	value scores;                     /* those of the attention before; given back: this one's */
	value positions;                  /* of the rows, to be rotated by; by default 0, 1, … */
	int64_t first;                    /* added to positions */
	double xpos_center;               /* the position at which xPos scales by 1 */
	bool whole;                       /* whole sequences, also where the form is recurrent */
	value memory_keys, memory_values; /* [1, m, ·] of memory tokens: in front of all others in the recurrent form */
	value keys, values;               /* given back: those of the rows, rotated and not normalised */
	int64_t memory_rows;              /* in front of x: those of memory tokens */
	const char *outputs;              /* what the names of its outputs begin with; NULL: there are none */
	attention_place place;            /* of its outputs for explanations */
} attention_rows;
/* index: of this attention among all of the stack, for the names of its outputs. */
value attention_forward(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                        attention_rows *r);
/* Of a source [B, S, D]: its keys and values, without those that mask [B, S] hides, into the slots of the recurrent
 * form. */
void attention_store_source(builder *b, const attention_options *o, int layer, const char *prefix, value source,
                            value mask);
/* Of memory tokens that have read a source, [B, m, ·] as attention_rows gives them back: into the slots of the
 * recurrent form, behind the memories. */
void attention_store_memories(builder *b, const attention_options *o, int layer, const char *prefix, value keys,
                              value values);
/* Rows [B, N, D] of the call's tokens, as segments read them that are `back` ≥ 1 behind, into a state of `earlier`. */
void attention_store_earlier(builder *b, const attention_options *o, int layer, int64_t back, const char *prefix,
                             const attention_rows *r, value rows);
/* They differ in what explains them: queries and keys; rows of the matrix, of the recurrent form and of the parallel
 * one; nothing. */
extern const mixer mixer_attention, mixer_attention_stepped, mixer_attention_whole, mixer_attention_unexplained;
extern const explainer attention_explainer, attention_stepped_explainer, attention_whole_explainer;
/* The same of an attention to a source. */
extern const explainer attention_source_explainer, attention_source_whole_explainer;
/* Has the recurrent form a matrix? */
bool attention_needs_matrix(const attention_options *o);
/* Do queries and keys alone not say what the weights are? */
bool attention_logs_matrix(const attention_options *o);

#endif
