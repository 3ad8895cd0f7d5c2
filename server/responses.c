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
#include "proto/generation_answer.h"
#include "server/forward.h"
#include "server/generation.h"

enum { RESPONSES_GRANT = GENERATION_WINDOW / 2 };

typedef struct response {
	bool stream, opened;
	json_int_t sequence;
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

static void responses_taking(request *r)
{
	if (r->call)
		engine_call_alive(r->call);
}

static json_t *responses_whole_part(const response *x)
{
	return generation_answer_part(generation_answer_text(&x->answer), generation_answer_logprobs(&x->answer));
}

static json_t *responses_whole_message(const response *x, const char *status)
{
	return generation_answer_message(&x->answer, status, json_pack("[o]", responses_whole_part(x)));
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
	return json_pack("{s:s, s:i, s:i, s:o}", "item_id", x->answer.message, "output_index", 0, "content_index", 0,
	                 key, value);
}

static void responses_open(request *r)
{
	response *x = r->state;
	if (x->opened)
		return;
	x->opened = true;
	reply_begin(r, "text/event-stream", REPLY_SIZE_UNKNOWN, true);
	responses_send(
	    r, "response.created",
	    json_pack("{s:o}", "response", generation_answer_response(&x->answer, "in_progress", NULL, NULL)));
	responses_send(
	    r, "response.in_progress",
	    json_pack("{s:o}", "response", generation_answer_response(&x->answer, "in_progress", NULL, NULL)));
	responses_send(r, "response.output_item.added",
	               json_pack("{s:i, s:o}", "output_index", 0, "item",
	                         generation_answer_message(&x->answer, "in_progress", json_array())));
	responses_send(r, "response.content_part.added",
	               responses_of_part(x, "part", generation_answer_part(json_string(""), json_array())));
}

static void responses_close(request *r, const char *status, const json_t *result)
{
	response *x = r->state;
	char type[32];
	json_t *done = responses_of_part(x, "text", generation_answer_text(&x->answer));
	if (done)
		json_object_set_new(done, "logprobs", generation_answer_logprobs(&x->answer));
	responses_send(r, "response.output_text.done", done);
	responses_send(r, "response.content_part.done", responses_of_part(x, "part", responses_whole_part(x)));
	responses_send(r, "response.output_item.done",
	               json_pack("{s:i, s:o}", "output_index", 0, "item", responses_whole_message(x, status)));
	snprintf(type, sizeof type, "response.%s", status);
	responses_send(
	    r, type,
	    json_pack("{s:o}", "response",
	              generation_answer_response(&x->answer, status, responses_whole_message(x, status), result)));
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
	const generation_added added = generation_answer_add(&x->answer, event);
	x->ungranted++;
	if (added == GENERATION_MALFORMED) {
		reply_refuse(r, 500, "engine_error", NULL, "the engine's answer is malformed");
	} else if (added == GENERATION_NO_MEMORY) {
		reply_out_of_memory(r);
	} else if (x->stream) {
		responses_open(r);
		json_t *delta =
		    responses_of_part(x, "delta", json_stringn(json_string_value(text), json_string_length(text)));
		if (delta)
			json_object_set_new(delta, "logprobs", logprobs ? json_incref(logprobs) : json_array());
		responses_send(r, "response.output_text.delta", delta);
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
	if (x->stream) {
		responses_open(r);
		responses_close(r, generation_answer_status(result), result);
	} else {
		reply_json(r, 200, generation_answer_whole(&x->answer, result));
	}
	json_decref(result);
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
	clock_gettime(CLOCK_REALTIME, &now);
	x->answer.created = now.tv_sec;
	request_make_id(x->answer.id, sizeof x->answer.id, generation_answer_prefix(GENERATION_RESPONSE));
	request_make_id(x->answer.message, sizeof x->answer.message, "msg_");
	if (!generation_answer_begin(&x->answer, GENERATION_RESPONSE, r->body)) {
		reply_out_of_memory(r);
		return;
	}
	json_object_del(r->body, "stream");
	json_t *params = forward_params(r);
	if (x->stream) {
		r->drained = responses_grant;
		r->client_reads = responses_taking;
	}
	if (params)
		request_call(r, r->route->engine_method, params, GENERATION_WINDOW, false, &events);
}
