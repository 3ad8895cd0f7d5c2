/* A stop sequence must not cut a call, so the stops move from the request, whose filter reads the whole answer, into
 * the grammar, which has them only in text. */
#include "engine/daemon/generation/tool_calls.h"

#include <string.h>

status tool_calls_add_stop(response_format *f, const char *stop, error *err)
{
	if (f->calls.n_stops == (int)(sizeof f->stops / sizeof *f->stops))
		return error_set(err, STATUS_INVALID, "stop", "there are too many stop sequences");
	f->stops[f->calls.n_stops++] = stop;
	return STATUS_OK;
}

/* "none", "auto", "required", or one function. */
static status read_choice(call_rules *out, const json_t *choice, error *err)
{
	const char *word = json_string_value(choice);
	out->choice = CALLS_AUTO;
	if (json_is_object(choice)) {
		/* In a response its members are the choice's own. */
		const json_t *function = json_object_get(choice, "function");
		out->choice = CALLS_REQUIRED;
		out->function = json_string_value(json_object_get(function ? function : choice, "name"));
	} else if (word && strcmp(word, "required") == 0) {
		out->choice = CALLS_REQUIRED;
	} else if (word && strcmp(word, "none") == 0) {
		out->choice = CALLS_NONE;
	}
	if (out->choice != CALLS_REQUIRED || json_array_size(out->tools) > 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "tool_choice", "needs tools");
}

status tool_calls_read(choices_plan *p, const json_t *params, error *err)
{
	response_format *f = &p->sampling.format;
	generation_request *r = &p->sampling.request;
	call_rules rules = {.tools = json_object_get(params, "tools"),
	                    .parallel = !json_is_false(json_object_get(params, "parallel_tool_calls"))};
	TRY(read_choice(&rules, json_object_get(params, "tool_choice"), err));
	if (json_array_size(rules.tools) == 0)
		return STATUS_OK;
	p->prompt.tools = rules.tools;
	if (f->constrains && rules.choice != CALLS_NONE)
		return error_set(err, STATUS_INVALID, f->field, "an answer that may call functions has no format");
	/* Without a form for functions, rendering the conversation fails. */
	if (f->constrains || !p->model->chat || !chat_template_calls(p->model->chat, &rules.form))
		return STATUS_OK;
	*f =
	    (response_format){.constrains = true, .kind = "calls", .field = "tools", .member = "tools", .calls = rules};
	for (int i = 0; i < r->n_stops; i++)
		TRY(tool_calls_add_stop(f, r->stops[i], err));
	r->n_stops = 0;
	return STATUS_OK;
}
