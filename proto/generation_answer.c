#include "proto/generation_answer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"

static const struct {
	const char *object, *prefix;
} forms[] = {[GENERATION_COMPLETION] = {"text_completion", "cmpl-"},
             [GENERATION_CHAT] = {"chat.completion", "chatcmpl-"},
             [GENERATION_RESPONSE] = {"response", "resp_"}};

const char *generation_answer_prefix(generation_form form)
{
	return forms[form].prefix;
}

void generation_answer_fingerprint(char out[GENERATION_ANSWER_FINGERPRINT_BYTES], const char *hello, size_t bytes)
{
	uint64_t hash = 0xcbf29ce484222325; /* FNV-1a: neither secret nor protected against collisions */
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ (unsigned char)hello[i]) * 0x100000001b3;
	snprintf(out, GENERATION_ANSWER_FINGERPRINT_BYTES, "fp_%016llx", (unsigned long long)hash);
}

/* The value under key, or null (new reference). */
static json_t *value_or_null(const json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);
	return value ? json_incref(value) : json_null();
}

/* Members of a request that its response repeats. */
static json_t *repeated_members(const json_t *body)
{
	static const char *const keys[] = {"model", "instructions", "max_output_tokens", "temperature",
	                                   "top_p", "top_logprobs", "metadata",          "previous_response_id"};
	static const char *const given[] = {"tools", "tool_choice", "parallel_tool_calls", "adapter"};
	json_t *members = json_object();
	for (size_t i = 0; members && i < sizeof keys / sizeof *keys; i++)
		json_object_set_new(members, keys[i], value_or_null(body, keys[i]));
	for (size_t i = 0; members && i < sizeof given / sizeof *given; i++)
		if (json_object_get(body, given[i]))
			json_object_set(members, given[i], json_object_get(body, given[i]));
	const json_t *format = json_object_get(json_object_get(body, "text"), "format");
	if (members && json_is_object(format))
		json_object_set_new(members, "text", json_pack("{s:O}", "format", format));
	return members;
}

bool generation_answer_begin(generation_answer *a, generation_form form, const json_t *body)
{
	a->form = form;
	a->timings = json_is_true(json_object_get(body, "timings"));
	a->prompt_logprobs = json_object_get(body, "prompt_logprobs");
	a->model = json_incref(json_object_get(body, "model"));
	a->repeated = form == GENERATION_RESPONSE ? repeated_members(body) : NULL;
	return form != GENERATION_RESPONSE || a->repeated;
}

void generation_answer_fini(generation_answer *a)
{
	for (size_t i = 0; i < a->n_choices; i++) {
		free(a->choices[i].text.data);
		answer_calls_fini(&a->choices[i].calls);
		json_decref(a->choices[i].logprobs);
		json_decref(a->choices[i].alpha);
		json_decref(a->choices[i].prompt_logprobs);
	}
	free(a->choices);
	json_decref(a->model);
	json_decref(a->repeated);
	*a = (generation_answer){0};
}

/* --- events -------------------------------------------------------------------------------------- */

/* The choice of that index, made on first use; NULL when out of memory. */
static generation_text *choice_at(generation_answer *a, json_int_t index)
{
	const size_t needed = (size_t)index + 1;
	if (needed > a->n_choices) {
		generation_text *choices = realloc(a->choices, needed * sizeof *choices);
		if (!choices)
			return NULL;
		memset(choices + a->n_choices, 0, (needed - a->n_choices) * sizeof *choices);
		a->choices = choices;
		a->n_choices = needed;
	}
	return &a->choices[index];
}

/* Append each array of `more` to the array of that name in *all. */
static bool join_logprobs(json_t **all, json_t *more)
{
	const char *key;
	json_t *value;
	if (!*all)
		*all = json_object();
	json_object_foreach(more, key, value)
	{
		json_t *array = json_object_get(*all, key);
		if (!json_is_array(value))
			continue;
		if (!array ? json_object_set_new(*all, key, json_copy(value)) != 0
		           : json_array_extend(array, value) != 0)
			return false;
	}
	return *all != NULL;
}

generation_added generation_answer_add(generation_answer *a, const json_t *event)
{
	const json_int_t index = json_integer_value(json_object_get(event, "index"));
	if (index < 0 || index >= GENERATION_ANSWER_CHOICES)
		return GENERATION_MALFORMED;
	generation_text *c = choice_at(a, index);
	const json_t *text = json_object_get(event, "text");
	json_t *logprobs = json_object_get(event, "logprobs"), *alpha = json_object_get(event, "alpha");
	json_t *scored = json_object_get(event, "prompt_logprobs");
	bool ok = c && grown_text_append(&c->text, json_string_value(text), json_string_length(text)) &&
	          answer_calls_add(&c->calls, a->id, index, json_object_get(event, "tool_calls"));
	if (ok && json_is_object(logprobs))
		ok = join_logprobs(&c->logprobs, logprobs);
	if (ok && json_is_array(alpha)) {
		/* One list per event: the tokens with the largest weights in that step. */
		if (!c->alpha)
			c->alpha = json_array();
		ok = json_array_append(c->alpha, alpha) == 0;
	}
	if (ok && json_is_array(scored)) {
		if (!c->prompt_logprobs)
			c->prompt_logprobs = json_pack("[n]"); /* the first token has none */
		ok = json_array_extend(c->prompt_logprobs, scored) == 0;
	}
	return ok && !json_memory_failed() ? GENERATION_ADDED : GENERATION_NO_MEMORY;
}

