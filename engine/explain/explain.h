/* explain.h - importance weights: which tokens a prediction read, per layer, head and round.
 *
 * The weight of token j for position i is α_ij = exp(a_j - M_i) for j in the window
 * W(i), 0 elsewhere: from the scores a and the log-normalisers M that a forward or a
 * session's log holds, O(N) numbers explain a whole sequence. */
#ifndef ENGINE_EXPLAIN_EXPLAIN_H
#define ENGINE_EXPLAIN_EXPLAIN_H

#include "engine/model/model.h"

/* The longest sequence that explain_run takes in one piece; a session's log may be longer. */
enum { EXPLAIN_MAX_TOKENS = 1 << 16 };

/* Scores of one sequence: float[tokens][layers][rounds][2][heads], [0] = a, [1] = M. */
typedef struct explain_scores {
	int64_t tokens, layers, rounds, heads;
	const float *data;
	int64_t window[ARCHITECTURE_MAX_LAYERS]; /* 0: global */
} explain_scores;

/* Run `ids` through the model (parallel form) and collect its scores; *data is
 * malloc'ed and out->data points to it. STATUS_INVALID when n is 0, over the model's positions or over
 * EXPLAIN_MAX_TOKENS, a token is unknown, or the model's scores are not finite; STATUS_UNSUPPORTED when the
 * architecture has no importance weights. */
status explain_check_length(const model_dims *d, int64_t n, error *err); /* the errors of n */
status explain_run(const model *m, const int32_t *ids, int64_t n, explain_scores *out, float **data, error *err);
/* Fill layers, rounds, heads and windows of a session's log. */
void explain_from_log(const model *m, const float *log, int64_t tokens, explain_scores *out);

/* First token of W(position) in a layer. */
int64_t explain_window_first(const explain_scores *s, int64_t layer, int64_t position);
/* alpha[j - first] for j = first … position; they sum to 1. The normaliser is taken from the scores
 * anew, in double: at scores of 1e4 a float's M is only good to 1e-3. O(window). */
void explain_alpha(const explain_scores *s, int64_t layer, int64_t round, int64_t head, int64_t position, float *alpha);

/* Aggregates over the chosen layers, rounds and heads (bit masks; bit i = i) into out[position + 1], summing to 1:
 * mean: the average of the α rows. rollout: per layer the head- and round-mean row matrix A_l mixed with
 * the residual stream, Ã_l = (A_l + I) / 2, multiplied through the chosen layers (Abnar and Zuidema 2020);
 * computed as one row vector times matrices, O(layers · rounds · heads · tokens) by the same window scans, never N × N.
 * STATUS_INVALID when nothing is chosen, the position is outside or a score is not finite; STATUS_NOMEM. */
typedef struct explain_selection {
	const bool *layers; /* [layers] */
	const bool *heads;  /* [heads] */
	const bool *rounds; /* [rounds] */
} explain_selection;
status explain_mean(const explain_scores *s, const explain_selection *pick, int64_t position, float *out);
status explain_rollout(const explain_scores *s, const explain_selection *pick, int64_t position, float *out);

#endif
