/* Each message and each call has its place in the request, for errors. Calls that follow each other are one message, as
 * an answer is; a text of the assistant directly before them is that message's. */
#include "engine/daemon/generation/response_input.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEM_MESSAGE, ITEM_CALL, ITEM_RESULT, ITEM_KINDS, PLACE_BYTES = 32 };

static const struct {
	const char *name;
	const char *members[4]; /* all are required */
} kinds[ITEM_KINDS] = {
    [ITEM_MESSAGE] = {"message", {"role", "content"}},
    [ITEM_CALL] = {"function_call", {"call_id", "name", "arguments"}},
    [ITEM_RESULT] = {"function_call_output", {"call_id", "output"}},
};

/* --- items ----------------------------------------------------------------------------------------------- */

static bool has_member(int kind, const char *key)
{
	for (const char *const *own = kinds[kind].members; *own; own++)
		if (strcmp(*own, key) == 0)
			return true;
	return false;
}

/* Check that the item has the members of its type, and none of another. */
static status read_kind(const json_t *item, const char *place, int *out, error *err)
{
	const char *type = json_string_value(json_object_get(item, "type"));
	char param[2 * PLACE_BYTES];
	*out = ITEM_MESSAGE;
	for (int kind = 0; type && kind < ITEM_KINDS; kind++)
		if (strcmp(kinds[kind].name, type) == 0)
			*out = kind;
	for (int kind = 0; kind < ITEM_KINDS; kind++)
		for (const char *const *key = kinds[kind].members; *key; key++) {
			const bool given = json_object_get(item, *key), own = has_member(*out, *key);
			if (given == own)
				continue;
			snprintf(param, sizeof param, "%s.%s", place, *key);
			return error_set(err, STATUS_INVALID, param, own ? "is required" : "is not a member of a %s",
			                 kinds[*out].name);
		}
	return STATUS_OK;
}

/* Convert a text, or the parts of one, to those of a chat. NULL: out of memory. */
static json_t *chat_content(json_t *content)
{
	if (!json_is_array(content))
		return json_incref(content);
	json_t *parts = json_array();
	bool whole = parts;
	for (size_t i = 0; whole && i < json_array_size(content); i++)
		whole =
		    json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text",
		                                           json_object_get(json_array_get(content, i), "text"))) == 0;
	if (whole)
		return parts;
	json_decref(parts);
	return NULL;
}

/* content is taken over. False: out of memory. */
static bool add_message(json_t *list, const char *place, const char *role, json_t *content)
{
	return json_array_append_new(
	           list, json_pack("{s:s, s:s, s:o}", "place", place, "role", role, "content", content)) == 0;
}

/* Return the message that a call belongs to; NULL: out of memory. */
static json_t *calling_message(json_t *list, const char *place, bool joins)
{
	json_t *message = joins ? json_array_get(list, json_array_size(list) - 1) : NULL;
	if (!message) {
		message = json_pack("{s:s, s:s, s:n}", "place", place, "role", "assistant", "content");
		if (json_array_append_new(list, message) != 0)
			return NULL;
	}
	if (!json_object_get(message, "tool_calls") && json_object_set_new(message, "tool_calls", json_array()) != 0)
		return NULL;
	return message;
}

/* joins: the item before it is a call, or a text of the assistant. False: out of memory. */
static bool add_call(json_t *list, const char *place, const json_t *item, bool joins)
{
	json_t *message = calling_message(list, place, joins);
	return message && json_array_append_new(json_object_get(message, "tool_calls"),
	                                        json_pack("{s:s, s:O, s:{s:O, s:O}}", "place", place, "id",
	                                                  json_object_get(item, "call_id"), "function", "name",
	                                                  json_object_get(item, "name"), "arguments",
	                                                  json_object_get(item, "arguments"))) == 0;
}

static bool add_result(json_t *list, const char *place, const json_t *item)
{
	return json_array_append_new(list, json_pack("{s:s, s:s, s:O, s:o}", "place", place, "role", "tool",
	                                             "tool_call_id", json_object_get(item, "call_id"), "content",
	                                             chat_content(json_object_get(item, "output")))) == 0;
}

