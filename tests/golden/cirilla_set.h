/* cirilla_set.h - golden sets of Cirilla's encoder-decoder: weights under its own names as a model, and a batch. */
#ifndef TESTS_GOLDEN_CIRILLA_SET_H
#define TESTS_GOLDEN_CIRILLA_SET_H

#include "tests/golden/golden.h"
#include "engine/model/transformer/transformer.h"

typedef struct cirilla_ids {
	int64_t pad, begin, end;
} cirilla_ids;

/* Its masks: of the encoder's self-attention [B,S,S], of cross-attention [B,N,S], of the decoder's self-attention
 * [B,N,N]. */
enum { CIRILLA_ENCODER, CIRILLA_CROSS, CIRILLA_DECODER, CIRILLA_MASKS };

/* One model and its inputs. */
typedef struct cirilla_set {
	model *model;
	const transformer_config *config;
	cirilla_ids ids;
	int64_t batch, length, source;
	const int32_t *enc_in, *dec_in, *labels;
	int32_t *source_mask, *ones; /* [B, S] */
	bool cross_unmasked;
	const int32_t *visible[CIRILLA_MASKS]; /* [B,H,·,·], in place of the masks that follow from tokens; or NULL */
} cirilla_set;

/* The tokens' ids, and the set's weights as the architecture computes them. positions, norm, kind: values of the
 * architecture's pe_form, norm and ln_kind; NULL: as the set's config has it, or the architecture's own. Errors name
 * the key of the config that no such model has. */
status cirilla_set_model(golden *g, const char *positions, const char *norm, const char *kind, cirilla_set *c,
                         error *err);
/* enc_in, dec_in and target, with the masks that follow from them. */
status cirilla_set_read(golden *g, cirilla_set *c, error *err);
/* The set's masks under a prefix, PREFIX{enc_mask,cross_mask,dec_self_mask}, are what is visible. *any: it has one. */
status cirilla_set_visible(golden *g, const char *prefix, cirilla_set *c, bool *any, error *err);
/* The masks of c's enc_in. */
status cirilla_set_masks(golden *g, cirilla_set *c, error *err);
/* The plan of a forward with all inputs written. gradients: as golden_backward_into; NULL: memory of the plan. */
status cirilla_set_plan(golden *g, const cirilla_set *c, forward_spec spec, float *gradients, plan **out, error *err);

#endif
