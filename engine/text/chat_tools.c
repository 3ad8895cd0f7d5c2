#include "engine/text/chat_tools.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/text/chat_json.h"
#include "engine/text/chat_signature.h"

enum { NAME_BYTES = 64 };

static status refuse(error *err, const char *words, const char *param, ...) __attribute__((format(printf, 3, 4)));
static status refuse(error *err, const char *words, const char *param, ...)
{
	char full[96];
	va_list list;
	va_start(list, param);
	vsnprintf(full, sizeof full, param, list);
	va_end(list);
	return error_set(err, STATUS_INVALID, full, "%s", words);
}

/* True if a name needs no escape in JSON. */
static bool is_name(const json_t *name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
	const size_t bytes = json_string_length(name);
	return bytes > 0 && bytes <= NAME_BYTES && strspn(json_string_value(name), allowed) == bytes;
}

static const char name_words[] = "must have 1 to 64 of the characters a-z, A-Z, 0-9, _ and -";

static status refuse_form(error *err, const chat_form *f, const char *param)
{
	return error_set(err, STATUS_INVALID, param, "the model's chat template (%s) has no form for functions",
	                 f->name);
}

status chat_tools_check(const chat_form *f, const json_t *tools, error *err)
{
	const size_t n = json_array_size(tools);
	if (n == 0)
		return STATUS_OK;
	if (!f->tools)
		return refuse_form(err, f, "tools");
	if (n > CHAT_MAX_TOOLS)
		return error_set(err, STATUS_INVALID, "tools", "at most %d functions", CHAT_MAX_TOOLS);
	for (size_t i = 0; i < n; i++) {
		const json_t *name = json_object_get(json_object_get(json_array_get(tools, i), "function"), "name");
		if (!is_name(name))
			return refuse(err, name_words, "tools[%zu].function.name", i);
		for (size_t k = 0; k < i; k++)
			if (json_equal(name,
			               json_object_get(json_object_get(json_array_get(tools, k), "function"), "name")))
				return refuse(err, "is the name of an earlier function", "tools[%zu].function.name", i);
	}
	return STATUS_OK;
}

/* Append {"type": "function", "function": {…}}, with texts as they are. */
static void append_members(chat_builder *b, const json_t *function)
{
	const char *key, *comma = "";
	json_t *member;
	chat_builder_markup(b, "{\"type\": \"function\", \"function\": {");
	json_object_foreach((json_t *)(uintptr_t)function, key, member)
	{
		if (strcmp(key, "return") == 0)
			continue;
		chat_builder_markup(b, comma);
		chat_builder_markup(b, "\"");
		chat_builder_append(b, key, strlen(key), false);
		chat_builder_markup(b, json_is_string(member) ? "\": \"" : "\": ");
		if (json_is_string(member))
			chat_builder_append(b, json_string_value(member), json_string_length(member), false);
		else
			chat_json_append(b, member, 0);
		chat_builder_markup(b, json_is_string(member) ? "\"" : "");
		comma = ", ";
	}
	chat_builder_markup(b, "}}");
}

status chat_tools_append_list(chat_builder *b, const json_t *tools, error *err)
{
	const chat_tools *t = b->form->tools;
	chat_builder_markup(b, t->list.prefix);
	for (size_t i = 0; i < json_array_size(tools); i++) {
		const json_t *tool = json_array_get(tools, i);
		chat_builder_markup(b, t->tool.prefix);
		chat_builder_markup(b, i > 0 ? t->separator : NULL);
		if (t->form == CHAT_TOOL_SIGNATURE)
			TRY(chat_signature_append(b, json_object_get(tool, "function"), i, err));
		else if (t->form == CHAT_TOOL_MEMBERS)
			append_members(b, json_object_get(tool, "function"));
		else
			chat_json_append(b, tool, t->indent);
		chat_builder_markup(b, t->tool.suffix);
	}
	chat_builder_markup(b, t->list.suffix);
	return STATUS_OK;
}

static bool is_short_id(const json_t *id)
{
	size_t characters = 0;
	for (const char *p = json_string_value(id); p && *p; p++)
		characters += (*p & 0xC0) != 0x80;
	return characters == CHAT_SHORT_ID && strlen(json_string_value(id)) == json_string_length(id);
}

/* Append the id of a call after some markup. markup NULL: the form has no ids here. */
static status append_id(chat_builder *b, const char *markup, const json_t *id, error *err, const char *param)
{
	if (!markup)
		return STATUS_OK;
	if (!is_short_id(id))
		return error_set(err, STATUS_INVALID, param,
		                 "in the model's chat template (%s) the id of a call has %d characters", b->form->name,
		                 CHAT_SHORT_ID);
	chat_builder_markup(b, markup);
	chat_builder_append(b, json_string_value(id), json_string_length(id), false);
	return STATUS_OK;
}

