/* completions.h - the methods completion.create and session.generate, and what all requests for text share. */
#ifndef ENGINE_DAEMON_GENERATION_COMPLETIONS_H
#define ENGINE_DAEMON_GENERATION_COMPLETIONS_H

#include "engine/daemon/generation/choices.h"

/* Fill the plan's prompts from a request's "prompt": text, tokens, a list of texts, or a list of token lists; NULL: one
 * empty prompt. The plan's `model` provides tokenizer and vocabulary. Texts continue the plan's session if it has read
 * something. */
status completions_read_prompts(choices_plan *plan, const json_t *params, const json_t *prompt, error *err);

/* Fill the other members of the plan that requests for text share: alpha, stop sequences, format, sampling. */
status completions_read_options(choices_plan *plan, const json_t *params, error *err);
/* Read the request's adapter, after the options and the model. */
status completions_read_adapter(const stream *s, choices_plan *plan, error *err);
/* Return the RESULT, for answer.result of a plan: finish reasons, usage, timings, model, adapter, and a session's position. New
 * reference; NULL: out of memory. */
json_t *completions_result(choices *c);
/* STATUS_INVALID "n": more generations than slots exist. */
status completions_check_count(const stream *s, const choices_plan *plan, error *err);
/* Answer with an error instead of calling choices_begin. c may be NULL. */
void completions_refuse(stream *s, choices *c, status result, error *err);

/* Begin the snapshot of the plan's session that the request asks for. False: the stream has been answered, the session
 * released and c freed. */
bool completions_begin_snapshot(stream *s, choices *c);

void completions_create(stream *s);   /* completion.create */
void completions_continue(stream *s); /* session.generate */

#endif
