/* /v1/responses: an answer of text, in the form that OpenAI's newer interface has for it. Nothing is stored, so an
 * answer cannot be read or continued by its id.
 *
 * The engine reads the input (response.create) and sends the events of a generation with one choice. Streamed, each is
 * a response.output_text.delta between the events that open and close the answer, its one message and that one's text.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/routes.h"
#include "server/forward.h"
#include "server/generation.h"

enum { RESPONSES_GRANT = GENERATION_WINDOW / 2 };

typedef struct response {
	bool stream, opened;
	char id[40], item[40];
	json_int_t created, sequence;
	json_t *about; /* members that the answer repeats from the request */
	buffer text;
	json_t *logprobs; /* logprobs of its tokens so far; empty unless requested */
	uint32_t ungranted;
	uint64_t latest_ns;
} response;

static void responses_release(request *r)
{
	response *x = r->state;
	json_decref(x->about);
	json_decref(x->logprobs);
	buffer_fini(&x->text);
	free(x);
}

static void responses_grant(request *r)
{
	response *x = r->state;
	if (r->call && x->ungranted > 0)
		engine_call_grant(r->call, x->ungranted);
	x->ungranted = 0;
}

static void responses_taking(request *r)
{
	if (r->call)
		engine_call_alive(r->call);
}

/* --- objects ------------------------------------------------------------------------------------- */

/* logprobs is stolen. */
static json_t *responses_part(const char *text, size_t bytes, json_t *logprobs)
{
	return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", json_stringn(text, bytes),
	                 "annotations", "logprobs", logprobs);
}

/* The whole text. */
static json_t *responses_whole_part(const response *x)
{
	return responses_part(x->text.data ? x->text.data : "", x->text.used, json_copy(x->logprobs));
}

/* content is stolen. */
static json_t *responses_item(const response *x, const char *status, json_t *content)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", x->item, "type", "message", "status", status, "role",
	                 "assistant", "content", content);
}

static json_t *responses_whole_item(const response *x, const char *status)
{
	return responses_item(x, status, json_pack("[o]", responses_whole_part(x)));
}