/* --- completions and chat completions -------------------------------------------------------------- */

json_t *generation_answer_envelope(const generation_answer *a, const char *object, json_t *choices)
{
	json_t *json = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", a->id, "object", object, "created", a->created,
	                         "system_fingerprint", a->fingerprint, "choices", choices);
	if (json && a->model)
		json_object_set(json, "model", a->model);
	return json;
}

static generation_text *find_choice(const generation_answer *a, json_int_t index)
{
	static generation_text none; /* stays empty */
	return index >= 0 && (size_t)index < a->n_choices ? &a->choices[index] : &none;
}

/* The list of a choice. A prompt of one token has no event, so its list is null alone. */
static json_t *prompt_logprobs(const generation_text *c)
{
	return c->prompt_logprobs ? json_incref(c->prompt_logprobs) : json_pack("[n]");
}

static json_t *whole_choice(const generation_answer *a, const json_t *ended)
{
	const bool chat = a->form == GENERATION_CHAT;
	const json_int_t index = json_integer_value(json_object_get(ended, "index"));
	const json_t *sample = json_object_get(ended, "sample"); /* present with best_of; otherwise it is the index */
	generation_text *c = find_choice(a, json_is_integer(sample) ? json_integer_value(sample) : index);
	json_t *calls = answer_calls_list(&c->calls);
	json_t *text = chat && calls && c->text.bytes == 0 ? json_null() : grown_text_json(&c->text);
	if (chat)
		text = json_pack("{s:s, s:o, s:n, s:O*}", "role", "assistant", "content", text, "refusal", "tool_calls",
		                 calls);
	json_t *json = json_pack("{s:I, s:o, s:o, s:O?, s:O*}", "index", index, chat ? "message" : "text", text,
	                         "finish_reason", value_or_null(ended, "finish_reason"), "logprobs", c->logprobs,
	                         "tool_calls", chat ? NULL : calls);
	if (json && c->alpha)
		json_object_set(json, "alpha", c->alpha);
	if (json && a->prompt_logprobs && !chat)
		json_object_set_new(json, "prompt_logprobs", prompt_logprobs(c));
	return json;
}

static json_t *whole_completion(generation_answer *a, const json_t *result)
{
	static const char *const extras[] = {"usage", "session", "state", "adapter", "timings"};
	const size_t n_extras = a->timings ? 5 : 4;
	size_t i;
	json_t *ended, *choices = json_array();
	json_array_foreach(json_object_get(result, "choices"), i, ended)
	{
		const json_t *event = json_object_get(ended, "event");
		if (event && generation_answer_add(a, event) != GENERATION_ADDED) {
			json_decref(choices);
			return NULL;
		}
		json_array_append_new(choices, whole_choice(a, ended));
	}
	for (i = 0; !result && i < a->n_choices; i++) {
		json_t *unfinished = json_pack("{s:I}", "index", (json_int_t)i);
		json_array_append_new(choices, whole_choice(a, unfinished));
		json_decref(unfinished);
	}
	json_t *answer = generation_answer_envelope(a, forms[a->form].object, choices);
	for (i = 0; answer && i < n_extras; i++)
		if (json_object_get(result, extras[i]))
			json_object_set(answer, extras[i], json_object_get(result, extras[i]));
	if (answer && a->prompt_logprobs && a->form == GENERATION_CHAT) /* as vLLM: all answers have one prompt */
		json_object_set_new(answer, "prompt_logprobs", prompt_logprobs(find_choice(a, 0)));
	return answer;
}

/* --- responses --------------------------------------------------------------------------------------- */

json_t *generation_answer_part(json_t *text, json_t *logprobs)
{
	return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text, "annotations", "logprobs",
	                 logprobs);
}

json_t *generation_answer_text_part(const generation_answer *a)
{
	const generation_text *c = find_choice(a, 0);
	json_t *logprobs = json_object_get(c->logprobs, "content");
	return generation_answer_part(grown_text_json(&c->text), logprobs ? json_copy(logprobs) : json_array());
}

json_t *generation_answer_message(const generation_answer *a, const char *status, json_t *content)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", a->message, "type", "message", "status", status, "role",
	                 "assistant", "content", content);
}

