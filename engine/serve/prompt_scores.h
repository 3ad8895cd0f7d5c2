/* prompt_scores.h - the log-probabilities of a prompt's tokens, from the second on, each given those before it.
 *
 * The prompt is read in pieces by readings (reading.h) that give the logits of every token, and the session goes on
 * from there: its state, its tokens and the logits after the last one are those of a prompt that is read in any other
 * way (reading_scored_piece). Only the scores of one piece are kept: they are taken before the next is read, so a
 * generation without credit holds a few kilobytes.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_PROMPT_SCORES_H
#define ENGINE_SERVE_PROMPT_SCORES_H

#include "engine/serve/reading.h"
#include "engine/serve/session.h"

typedef struct prompt_scores prompt_scores;

/* Scores of the `count` ≥ 2 tokens that x reads next, each with n_top alternatives. x and ids stay with the caller, and
 * there is room for the tokens in x before the first step. STATUS_NOMEM. */
status prompt_scores_new(prompt_scores **out, session *x, const int32_t *ids, int64_t count, int n_top);
void prompt_scores_free(prompt_scores *p); /* NULL is legal */

/* Read and score for about slice_ns, or until scores are waiting; *n_read: tokens that x has read of the prompt. No
 * score may be waiting. STATUS_NOMEM; STATUS_DEVICE: x is lost. */
status prompt_scores_step(prompt_scores *p, uint64_t slice_ns, int64_t *n_read, error *err);
/* Can scores be taken? */
bool prompt_scores_waiting(const prompt_scores *p);
/* Take the next ones, at most `most`: their tokens (in ids), scores and alternatives [n][n_top], valid until the next
 * step. Returns how many. */
int prompt_scores_take(prompt_scores *p, int most, const int32_t **tokens, const token_logprob **scores,
                       const token_logprob **top);
/* Has the prompt been read, and have all scores been taken? */
bool prompt_scores_all_taken(const prompt_scores *p);

#endif
