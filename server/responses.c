/* /v1/responses: an answer of text and calls, in the form that OpenAI's newer interface has for it.
 *
 * The engine reads the input (response.create) and sends the events of a generation with one choice. Streamed, they are
 * deltas between the events that open and close the response and each item of its output. The items are a message, which
 * opens with the first text, and the calls, which follow it. With "store" or "background" the engine keeps the response
 * (kept.h). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/routes.h"
#include "proto/generation_answer.h"
#include "server/forward.h"
#include "server/generation.h"
#include "server/kept.h"

enum { RESPONSES_GRANT = GENERATION_WINDOW / 2 };

typedef enum open_item { ITEM_NONE, ITEM_MESSAGE, ITEM_CALL } open_item;

typedef struct response {
	bool stream, opened;
	open_item open; /* kind of the item that is open in the stream */
	size_t item;    /* its place in the output, or that of the next one */
	bool kept;         /* the engine keeps it: the first event is about it, and the RESULT has its status */
	bool recalled;     /* that event has come */
	bool background;   /* its first events are sent when it is queued */
	bool replays;      /* another request has begun it */
	kept_view view;    /* used if it replays */
	uint64_t sequence; /* number of the next event */
	generation_answer answer;
	uint32_t ungranted;
	uint64_t latest_ns;
} response;

static void responses_release(request *r)
{
	response *x = r->state;
	generation_answer_fini(&x->answer);
	free(x);
}

static void responses_grant(request *r)
{
	response *x = r->state;
	if (r->call && x->ungranted > 0)
		engine_call_grant(r->call, x->ungranted);
	x->ungranted = 0;
}

/* Grant what will not drain: the events had nothing to write. */
static void responses_grant_unwritten(request *r)
{
	const response *x = r->state;
	if (x->ungranted >= RESPONSES_GRANT && reply_is_drained(r))
		responses_grant(r);
}

