/* explain.h - importance weights: which tokens a prediction read, per layer, head and round.
 *
 * They follow from a log, the few numbers per token that a forward with spec.explain puts out, by the explainer of the
 * layers' mixers (model/explainer.h). A log needs the configuration of its model, and not the model. */
#ifndef ENGINE_EXPLAIN_EXPLAIN_H
#define ENGINE_EXPLAIN_EXPLAIN_H

#include "engine/model/architecture.h"

/* The longest input, and the most bytes of a log. */
enum { EXPLAIN_MAX_TOKENS = 1 << 16 };
#define EXPLAIN_MAX_BYTES ((int64_t)1 << 30)

/* The log of one sequence at one place. The configuration and the data stay with the caller. */
typedef struct explain_log {
	attention_place place;
	const explainer *explainer;
	int64_t tokens, layers, rounds, heads;        /* no layers: there is no such attention */
	int64_t floats;                               /* of a token */
	const float *data;                            /* [tokens][floats] */
	int64_t before;                               /* tokens of the sequence before them */
	const void *options[ARCHITECTURE_MAX_LAYERS]; /* of the layers' mixers */
	int64_t at[ARCHITECTURE_MAX_LAYERS];          /* where a token's layers begin */
	/* Of ATTENTION_TO_SOURCE, the same of the source's tokens, which are read: */
	int64_t sources, key_floats;
	const float *keys; /* [sources][key_floats] */
	int64_t key_at[ARCHITECTURE_MAX_LAYERS];
} explain_log;

/* Floats of a token in the logs of a configuration, in all of them where the tokens are the source too
 * (model_dims.shifted); 0: it has no explainer. */
int64_t explain_token_floats(const architecture *a, const void *config);
/* The log `data` of a model of this configuration, which has an explainer. */
void explain_log_init(explain_log *out, const architecture *a, const void *config, const float *data, int64_t tokens);

/* All logs of a sequence with its source, one behind the other: of the tokens, of the source, of queries and of keys of
 * the attention to it. Without a source the first alone; with model_dims.shifted the source is the tokens again. */
typedef struct explain_logs {
	explain_log at[ATTENTION_PLACES];
} explain_logs;
void explain_logs_init(explain_logs *out, const architecture *a, const void *config, const float *data, int64_t tokens,
                       int64_t sources);
int64_t explain_logs_floats(const explain_logs *l);
/* STATUS_INVALID: no tokens, or more than the model's positions or EXPLAIN_MAX_TOKENS. STATUS_TOO_LARGE: their log has
 * more than EXPLAIN_MAX_BYTES. */
status explain_check_length(const architecture *a, const void *config, int64_t tokens, error *err);
/* Are all numbers of the log finite? */
bool explain_finite(const explain_log *l);

/* The tokens that a position reads in a layer, and the end of what it reads in any layer. */
explain_range explain_reads(const explain_log *l, int64_t layer, int64_t position);
int64_t explain_reach(const explain_log *l, int64_t position);
/* Number `which` (0: the score, 1: the log-normaliser) of token j, of an explainer with `scores`. */
float explain_score(const explain_log *l, int64_t layer, int64_t round, int64_t head, int64_t j, int which);
/* alpha[j - first] for j = first … end - 1 of what the position reads; they sum to 1. STATUS_NOMEM. */
status explain_alpha(const explain_log *l, int64_t layer, int64_t round, int64_t head, int64_t position, double *alpha);

/* y_j += Σ_i v_i p_ij for i, j < n by the explainer's own function, or row by row where it has none. STATUS_NOMEM. */
status explain_pull(const explainer *e, const explain_site *s, const double *v, int64_t n, double *y);

/* Aggregates over the chosen layers, rounds and heads (bit masks; bit i = i) into out[explain_reach], summing to 1:
 * mean: the average of the α rows. rollout: per layer the head- and round-mean row matrix A_l mixed with
 * the residual stream, Ã_l = (A_l + I) / 2, multiplied through the chosen layers (Abnar and Zuidema 2020);
 * computed as one row vector times matrices by explain_pull, never N × N.
 * STATUS_INVALID when nothing is chosen, the position is outside or a weight is not finite; STATUS_TOO_LARGE when
 * rollout follows more tokens than the explainer's pull_tokens; STATUS_NOMEM. */
typedef struct explain_selection {
	const bool *layers; /* [layers] */
	const bool *heads;  /* [heads] */
	const bool *rounds; /* [rounds] */
} explain_selection;
status explain_mean(const explain_log *l, const explain_selection *pick, int64_t position, double *out);
status explain_rollout(const explain_log *l, const explain_selection *pick, int64_t position, double *out);
/* The same over the tokens of a source, into out[sources]. mean: the average of the rows of the attention to it.
 * rollout: r = u C̄ Ẽ_n … Ẽ_1 with u the rollout of the position among the tokens, C̄ the average matrix of the attention
 * to the source, [tokens, sources], and Ẽ_l = (E_l + I) / 2 of all the encoder's layers. `layers` beyond those that a
 * place has choose nothing there. */
status explain_source_mean(const explain_logs *l, const explain_selection *pick, int64_t position, double *out);
status explain_source_rollout(const explain_logs *l, const explain_selection *pick, int64_t position, double *out);
/* With model_dims.shifted, into out[tokens]: the sum of what the position reads of a token in the source and in the
 * decoder's row that holds it, by rollout or else the means, normalised. The row of the start token is left out. */
status explain_twice(const explain_logs *l, const explain_selection *pick, int64_t position, bool rollout, double *out);
/* The first token that rollout follows: its time grows with the tokens from there to the reach. The log needs no data.
 */
int64_t explain_rollout_first(const explain_log *l, const explain_selection *pick, int64_t position);
/* The average of the means of all positions, into out[tokens]: what a vector has read that is the mean over all hidden
 * vectors. STATUS_TOO_LARGE: more tokens than the explainer's pull_tokens. */
status explain_mean_of_all(const explain_log *l, const explain_selection *pick, double *out);

#endif
