/* tool_calls.h - the functions of a chat: which the model may call, and the calls in its answer. */
#ifndef ENGINE_DAEMON_GENERATION_TOOL_CALLS_H
#define ENGINE_DAEMON_GENERATION_TOOL_CALLS_H

#include "engine/daemon/generation/choices.h"

/* Loop thread, after the request's options: read tools, tool_choice and parallel_tool_calls. With functions that may be
 * called, the plan's format is that of such answers, and the stop sequences become part of it. STATUS_INVALID names the
 * field. */
status tool_calls_read(choices_plan *plan, const json_t *params, error *err);
/* Add a text that ends an answer. */
status tool_calls_add_stop(response_format *f, const char *stop, error *err);

#endif
