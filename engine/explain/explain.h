/* explain.h - importance weights: which tokens a prediction read, per layer, head and round.
 *
 * They are computed from a log by the explainers of the layers' mixers (model/explainer.h). A log is a few numbers per
 * token that a forward pass with spec.explain writes. Reading a log needs the model's configuration, not the model. */
#ifndef ENGINE_EXPLAIN_EXPLAIN_H
#define ENGINE_EXPLAIN_EXPLAIN_H

#include "engine/model/architecture.h"

/* Maximum tokens of an input, and maximum bytes of a log. */
enum { EXPLAIN_MAX_TOKENS = 1 << 16 };
#define EXPLAIN_MAX_BYTES ((int64_t)1 << 30)

/* The log of one sequence at one place. Configuration and data are borrowed. */
typedef struct explain_log {
	attention_place place;
	int64_t tokens, layers, rounds;               /* layers 0: the model has no such attention */
	int64_t heads;                                /* largest number of heads of a layer */
	int64_t floats;                               /* per token */
	const float *data;                            /* [tokens][floats] */
	int64_t before;                               /* tokens of the sequence before those of the log */
	/* For each layer: its attention, and the offset of its floats within a token. */
	attention_site layer[ARCHITECTURE_MAX_LAYERS];
	int64_t at[ARCHITECTURE_MAX_LAYERS];
	/* With ATTENTION_TO_SOURCE: the same for the tokens of the source, which are read. */
	int64_t sources, key_floats;
	const float *keys; /* [sources][key_floats] */
	int64_t key_at[ARCHITECTURE_MAX_LAYERS];
} explain_log;

/* Return the floats of a token in the logs of a configuration (in all logs with model_dims.shifted, where the tokens
 * are the source too). 0: it has no explainer. */
int64_t explain_token_floats(const architecture *a, const void *config);
/* Initialise the log `data` of a model of this configuration, which has an explainer. */
void explain_log_init(explain_log *out, const architecture *a, const void *config, const float *data, int64_t tokens);

/* The logs of a sequence with its source, stored in this order: tokens, source, queries and keys of the attention to
 * the source. Without a source only the first exists. With model_dims.shifted the source is the tokens themselves. */
typedef struct explain_logs {
	explain_log at[ATTENTION_PLACES];
} explain_logs;
void explain_logs_init(explain_logs *out, const architecture *a, const void *config, const float *data, int64_t tokens,
                       int64_t sources);
int64_t explain_logs_floats(const explain_logs *l);
/* STATUS_INVALID: no tokens, or more than the model's positions or EXPLAIN_MAX_TOKENS. STATUS_TOO_LARGE: the log
 * exceeds EXPLAIN_MAX_BYTES. */
status explain_check_length(const architecture *a, const void *config, int64_t tokens, error *err);
/* True if all numbers of the log are finite. */
bool explain_finite(const explain_log *l);

/* Return the range of tokens that a position reads in a layer, and the end of what it reads in any layer. */
explain_range explain_reads(const explain_log *l, int64_t layer, int64_t position);
int64_t explain_reach(const explain_log *l, int64_t position);
/* Write the scores (`which` 0) or the log-normalisers (1) of all tokens, for an explainer with `scores`. */
void explain_scores(const explain_log *l, int64_t layer, int64_t round, int64_t head, int which, double *out);
/* Return the tokens after which half of a token is forgotten, by the tokens up to a position, for an explainer with
 * `half_life`; infinity: never. */
double explain_half_life(const explain_log *l, int64_t layer, int64_t round, int64_t head, int64_t position);
/* Write alpha[j - first] for j = first … end - 1 of the tokens that the position reads; they sum to 1. STATUS_NOMEM. */
status explain_alpha(const explain_log *l, int64_t layer, int64_t round, int64_t head, int64_t position, double *alpha);

/* Return the largest number of tokens for which rollout takes only seconds; 0: any. */
int64_t explain_pull_tokens(const explain_log *l);
/* y_j += Σ_i v_i p_ij for i, j < n, by the explainer's function if it has one, otherwise row by row. STATUS_NOMEM. */
status explain_pull(const explainer *e, const explain_site *s, const double *v, int64_t n, double *y);

/* Selected layers, rounds and heads (bit i of a mask is number i). Aggregates over them go to out[explain_reach] and
 * sum to 1.
 *
 * mean: the average of the α rows.
 *
 * rollout: per layer the mean matrix A_l over heads and rounds is mixed with the residual stream, Ã_l = (A_l + I) / 2,
 * and multiplied through the layers (Abnar and Zuidema 2020). explain_pull computes it as one row vector times
 * matrices, never N × N.
 *
 * STATUS_INVALID: nothing is selected, the position is out of range, or a weight is not finite. STATUS_TOO_LARGE:
 * rollout follows more tokens than explain_pull_tokens. STATUS_NOMEM. */
typedef struct explain_selection {
	const bool *layers; /* [layers] */
	const bool *heads;  /* [heads] */
	const bool *rounds; /* [rounds] */
} explain_selection;
status explain_mean(const explain_log *l, const explain_selection *pick, int64_t position, double *out);
status explain_rollout(const explain_log *l, const explain_selection *pick, int64_t position, double *out);
/* These two aggregate over the tokens of a source, into out[sources].
 *
 * mean: the average of the rows of the attention to the source.
 *
 * rollout: r = u C̄ Ẽ_n … Ẽ_1. u is the rollout of the position among the tokens. C̄ [tokens, sources] is the average
 * matrix of the attention to the source. Ẽ_l = (E_l + I) / 2 for all of the encoder's layers. `layers` past the last
 * layer of a place select nothing there. */
status explain_source_mean(const explain_logs *l, const explain_selection *pick, int64_t position, double *out);
status explain_source_rollout(const explain_logs *l, const explain_selection *pick, int64_t position, double *out);
/* With model_dims.shifted, into out[tokens]: what the position reads of each token in the source, plus what it reads in
 * the decoder's row with that token. By rollout or by the means, normalised. The row of the start token is omitted. */
status explain_twice(const explain_logs *l, const explain_selection *pick, int64_t position, bool rollout, double *out);
/* Return the first token that rollout follows; its time grows with the number of tokens from there to the reach. The
 * log needs no data. */
int64_t explain_rollout_first(const explain_log *l, const explain_selection *pick, int64_t position);
/* Average the means of all positions into out[tokens]: the weights of a vector that is the mean of all hidden vectors.
 * STATUS_TOO_LARGE: more tokens than explain_pull_tokens. */
status explain_mean_of_all(const explain_log *l, const explain_selection *pick, double *out);
/* Aggregate what a model's prediction reads into out[tokens], and for a model with a source into source[sources]: by
 * the function above that fits how its head reads. position: for a form with many rows the row of the prediction,
 * otherwise the row of the head. */
status explain_prediction_weights(const explain_logs *l, const model_dims *d, const explain_selection *pick,
                                  int64_t position, bool rollout, double *source, double *out);

#endif
