/* /v1/responses: an answer of text, in the form that OpenAI's newer interface has for it.
 *
 * The engine reads the input (response.create) and sends the events of a generation with one choice. Streamed, each is
 * a response.output_text.delta between the events that open and close the answer, its one message and that one's text.
 * With "store" or "background" the engine keeps the response (kept.h). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/routes.h"
#include "server/forward.h"
#include "server/generation.h"
#include "server/kept.h"

enum { RESPONSES_GRANT = GENERATION_WINDOW / 2 };

typedef struct response {
	bool stream, opened;
	bool kept;       /* the engine keeps it: the first event is about it, and the RESULT has its status */
	bool recalled;   /* that event has come */
	bool background; /* its first events are sent when it is queued */
	bool replays;    /* another request has begun it */
	kept_view view;  /* used if it replays */
	char id[64], item[64];
	json_int_t created;
	uint64_t sequence; /* number of the next event */
	json_t *about;     /* members that the answer repeats from the request */
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

/* Grant what will not drain, because nothing is written. */
static void responses_grant_unwritten(request *r)
{
	const response *x = r->state;
	if (x->ungranted >= RESPONSES_GRANT && (!x->stream || (x->view.resumes && x->sequence <= x->view.after)))
		responses_grant(r);
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
	                         "background", 0, "truncation", "disabled", "text", "format", "type", "text", "usage");
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

/* The error of a failed response, with one of OpenAI's codes. */
static json_t *responses_error(const json_t *error)
{
	const problem p = problem_from_object(error);
	const char *code = p.status >= 500   ? "server_error"
	                   : p.status == 429 ? "rate_limit_exceeded"
	                                     : "invalid_prompt";
	return json_pack("{s:s, s:s}", "code", code, "message", p.message);
}

/* --- streamed -------------------------------------------------------------------------------------- */

/* Send an event of that type, unless the client has it; members is stolen. */
static void responses_send(request *r, const char *type, json_t *members)
{
	response *x = r->state;
	const uint64_t number = x->sequence++;
	bool whole = members && json_object_set_new(members, "type", json_string(type)) == 0 &&
	             json_object_set_new(members, "sequence_number", json_integer((json_int_t)number)) == 0;
	if (!x->view.resumes || number > x->view.after)
		generation_write_event(r, type, NULL, whole ? members : NULL);
	json_decref(members);
}

/* Members of an event about the message's text; value is stolen. */
static json_t *responses_of_part(const response *x, const char *key, json_t *value)
{
	return json_pack("{s:s, s:i, s:i, s:o}", "item_id", x->item, "output_index", 0, "content_index", 0, key, value);
}

static void responses_send_empty(request *r, const char *type, const char *status)
{
	responses_send(r, type, json_pack("{s:o}", "response", responses_object(r->state, status, NULL, NULL)));
}

static void responses_begin(request *r)
{
	const response *x = r->state;
	const char *status = x->background ? "queued" : "in_progress";
	reply_begin(r, "text/event-stream", REPLY_SIZE_UNKNOWN, true);
	responses_send_empty(r, "response.created", status);
	if (x->background)
		responses_send_empty(r, "response.queued", status);
}

static void responses_open(request *r)
{
	response *x = r->state;
	if (x->opened)
		return;
	x->opened = true;
	if (!r->streaming)
		responses_begin(r);
	responses_send_empty(r, "response.in_progress", "in_progress");
	responses_send(
	    r, "response.output_item.added",
	    json_pack("{s:i, s:o}", "output_index", 0, "item", responses_item(x, "in_progress", json_array())));
	responses_send(r, "response.content_part.added",
	               responses_of_part(x, "part", responses_part("", 0, json_array())));
}

/* Send the events that end a response with text. */
static void responses_close(request *r, const char *status)
{
	response *x = r->state;
	const char *text = x->text.data ? x->text.data : "";
	json_t *done = responses_of_part(x, "text", json_stringn(text, x->text.used));
	if (done)
		json_object_set_new(done, "logprobs", json_copy(x->logprobs));
	responses_send(r, "response.output_text.done", done);
	responses_send(r, "response.content_part.done", responses_of_part(x, "part", responses_whole_part(x)));
	responses_send(r, "response.output_item.done",
	               json_pack("{s:i, s:o}", "output_index", 0, "item", responses_whole_item(x, status)));
}