static void responses_taking(request *r)
{
	if (r->call)
		engine_call_alive(r->call);
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

/* Members of an event about the open item; value is stolen. */
static json_t *responses_of_item(const response *x, const char *key, json_t *value)
{
	char id[GENERATION_ANSWER_ITEM_BYTES];
	generation_answer_item_id(&x->answer, x->item, id);
	return json_pack("{s:s, s:I, s:o}", "item_id", id, "output_index", (json_int_t)x->item, key, value);
}

/* Members of an event about the message's text; value is stolen. */
static json_t *responses_of_part(const response *x, const char *key, json_t *value)
{
	json_t *members = responses_of_item(x, key, value);
	if (members)
		json_object_set_new(members, "content_index", json_integer(0));
	return members;
}

/* Send an event with the open item, which is stolen. */
static void responses_send_item(request *r, const char *type, json_t *item)
{
	const response *x = r->state;
	responses_send(r, type, json_pack("{s:I, s:o}", "output_index", (json_int_t)x->item, "item", item));
}

static void responses_send_empty(request *r, const char *type, const char *status)
{
	const response *x = r->state;
	responses_send(r, type, json_pack("{s:o}", "response", generation_answer_response(&x->answer, status, NULL, NULL)));
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
}

static void responses_open_message(request *r)
{
	response *x = r->state;
	x->open = ITEM_MESSAGE;
	responses_send_item(r, "response.output_item.added",
	                    generation_answer_message(&x->answer, "in_progress", json_array()));
	responses_send(r, "response.content_part.added",
	               responses_of_part(x, "part", generation_answer_part(json_string(""), json_array())));
}

static void responses_open_call(request *r)
{
	response *x = r->state;
	json_t *item = generation_answer_item(&x->answer, x->item, "in_progress");
	x->open = ITEM_CALL;
	if (item)
		json_object_set_new(item, "arguments", json_string(""));
	responses_send_item(r, "response.output_item.added", item);
}

static void responses_close_text(request *r)
{
	const response *x = r->state;
	json_t *part = generation_answer_text_part(&x->answer);
	json_t *done = responses_of_part(x, "logprobs", json_copy(json_object_get(part, "logprobs")));
	if (done)
		json_object_set(done, "text", json_object_get(part, "text"));
	responses_send(r, "response.output_text.done", done);
	responses_send(r, "response.content_part.done", responses_of_part(x, "part", part));
}

/* Send the events that end the open item, if there is one. */
static void responses_close_item(request *r, const char *status)
{
	response *x = r->state;
	if (x->open == ITEM_NONE)
		return;
	json_t *item = generation_answer_item(&x->answer, x->item, status);
	if (x->open == ITEM_MESSAGE) {
		responses_close_text(r);
	} else {
		json_t *done = responses_of_item(x, "arguments", json_incref(json_object_get(item, "arguments")));
		if (done)
			json_object_set(done, "name", json_object_get(item, "name"));
		responses_send(r, "response.function_call_arguments.done", done);
	}
	responses_send_item(r, "response.output_item.done", item);
	x->open = ITEM_NONE;
	x->item++;
}

static void responses_send_text(request *r, const json_t *event)
{
	response *x = r->state;
	const json_t *text = json_object_get(event, "text");
	json_t *logprobs = json_object_get(json_object_get(event, "logprobs"), "content");
	if (json_string_length(text) == 0 && !logprobs)
		return;
	if (x->open == ITEM_NONE)
		responses_open_message(r);
	json_t *delta = responses_of_part(x, "delta", json_stringn(json_string_value(text), json_string_length(text)));
	if (delta)
		json_object_set_new(delta, "logprobs", logprobs ? json_incref(logprobs) : json_array());
	responses_send(r, "response.output_text.delta", delta);
}

static void responses_send_calls(request *r, const json_t *calls)
{
	response *x = r->state;
	size_t i;
	json_t *call;
	json_array_foreach(calls, i, call)
	{
		json_t *arguments = json_object_get(call, "arguments");
		if (json_object_get(call, "name")) {
			responses_close_item(r, "completed");
			responses_open_call(r);
		}
		if (arguments && x->open == ITEM_CALL)
			responses_send(r, "response.function_call_arguments.delta",
			               responses_of_item(x, "delta", json_incref(arguments)));
	}
}

/* Take an event of the generation. False: the request has been answered with an error. */
static bool responses_take(request *r, const json_t *event)
{
	response *x = r->state;
	switch (generation_answer_add(&x->answer, event)) {
	case GENERATION_MALFORMED:
		reply_refuse(r, 500, "engine_error", NULL, "the engine's answer is malformed");
		return false;
	case GENERATION_NO_MEMORY:
		reply_out_of_memory(r);
		return false;
	case GENERATION_ADDED:
		break;
	}
	if (x->stream) {
		responses_open(r);
		responses_send_text(r, event);
		responses_send_calls(r, json_object_get(event, "tool_calls"));
	}
	return true;
}

/* Take what the RESULT has of the text, and end the stream's items. False: as responses_take. */
static bool responses_complete(request *r, const char *status, const json_t *result)
{
	response *x = r->state;
	const json_t *last = generation_answer_last(result);
	if (last && !responses_take(r, last))
		return false;
	if (!x->stream)
		return true;
	responses_open(r);
	if (x->open == ITEM_NONE && x->item == 0)
		responses_open_message(r); /* the answer is empty */
	responses_close_item(r, status);
	return true;
}

static bool responses_has_output(const response *x)
{
	const generation_text *c = x->answer.choices;
	return x->answer.n_choices > 0 && (c->text.bytes > 0 || c->calls.list);
}

/* Answer with the response in this status. result: NULL if it has not completed; error: NULL if it has not failed. */
static void responses_answer(request *r, const char *status, const json_t *result, const json_t *error)
{
	response *x = r->state;
	const bool running = strcmp(status, "queued") == 0 || strcmp(status, "in_progress") == 0;
	const char *item = running                                            ? "in_progress"
	                   : result && strcmp(status, "completed") == 0 ? status
	                                                                      : "incomplete";
	char type[32];
	if (x->stream && !r->streaming)
		responses_begin(r);
	if (result && !responses_complete(r, status, result))
		return;
	json_t *output = result || responses_has_output(x) ? generation_answer_output(&x->answer, item) : NULL;
	json_t *object = generation_answer_response(&x->answer, status, output, result);
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
	return json_pack("{s:s, s:I, s:O}", "item", x->answer.message, "created", x->answer.created, "members",
	                 x->answer.repeated);
}

/* The first event about a kept response. */
static void responses_recall(request *r, const json_t *event)
{
	response *x = r->state;
	const json_t *about = json_object_get(event, "about");
	const char *message = json_string_value(json_object_get(about, "item"));
	x->recalled = true;
	x->ungranted++;
	x->background = json_is_true(json_object_get(event, "background"));
	if (x->replays) {
		snprintf(x->answer.message, sizeof x->answer.message, "%s", message ? message : "");
		x->answer.created = json_integer_value(json_object_get(about, "created"));
		json_decref(x->answer.repeated);
		x->answer.repeated = json_incref(json_object_get(about, "members"));
	}
	if (x->stream && (x->background || x->replays))
		responses_begin(r);
}

static void responses_generated(request *r, const json_t *event)
{
	response *x = r->state;
	if (!x->replays)
		generation_note_tokens(r, &x->latest_ns, json_array_size(json_object_get(event, "tokens")));
	x->ungranted++;
	if (responses_take(r, event))
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
		responses_generated(r, event);
	json_decref(event);
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
	                 result   ? generation_answer_status(result)
	                 : status ? status
	                          : "failed",
	                 result, json_object_get(json, "error"));
	json_decref(json);
}