/* item is stolen; NULL: nothing is written yet. result: of the engine, or NULL. */
static json_t *responses_object(const response *x, const char *status, json_t *item, const json_t *result)
{
	const json_t *usage = json_object_get(result, "usage");
	json_t *json = json_pack("{s:s, s:s, s:I, s:s, s:n, s:n, s:o, s:n, s:b, s:[], s:s, s:b, s:s, s:{s:{s:s}}, s:n}",
	                         "id", x->id, "object", "response", "created_at", x->created, "status", status, "error",
	                         "incomplete_details", "output", item ? json_pack("[o]", item) : json_array(),
	                         "previous_response_id", "parallel_tool_calls", 0, "tools", "tool_choice", "none",
	                         "store", 0, "truncation", "disabled", "text", "format", "type", "text", "usage");
	if (!json || json_object_update(json, x->about) != 0 || !result)
		return json;
	const json_t *details = json_object_get(usage, "prompt_tokens_details");
	json_object_set_new(json, "usage",
	                    json_pack("{s:O, s:O, s:O, s:{s:i}, s:O}", "input_tokens",
	                              json_object_get(usage, "prompt_tokens"), "input_tokens_details", details,
	                              "output_tokens", json_object_get(usage, "completion_tokens"),
	                              "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
	                              json_object_get(usage, "total_tokens")));
	if (strcmp(status, "incomplete") == 0)
		json_object_set_new(json, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
	return json;
}

/* --- streamed -------------------------------------------------------------------------------------- */

/* Send an event of that type; members is stolen. */
static void responses_send(request *r, const char *type, json_t *members)
{
	response *x = r->state;
	bool whole = members && json_object_set_new(members, "type", json_string(type)) == 0 &&
	             json_object_set_new(members, "sequence_number", json_integer(x->sequence++)) == 0;
	generation_write_event(r, type, NULL, whole ? members : NULL);
	json_decref(members);
}

/* Members of an event about the message's text; value is stolen. */
static json_t *responses_of_part(const response *x, const char *key, json_t *value)
{
	return json_pack("{s:s, s:i, s:i, s:o}", "item_id", x->item, "output_index", 0, "content_index", 0, key, value);
}

static void responses_open(request *r)
{
	response *x = r->state;
	if (x->opened)
		return;
	x->opened = true;
	reply_begin(r, "text/event-stream", REPLY_SIZE_UNKNOWN, true);
	responses_send(r, "response.created",
	               json_pack("{s:o}", "response", responses_object(x, "in_progress", NULL, NULL)));
	responses_send(r, "response.in_progress",
	               json_pack("{s:o}", "response", responses_object(x, "in_progress", NULL, NULL)));
	responses_send(
	    r, "response.output_item.added",
	    json_pack("{s:i, s:o}", "output_index", 0, "item", responses_item(x, "in_progress", json_array())));
	responses_send(r, "response.content_part.added",
	               responses_of_part(x, "part", responses_part("", 0, json_array())));
}

static void responses_close(request *r, const char *status, const json_t *result)
{
	response *x = r->state;
	const char *text = x->text.data ? x->text.data : "";
	char type[32];
	json_t *done = responses_of_part(x, "text", json_stringn(text, x->text.used));
	if (done)
		json_object_set_new(done, "logprobs", json_copy(x->logprobs));
	responses_send(r, "response.output_text.done", done);
	responses_send(r, "response.content_part.done", responses_of_part(x, "part", responses_whole_part(x)));
	responses_send(r, "response.output_item.done",
	               json_pack("{s:i, s:o}", "output_index", 0, "item", responses_whole_item(x, status)));
	snprintf(type, sizeof type, "response.%s", status);
	responses_send(
	    r, type,
	    json_pack("{s:o}", "response", responses_object(x, status, responses_whole_item(x, status), result)));
	reply_end(r, true);
}

/* --- the call ----------------------------------------------------------------------------------------- */

static void responses_event(void *context, const frame *f)
{
	request *r = context;
	response *x = r->state;
	json_t *event = forward_json(r, f);
	if (!event)
		return;
	const json_t *text = json_object_get(event, "text");
	generation_note_tokens(r, &x->latest_ns, json_array_size(json_object_get(event, "tokens")));
	json_t *logprobs = json_object_get(json_object_get(event, "logprobs"), "content");
	buffer_append(&x->text, json_string_value(text), json_string_length(text));
	const bool kept = !logprobs || json_array_extend(x->logprobs, logprobs) == 0;
	x->ungranted++;
	if (x->stream) {
		responses_open(r);
		json_t *delta =
		    responses_of_part(x, "delta", json_stringn(json_string_value(text), json_string_length(text)));
		if (delta)
			json_object_set_new(delta, "logprobs", logprobs ? json_incref(logprobs) : json_array());
		responses_send(r, "response.output_text.delta", delta);
	} else if (x->text.failed || !kept) {
		reply_out_of_memory(r);
	} else if (x->ungranted >= RESPONSES_GRANT) {
		responses_grant(r);
	}
	json_decref(event);
}

static void responses_end(void *context, const frame *f)
{
	request *r = context;
	response *x = r->state;
	json_t *result = generation_result(r, f);
	if (!result)
		return;
	const json_t *choice = json_array_get(json_object_get(result, "choices"), 0);
	const char *reason = json_string_value(json_object_get(choice, "finish_reason"));
	const char *status = reason && strcmp(reason, "length") == 0 ? "incomplete" : "completed";
	if (x->stream) {
		responses_open(r);
		responses_close(r, status, result);
	} else {
		reply_json(r, 200, responses_object(x, status, responses_whole_item(x, status), result));
	}
	json_decref(result);
}

/* Fields of the request that an answer repeats. */
static json_t *responses_about(const request *r)
{
	static const char *const keys[] = {"model", "instructions", "max_output_tokens", "temperature",
	                                   "top_p", "top_logprobs", "metadata"};
	json_t *about = json_object();
	for (size_t i = 0; about && i < sizeof keys / sizeof *keys; i++) {
		json_t *value = json_object_get(r->body, keys[i]);
		json_object_set_new(about, keys[i], value ? json_incref(value) : json_null());
	}
	const json_t *format = json_object_get(json_object_get(r->body, "text"), "format");
	if (about && json_is_object(format))
		json_object_set_new(about, "text", json_pack("{s:O}", "format", format));
	return about;
}

void responses_create(request *r)
{
	static const engine_events events = {.event = responses_event, .end = responses_end};
	response *x = calloc(1, sizeof *x);
	struct timespec now;
	if (!x) {
		reply_out_of_memory(r);
		return;
	}
	r->state = x;
	r->release = responses_release;
	x->stream = json_is_true(json_object_get(r->body, "stream"));
	x->about = responses_about(r);
	x->logprobs = json_array();
	clock_gettime(CLOCK_REALTIME, &now);
	x->created = now.tv_sec;
	request_make_id(x->id, sizeof x->id, "resp_");
	request_make_id(x->item, sizeof x->item, "msg_");
	json_object_del(r->body, "stream");
	json_t *params = forward_params(r);
	if (x->stream) {
		r->drained = responses_grant;
		r->client_reads = responses_taking;
	}
	if (params)
		request_call(r, r->route->engine_method, params, GENERATION_WINDOW, false, &events);
}