/* Answer with the response in this status. result: NULL if it has not completed; error: NULL if it has not failed. */
static void responses_answer(request *r, const char *status, const json_t *result, const json_t *error)
{
	response *x = r->state;
	const bool running = strcmp(status, "queued") == 0 || strcmp(status, "in_progress") == 0;
	const char *item = running ? "in_progress" : result && strcmp(status, "completed") == 0 ? status : "incomplete";
	char type[32];
	if (x->stream && !r->streaming)
		responses_begin(r);
	if (x->stream && result) {
		responses_open(r);
		responses_close(r, status);
	}
	json_t *object =
	    responses_object(x, status, result || x->text.used > 0 ? responses_whole_item(x, item) : NULL, result);
	if (object && error && strcmp(status, "failed") == 0)
		json_object_set_new(object, "error", responses_error(error));
	if (!x->stream) {
		reply_json(r, 200, object);
		return;
	}
	snprintf(type, sizeof type, "response.%s", status);
	responses_send(r, type, json_pack("{s:o}", "response", object));
	reply_end(r, true);
}

/* --- the call ----------------------------------------------------------------------------------------- */

/* Members of a response by which another front end makes it again. */
static json_t *responses_record(const response *x)
{
	return json_pack("{s:s, s:I, s:O}", "item", x->item, "created", x->created, "members", x->about);
}

/* The first event about a kept response. */
static void responses_recall(request *r, const json_t *event)
{
	response *x = r->state;
	const json_t *about = json_object_get(event, "about");
	const char *item = json_string_value(json_object_get(about, "item"));
	x->recalled = true;
	x->ungranted++;
	x->background = json_is_true(json_object_get(event, "background"));
	if (x->replays) {
		snprintf(x->item, sizeof x->item, "%s", item ? item : "");
		x->created = json_integer_value(json_object_get(about, "created"));
		x->about = json_incref(json_object_get(about, "members"));
	}
	if (x->stream && (x->background || x->replays))
		responses_begin(r);
}

static void responses_take_text(request *r, const json_t *event)
{
	response *x = r->state;
	const json_t *text = json_object_get(event, "text");
	if (!x->replays)
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
		return;
	}
	responses_grant_unwritten(r);
}

static void responses_event(void *context, const frame *f)
{
	request *r = context;
	response *x = r->state;
	json_t *event = forward_json(r, f);
	if (!event)
		return;
	if (x->kept && !x->recalled)
		responses_recall(r, event);
	else
		responses_take_text(r, event);
	json_decref(event);
}

static const char *responses_status(const json_t *result)
{
	const json_t *choice = json_array_get(json_object_get(result, "choices"), 0);
	const char *reason = json_string_value(json_object_get(choice, "finish_reason"));
	return reason && strcmp(reason, "length") == 0 ? "incomplete" : "completed";
}

static void responses_end(void *context, const frame *f)
{
	request *r = context;
	const response *x = r->state;
	if (x->replays && forward_failed(r, f))
		return;
	json_t *json = x->replays ? forward_json(r, f) : generation_result(r, f);
	if (!json)
		return;
	const json_t *result = x->kept ? json_object_get(json, "result") : json;
	const char *status = json_string_value(json_object_get(json, "status"));
	responses_answer(r,
	                 result   ? responses_status(result)
	                 : status ? status
	                          : "failed",
	                 result, json_object_get(json, "error"));
	json_decref(json);
}

/* Fields of the request that an answer repeats. */
static json_t *responses_about(const request *r, bool kept, bool background)
{
	static const char *const keys[] = {"model", "instructions", "max_output_tokens", "temperature",
	                                   "top_p", "top_logprobs", "metadata",          "previous_response_id"};
	json_t *about = json_pack("{s:b, s:b}", "store", kept, "background", background);
	for (size_t i = 0; about && i < sizeof keys / sizeof *keys; i++) {
		json_t *value = json_object_get(r->body, keys[i]);
		json_object_set_new(about, keys[i], value ? json_incref(value) : json_null());
	}
	const json_t *format = json_object_get(json_object_get(r->body, "text"), "format");
	if (about && json_is_object(format))
		json_object_set_new(about, "text", json_pack("{s:O}", "format", format));
	return about;
}

