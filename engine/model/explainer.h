/* explainer.h - how a mixer's attention weights follow from what its forward puts out.
 *
 * With spec.explain a mixer gives a few vectors for each token, the *parts*, as the graph's outputs "layers.L.NAME". A
 * *log* is what a sequence has given so, on the host: token by token, in it layer by layer, in it part by part. A
 * *site* is one round and head of one layer in a log. From it the explainer takes single rows of the matrix of weights
 * p, and products with it, and never stores the N × N matrix. Masked tokens do not occur in a log.
 *
 * An attention to a source has the parts of the tokens (queries) and those of the source's tokens (keys), and its rows
 * are over the source.
 *
 * Explainers are const and work on the host in double; any thread. */
#ifndef ENGINE_MODEL_EXPLAINER_H
#define ENGINE_MODEL_EXPLAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Which attention of a model, and what the names of its outputs begin with. */
typedef enum attention_place {
	ATTENTION_OF_TOKENS, /* of its layers, among the tokens: "layers.L." */
	ATTENTION_OF_SOURCE, /* of an encoder's layers, among the tokens of a source: "source.layers.L." */
	ATTENTION_TO_SOURCE, /* of the tokens to those of a source: "cross.L." */
	ATTENTION_PLACES
} attention_place;

typedef struct log_part {
	const char *name; /* the output "layers.L.NAME" */
	int64_t width;    /* floats kept for a token: the first ones of its row in the output */
	bool of_source;   /* of ATTENTION_TO_SOURCE: for a token of the source */
	/* heads > 0: the output is a matrix [1, heads, rows, columns], of which the last rows are the tokens'. A token
	 * has width / heads floats for each head: the columns from `skipped` on, and zeros. */
	int64_t heads, skipped;
} log_part;

enum { EXPLAINER_MAX_PARTS = 8 };

typedef struct explain_site {
	const void *options; /* of the layer's mixer */
	const float *log;    /* the layer's first part, of token 0 */
	int64_t stride;      /* floats from one token to the next */
	int64_t tokens;      /* that are read: of an attention to a source those of the source */
	int64_t round, head;
	int64_t before;    /* tokens of the log that lie before token 0 */
	const float *keys; /* of ATTENTION_TO_SOURCE: the first part of_source, of the source's token 0 */
	int64_t key_stride;
} explain_site;

/* Tokens first … end - 1. */
typedef struct explain_range {
	int64_t first, end;
} explain_range;

typedef struct explainer {
	const char *const *rounds; /* names of the rounds of attention in a layer */
	int n_rounds;
	/* Weights come from a score a_j of each token, the same for every reader: p_ij = exp(a_j - M_i). Then parts 2r
	 * and 2r + 1 are a and M of round r, a float for each head. */
	bool scores;
	bool recurrent; /* only the recurrent form puts the parts out */
	/* Fills the parts of a layer's tokens; returns how many there are. */
	int (*parts)(const void *options, log_part out[EXPLAINER_MAX_PARTS]);
	/* The tokens that `position` of so many reads. */
	explain_range (*range)(const void *options, int64_t position, int64_t tokens);
	/* alpha[j - first] = p_ij for i = position and j of its range; they sum to 1. STATUS_NOMEM. */
	status (*row)(const explain_site *s, int64_t position, double *alpha);
	/* y_j += Σ_i v_i p_ij for i, j < n; no token with v_i ≠ 0 reads one beyond n. NULL: row by
	 * row, O(n²). STATUS_NOMEM. */
	status (*pull)(const explain_site *s, const double *v, int64_t n, double *y);
	int64_t pull_tokens; /* the largest n for which pull takes no more than seconds; 0: any */
} explainer;

/* The last `window` tokens up to `position`; window 0: all of them. */
static inline explain_range explainer_window(int64_t window, int64_t position)
{
	return (explain_range){window > 0 && position >= window ? position - window + 1 : 0, position + 1};
}

#endif