/* body: of the request that begins it. NULL: the request has been answered. */
static response *responses_new(request *r, const json_t *body)
{
	response *x = calloc(1, sizeof *x);
	r->state = x;
	r->release = x ? responses_release : NULL;
	if (!x || !generation_answer_begin(&x->answer, GENERATION_RESPONSE, body)) {
		reply_out_of_memory(r);
		return NULL;
	}
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
	response *x = responses_new(r, r->body);
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
	json_object_set_new(x->answer.repeated, "store", json_boolean(x->kept));
	json_object_set_new(x->answer.repeated, "background", json_boolean(x->background));
	clock_gettime(CLOCK_REALTIME, &now);
	x->answer.created = now.tv_sec;
	request_make_id(x->answer.id, sizeof x->answer.id, generation_answer_prefix(GENERATION_RESPONSE));
	request_make_id(x->answer.message, sizeof x->answer.message, "msg_");
	json_object_del(r->body, "stream");
	json_object_del(r->body, "background");
	json_object_del(r->body, "store");
	json_t *params = forward_params(r);
	if (params &&
	    !kept_add(r, params, x->kept ? x->answer.id : NULL, responses_record(x), x->background, x->stream))
		return;
	responses_call(r, params);
}

void responses_view(request *r)
{
	response *x = responses_new(r, NULL);
	if (!x || !kept_read(r, &x->view))
		return;
	x->kept = x->replays = true;
	x->stream = x->view.stream;
	snprintf(x->answer.id, sizeof x->answer.id, "%s", r->params[0]);
	responses_call(r, kept_params(r, x->stream));
}

/* --- the input ------------------------------------------------------------------------------------------- */

/* Item i of the input as OpenAI lists it. item: a string is the user's message. */
static json_t *responses_input_item(const char *response_id, size_t i, json_t *item)
{
	const char *type = json_string_value(json_object_get(item, "type"));
	const bool message = !type || strcmp(type, "message") == 0;
	char id[96];
	snprintf(id, sizeof id, "%s_%s_%zu",
	         message                              ? "msg"
	         : strcmp(type, "function_call") == 0 ? "fc"
	                                              : "fco",
	         response_id + strlen("resp_"), i);
	json_t *listed = json_pack("{s:s, s:s, s:s}", "id", id, "type", message ? "message" : type, "status", "completed");
	if (!message) {
		json_object_update_missing(listed, item);
		return listed;
	}
	json_t *content = json_is_string(item) ? item : json_object_get(item, "content"),
	       *role = json_object_get(item, "role");
	json_object_set_new(listed, "role", role ? json_incref(role) : json_string("user"));
	json_object_set_new(listed, "content",
	                    json_is_string(content) ? json_pack("[{s:s, s:O}]", "type", "input_text", "text", content)
	                                            : json_incref(content));
	return listed;
}

static void responses_input_end(void *context, const frame *f)
{
	request *r = context;
	if (forward_failed(r, f))
		return;
	json_t *json = forward_json(r, f), *items = json_array(), *one;
	if (!json)
		return;
	size_t i;
	json_t *input = json_object_get(json, "input");
	const char *order = uri_query(&r->uri, "order");
	const bool ascending = order && strcmp(order, "asc") == 0;
	if (json_is_string(input))
		json_array_append_new(items, responses_input_item(r->params[0], 0, input));
	json_array_foreach(input, i, one)
	{
		json_t *item = responses_input_item(r->params[0], i, one);
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