/* Text precedes calls. */
static bool has_message(const generation_answer *a)
{
	const generation_text *c = find_choice(a, 0);
	return c->text.bytes > 0 || !c->calls.list;
}

json_t *generation_answer_item(const generation_answer *a, size_t i, const char *status)
{
	generation_text *c = find_choice(a, 0);
	if (has_message(a) && i == 0)
		return generation_answer_message(a, status, json_pack("[o]", generation_answer_text_part(a)));
	const json_t *call = json_array_get(answer_calls_list(&c->calls), i - has_message(a)),
	             *function = json_object_get(call, "function");
	char id[GENERATION_ANSWER_ITEM_BYTES];
	generation_answer_item_id(a, i, id);
	return json_pack("{s:s, s:s, s:s, s:O, s:O, s:O}", "id", id, "type", "function_call", "status", status,
	                 "call_id", json_object_get(call, "id"), "name", json_object_get(function, "name"), "arguments",
	                 json_object_get(function, "arguments"));
}

void generation_answer_item_id(const generation_answer *a, size_t i, char out[GENERATION_ANSWER_ITEM_BYTES])
{
	if (has_message(a) && i == 0)
		snprintf(out, GENERATION_ANSWER_ITEM_BYTES, "%s", a->message);
	else
		snprintf(out, GENERATION_ANSWER_ITEM_BYTES, "fc_%.64s_%zu", a->id + strlen(forms[a->form].prefix),
		         i - has_message(a));
}

json_t *generation_answer_output(const generation_answer *a, const char *status)
{
	const size_t n = has_message(a) + json_array_size(find_choice(a, 0)->calls.list);
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++)
		if (json_array_append_new(list, generation_answer_item(a, i, i + 1 < n ? "completed" : status)) != 0) {
			json_decref(list);
			return NULL;
		}
	return list;
}

const json_t *generation_answer_last(const json_t *result)
{
	return json_object_get(json_array_get(json_object_get(result, "choices"), 0), "event");
}

/* True if the first choice of a result ended for this reason. */
static bool ended_by(const json_t *result, const char *reason)
{
	const json_t *choice = json_array_get(json_object_get(result, "choices"), 0);
	const char *found = json_string_value(json_object_get(choice, "finish_reason"));
	return found && strcmp(found, reason) == 0;
}

const char *generation_answer_status(const json_t *result)
{
	return ended_by(result, "length") || ended_by(result, "timeout") ? "incomplete" : "completed";
}

json_t *generation_answer_response(const generation_answer *a, const char *status, json_t *output, const json_t *result)
{
	const json_t *usage = json_object_get(result, "usage");
	json_t *json = json_pack(
	    "{s:s, s:s, s:I, s:s, s:n, s:n, s:o, s:n, s:b, s:[], s:s, s:b, s:b, s:s, s:{s:{s:s}}, s:n}", "id", a->id,
	    "object", "response", "created_at", a->created, "status", status, "error", "incomplete_details", "output",
	    output ? output : json_array(), "previous_response_id", "parallel_tool_calls", 1, "tools", "tool_choice",
	    "auto", "store", 0, "background", 0, "truncation", "disabled", "text", "format", "type", "text", "usage");
	if (!json || json_object_update(json, a->repeated) != 0 || !result)
		return json;
	const json_t *details = json_object_get(usage, "prompt_tokens_details");
	json_object_set_new(json, "usage",
	                    json_pack("{s:O, s:O, s:O, s:{s:i}, s:O}", "input_tokens",
	                              json_object_get(usage, "prompt_tokens"), "input_tokens_details", details,
	                              "output_tokens", json_object_get(usage, "completion_tokens"),
	                              "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
	                              json_object_get(usage, "total_tokens")));
	if (strcmp(status, "incomplete") == 0)
		json_object_set_new(
		    json, "incomplete_details",
		    json_pack("{s:s}", "reason", ended_by(result, "timeout") ? "timeout" : "max_output_tokens"));
	return json;
}

static json_t *whole_response(generation_answer *a, const json_t *result)
{
	const char *status = generation_answer_status(result);
	const json_t *last = generation_answer_last(result);
	if (last && generation_answer_add(a, last) != GENERATION_ADDED)
		return NULL;
	return generation_answer_response(a, status, generation_answer_output(a, status), result);
}

void generation_answer_take_model(generation_answer *a, const json_t *from)
{
	json_t *model = json_object_get(from, "model");
	if (!json_is_string(model))
		return;
	json_decref(a->model);
	a->model = json_incref(model);
}

json_t *generation_answer_whole(generation_answer *a, const json_t *result)
{
	generation_answer_take_model(a, result);
	return a->form == GENERATION_RESPONSE ? whole_response(a, result) : whole_completion(a, result);
}
