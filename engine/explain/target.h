/* target.h - which number of a prediction is explained: the score Σ_v c_v z_v of its logits z (model/attribution.h). */
#ifndef ENGINE_EXPLAIN_TARGET_H
#define ENGINE_EXPLAIN_TARGET_H

#include <stdint.h>

typedef enum explain_target_kind {
	EXPLAIN_CONTRAST,  /* z_t - Σ_v p_v z_v: t against all that the model expects, with its probabilities p */
	EXPLAIN_LOGIT,     /* z_t */
	EXPLAIN_DIFFERENCE /* z_t - z_s: why t and not s */
} explain_target_kind;

typedef struct explain_target {
	explain_target_kind kind;
	int32_t token; /* t; -1: the one with the largest logit */
	int32_t other; /* s; -1: the largest but t */
} explain_target;

/* What a score is the sum of, with the tokens that were chosen. `reader`, the last token, is one of the tokens: what it
 * gave itself. */
typedef struct explain_parts {
	int32_t token, other;
	double logit, log_probability; /* of the token */
	double score;
	double head;                                   /* biases behind the choice of the row */
	float *words, *positions, *biases, *attention; /* [tokens]; the caller's memory */
} explain_parts;

/* Choose the tokens, and write the coefficients c [n] of the logits z [n]. A logit that is not finite has the
 * coefficient 0. */
void explain_target_choose(const explain_target *t, const float *logits, int64_t n, float *coefficients,
                           explain_parts *out);

#endif