static status append_call(chat_builder *b, const json_t *call, size_t i, size_t k, error *err)
{
	const chat_tools *t = b->form->tools;
	const json_t *function = json_object_get(call, "function"), *name = json_object_get(function, "name"),
	             *text = json_object_get(function, "arguments");
	json_t *arguments = NULL;
	if (!is_name(name))
		return refuse(err, name_words, "messages[%zu].tool_calls[%zu].function.name", i, k);
	/* Training data may have the object itself. */
	if (json_is_object(text))
		arguments = json_incref((json_t *)(uintptr_t)text);
	else if (json_is_string(text) && json_read(&arguments, json_string_value(text), json_string_length(text),
	                                           JSON_ALLOW_NUL, NULL) == STATUS_NOMEM)
		return STATUS_NOMEM;
	if (!json_is_object(arguments)) {
		json_decref(arguments);
		return refuse(err, "must be a text with a JSON object",
		              "messages[%zu].tool_calls[%zu].function.arguments", i, k);
	}
	chat_builder_markup(b, t->call.prefix);
	chat_builder_markup(b, "{\"name\": \"");
	chat_builder_append(b, json_string_value(name), json_string_length(name), false);
	chat_builder_markup(b, "\", \"");
	chat_builder_markup(b, t->key);
	chat_builder_markup(b, "\": ");
	chat_json_append(b, arguments, 0);
	json_decref(arguments);
	char param[64];
	snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].id", i, k);
	TRY(append_id(b, t->id, json_object_get(call, "id"), err, param));
	chat_builder_markup(b, t->id ? "\"}" : "}");
	chat_builder_markup(b, t->call.suffix);
	return STATUS_OK;
}

status chat_tools_append_calls(chat_builder *b, const json_t *message, size_t i, bool text, chat_calls *out, error *err)
{
	const chat_form *f = b->form;
	const json_t *calls = json_object_get(message, "tool_calls");
	const size_t n = json_array_size(calls);
	char param[64];
	if (n == 0)
		return STATUS_OK;
	snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
	if (!f->tools)
		return refuse_form(err, f, param);
	if (n > CHAT_MAX_CALLS)
		return error_set(err, STATUS_INVALID, param, "at most %d calls", CHAT_MAX_CALLS);
	if ((f->tools->single && n > 1) || ((f->tools->single || f->tools->alone) && text))
		return error_set(err, STATUS_INVALID, param,
		                 "in the model's chat template (%s) an answer is a text or %s", f->name,
		                 f->tools->single ? "one call" : "calls");
	*out = (chat_calls){.list = calls, .index = i};
	chat_builder_markup(b, f->tools->calls.prefix);
	for (size_t k = 0; k < n; k++) {
		if (text || k > 0)
			chat_builder_markup(b, f->tools->between);
		TRY(append_call(b, json_array_get(calls, k), i, k, err));
	}
	chat_builder_markup(b, f->tools->calls.suffix);
	return STATUS_OK;
}

status chat_tools_take_result(const chat_form *f, const json_t *message, size_t i, chat_calls *calls, bool open,
                              error *err)
{
	const json_t *id = json_object_get(message, "tool_call_id");
	char param[64];
	snprintf(param, sizeof param, "messages[%zu].role", i);
	if (!f->tools)
		return refuse_form(err, f, param);
	if (open)
		return STATUS_OK;
	if (!calls->list)
		return error_set(err, STATUS_INVALID, param,
		                 "a result must follow the calls of an assistant's message");
	for (size_t k = 0; k < json_array_size(calls->list); k++)
		if (!calls->answered[k] && json_is_string(id) &&
		    json_equal(id, json_object_get(json_array_get(calls->list, k), "id"))) {
			calls->answered[k] = true;
			return STATUS_OK;
		}
	return refuse(err, "is not the id of a call without a result", "messages[%zu].tool_call_id", i);
}

status chat_tools_append_result_id(chat_builder *b, const json_t *message, size_t i, error *err)
{
	char param[64];
	snprintf(param, sizeof param, "messages[%zu].tool_call_id", i);
	return append_id(b, b->form->tools->result_id, json_object_get(message, "tool_call_id"), err, param);
}

status chat_tools_check_answered(const chat_calls *calls, error *err)
{
	for (size_t k = 0; k < json_array_size(calls->list); k++)
		if (!calls->answered[k])
			return refuse(err, "a call needs a result after it", "messages[%zu].tool_calls[%zu]",
			              calls->index, k);
	return STATUS_OK;
}
