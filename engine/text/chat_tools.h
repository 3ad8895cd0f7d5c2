/* chat_tools.h - functions, calls and results in the text of a conversation (internal). */
#ifndef ENGINE_TEXT_CHAT_TOOLS_H
#define ENGINE_TEXT_CHAT_TOOLS_H

#include "engine/text/chat_builder.h"

enum { CHAT_MAX_TOOLS = 128, CHAT_MAX_CALLS = 128 };

/* Calls whose results are still to come. */
typedef struct chat_calls {
	const json_t *list; /* an assistant's tool_calls; NULL: none */
	size_t index;       /* index of that message */
	bool answered[CHAT_MAX_CALLS];
} chat_calls;

/* STATUS_INVALID names "tools" if the form has none, or a member of "tools[i]". */
status chat_tools_check(const chat_form *f, const json_t *tools, error *err);
/* Append the list of functions. STATUS_INVALID names one that the form cannot print. */
status chat_tools_append_list(chat_builder *b, const json_t *tools, error *err);
/* Append the calls of messages[i]. text: the message has a text, which precedes them. *out: its calls. */
status chat_tools_append_calls(chat_builder *b, const json_t *message, size_t i, bool text, chat_calls *out,
                               error *err);
/* Check that messages[i], of the role tool, has the id of a call without a result, and mark the call. open: the
 * conversation begins with results, whose calls are not known. */
status chat_tools_take_result(const chat_form *f, const json_t *message, size_t i, chat_calls *calls, bool open,
                              error *err);
/* Append the id of the call of messages[i], a result, if the form has it. */
status chat_tools_append_result_id(chat_builder *b, const json_t *message, size_t i, error *err);
/* STATUS_INVALID if a call has no result. */
status chat_tools_check_answered(const chat_calls *calls, error *err);

#endif
