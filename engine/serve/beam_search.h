/* beam_search.h - beam search as a pure choice: which hypotheses continue, which are finished, and when the search
 * ends.
 *
 * A hypothesis is the tokens generated after the prompt. The sum of its log-probabilities is kept as a double, and
 *
 *   score = sum / length ^ length_penalty
 *
 * where length counts the generated tokens. A token that ends the text counts in the sum and in the length. Beams are
 * the hypotheses that continue, at most `beams`, ranked by their sums; all have the same length. The search begins with
 * one beam of no token. In each step
 *
 *   1. the candidates are every beam followed by every token, ranked by the sum; ties by lower beam, then lower token;
 *   2. a candidate that ends the text is finished if fewer than `beams` candidates rank before it, else it is dropped;
 *      the first `beams` of the other candidates are the next beams;
 *   3. the `beams` finished hypotheses with the best scores are kept; ties by age.
 *
 * The search ends when a beam has max_tokens tokens (the beams are then finished too) or no beam is left. It also ends
 * when `beams` hypotheses are finished and either early_stopping is set or no beam, at its present length, scores
 * better than the worst of them. With a positive penalty a longer hypothesis could still overtake it. These are the
 * definitions of Hugging Face's `generate` with num_beams, length_penalty and early_stopping true or false.
 *
 * Log-probabilities are those of softmax(logits + bias). Tokens whose logit is not finite are not candidates. */
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
	bool ended;     /* ended by its last token; false: by its length */
} beam_hypothesis;

/* Create a search. `ends` [n_ends] (copied) are the tokens that end a text; only the biases of `s` are used. n_top:
 * number of alternatives kept for each token; -1: no log-probabilities either. STATUS_NOMEM. */
status beam_search_new(beam_search **out, const beam_options *o, int64_t vocab, int64_t max_tokens, const sampling *s,
                       const int32_t *ends, int n_ends, int n_top);
void beam_search_free(beam_search *b); /* NULL is legal */

/* Return the number of beams, ranked 0, 1, …; initially 1. */
int beam_search_live(const beam_search *b);
/* Read the logits [vocab] after beam `rank`, once for each beam, in any order. They are modified during the call and
 * restored. */
void beam_search_read(beam_search *b, int rank, float *logits);
/* Choose the next beams once the logits of all beams have been read. STATUS_NOMEM leaves the search unchanged. */
status beam_search_advance(beam_search *b);
/* Return the rank, before the last advance, of the beam that beam `rank` continues; return the token that it added. */
int beam_search_parent(const beam_search *b, int rank);
int32_t beam_search_token(const beam_search *b, int rank);

/* True if the search has ended; true at once if max_tokens is 0. */
bool beam_search_ended(const beam_search *b);
/* Return the number of finished hypotheses, best first. Final once the search has ended. */
int beam_search_count(const beam_search *b);
const beam_hypothesis *beam_search_best(const beam_search *b, int i);
/* Write the tokens of hypothesis i [length] with the model's own log-probabilities (without biases), and to `top`
 * [length][n_top] the alternatives of each, best first. */
void beam_search_tokens(const beam_search *b, int i, token_logprob *tokens, token_logprob *top);

#endif