static status add_item(json_t *list, const json_t *item, size_t i, bool *joins, error *err)
{
	char place[PLACE_BYTES];
	int kind;
	snprintf(place, sizeof place, "input[%zu]", i);
	TRY(read_kind(item, place, &kind, err));
	const char *role = kind == ITEM_MESSAGE ? json_string_value(json_object_get(item, "role")) : "";
	const bool added = kind == ITEM_CALL ? add_call(list, place, item, *joins)
	                   : kind == ITEM_RESULT
	                       ? add_result(list, place, item)
	                       : add_message(list, place, role, chat_content(json_object_get(item, "content")));
	*joins = kind == ITEM_CALL || strcmp(role, "assistant") == 0;
	return added ? STATUS_OK : STATUS_NOMEM;
}

static status add_input(json_t *list, json_t *input, error *err)
{
	bool joins = false;
	if (!json_is_array(input))
		return add_message(list, "input", "user", json_incref(input)) ? STATUS_OK : STATUS_NOMEM;
	for (size_t i = 0; i < json_array_size(input); i++)
		TRY(add_item(list, json_array_get(input, i), i, &joins, err));
	return STATUS_OK;
}

/* --- functions --------------------------------------------------------------------------------------------- */

/* A chat has the members of a function within it, in the same order. NULL: out of memory. */
static json_t *chat_tool(json_t *tool)
{
	json_t *function = json_copy(tool);
	json_object_del(function, "type");
	return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

static status convert_tools(json_t *params)
{
	const json_t *tools = json_object_get(params, "tools");
	json_t *list = tools ? json_array() : NULL;
	for (size_t i = 0; i < json_array_size(tools); i++)
		if (json_array_append_new(list, chat_tool(json_array_get(tools, i))) != 0) {
			json_decref(list);
			return STATUS_NOMEM;
		}
	return !tools || json_object_set_new(params, "tools", list) == 0 ? STATUS_OK : STATUS_NOMEM;
}

status response_input_read(json_t *params, json_t **messages, error *err)
{
	json_t *instructions = json_object_get(params, "instructions");
	*messages = json_array();
	if (!*messages || (json_is_string(instructions) &&
	                   !add_message(*messages, "instructions", "system", json_incref(instructions))))
		return STATUS_NOMEM;
	TRY(add_input(*messages, json_object_get(params, "input"), err));
	return convert_tools(params);
}

/* --- errors ------------------------------------------------------------------------------------------------- */

/* Return the text after "NAME[NUMBER]"; NULL: the text begins differently. */
static const char *rest_after(const char *text, const char *name, size_t *number)
{
	char *end;
	const size_t bytes = strlen(name);
	if (strncmp(text, name, bytes) != 0 || text[bytes] != '[')
		return NULL;
	*number = strtoul(text + bytes + 1, &end, 10);
	return *end == ']' ? end + 1 : NULL;
}

static const char *skip(const char *text, const char *beginning)
{
	const size_t bytes = strlen(beginning);
	return strncmp(text, beginning, bytes) == 0 ? text + bytes : text;
}

/* A member of a message, in place of that of a chat's. */
static const char *item_member(const char *member, bool message)
{
	return strcmp(member, ".tool_call_id") == 0          ? ".call_id"
	       : strcmp(member, ".role") == 0 && !message    ? ".type"
	       : strcmp(member, ".content") == 0 && !message ? ".output"
	                                                     : member;
}

static void rename_message(const json_t *message, const char *rest, error *err)
{
	static const char called[] = ".tool_calls";
	size_t k = 0;
	const json_t *calls = json_object_get(message, "tool_calls"), *named = message;
	const char *role = json_string_value(json_object_get(message, "role"));
	if (calls && strncmp(rest, called, strlen(called)) == 0) {
		const char *call = rest_after(rest, called, &k);
		named = json_array_get(calls, k);
		rest = call ? skip(call, ".function") : "";
	} else {
		rest = item_member(rest, !calls && strcmp(role, "tool") != 0);
	}
	const char *place = json_string_value(json_object_get(named, "place"));
	snprintf(err->param, sizeof err->param, "%.31s%.64s", place, strchr(place, '[') ? rest : "");
}

void response_input_rename(const json_t *messages, error *err)
{
	size_t i;
	char old[sizeof err->param];
	snprintf(old, sizeof old, "%s", err->param);
	const char *tool = rest_after(old, "tools", &i), *message = tool ? NULL : rest_after(old, "messages", &i);
	if (tool)
		snprintf(err->param, sizeof err->param, "tools[%zu]%.96s", i, skip(tool, ".function"));
	else if (message)
		rename_message(json_array_get(messages, i), message, err);
	else if (strcmp(old, "messages") == 0)
		snprintf(err->param, sizeof err->param, "input");
}
