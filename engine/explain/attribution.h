/* attribution.h - the score of a prediction that is explained, the method, and the result.
 *
 * A score is Σ_v c_v z_v over the logits z. The coefficients c are chosen from the logits of the unchanged sequence and
 * stay fixed (model/attribution.h). */
#ifndef ENGINE_EXPLAIN_ATTRIBUTION_H
#define ENGINE_EXPLAIN_ATTRIBUTION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum explain_method {
	EXPLAIN_NONE,
	EXPLAIN_CONTRIBUTIONS, /* exact parts, through the frozen network */
	EXPLAIN_GRADIENT,      /* gradient × input, and attention weight × gradient */
	EXPLAIN_INTEGRATED,    /* integrated gradients (Sundararajan et al. 2017) from a baseline */
	EXPLAIN_WEIGHTS,       /* no parts; the result is the log (explain.h) */
	EXPLAIN_LEAVE_ONE_OUT, /* the score minus the score without the token, which is masked or replaced */
	EXPLAIN_REMOVALS       /* no parts; the result is the score without each of several sets of tokens */
} explain_method;

enum { EXPLAIN_STEPS = 64, EXPLAIN_MAX_STEPS = 1024 };

/* Vectors at which integrated gradients start.
 *
 * From zero, word vectors only become longer. A network whose first norm cancels their length changes within a tiny
 * part of that path, and the norms that follow change elsewhere. A network without biases has a direction at the mean,
 * so it is smooth on the whole path. */
typedef enum explain_baseline {
	EXPLAIN_FROM_USUAL, /* EXPLAIN_FROM_MEAN if model_dims.scale_free, otherwise EXPLAIN_FROM_ZERO */
	EXPLAIN_FROM_ZERO,
	EXPLAIN_FROM_MEAN /* for every token the mean of the text's word vectors, scaled to their root mean square; a
	                   * source starts at zero */
} explain_baseline;

typedef struct explain_options {
	explain_method method;
	float share;               /* EXPLAIN_CONTRIBUTIONS: share of a gate's output credited to its pooled factor */
	int steps;                 /* EXPLAIN_INTEGRATED: number of gradients, 1 to EXPLAIN_MAX_STEPS */
	explain_baseline baseline; /* EXPLAIN_INTEGRATED */
	int32_t replacement; /* EXPLAIN_LEAVE_ONE_OUT: token that replaces the removed one; -1: the token is masked */
} explain_options;

/* A contrast with all other outputs is nearly 0 if the token is nearly certain. From this probability on EXPLAIN_USUAL
 * is the difference to the strongest rival. */
#define EXPLAIN_CERTAIN 0.9

typedef enum explain_target_kind {
	EXPLAIN_USUAL,     /* depends on the probability of t: EXPLAIN_DIFFERENCE from EXPLAIN_CERTAIN on, otherwise
	                    * EXPLAIN_CONTRAST */
	EXPLAIN_CONTRAST,  /* z_t - Σ_v p_v z_v: t against the model's expectation, with its probabilities p */
	EXPLAIN_LOGIT,     /* z_t */
	EXPLAIN_DIFFERENCE /* z_t - z_s: t against s */
} explain_target_kind;

typedef struct explain_target {
	explain_target_kind kind;
	int32_t token; /* t; -1: the token with the largest logit */
	int32_t other; /* s; -1: the largest logit other than t */
} explain_target;

/* The parts of one score, and the tokens that were chosen. */
typedef struct explain_parts {
	explain_target_kind kind; /* never EXPLAIN_USUAL */
	int32_t token, other;
	double logit, log_probability; /* the token's */
	double score;
	double difference; /* EXPLAIN_INTEGRATED: the score minus that of the baseline; `words` sum to it */
	double head;       /* EXPLAIN_CONTRIBUTIONS: biases after the row was chosen */
	/* [tokens], those of a source first; the caller's memory, NULL: not requested. `words` is for any method,
	 * `positions` and `biases` for EXPLAIN_CONTRIBUTIONS, `attention` for EXPLAIN_GRADIENT. */
	float *words, *positions, *biases, *attention;
} explain_parts;

/* EXPLAIN_REMOVALS: sets of tokens of a sequence, each removed as a whole, and the target's score without them. */
typedef struct explain_removals {
	int64_t n;
	const bool *absent;        /* [n][tokens], those of a source first; NULL: set i is token i */
	int32_t replacement;       /* replaces each removed token; -1: removed tokens are masked */
	double *log_probabilities; /* [n] of the target's token; NULL: not requested */
	double *scores;            /* [n] */
	int64_t readings, tokens;  /* incremented: pieces read, and their tokens */
} explain_removals;

/* Choose the kind and the tokens, and write the coefficients c [n] of the logits z [n]. A logit that is not finite has
 * coefficient 0. */
void explain_target_choose(const explain_target *t, const float *logits, int64_t n, float *coefficients,
                           explain_parts *out);
/* Return Σ_v c_v z_v over the finite logits. */
double explain_score_of(const float *coefficients, const float *logits, int64_t n);
/* Return the log-probability of output v among the finite logits. */
double explain_log_probability_of(const float *logits, int64_t n, int32_t v);

/* Write the baseline of EXPLAIN_FROM_MEAN for word vectors [n][width]. */
void explain_mean_baseline(const float *words, int64_t n, int64_t width, float *out);
/* Write the factors and weights of a straight path: the Gauss-Legendre nodes between 0 and 1. */
void explain_straight_path(int steps, double *factors, double *weights);

/* The path of integrated gradients from zero: factors of the word vectors, rising from 0 to 1, and the weights of the
 * gradients there, at the Gauss-Legendre nodes u. Norms at the start of a network cancel the length of the vectors, so
 * the score changes most near zero; the nodes are dense there.
 *
 * `size` is the root mean square of the vectors' elements if nothing is added to them before the first norm. The norm's
 * result then grows as v = a / √(a² + c²) with the factor a and c = √ε / size. v is (e^{ku} - 1) / (e^k - 1) of its
 * maximum, with e^k = 101. If size is 0, the factor is (e^{8u} - 1) / (e^8 - 1). */
void explain_path(int steps, double size, double *factors, double *weights);

#endif
