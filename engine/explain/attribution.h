/* attribution.h - which number of a prediction is explained, by which method, and what comes out.
 *
 * The number is a score Σ_v c_v z_v of the logits z; the coefficients c follow from the logits of the sequence as it
 * is, and then stay (model/attribution.h). */
#ifndef ENGINE_EXPLAIN_ATTRIBUTION_H
#define ENGINE_EXPLAIN_ATTRIBUTION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum explain_method {
	EXPLAIN_NONE,
	EXPLAIN_CONTRIBUTIONS, /* exact parts through the frozen network */
	EXPLAIN_GRADIENT,      /* gradient x input, and weights of attention x gradient */
	EXPLAIN_INTEGRATED,    /* integrated gradients (Sundararajan et al. 2017), from zero word vectors */
	EXPLAIN_WEIGHTS,       /* no parts: the log (explain.h) */
	EXPLAIN_LEAVE_ONE_OUT, /* the score less that without the token: masked, or replaced by another */
	EXPLAIN_REMOVALS       /* no parts: what is said of the target without sets of tokens */
} explain_method;

enum { EXPLAIN_STEPS = 64, EXPLAIN_MAX_STEPS = 1024 };

typedef struct explain_options {
	explain_method method;
	float share;         /* EXPLAIN_CONTRIBUTIONS: what the pooled factor of a gate gets */
	int steps;           /* EXPLAIN_INTEGRATED: gradients, 1 to EXPLAIN_MAX_STEPS */
	int32_t replacement; /* EXPLAIN_LEAVE_ONE_OUT: the token in its place; -1: none reads it */
} explain_options;

/* Contrasts with all other outputs are nearly 0 where the token is nearly certain: from this probability on the usual
 * kind is the difference to the strongest rival. */
#define EXPLAIN_CERTAIN 0.9

typedef enum explain_target_kind {
	EXPLAIN_USUAL, /* by the probability of t: EXPLAIN_DIFFERENCE from EXPLAIN_CERTAIN on, else EXPLAIN_CONTRAST */
	EXPLAIN_CONTRAST,  /* z_t - Σ_v p_v z_v: t against all that the model expects, with its probabilities p */
	EXPLAIN_LOGIT,     /* z_t */
	EXPLAIN_DIFFERENCE /* z_t - z_s: why t and not s */
} explain_target_kind;

typedef struct explain_target {
	explain_target_kind kind;
	int32_t token; /* t; -1: the one with the largest logit */
	int32_t other; /* s; -1: the largest but t */
} explain_target;

/* What a score is the sum of, with the tokens that were chosen. */
typedef struct explain_parts {
	explain_target_kind kind; /* never EXPLAIN_USUAL */
	int32_t token, other;
	double logit, log_probability; /* of the token */
	double score;
	double difference; /* EXPLAIN_INTEGRATED: the score less that of zero word vectors, which the words sum to */
	double head;       /* EXPLAIN_CONTRIBUTIONS: biases behind the choice of the row */
	/* [tokens]; the caller's memory, NULL: not wanted. words: by any method; positions, biases:
	 * EXPLAIN_CONTRIBUTIONS; attention: EXPLAIN_GRADIENT. Those of a source's tokens stand in front. */
	float *words, *positions, *biases, *attention;
} explain_parts;

/* EXPLAIN_REMOVALS: sets of tokens of a sequence, each removed at once, and what is said without them. */
typedef struct explain_removals {
	int64_t n;
	const bool *absent;        /* [n][tokens], those of a source in front; NULL: set i is token i alone */
	int32_t replacement;       /* the token in the place of each; -1: none reads them */
	double *log_probabilities; /* [n] of the target's token; NULL: not wanted */
	double *scores;            /* [n] */
	int64_t readings, tokens;  /* added to: pieces that were read, and their tokens */
} explain_removals;

/* Choose the kind and the tokens, and write the coefficients c [n] of the logits z [n]. A logit that is not finite has
 * the coefficient 0. */
void explain_target_choose(const explain_target *t, const float *logits, int64_t n, float *coefficients,
                           explain_parts *out);
/* Σ_v c_v z_v over the finite logits. */
double explain_score_of(const float *coefficients, const float *logits, int64_t n);
/* That of output v among the finite logits. */
double explain_log_probability_of(const float *logits, int64_t n, int32_t v);

/* The path of integrated gradients: factors of the word vectors, rising from 0 to 1, and the weights of the gradients
 * there, at Gauss and Legendre's nodes u. Norms at the beginning of a network take the length of the vectors away
 * again, so that the score changes most where they are nearly zero: there the nodes are dense.
 *
 * size: the root mean square of the vectors' elements, where nothing is added to them before the first norm; its
 * result then grows as v = a / √(a² + c²) with the factor a, c = √ε / size, and v is (e^{ku} - 1) / (e^k - 1) of the
 * largest v, e^k = 101. Else 0: the factor is (e^{8u} - 1) / (e^8 - 1). */
void explain_path(int steps, double size, double *factors, double *weights);

#endif
