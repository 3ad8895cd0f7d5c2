#include "server/tool_calls.h"

#include "server/request.h"

/* arguments is stolen. */
static json_t *named_call(const json_t *name, json_t *arguments)
{
	char id[40];
	request_make_id(id, sizeof id, "call_");
	return json_pack("{s:s, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name", name,
	                 "arguments", arguments);
}

static json_t *call_delta(const json_t *call)
{
	json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
	json_t *delta = name ? named_call(name, arguments ? json_incref(arguments) : json_string(""))
	                     : json_pack("{s:{s:O}}", "function", "arguments", arguments);
	if (delta && json_object_set(delta, "index", json_object_get(call, "index")) == 0)
		return delta;
	json_decref(delta);
	return NULL;
}

json_t *tool_calls_delta(const json_t *event_calls)
{
	size_t i;
	json_t *call, *list = json_array();
	json_array_foreach(event_calls, i, call)
	{
		if (json_array_append_new(list, call_delta(call)) == 0)
			continue;
		json_decref(list);
		return NULL;
	}
	return list;
}

/* Give the last call its arguments. */
static bool set_arguments(tool_calls *c)
{
	const size_t n = json_array_size(c->list);
	if (n == 0 || c->arguments.used == 0)
		return true;
	json_t *function = json_object_get(json_array_get(c->list, n - 1), "function");
	json_t *text = json_stringn(c->arguments.data, c->arguments.used);
	buffer_fini(&c->arguments);
	return json_object_set_new(function, "arguments", text) == 0;
}

bool tool_calls_add(tool_calls *c, const json_t *event_calls)
{
	size_t i;
	json_t *call;
	if (!c->list && json_array_size(event_calls) > 0)
		c->list = json_array();
	json_array_foreach(event_calls, i, call)
	{
		const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
		if (name &&
		    (!set_arguments(c) || json_array_append_new(c->list, named_call(name, json_string(""))) != 0))
			return false;
		buffer_append(&c->arguments, json_string_value(arguments), json_string_length(arguments));
	}
	return !c->arguments.failed;
}

json_t *tool_calls_finish(tool_calls *c)
{
	return set_arguments(c) ? c->list : NULL;
}

void tool_calls_fini(tool_calls *c)
{
	json_decref(c->list);
	buffer_fini(&c->arguments);
}
