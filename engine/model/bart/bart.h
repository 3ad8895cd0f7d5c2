/* bart.h - the parts that BART's architectures share (Lewis et al. 2019), under the names and keys of Hugging Face.
 *
 *   embedding:      h = dropout(LN(s E[token] + P[position + 2]))     s = √d with "scale_embedding", else 1
 *   encoder layer:  h = LN(h + dropout(A(h)))                         A: linear or softmax attention, with biases
 *                   h = LN(h + dropout(dropout(gelu(h W1ᵀ + b)) W2ᵀ + b))
 *   decoder layer:  h = LN(h + dropout(causal softmax attention(h)))
 *                   h = LN(h + dropout(softmax attention of h to the encoder's rows))
 *                   and the same feed-forward
 *   logits = dropout(tanh(dropout(p) Wdᵀ + b)) Woᵀ + b                p: the row of the last h that the head reads
 *
 * E is one table for both stacks. The decoder reads the tokens again, one row later, after the vector of
 * "decoder_start_token_id". It has no mask of its own, and hides the masked rows of the encoder only.
 *
 * Dropout sites (Philox streams), in the order of the computation: the encoder's embedding; for each of its layers the
 * weights of softmax attention, the attention, the inner and the outer of the feed-forward; the decoder's embedding;
 * for each of its layers the weights and the output of both attentions, and the feed-forward's two; two of the head.
 *
 * With forward_spec.out.activations the outputs are "encoder.embedding", "decoder.embedding" and those of layer l of a
 * stack: "STACK.layers.l.attention" and "…cross_attention" after their last projection, "…attention_norm" and
 * "…output". */
#ifndef ENGINE_MODEL_BART_BART_H
#define ENGINE_MODEL_BART_BART_H

#include "engine/model/architecture.h"
#include "engine/model/config.h"

typedef struct bart_stack {
	int64_t layers, heads;
	int64_t inner; /* width of the feed-forward */
} bart_stack;

typedef struct bart_config {
	model_dims dims;
	bart_stack encoder, decoder; /* decoder.layers is 0 if there is no decoder */
	int64_t pad;                 /* token id whose row of E gets no gradient; -1: none */
	int64_t start;               /* first token id of the decoder's rows */
	bool scaled;                 /* "scale_embedding" */
	bool linear;                 /* attention of the encoder */
	double dropout, inner_dropout, weight_dropout, head_dropout, std;
	linear_options linear_attention; /* for the encoder */
	attention_options softmax_attention, self_attention, cross_attention;
} bart_config;

/* Keys that bart_read reads. */
#define BART_KEYS                                                                                                      \
	"d_model", "vocab_size", "encoder_attention_heads", "max_position_embeddings", "encoder_layers",               \
	    "encoder_ffn_dim", "num_labels", "pad_token_id", "scale_embedding", "pad_policy", "dropout",               \
	    "activation_dropout", "classifier_dropout", "init_std"
/* Read them. After the architecture has read its own keys, bart_finish validates all and fills the options of
 * attention. */
void bart_read(bart_config *c, config_reader *r);
void bart_finish(bart_config *c, config_reader *r);
/* Implement `complete` and `config_write` of an architecture for these keys. `own`: the other keys, taken over. */
bool bart_complete(json_t *json, const model_size *size);
json_t *bart_write(const bart_config *c, json_t *own);

/* List all parameters; `parameters` of an architecture. */
void bart_parameters(const void *config, parameter_list *list);

/* Return E[tokens] [B, N, D]; the output of the encoder; the output of the decoder for `encoded` [B, N, D]. */
value bart_words(builder *b, const bart_config *c);
value bart_encode(builder *b, const bart_config *c, value words);
value bart_decode(builder *b, const bart_config *c, value words, value encoded);
/* Append the class head on h [B, N, D]. */
void bart_classes(builder *b, const bart_config *c, value h);

#endif
