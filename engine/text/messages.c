#include "engine/text/messages.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* True for null, "", [] and {}. */
static bool is_empty(const json_t *value)
{
	return !value || (json_is_string(value) && json_string_length(value) == 0) ||
	       (json_is_array(value) && json_array_size(value) == 0) ||
	       (json_is_object(value) && json_object_size(value) == 0);
}

/* --- OpenAI's format ---------------------------------------------------------------------- */

static bool is_assistant(const json_t *message)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	return role && strcmp(role, "assistant") == 0;
}

bool messages_is_answer(const json_t *message)
{
	const json_t *weight = jsonl_member(message, "weight");
	return is_assistant(message) && (!weight || json_number_value(weight) != 0);
}

static status check_weight(const json_t *message, size_t i, long line, error *err)
{
	const json_t *weight = jsonl_member(message, "weight");
	if (!weight)
		return STATUS_OK;
	const double value = json_number_value(weight);
	if (!json_is_number(weight) || (value != 0 && value != 1))
		return jsonl_refuse(err, line, "messages[%zu].weight: must be 0 or 1", i);
	if (value == 1 && !is_assistant(message))
		return jsonl_refuse(err, line, "messages[%zu].weight: only an assistant's message is learned", i);
	return STATUS_OK;
}

static status check_message(const json_t *message, size_t i, long line, error *err)
{
	static const char *const refused[] = {"function_call", "refusal", "audio"};
	for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
		if (!is_empty(jsonl_member(message, refused[k])))
			return jsonl_refuse(err, line, "messages[%zu].%s: cannot be learned; leave it out", i,
			                    refused[k]);
	return check_weight(message, i, line, err);
}

static status check_messages(const json_t *messages, long line, error *err)
{
	size_t i;
	json_t *message;
	if (json_array_size(messages) == 0)
		return jsonl_refuse(err, line, "\"messages\" must be an array of messages");
	json_array_foreach(messages, i, message) TRY(check_message(message, i, line, err));
	return STATUS_OK;
}

/* --- ShareGPT ------------------------------------------------------------------------------- */

static const char *role_of(const char *from)
{
	static const char *const names[][2] = {
	    {"human", "user"},      {"user", "user"},           {"gpt", "assistant"}, {"chatgpt", "assistant"},
	    {"model", "assistant"}, {"assistant", "assistant"}, {"system", "system"}};
	for (size_t i = 0; from && i < sizeof names / sizeof *names; i++)
		if (strcmp(from, names[i][0]) == 0)
			return names[i][1];
	return NULL;
}

static status add_message(json_t *messages, const char *role, const json_t *content, error *err)
{
	json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
	return message && json_array_append_new(messages, message) == 0 ? STATUS_OK
	                                                                : error_no_memory(err, "a conversation");
}

/* A turn may also be a message of OpenAI's format. */
static status add_turn(json_t *messages, json_t *turn, size_t i, long line, error *err)
{
	const json_t *from = jsonl_member(turn, "from"), *value = jsonl_member(turn, "value");
	if (json_is_object(turn) && !from && !value)
		return json_array_append(messages, turn) == 0 ? STATUS_OK : error_no_memory(err, "a conversation");
	const char *role = role_of(json_string_value(from));
	if (!json_is_object(turn) || !json_is_string(from))
		return jsonl_refuse(err, line, "conversations[%zu]: needs strings \"from\" and \"value\"", i);
	if (!role)
		return jsonl_refuse(err, line,
		                    "conversations[%zu].from: \"%.40s\" is not \"human\", \"gpt\" or \"system\"", i,
		                    json_string_value(from));
	if (!json_is_string(value))
		return jsonl_refuse(err, line, "conversations[%zu].value: must be a string", i);
	TRY(add_message(messages, role, value, err));
	const json_t *weight = jsonl_member(turn, "weight");
	json_t *added = json_array_get(messages, json_array_size(messages) - 1);
	return !weight || json_object_set(added, "weight", (json_t *)(uintptr_t)weight) == 0
	           ? STATUS_OK
	           : error_no_memory(err, "a conversation");
}

static status read_conversations(json_t *messages, const json_t *object, long line, error *err)
{
	const json_t *turns = json_object_get(object, "conversations"), *system = jsonl_member(object, "system");
	size_t i;
	json_t *turn;
	if (json_array_size(turns) == 0)
		return jsonl_refuse(err, line, "\"conversations\" must be an array of turns");
	if (!is_empty(system)) {
		if (!json_is_string(system))
			return jsonl_refuse(err, line, "\"system\" is not a string");
		TRY(add_message(messages, "system", system, err));
	}
	json_array_foreach(turns, i, turn) TRY(add_turn(messages, turn, i, line, err));
	return STATUS_OK;
}

