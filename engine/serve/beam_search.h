/* beam_search.h - beam search as a pure choice: which hypotheses go on, which are finished, and when the search ends.
 *
 * A hypothesis is the tokens generated behind the prompt. The sum of its log-probabilities is kept as a double, and
 *
 *     score = sum / length ^ length_penalty
 *
 * where length counts the generated tokens, and a token that ends the text is one of them, in the sum as in the length.
 * Beams are the hypotheses that go on, `beams` of them at most, ranked by their sums; all have the same length. The
 * search begins with one beam of no token. In each step
 *
 *   1. the candidates are every beam with every token behind it, ranked by the sum; of equal ones the lower beam is
 *      first, then the lower token;
 *   2. a candidate that ends the text is finished if fewer than `beams` candidates rank before it, else it is dropped;
 *      the first `beams` of the other candidates are the next beams;
 *   3. of the finished hypotheses the `beams` with the best scores are kept, of equal ones the earlier.
 *
 * The search ends when a beam has max_tokens tokens (the beams are then finished too), when no beam is left, or when
 * `beams` hypotheses are finished and either early_stopping is set or no beam has, at its present length, a better
 * score than the worst of them. With a positive penalty a longer hypothesis could still overtake it. These are the
 * definitions of Hugging Face's `generate` with num_beams, length_penalty and early_stopping true or false.
 *
 * Log-probabilities are those of softmax(logits + bias). Tokens whose logit is not finite are no candidates. */
#ifndef ENGINE_SERVE_BEAM_SEARCH_H
#define ENGINE_SERVE_BEAM_SEARCH_H

#include "engine/serve/sampler.h"
#include "gen/limits.h"

enum { BEAM_SEARCH_MAX = COMPLETION_NUM_BEAMS_MAX, BEAM_SEARCH_MAX_PENALTY = 10 };

typedef struct beam_search beam_search;

typedef struct beam_options {
	int beams;             /* 1 … BEAM_SEARCH_MAX */
	double length_penalty; /* -BEAM_SEARCH_MAX_PENALTY … BEAM_SEARCH_MAX_PENALTY */
	bool early_stopping;
} beam_options;

typedef struct beam_hypothesis {
	double sum, score;
	int64_t length; /* tokens */
	bool ended;     /* by its last token; else by its length */
} beam_hypothesis;

/* `ends` [n_ends]: the tokens that end a text (copied); biases are the only settings of `s` that count. n_top: how many
 * alternatives of each token are kept; -1: neither they nor log-probabilities are asked for. STATUS_NOMEM. */
status beam_search_new(beam_search **out, const beam_options *o, int64_t vocab, int64_t max_tokens, const sampling *s,
                       const int32_t *ends, int n_ends, int n_top);
void beam_search_free(beam_search *b); /* NULL is legal */

/* Number of beams; they are ranked 0, 1, …. At first there is one. */
int beam_search_live(const beam_search *b);
/* Take the logits [vocab] of the token behind beam `rank`, once for each beam and in any order. They are changed
 * meanwhile and restored. */
void beam_search_read(beam_search *b, int rank, float *logits);
/* Choose the next beams, after the logits of all beams. STATUS_NOMEM leaves the search as it was. */
status beam_search_advance(beam_search *b);
/* The rank, before the last advance, of the beam that beam `rank` continues, and the token behind it. */
int beam_search_parent(const beam_search *b, int rank);
int32_t beam_search_token(const beam_search *b, int rank);

/* Has the search ended? From the beginning if max_tokens is 0. */
bool beam_search_ended(const beam_search *b);
/* The finished hypotheses, best first; all that there are once the search has ended. */
int beam_search_count(const beam_search *b);
const beam_hypothesis *beam_search_best(const beam_search *b, int i);
/* The tokens of hypothesis i into `tokens` [length], with the model's own log-probabilities (without biases), and into
 * `top` [length][n_top] the alternatives of each, best first. */
void beam_search_tokens(const beam_search *b, int i, token_logprob *tokens, token_logprob *top);

#endif
