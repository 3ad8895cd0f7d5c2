/* mixer.h - one kind of attention: how the tokens of a sequence exchange information.
 *
 * An architecture composes its layers from mixers and does not depend on their internals. A mixer is one source in this
 * folder (softmax attention: three): a struct of options, which an architecture keeps in its configuration for each
 * layer, and a constant mixer. It has a parallel form and a recurrent form; the builder's phase selects one. `prefix`
 * is the prefix of its parameters' names in the checkpoint. Its states and outputs are named after the layer. */
#ifndef ENGINE_MODEL_MIXERS_MIXER_H
#define ENGINE_MODEL_MIXERS_MIXER_H

#include "engine/model/builder.h"

/* The state before the first token as parameters (adapter.h). If the graph has them, the parallel form reads them. */
typedef struct mixer_initial {
	int count; /* number of parameters in a layer */
	bool (*exists)(const void *options); /* NULL: with all options */
	void (*parameters)(const void *options, int layer, parameter_list *list);
	/* Write the layer's states into a slot of zeros. */
	void (*states)(const void *options, int layer, const float *const *values, const state_list *states,
	               float *slot);
} mixer_initial;

typedef struct mixer {
	const char *name;
	void (*parameters)(const void *options, const char *prefix, parameter_list *list);
	/* Append the states that it keeps of a session's tokens. */
	void (*states)(const void *options, int layer, state_list *list);
	/* Append its computation: x [B, N, D] [real] -> [B, N, D] [real]; with spec.explain.log, output the parts of
	 * the log. */
	value (*forward)(builder *b, const void *options, int layer, const char *prefix, value x);
	const mixer_initial *initial; /* NULL: its state cannot be learned */
	const explainer *explainer; /* in NAME_explain.c; NULL: its weights cannot be computed */
	bool any_pieces;            /* bits do not depend on the pieces in which a sequence is read */
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

/* Dilated attention (Ding et al. 2023, LongNet), causal or of whole segments:
 *   y = LN(A(x W_qᵀ + b, x W_kᵀ + b, x W_vᵀ + b)) W_oᵀ + b     LN: with subln
 * A is op_dilated_attention or, causal only, op_dilated_stream. The state is a ring of the keys and values of as many
 * tokens as the longest segment has. Parameters: q_proj, k_proj, v_proj, out_proj [D, D] with biases, inner_attn_ln. No
 * dropout site.
 */
typedef struct dilated_options {
	int64_t hidden, heads;
	dilated_pattern pattern; /* one dilation is 1, so every token reads itself */
	double scale;
	bool causal;
	bool subln, detach_weights;
	double eps;       /* for LN */
	double std, gain; /* gain: of v_proj and out_proj relative to std */
} dilated_options;
extern const mixer mixer_dilated;
extern const explainer dilated_explainer;

/* Linear attention (Katharopoulos et al. 2020, elu + 1), causal or over the whole sequence:
 *   y = A(x W_qᵀ + b, x W_kᵀ + b, x W_vᵀ + b) W_oᵀ + b
 * A is op_linear_attention or, causal only, op_linear_stream. The state is S and z of each head. Parameters: q_proj,
 * k_proj, v_proj, out_proj [D, D], with optional biases. No dropout site. */
typedef struct linear_options {
	int64_t hidden, heads;
	bool causal, bias;
	bool reads_padding;       /* masked tokens count like others */
	double std, residual_std; /* for out_proj */
} linear_options;
extern const mixer mixer_linear;
extern const explainer linear_explainer;

/* Products of pairs of channels with the output of attention that decays with distance (3Lin):
 *   q, g, v = N(x W_qᵀ), N(x W_gᵀ), N(x W_vᵀ);  k = x W_kᵀ;  u = A(q, k, v);  y = (g ⊗ u) Cᵀ
 * x is normalised, N(x) = x √width / ‖x‖₂, A is op_decay_attention or op_decay_stream, ⊗ is op_trilinear. The key and
 * the value before all tokens are computed in the same way from builder.first, so they depend on no layer's result.
 * Products with weights are multiplied by input_scale, those with C by combiner_scale. The state is a ring of the keys
 * and values of reach + 1 tokens. Parameters: query, key [Q, D], gate, value [T, D], combiner [D, 16T]. No dropout
 * site.
 *
 * Weights are quantised to weight_bits (op_quantize; 32: not at all). With vector_bits 8 so are q, g and v, in steps of
 * 1 / 32, and each k in steps of its own; the ring of a state holds the codes of k and v then.
 *
 * Rows of α sum to 1. The shares of the first key and of the sink, which are not tokens, are stored at the reading
 * token, because a token does not read itself. */
typedef struct trilinear_options {
	int64_t hidden, key_size, value_size, heads; /* D, Q, T */
	int64_t reach;                               /* tokens read, from 1 on; 0: all others */
	bool bidirectional;                          /* also reads later tokens; parallel form only */
	double slope, hyper;                         /* for the scores, in exponents of 2, like score_scale · q·k */
	double score_scale, input_scale, combiner_scale;
	int weight_bits, vector_bits;
	double std, combiner_std; /* combiner_std 0: C starts as zeros */
	bool sequence;            /* initial values come from parameter_list_sequence */
} trilinear_options;
/* Return the parameter NAME.weight as a product or look-up reads it: quantised to `bits`, unless it is packed. */
value trilinear_weight(const builder *b, int bits, const char *name);
/* Return N(x), quantised to vector_bits in steps of 1 / 32. */
value trilinear_normalize(const builder *b, int vector_bits, value x);
extern const mixer mixer_trilinear;
extern const explainer trilinear_explainer;

/* Softmax attention of a sequence to itself, causal or not, or to a source:
 *   q = x W_qᵀ + b, k, v = s W_kᵀ + b, s W_vᵀ + b     s: the source, or x; biases are optional
 *   q, k, v rotated; k, v preceded by memory keys and values; q, k normalised
 *   y = A(q, k, v) [⊙ (1 + x W_rᵀ)] [⊙ head scale] [⊙ σ(x W_gᵀ + b)] W_oᵀ + b
 *   or, with output.on_attention, y = a ⊙ σ(b), where a and b are the halves of the row above
 * A is op_softmax_attention, or op_softmax_stream in the recurrent form, with dropout on its weights. Talking heads,
 * sparse attention, residual attention and explicit masks need the matrix of scores in memory: op_attention_scores and
 * the ops after it. So does reach.earlier in sessions. To a source, the recurrent form is op_source_attention, or the
 * matrix over its tokens. The state is a ring of the keys and values of reach.capacity tokens. One dropout site.
 *
 * Parameters: the projections under the names of the layout; to_r, to_v_gate, mem_k, mem_v, head_scale_params,
 * pre_softmax_talking_heads and post_softmax_talking_heads. */
typedef enum attention_product {
	ATTENTION_QUERY,
	ATTENTION_KEY,
	ATTENTION_VALUE,
	ATTENTION_OUTPUT,
	ATTENTION_PRODUCTS
} attention_product;

/* The form in which checkpoints store the projections. */
typedef struct attention_layout {
	/* Without a name for keys, ATTENTION_QUERY is one product for queries, keys and values, of equal widths. Such
	 * an attention has no rotation, norms, memories, gates, matrix or source. */
	const char *names[ATTENTION_PRODUCTS];
	attention_product order[ATTENTION_OUTPUT]; /* order of the parameters; the output is last */
	bool bias, transposed;                     /* transposed: stored [inputs, outputs] */
} attention_layout;

/* Positions of the keys that a query reads, and the cache that sessions keep of them. */
typedef struct attention_reach {
	int64_t past;     /* keys at a larger distance are hidden; 0: none */
	int64_t capacity; /* rows of the cache, or of a source's cache; 0: there is no recurrent form */
	int64_t segment;  /* in sessions, as in softmax_stream */
	int64_t front;    /* leading rows of a segment that belong to no token */
	int64_t earlier;  /* in sessions, number of states with keys and values as later segments compute them: state i
	                   * for tokens i segments back, the last for all older ones; 0: none */
	bool bf16;        /* the cache holds bf16, as in softmax_stream; without the matrix and `earlier` */
} attention_reach;

/* Keys and values before those of all tokens. */
typedef struct attention_memories {
	int64_t count;    /* learned keys and values */
	int64_t tokens;   /* rows before every sequence */
	bool read_source; /* in sessions, memory tokens have read the source; their keys and values are in the slot */
} attention_memories;

/* Steps between the scores and the weights. */
typedef struct attention_scoring {
	double scale;
	double dropout;
	int64_t norm_groups; /* for a head's queries and keys; 0: not normalised */
	int64_t top_k;       /* 0: all */
	bool biased;         /* scores have a bias by distance */
	bool talking;
	bool residual;           /* passes its scores to the next attention */
	bool attend_when_hidden; /* a query that sees no key attends to all of them */
} attention_scoring;

typedef struct attention_rotation {
	int64_t width;    /* channels of a head; 0: none */
	bool values;      /* values are rotated too */
	double xpos_base; /* 0: none */
} attention_rotation;

typedef struct attention_output {
	bool on_attention, gated, scaled, tensor_product;
	bool zero_masked_rows; /* the output of a masked query is 0 */
} attention_output;

typedef struct attention_options {
	const attention_layout *layout;
	int64_t hidden;
	int64_t heads, kv_heads, key_width, value_width; /* widths of one head */
	bool causal;
	bool cross;  /* to a source */
	bool shared; /* values are the keys */
	struct {
		double query, value, output; /* query: also for keys and to_r, or the one product; 0: zeros */
	} std;
	attention_reach reach;
	attention_memories memories;
	attention_scoring scoring;
	attention_rotation rotation;
	attention_output output;
} attention_options;

/* Inputs of one attention besides its options, and its outputs; VALUE_NONE: absent. */
typedef struct attention_rows {
	value x;                    /* [B, N, D] */
	value memory;               /* [B, M, D]: rows whose keys and values precede those of x */
	value later;                /* [B, N, D]: the rows as later segments read them, for state 1 of `earlier`;
	                             * VALUE_NONE: attention_store_earlier fills the states */
	value source;               /* [B, S, D]; absent in the recurrent form, where it is in the slot */
	value query_mask, key_mask; /* for the rows of x; for the keys, without memories */
	value visible;              /* [N, S], [H, N, S] or [B, H, N, S]: 0 hides */
	value bias;                 /* [T, H] by distance */
	value back, ahead;          /* [N, H] for explanations of both directions: the distances 0 … N - 1 and 1 -
	                             * N … 0 of it */
	int64_t bias_first;         /* distance of its first row */
	value scores;               /* input: of the previous attention; output: of this one */
	value positions;            /* for rotation of the rows; default 0, 1, … */
	int64_t first;              /* added to positions */
	double xpos_center;         /* position at which xPos scales by 1 */
	bool whole;                 /* whole sequences, also in the recurrent form */
	value memory_keys, memory_values; /* [1, m, ·] of memory tokens, before all others in the recurrent form */
	value keys, values;               /* output: keys and values of the rows, rotated and not normalised */
	int64_t memory_rows;              /* rows of memory tokens before x */
	const char *outputs;              /* prefix of its outputs' names; NULL: no outputs */
	attention_place place;            /* place of its outputs for explanations */
} attention_rows;
/* Return the inputs of an attention of x at the builder's place: x under the builder's mask, nothing else. */
attention_rows attention_rows_of(const builder *b, value x);
/* Append the attention of r->x and set the outputs in r. index: number of this attention in the stack, for the names of
 * its outputs. */
value attention_forward(builder *b, const attention_options *o, int layer, int index, const char *prefix,
                        attention_rows *r);
/* Store the keys and values of a source [B, S, D] in the slots of the recurrent form, without those that mask [B, S]
 * hides. */
void attention_store_source(builder *b, const attention_options *o, int layer, const char *prefix, value source,
                            value mask);
/* Store those of memory tokens that have read a source, [B, m, ·] as output in attention_rows, in the slots of the
 * recurrent form, after the memories. */
void attention_store_memories(builder *b, const attention_options *o, int layer, const char *prefix, value keys,
                              value values);
/* Store rows [B, N, D] of the call's tokens, as segments `back` ≥ 1 later read them, in a state of `earlier`. */
void attention_store_earlier(builder *b, const attention_options *o, int layer, int64_t back, const char *prefix,
                             const attention_rows *r, value rows);
/* True if the recurrent form needs the score matrix. */
bool attention_needs_matrix(const attention_options *o);
/* True if weights cannot be recomputed from queries and keys, so the log stores matrix rows. */
bool attention_logs_matrix(const attention_options *o);
/* Four mixers with the same forward. Their explainers differ in what the log stores. */
extern const mixer mixer_attention;             /* queries and keys */
extern const mixer mixer_attention_stepped;     /* rows of the matrix, from the recurrent form */
extern const mixer mixer_attention_whole;       /* rows of the matrix, from the parallel form */
extern const mixer mixer_attention_unexplained; /* nothing: no explainer */
extern const explainer attention_explainer, attention_stepped_explainer, attention_whole_explainer;
/* Explainers of an attention to a source. */
extern const explainer attention_source_explainer, attention_source_whole_explainer;

/* Additive attention that forgets, over a row n that is normalised already:
 *   n^s = n + μ_s ⊙ (n_before - n), s = v, a, g         with shift (token_shift.h); otherwise n
 *   v, a = n^v Wvᵀ, n^a Waᵀ;  f = log σ(n^a Wfᵀ + β), or -softplus(θ), or 0
 *   y = (RMS(A(v, a, f)) ⊙ SiLU(n^g Wgᵀ)) Woᵀ           RMS of each head, with norm; SiLU with gate
 * A is op_forgetting_attention or op_forgetting_stream. a and f are numbers of a token and head, [B, N, H]. The state
 * is A's, and with shift the row before. Parameters: Wv, Wg, Wo [D, D], Wa, Wf [H, D], beta or theta [H], mu [3, D],
 * gain [D]. No dropout site. */
enum { FORGETTING_MAX_HEADS = 1024 };
typedef enum forget_kind {
	FORGET_DATA,     /* as the token says */
	FORGET_CONSTANT, /* one rate of each head */
	FORGET_NONE
} forget_kind;
typedef struct forgetting_options {
	int64_t hidden, heads;
	forget_kind forget;
	bool shift, gate, norm;
	float rate[FORGETTING_MAX_HEADS]; /* initial values of beta or theta */
} forgetting_options;
extern const mixer mixer_forgetting;
extern const explainer forgetting_explainer;

/* RWKV-4's attention (Peng et al. 2023) over a row n that is normalised already:
 *   n^s = m_s ⊙ n + (1 - m_s) ⊙ n_before, s = k, v, r
 *   k, v = n^k W_kᵀ, n^v W_vᵀ;  y = (A(v, k, -e^{decay}, bonus) ⊙ σ(n^r W_rᵀ)) W_oᵀ
 * A is op_forgetting_attention or op_forgetting_stream with a head for each channel. The state is A's and the row
 * before. Parameters: time_decay, time_first (the bonus) [C]; time_mix_key, time_mix_value, time_mix_receptance [D];
 * key, value, receptance [C, D], output [D, C]. No dropout site. */
typedef struct rwkv_options {
	int64_t hidden, channels; /* D, C */
	/* For initial values of layer l of L: l / (L - 1) and 1 - l / L. */
	double late, early;
} rwkv_options;
extern const mixer mixer_rwkv;
extern const explainer rwkv_explainer;

/* Attentions of other architectures in the place of mixer_forgetting, over a row n that is normalised already:
 *   n^s as above, s = q, k, v, g;  q, k, v = n^q Wqᵀ, n^k Wkᵀ, n^v Wvᵀ;  y = (A ⊙ SiLU(n^g Wgᵀ)) Woᵀ
 * A depends on the mixer:
 *   mixer_gated_softmax    op_softmax_attention or op_softmax_stream of rotary(q), rotary(k) and v over the last
 *                          reach.capacity tokens
 *   mixer_gated_linear     that of mixer_linear, of q, k and v
 *   mixer_gated_additive   y of mixer_additive, of n, q, k and v
 * Parameters: Wq, Wk, Wv, Wg, Wo [D, D], mu [4, D]. The additive one has those of the rounds too, under "rounds.", and
 * their two dropout sites. */
typedef struct gated_options {
	union {
		attention_options softmax;
		linear_options linear;
		additive_options additive;
	} of; /* first, for the explainer */
	int64_t hidden;
	bool shift, gate;
	double base; /* for the rotary embedding */
} gated_options;
extern const mixer mixer_gated_softmax, mixer_gated_linear, mixer_gated_additive;

#endif