static response *responses_new(request *r)
{
	response *x = calloc(1, sizeof *x);
	if (!x) {
		reply_out_of_memory(r);
		return NULL;
	}
	r->state = x;
	r->release = responses_release;
	x->logprobs = json_array();
	return x;
}

static void responses_call(request *r, json_t *params)
{
	static const engine_events events = {.event = responses_event, .end = responses_end};
	const response *x = r->state;
	if (x->stream) {
		r->drained = responses_grant;
		r->client_reads = responses_taking;
		r->endless = x->background || x->replays;
	}
	if (params)
		request_call(r, r->route->engine_method, params, GENERATION_WINDOW, false, &events);
}

void responses_create(request *r)
{
	response *x = responses_new(r);
	struct timespec now;
	if (!x)
		return;
	const json_t *store = json_object_get(r->body, "store");
	x->stream = json_is_true(json_object_get(r->body, "stream"));
	x->background = json_is_true(json_object_get(r->body, "background"));
	x->kept = x->background || json_is_true(store);
	if (x->background && json_is_false(store)) {
		reply_refuse(r, 400, "invalid_value", "store", "'store' cannot be false with \"background\": true");
		return;
	}
	x->about = responses_about(r, x->kept, x->background);
	clock_gettime(CLOCK_REALTIME, &now);
	x->created = now.tv_sec;
	request_make_id(x->id, sizeof x->id, "resp_");
	request_make_id(x->item, sizeof x->item, "msg_");
	json_object_del(r->body, "stream");
	json_object_del(r->body, "background");
	json_object_del(r->body, "store");
	json_t *params = forward_params(r);
	if (params && !kept_add(r, params, x->kept ? x->id : NULL, responses_record(x), x->background, x->stream))
		return;
	responses_call(r, params);
}

void responses_view(request *r)
{
	response *x = responses_new(r);
	if (!x || !kept_read(r, &x->view))
		return;
	x->kept = x->replays = true;
	x->stream = x->view.stream;
	snprintf(x->id, sizeof x->id, "%s", r->params[0]);
	responses_call(r, kept_params(r, x->stream));
}

/* --- the input ------------------------------------------------------------------------------------------- */

/* One message in the form of an input item. content: a string or the parts of the message. */
static json_t *responses_input_item(const char *response_id, size_t i, const json_t *message, const json_t *content)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	char id[96];
	snprintf(id, sizeof id, "msg_%s_%zu", response_id + strlen("resp_"), i);
	json_t *parts = json_is_string(content) ? json_pack("[{s:s, s:O}]", "type", "input_text", "text", content)
	                                        : json_incref((json_t *)content);
	return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "role", role ? role : "user",
	                 "status", "completed", "content", parts);
}

static void responses_input_end(void *context, const frame *f)
{
	request *r = context;
	if (forward_failed(r, f))
		return;
	json_t *json = forward_json(r, f), *items = json_array(), *message;
	if (!json)
		return;
	size_t i;
	const json_t *input = json_object_get(json, "input");
	const char *order = uri_query(&r->uri, "order");
	const bool ascending = order && strcmp(order, "asc") == 0;
	if (json_is_string(input))
		json_array_append_new(items, responses_input_item(r->params[0], 0, NULL, input));
	json_array_foreach(input, i, message)
	{
		json_t *item = responses_input_item(r->params[0], i, message, json_object_get(message, "content"));
		if (ascending)
			json_array_append_new(items, item);
		else
			json_array_insert_new(items, 0, item);
	}
	const size_t n = json_array_size(items);
	reply_json(r, 200,
	           json_pack("{s:s, s:o, s:O*, s:O*, s:b}", "object", "list", "data", items, "first_id",
	                     json_object_get(json_array_get(items, 0), "id"), "last_id",
	                     json_object_get(json_array_get(items, n ? n - 1 : 0), "id"), "has_more", 0));
	json_decref(json);
}

void responses_input_items(request *r)
{
	static const engine_events events = {.event = forward_ignore, .end = responses_input_end};
	json_t *params = kept_params(r, false);
	if (params)
		request_call(r, r->route->engine_method, params, 0, false, &events);
}
