/* completions.h - the methods completion.create and session.generate, and the prompts of all requests. */
#ifndef ENGINE_DAEMON_GENERATION_COMPLETIONS_H
#define ENGINE_DAEMON_GENERATION_COMPLETIONS_H

#include "engine/daemon/generation/choices.h"

/* Fill the plan's prompts from a request's "prompt": text, tokens, a list of texts, or a list of token lists;
 * NULL: one empty prompt. The plan's entry gives tokenizer and vocabulary. */
status completions_read_prompts(choices_plan *plan, const json_t *prompt, error *err);

void completions_create(stream *s);
void completions_continue(stream *s);

#endif
