/* transformer.h - the parts shared by the architectures "transformer" and "x-transformers", which differ only in the
 * form of their configuration (options.def has the keys of a stack).
 *
 *   decoder             tokens -> a causal stack -> logits of the next token
 *   encoder             tokens -> a stack -> logits of each token
 *   encoder_decoder     a source -> encoder -> rows; tokens -> decoder, which attends to them -> logits
 *
 * A decoder with "cross_attend" alone attends to rows that the caller gives (PORT_SOURCE_ROWS).
 *
 * Listed inputs (forward_input), for comparisons with other programs: FORWARD_ROWS_BEFORE, STACK_MEMORY, STACK_KEPT;
 * "visible" [B, H, N, N], "source_visible" [B, H, S, S] and "cross_visible" [B, H, N, S]: the keys (columns) that each
 * row sees; "key_mask" [B, N] for the keys of self-attention and "source_kept" [B, S] for those of a source, instead of
 * the masks. */
#ifndef ENGINE_MODEL_TRANSFORMER_TRANSFORMER_H
#define ENGINE_MODEL_TRANSFORMER_TRANSFORMER_H

#include "engine/model/transformer/stack.h"

#define TRANSFORMER_COMPAT "x-transformers-1.6.0"

typedef enum arrangement { ARRANGED_DECODER, ARRANGED_ENCODER, ARRANGED_BOTH } arrangement;

typedef struct transformer_config {
	model_dims dims;
	arrangement arrangement;
	bool compat;
	bool tie_token_emb; /* the decoder uses the encoder's word vectors */
	stack encoder, decoder;
} transformer_config;

/* Return the stack whose rows become logits. */
const stack *transformer_head(const transformer_config *c);
/* Complete and check arrangement and options once both are set. */
void transformer_finish(config_reader *r, transformer_config *c);

/* Members of the architectures (architecture.h). */
const mixer *transformer_mixer(const void *config, int64_t layer, const void **options);
bool transformer_source_attention(const void *config, attention_place place, int64_t layer, attention_site *out);
void transformer_states(const void *config, state_list *list);
void transformer_carried(const void *config, state_list *list);
void transformer_parameters(const void *config, parameter_list *list);
bool transformer_ignores(const char *name);
void transformer_forward(const void *config, builder *b);

#endif
