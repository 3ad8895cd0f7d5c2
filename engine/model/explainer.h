/* explainer.h - attention weights of a mixer, computed from the outputs of its forward.
 *
 * With spec.explain.log a mixer outputs a few vectors for each token, the *parts*, as the graph's outputs
 * "layers.L.NAME". A *log* is these outputs for a sequence, on the host: ordered by token, then layer, then part. A
 * *site* is one round and head of one layer in a log. The explainer computes from it single rows of the weight matrix p
 * and products with p, and never stores the N × N matrix. A log has no masked tokens.
 *
 * An attention to a source has the parts of the tokens (queries) and those of the source's tokens (keys); its rows are
 * over the source.
 *
 * Explainers are constants and work on the host in double; any thread. */
#ifndef ENGINE_MODEL_EXPLAINER_H
#define ENGINE_MODEL_EXPLAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* An attention of a model, and the prefix of its outputs. */
typedef enum attention_place {
	ATTENTION_OF_TOKENS, /* for the layers, among the tokens: "layers.L." */
	ATTENTION_OF_SOURCE, /* for an encoder's layers, among the tokens of a source: "source.layers.L." */
	ATTENTION_TO_SOURCE, /* from the tokens to those of a source: "cross.L." */
	ATTENTION_PLACES
} attention_place;

typedef struct log_part {
	const char *name; /* for the output "layers.L.NAME" */
	int64_t width;    /* floats kept for a token: the first ones of its row in the output */
	bool of_source;   /* with ATTENTION_TO_SOURCE: a row for each token of the source */
	/* heads > 0: the output is a matrix [1, heads, rows, columns] whose last rows are the tokens'. A token has
	 * width / heads floats for each head: the columns from `skipped` on, then zeros. */
	int64_t heads, skipped;
} log_part;

enum { EXPLAINER_MAX_PARTS = 8 };

typedef struct explain_site {
	const void *options; /* for the layer's mixer */
	const float *log;    /* first part of the layer, for token 0 */
	int64_t stride;      /* floats between consecutive tokens */
	int64_t tokens;      /* number of tokens read; for an attention to a source, those of the source */
	int64_t round, head;
	int64_t before;    /* tokens of the log before token 0 */
	const float *keys; /* with ATTENTION_TO_SOURCE: first part with of_source, for the source's token 0 */
	int64_t key_stride;
} explain_site;

/* Tokens first … end - 1. */
typedef struct explain_range {
	int64_t first, end;
} explain_range;

typedef struct explainer {
	const char *const *rounds; /* names of the rounds of attention in a layer */
	int n_rounds;
	bool recurrent; /* only the recurrent form outputs the parts */
	/* Fill in the parts of a layer's tokens and return their number. */
	int (*parts)(const void *options, log_part out[EXPLAINER_MAX_PARTS]);
	/* Return the range that `position` reads in a sequence of `tokens` tokens. */
	explain_range (*range)(const void *options, int64_t position, int64_t tokens);
	/* Weights follow from a score a_j of each token that is the same for every reader: p_ij = exp(a_j - M_i). Write
	 * a (`which` 0) or M (1) of tokens 0 … n - 1. NULL: there is no such score. */
	void (*scores)(const explain_site *s, int64_t n, int which, double *out);
	/* Return the number of tokens after which half of a token's weight is forgotten, at the mean rate of tokens
	 * 1 … n - 1; infinity: never. NULL: the mixer forgets nothing. */
	double (*half_life)(const explain_site *s, int64_t n);
	/* Write alpha[j - first] = p_ij for i = position and j in its range; they sum to 1. STATUS_NOMEM. */
	status (*row)(const explain_site *s, int64_t position, double *alpha);
	/* y_j += Σ_i v_i p_ij for i, j < n; no token with v_i ≠ 0 reads past n. NULL: computed row by row, O(n²).
	 * STATUS_NOMEM. */
	status (*pull)(const explain_site *s, const double *v, int64_t n, double *y);
	int64_t pull_tokens; /* largest n for which pull takes only seconds; 0: any */
} explainer;

/* Return the last `window` tokens up to `position`; window 0: all of them. */
static inline explain_range explainer_window(int64_t window, int64_t position)
{
	return (explain_range){window > 0 && position >= window ? position - window + 1 : 0, position + 1};
}

#endif
