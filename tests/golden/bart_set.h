/* bart_set.h - golden sets of BART: their weights under Hugging Face's names as a model, and their batch. */
#ifndef TESTS_GOLDEN_BART_SET_H
#define TESTS_GOLDEN_BART_SET_H

#include "tests/golden/golden.h"

/* Name of a kind of encoder in the sets, and the keys of the architecture bart for it. Linear attention comes first. */
typedef struct bart_policy {
	const char *name, *attention, *padding;
} bart_policy;
enum { BART_LINEAR = 2, BART_POLICIES };
extern const bart_policy bart_policies[BART_POLICIES];

/* input_ids and attention_mask [B, N], labels [B] or NULL. */
typedef struct bart_texts {
	int64_t b, n;
	const int32_t *ids, *mask, *labels;
} bart_texts;

bool bart_set_recognises(const golden *g);
bool bart_set_has_decoder(const golden *g);
/* The set's weights as bart, or without a decoder as linear_encoder, for a policy. Errors name the key of the config
 * that no such model has. */
status bart_set_model(golden *g, int policy, bool decoder, model **out, error *err);
status bart_set_texts(golden *g, const model_dims *dims, bart_texts *out, error *err);
/* Write all inputs of a forward. */
status bart_texts_feed(const bart_texts *x, const model_dims *dims, plan *p);

#endif
