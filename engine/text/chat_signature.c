/* The template's mistakes are printed as well: an array is list[Union[]] whatever its items are, and a parameter
 * without a type is Union[]. It never ends for a type with another name, such as "null", which is refused here. */
#include "engine/text/chat_signature.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/chat_json.h"

enum { MAX_DEPTH = 32 };

static status append_type(chat_builder *b, const json_t *schema, int depth);

static status append_named(chat_builder *b, const char *name, const json_t *schema, int depth)
{
	static const char *const names[][2] = {{"string", "str"},
	                                       {"number", "float"},
	                                       {"integer", "int"},
	                                       {"boolean", "bool"},
	                                       {"array", "list[Union[]]"}};
	const json_t *values = json_object_get(schema, "additionalProperties");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(name, names[i][0]) == 0) {
			chat_builder_markup(b, names[i][1]);
			return STATUS_OK;
		}
	if (strcmp(name, "object") != 0)
		return STATUS_INVALID;
	chat_builder_markup(b, values ? "dict[str, " : "dict");
	if (!values)
		return STATUS_OK;
	TRY(append_type(b, values, depth + 1));
	chat_builder_markup(b, "]");
	return STATUS_OK;
}

/* Append the Python type of a schema. STATUS_INVALID: it has none. */
static status append_type(chat_builder *b, const json_t *schema, int depth)
{
	const json_t *type = json_object_get(schema, "type"), *one;
	size_t i;
	if (depth > MAX_DEPTH || json_is_object(type))
		return STATUS_INVALID;
	if (json_string_length(type) > 0)
		return append_named(b, json_string_value(type), schema, depth);
	if (type && !json_is_array(type) && !json_is_string(type)) {
		chat_builder_markup(b, "Any");
		return STATUS_OK;
	}
	chat_builder_markup(b, "Union[");
	json_array_foreach(type, i, one)
	{
		if (i > 0)
			chat_builder_markup(b, ",");
		if (!json_is_string(one))
			return STATUS_INVALID;
		if (json_string_length(one) > 0)
			TRY(append_named(b, json_string_value(one), NULL, depth));
		else
			chat_builder_markup(b, "Union[]");
	}
	chat_builder_markup(b, "]");
	return STATUS_OK;
}

static void append_text(chat_builder *b, const json_t *text, bool trims)
{
	const size_t first = b->out.bytes;
	chat_builder_append(b, json_string_value(text), json_string_length(text), trims);
	if (trims)
		chat_builder_trim_end(b, first);
}

/* The template separates descriptions by nothing. */
static status append_parameters(chat_builder *b, const json_t *properties, bool described)
{
	const char *name;
	json_t *schema;
	bool first = true;
	json_object_foreach((json_t *)(uintptr_t)properties, name, schema)
	{
		const json_t *description = json_object_get(schema, "description");
		if (description && !json_is_string(description))
			return STATUS_INVALID;
		chat_builder_markup(b, described ? (first ? "    Args:\n        " : "        ") : (first ? "" : ", "));
		first = false;
		chat_builder_append(b, name, strlen(name), false);
		chat_builder_markup(b, described ? "(" : ": ");
		TRY(append_type(b, schema, 0));
		chat_builder_markup(b, described ? "): " : "");
		if (described && description)
			append_text(b, description, true);
	}
	return STATUS_OK;
}

static status refuse_member(error *err, size_t index, const char *member, const char *words)
{
	char param[64];
	snprintf(param, sizeof param, "tools[%zu].function.%s", index, member);
	return error_set(err, STATUS_INVALID, param, "%s", words);
}

status chat_signature_append(chat_builder *b, const json_t *function, size_t index, error *err)
{
	const json_t *name = json_object_get(function, "name"), *description = json_object_get(function, "description"),
	             *parameters = json_object_get(function, "parameters"),
	             *properties = json_object_get(parameters, "properties");
	if (!json_is_string(description))
		return refuse_member(err, index, "description", "the model's chat template needs it");
	if (!json_is_object(parameters) || (properties && !json_is_object(properties)))
		return refuse_member(err, index, "parameters",
		                     "the model's chat template needs an object with \"properties\"");
	if (json_object_get(function, "return"))
		return refuse_member(err, index, "return", "a function has no such member");
	chat_builder_markup(b, "{\"type\": \"function\", \"function\": {\"name\": \"");
	append_text(b, name, false);
	chat_builder_markup(b, "\", \"description\": \"");
	append_text(b, name, false);
	chat_builder_markup(b, "(");
	status s = append_parameters(b, properties, false);
	chat_builder_markup(b, ") - ");
	append_text(b, description, false);
	chat_builder_markup(b, "\n\n");
	if (s == STATUS_OK)
		s = append_parameters(b, properties, true);
	if (s != STATUS_OK)
		return refuse_member(err, index, "parameters",
		                     "the model's chat template cannot name the type of a parameter");
	chat_builder_markup(b, "\", \"parameters\": ");
	if (json_object_size(properties) > 0)
		chat_json_append(b, parameters, 0);
	else
		chat_builder_markup(b, "{}");
	chat_builder_markup(b, "}");
	return STATUS_OK;
}
