/* mixer.h - one kind of attention: how the tokens of a sequence exchange what they know.
 *
 * An architecture composes its layers of mixers and does not know how one works. A mixer is one source in this folder:
 * a struct of options, which an architecture keeps in its configuration, one for each layer, and a const mixer. It has
 * the parallel form and the recurrent one, and chooses by the builder's phase. `prefix` is what the names of its
 * parameters begin with in the checkpoint; its states and outputs are named after the layer. */
#ifndef ENGINE_MODEL_MIXERS_MIXER_H
#define ENGINE_MODEL_MIXERS_MIXER_H

#include "engine/model/builder.h"
#include "engine/model/explainer.h"

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

#endif
