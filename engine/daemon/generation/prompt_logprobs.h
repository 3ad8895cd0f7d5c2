/* prompt_logprobs.h - the log-probabilities of a prompt's tokens, in the form of vLLM's `prompt_logprobs`. Loop thread.
 */
#ifndef ENGINE_DAEMON_GENERATION_PROMPT_LOGPROBS_H
#define ENGINE_DAEMON_GENERATION_PROMPT_LOGPROBS_H

#include <jansson.h>

#include "engine/serve/scheduler.h"

/* Return a list with an object for each token of the event. It has the token and the n most likely ones, {"ID":
 * {"logprob", "rank", "decoded_token"}}. NULL: out of memory. */
json_t *prompt_logprobs_list(const tokenizer *t, const generation_event *e, int n);

#endif
