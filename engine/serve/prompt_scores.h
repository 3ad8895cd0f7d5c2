/* prompt_scores.h - log-probabilities of a prompt's tokens, from the second on, each given those before it.
 *
 * The prompt is read in pieces by passes (read_pass.h) that give the logits of every token, and the session continues
 * from there. Its state, tokens and last logits are those of a prompt read in any other way (read_pass_scored_piece).
 * Only the scores of one piece are kept: they are taken before the next piece is read, so a generation without credit
 * holds only some kilobytes.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_PROMPT_SCORES_H
#define ENGINE_SERVE_PROMPT_SCORES_H

#include "engine/serve/read_pass.h"
#include "engine/serve/session.h"

typedef struct prompt_scores prompt_scores;

/* Score the `count` ≥ 2 tokens that x reads next, each with n_top alternatives. x and ids are borrowed.
 * The caller reserves memory of x for these tokens before the first step. STATUS_NOMEM. */
status prompt_scores_new(prompt_scores **out, session *x, const int32_t *ids, int64_t count, int n_top);
void prompt_scores_free(prompt_scores *p); /* NULL is legal */

/* Read and score for about slice_ns, or until scores are available. *n_read: prompt tokens that x has read. All earlier
 * scores must have been taken. STATUS_NOMEM. STATUS_DEVICE: x is lost. */
status prompt_scores_step(prompt_scores *p, uint64_t slice_ns, int64_t *n_read, error *err);
/* True if scores can be taken. */
bool prompt_scores_waiting(const prompt_scores *p);
/* Take at most `most` scores: their tokens (in ids), scores and alternatives [n][n_top], valid until the next step.
 * Return their number. */
int prompt_scores_take(prompt_scores *p, int most, const int32_t **tokens, const token_logprob **scores,
                       const token_logprob **top);
/* True if the prompt has been read and all scores have been taken. */
bool prompt_scores_all_taken(const prompt_scores *p);

#endif
