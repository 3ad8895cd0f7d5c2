#include "engine/daemon/generation/methods.h"

#include "engine/base/json_read.h"
#include "engine/daemon/generation/carried_state.h"
#include "engine/daemon/generation/completions.h"
#include "engine/daemon/generation/conversation.h"
#include "engine/daemon/generation/generation.h"
#include "engine/daemon/generation/response_input.h"
#include "engine/daemon/generation/tool_calls.h"
#include "gen/limits.h"

static status read_logprobs(choices_plan *p, const json_t *params, error *err)
{
	bool requested = json_is_true(json_object_get(params, "logprobs")) ||
	                 json_array_size(json_object_get(params, "include")) > 0; /* only one value is possible */
	int64_t top = json_read_integer(params, "top_logprobs", -1);
	p->answer.n_logprobs = !requested ? -1 : top > 0 ? (int)top : 0;
	p->answer.n_prompt_logprobs = (int)json_read_integer(params, "prompt_logprobs", -1);
	choices_ask_logprobs(p);
	if (requested || top < 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "top_logprobs", "needs \"logprobs\": true, or \"include\" of a response");
}

/* Prepare what chats and responses have in common. */
static status chat_prepare(stream *s, choices_plan *p, const json_t *messages, error *err)
{
	const json_t *params = s->params;
	TRY(catalog_open_generative(generation_room_of(s)->catalog, json_string_value(json_object_get(params, "model")),
	                            &p->model, err));
	TRY(completions_read_options(p, params, err));
	TRY(completions_read_adapter(s, p, err));
	TRY(tool_calls_read(p, params, err));
	TRY(carried_state_read(p, params, err));
	TRY(conversation_read(p, messages, choices_continue(p), err));
	p->answer.chat = true;
	p->answer.result = completions_result;
	return STATUS_OK;
}

static void chat_begin(stream *s, status (*prepare_plan)(stream *s, choices_plan *p, error *err))
{
	error err = ERROR_INIT;
	choices *c = choices_new(s);
	status result = c ? prepare_plan(s, choices_get_plan(c), &err) : STATUS_NOMEM;
	if (result == STATUS_OK)
		choices_begin(c);
	else
		completions_refuse(s, c, result, &err);
}

/* --- chat.create --------------------------------------------------------------------------- */

static status prepare_chat(stream *s, choices_plan *p, error *err)
{
	const json_t *params = s->params;
	int64_t most = json_read_integer(params, "max_tokens", CHAT_COMPLETION_MAX_COMPLETION_TOKENS_DEFAULT);
	TRY(read_logprobs(p, params, err));
	p->sampling.request.max_tokens = json_read_integer(params, "max_completion_tokens", most);
	TRY(chat_prepare(s, p, json_object_get(params, "messages"), err));
	p->sampling.samples = (int)json_read_integer(params, "n", 1);
	TRY(completions_check_count(s, p, err));
	return carried_state_begin(s, p, err);
}

void chat_create(stream *s)
{
	chat_begin(s, prepare_chat);
}

/* --- response.create ------------------------------------------------------------------------- */

static status prepare_response(stream *s, choices_plan *p, error *err)
{
	TRY(read_logprobs(p, s->params, err));
	p->sampling.request.max_tokens =
	    json_read_integer(s->params, "max_output_tokens", RESPONSE_MAX_OUTPUT_TOKENS_DEFAULT);
	TRY(response_input_read(s->params, &p->prompt.messages, err));
	p->prompt.field = "input";
	p->prompt.rename = response_input_rename;
	TRY(chat_prepare(s, p, p->prompt.messages, err));
	if (p->sampling.format.calls.tools && p->answer.n_logprobs >= 0)
		return error_set(err, STATUS_INVALID, "include",
		                 "log-probabilities are of a text: not with functions that may be called");
	if (json_is_string(json_object_get(s->params, "previous_response_id")))
		p->state.field = "previous_response_id"; /* replaced by its state (responses_run) */
	p->state.optional = json_is_true(json_object_get(s->params, "keep_state")); /* set by responses_run */
	p->state.returned = p->state.optional && carried_state_fits(p->model);
	return carried_state_begin(s, p, err);
}

void chat_respond(stream *s)
{
	chat_begin(s, prepare_response);
}
