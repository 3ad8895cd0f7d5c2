#include "proto/answer_calls.h"

#include <stdint.h>
#include <stdio.h>

/* Make an id of 9 letters and digits, as some chat templates want it, from a longer one. */
static void shorten(char *id)
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
	for (const char *p = id; *p; p++)
		hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
	for (int i = 0; i < 9; i++, hash /= sizeof digits - 1)
		id[i] = digits[hash % (sizeof digits - 1)];
	id[9] = 0;
}

/* arguments is taken over. */
static json_t *named_call(const char *answer, json_int_t choice, const json_t *call, json_t *arguments)
{
	char id[96];
	const char *digits = strpbrk(answer, "-_"); /* after the prefix */
	snprintf(id, sizeof id, "call_%.64s_%lld_%lld", digits ? digits + 1 : answer, (long long)choice,
	         (long long)json_integer_value(json_object_get(call, "index")));
	if (json_is_true(json_object_get(call, "short_id")))
		shorten(id);
	return json_pack("{s:s, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name",
	                 json_object_get(call, "name"), "arguments", arguments);
}

static json_t *call_delta(const char *answer, json_int_t choice, const json_t *call)
{
	json_t *arguments = json_object_get(call, "arguments");
	json_t *delta = json_object_get(call, "name")
	                    ? named_call(answer, choice, call, arguments ? json_incref(arguments) : json_string(""))
	                    : json_pack("{s:{s:O}}", "function", "arguments", arguments);
	if (delta && json_object_set(delta, "index", json_object_get(call, "index")) == 0)
		return delta;
	json_decref(delta);
	return NULL;
}

json_t *answer_calls_delta(const char *answer, json_int_t choice, const json_t *event_calls)
{
	size_t i;
	json_t *call, *list = json_array();
	json_array_foreach(event_calls, i, call)
	{
		if (json_array_append_new(list, call_delta(answer, choice, call)) == 0)
			continue;
		json_decref(list);
		return NULL;
	}
	return list;
}

/* Give the last call its arguments. */
static bool set_arguments(answer_calls *c)
{
	const size_t n = json_array_size(c->list);
	if (n == 0 || c->arguments.bytes == 0)
		return true;
	json_t *function = json_object_get(json_array_get(c->list, n - 1), "function");
	return json_object_set_new(function, "arguments", grown_text_json(&c->arguments)) == 0;
}

bool answer_calls_add(answer_calls *c, const char *answer, json_int_t choice, const json_t *event_calls)
{
	size_t i;
	json_t *call;
	if (!c->list && json_array_size(event_calls) > 0)
		c->list = json_array();
	json_array_foreach(event_calls, i, call)
	{
		const json_t *arguments = json_object_get(call, "arguments");
		if (json_object_get(call, "name")) {
			if (!set_arguments(c) ||
			    json_array_append_new(c->list, named_call(answer, choice, call, json_string(""))) != 0)
				return false;
			c->arguments.bytes = 0;
		}
		if (!grown_text_append(&c->arguments, json_string_value(arguments), json_string_length(arguments)))
			return false;
	}
	return true;
}

json_t *answer_calls_list(answer_calls *c)
{
	return set_arguments(c) ? c->list : NULL;
}

void answer_calls_fini(answer_calls *c)
{
	json_decref(c->list);
	free(c->arguments.data);
	*c = (answer_calls){0};
}