/* --- Alpaca --------------------------------------------------------------------------------- */

static status add_exchange(json_t *messages, json_t *asked, const json_t *answer, error *err)
{
	status s = asked ? add_message(messages, "user", asked, err) : error_no_memory(err, "a conversation");
	json_decref(asked);
	return s == STATUS_OK ? add_message(messages, "assistant", answer, err) : s;
}

/* Earlier exchanges: pairs of an instruction and its answer. */
static status add_history(json_t *messages, const json_t *history, long line, error *err)
{
	size_t i;
	json_t *pair;
	if (history && !json_is_array(history))
		return jsonl_refuse(err, line, "\"history\" is not an array");
	json_array_foreach(history, i, pair)
	{
		json_t *asked = json_array_get(pair, 0);
		const json_t *answer = json_array_get(pair, 1);
		if (json_array_size(pair) != 2 || !json_is_string(asked) || !json_is_string(answer))
			return jsonl_refuse(err, line, "history[%zu]: must be two strings", i);
		TRY(add_exchange(messages, json_incref(asked), answer, err));
	}
	return STATUS_OK;
}

/* An instruction and its input, which may be empty. NULL: out of memory. */
static json_t *join_input(const json_t *instruction, const json_t *input)
{
	const size_t first = json_string_length(instruction), second = json_string_length(input);
	if (second == 0)
		return json_incref((json_t *)(uintptr_t)instruction);
	char *text = malloc(first + 2 + second);
	if (!text)
		return NULL;
	memcpy(text, json_string_value(instruction), first);
	memcpy(text + first, "\n\n", 2);
	memcpy(text + first + 2, json_string_value(input), second);
	json_t *joined = json_stringn(text, first + 2 + second);
	free(text);
	return joined;
}

static status read_instruction(json_t *messages, const json_t *object, long line, error *err)
{
	static const char *const keys[] = {"instruction", "output", "input", "system"};
	const json_t *member[4];
	for (int i = 0; i < 4; i++) {
		member[i] = jsonl_member(object, keys[i]);
		if (i < 2 ? !json_is_string(member[i]) : member[i] && !json_is_string(member[i]))
			return jsonl_refuse(err, line, "\"%s\" must be a string", keys[i]);
	}
	if (!is_empty(member[3]))
		TRY(add_message(messages, "system", member[3], err));
	TRY(add_history(messages, jsonl_member(object, "history"), line, err));
	return add_exchange(messages, join_input(member[0], member[2]), member[1], err);
}

/* --- all --------------------------------------------------------------------------------------- */

typedef status (*layout_reader)(json_t *messages, const json_t *object, long line, error *err);

static status read_messages(json_t *messages, const json_t *object, long line, error *err)
{
	const json_t *given = json_object_get(object, "messages");
	if (!json_is_array(given))
		return jsonl_refuse(err, line, "\"messages\" must be an array of messages");
	if (!is_empty(jsonl_member(object, "functions")))
		return jsonl_refuse(err, line, "functions: cannot be learned; leave it out, or use \"tools\"");
	return json_array_extend(messages, (json_t *)(uintptr_t)given) == 0 ? STATUS_OK
	                                                                    : error_no_memory(err, "a conversation");
}

/* The functions beside messages, if there are any. */
static status read_functions(const json_t **out, const json_t *object, long line, error *err)
{
	const json_t *tools = jsonl_member(object, "messages") ? jsonl_member(object, "tools") : NULL;
	*out = is_empty(tools) ? NULL : tools;
	return !*out || json_is_array(*out) ? STATUS_OK : jsonl_refuse(err, line, "\"tools\" must be an array");
}

status messages_read(json_t **out, const json_t **tools, const json_t *object, long line, error *err)
{
	static const struct {
		const char *key;
		layout_reader read;
	} layouts[] = {
	    {"messages", read_messages}, {"conversations", read_conversations}, {"instruction", read_instruction}};
	layout_reader read = NULL;
	*out = NULL;
	TRY(read_functions(tools, object, line, err));
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (jsonl_member(object, layouts[i].key)) {
			if (read)
				return jsonl_refuse(err, line,
				                    "two of \"messages\", \"conversations\" and \"instruction\"");
			read = layouts[i].read;
		}
	if (!read)
		return STATUS_OK;
	json_t *messages = json_array();
	status s = messages ? read(messages, object, line, err) : error_no_memory(err, "a conversation");
	if (s == STATUS_OK)
		s = check_messages(messages, line, err);
	if (s == STATUS_OK)
		*out = messages;
	else
		json_decref(messages);
	return s;
}
