/* completions.h - the methods completion.create and session.generate, and what all requests for text share. */
#ifndef ENGINE_DAEMON_GENERATION_COMPLETIONS_H
#define ENGINE_DAEMON_GENERATION_COMPLETIONS_H

#include "engine/daemon/generation/choices.h"

/* Fill the plan's prompts from a request's "prompt": text, tokens, a list of texts, or a list of token lists;
 * NULL: one empty prompt. The plan's entry gives tokenizer and vocabulary, and its session, if it has read
 * something, is what texts go on with. */
status completions_read_prompts(choices_plan *plan, const json_t *params, const json_t *prompt, error *err);

/* Fill everything else of the plan that requests for generated text have in common: alpha, stop sequences, format,
 * sampling. */
status completions_read_options(choices_plan *plan, const json_t *params, error *err);
/* The plan's `result`: finish reasons, usage, timings, model, and a session's position. */
json_t *completions_result(choices *c);
/* STATUS_INVALID "n": more generations than there are places for. */
status completions_check_count(const stream *s, const choices_plan *plan, error *err);
/* Answer with an error, in place of choices_begin. c: NULL is legal. */
void completions_refuse(stream *s, choices *c, status why, error *err);

void completions_create(stream *s);
void completions_continue(stream *s);

#endif
