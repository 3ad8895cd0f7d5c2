/* An event of the engine becomes one chunk as it comes, or is added to its choice. The RESULT ends
 * both forms: finish reasons, usage, timings, and a session's position.
 *
 * A plain event, the usual case, is not parsed: its text is copied into a chunk made once for the stream. Chunks carry
 * event ids. With "background" the engine keeps the generation (kept.h), so that a client can leave and continue after
 * one of them; without, a client that leaves cancels it. */
#include "server/generation.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/routes.h"
#include "proto/generation_answer.h"
#include "proto/json_memory.h"
#include "proto/plain_event.h"
#include "server/forward.h"
#include "server/idempotency.h"
#include "server/kept.h"
#include "server/sse.h"

enum {
	GENERATION_GRANT = GENERATION_WINDOW / 2, /* credit for an answer that is not streamed */
	GENERATION_DRAINED_GRANT = GENERATION_WINDOW / 4
};

/* Shape of the chunks. */
typedef struct generation_chunks {
	const char *object;
	const char *opening; /* in a chunk's choice, what is between its index and its text */
	bool chat;
} generation_chunks;

static const generation_chunks completion_chunks = {"text_completion", ",\"text\":\"", false};
static const generation_chunks chat_chunks = {"chat.completion.chunk", ",\"delta\":{\"content\":\"", true};

typedef struct generation {
	const generation_chunks *form;
	json_int_t n; /* chat: answers, each of which begins with a chunk of its role */
	bool stream, include_usage;
	generation_answer answer;
	bool kept;         /* the engine keeps it: the first event is about it, and the RESULT has its status */
	bool whole;        /* it cannot be streamed: its events are not those of the answer's choices */
	bool opened;       /* that event has come */
	bool replays;      /* another request has begun it */
	kept_view view;    /* used if it replays */
	uint64_t n_chunks; /* chunks made; the first view.after are not sent */
	buffer envelope;   /* envelope of a plain chunk: the text before its index; from `tail` on, the text after its
	                    * text */
	size_t tail;
	uint32_t ungranted; /* events received and not granted again */
	uint64_t latest_ns; /* the latest event with tokens; 0: none yet */
} generation;

static void generation_release(request *r)
{
	generation *g = r->state;
	generation_answer_fini(&g->answer);
	buffer_fini(&g->envelope);
	free(g);
}

static void generation_grant(request *r)
{
	generation *g = r->state;
	uint32_t ungranted = g->ungranted;
	g->ungranted = 0;
	if (r->call)
		engine_call_grant(r->call, ungranted);
}

/* The client has taken everything. A grant is a frame, so it is for several events: with fewer than that ungranted the
 * engine still has leave to send most of a window. */
static void generation_drained(request *r)
{
	if (((generation *)r->state)->ungranted >= GENERATION_DRAINED_GRANT)
		generation_grant(r);
}

static void generation_taking(request *r)
{
	if (r->call)
		engine_call_alive(r->call);
}

void generation_note_tokens(const request *r, uint64_t *latest_ns, size_t tokens)
{
	uint64_t now = uv_hrtime();
	if (tokens == 0)
		return;
	if (*latest_ns == 0)
		metrics_first_token(r->server->metrics, request_seconds(r));
	else
		metrics_next_tokens(r->server->metrics, (double)(now - *latest_ns) / 1e9, tokens);
	*latest_ns = now;
}

/* A copy of the value under key, or null. */
static json_t *generation_copy(const json_t *from, const char *key)
{
	json_t *value = json_object_get(from, key);
	return value ? json_incref(value) : json_null();
}

/* --- streamed ------------------------------------------------------------------------------- */

void generation_write_event(request *r, const char *type, const char *id, const json_t *json)
{
	char *text = json_memory_print(json, PROTO_JSON);
	buffer event = {0};
	if (type)
		buffer_format(&event, "event: %s\n", type);
	if (text)
		sse_event(&event, id, text, strlen(text));
	if (!text || event.failed)
		reply_out_of_memory(r);
	else
		reply_write(r, event.data, event.used);
	buffer_fini(&event);
	free(text);
}

static void generation_send(request *r, json_t *chunk)
{
	generation *g = r->state;
	char id[24];
	snprintf(id, sizeof id, "%llu", (unsigned long long)++g->n_chunks);
	if (g->n_chunks > g->view.after)
		generation_write_event(r, NULL, id, chunk);
	json_decref(chunk);
}

static json_t *generation_chunk(const generation *g, json_t *piece)
{
	json_t *choices = json_array();
	if (piece)
		json_array_append_new(choices, piece);
	json_t *chunk = generation_answer_envelope(&g->answer, g->form->object, choices);
	if (chunk && g->include_usage)
		json_object_set_new(chunk, "usage", json_null());
	return chunk;
}

/* A choice of a chunk. text (NULL: nothing new) and finish are stolen. */
static json_t *generation_piece(const generation *g, const json_t *of, json_t *text, json_t *finish)
{
	const char *key = g->form->chat ? "delta" : "text";
	json_t *said = !g->form->chat ? (text ? text : json_string(""))
	               : text         ? json_pack("{s:o}", "content", text)
	                              : json_object();
	return json_pack("{s:o, s:o, s:o, s:o}", "index", generation_copy(of, "index"), key, said, "logprobs",
	                 generation_copy(of, "logprobs"), "finish_reason", finish);
}

/* The first chunks of a conversation say of each answer that it is the assistant's. */
static void generation_begin_stream(request *r)
{
	generation *g = r->state;
	reply_begin(r, "text/event-stream", REPLY_SIZE_UNKNOWN, true);
	for (json_int_t i = 0; g->form->chat && i < g->n; i++)
		generation_send(
		    r, generation_chunk(g, json_pack("{s:I, s:{s:s, s:s}, s:n, s:n}", "index", i, "delta", "role",
		                                     "assistant", "content", "", "logprobs", "finish_reason")));
}

static void generation_send_event(request *r, const json_t *event)
{
	generation *g = r->state;
	if (!r->streaming)
		generation_begin_stream(r);
	const json_t *calls = json_object_get(event, "tool_calls");
	const bool text = !calls || json_string_length(json_object_get(event, "text")) > 0;
	json_t *piece = generation_piece(g, event, text ? generation_copy(event, "text") : NULL, json_null());
	if (piece && calls)
		json_object_set_new(
		    g->form->chat ? json_object_get(piece, "delta") : piece, "tool_calls",
		    answer_calls_delta(g->answer.id, json_integer_value(json_object_get(event, "index")), calls));
	if (piece && json_object_get(event, "alpha"))
		json_object_set(piece, "alpha", json_object_get(event, "alpha"));
	generation_send(r, generation_chunk(g, piece));
}

static void generation_send_result(request *r, const json_t *result)
{
	static const char done[] = "data: [DONE]\n\n";
	generation *g = r->state;
	size_t i;
	json_t *ended;
	const json_t *choices = json_object_get(result, "choices");
	if (!r->streaming)
		generation_begin_stream(r);
	json_array_foreach(choices, i, ended)
	{
		if (json_object_get(ended, "event"))
			generation_send_event(r, json_object_get(ended, "event"));
		json_t *piece = generation_piece(g, ended, NULL, generation_copy(ended, "finish_reason"));
		json_t *chunk = generation_chunk(g, piece);
		bool last = i + 1 == json_array_size(choices);
		if (chunk && last && json_object_get(result, "session"))
			json_object_set(chunk, "session", json_object_get(result, "session"));
		if (chunk && last && json_object_get(result, "state"))
			json_object_set(chunk, "state", json_object_get(result, "state"));
		if (chunk && last && json_object_get(result, "adapter"))
			json_object_set(chunk, "adapter", json_object_get(result, "adapter"));
		if (chunk && last && g->answer.timings && json_object_get(result, "timings"))
			json_object_set(chunk, "timings", json_object_get(result, "timings"));
		generation_send(r, chunk);
	}
	if (g->include_usage) {
		json_t *chunk = generation_answer_envelope(&g->answer, g->form->object, json_array());
		if (chunk)
			json_object_set_new(chunk, "usage", generation_copy(result, "usage"));
		generation_send(r, chunk);
	}
	reply_write(r, done, sizeof done - 1);
	reply_end(r, true);
}

/* --- plain events ------------------------------------------------------------------------------ */

/* The text of a plain event (proto/plain_event.h) is a JSON string already and goes into the chunk as it is. */

/* Made from a chunk as it would be written for an event. */
static bool generation_make_envelope(generation *g)
{
	json_t *first = json_pack("{s:i}", "index", 0);
	json_t *chunk = generation_chunk(g, generation_piece(g, first, json_string(""), json_null()));
	char *text = json_memory_print(chunk, PROTO_JSON);
	char *at = text ? strstr(text, g->form->opening) : NULL;
	json_decref(first);
	if (at) {
		buffer_string(&g->envelope, "\ndata: ");
		buffer_append(&g->envelope, text, (size_t)(at - 1 - text)); /* without the index, 0 */
		g->tail = g->envelope.used;
		buffer_string(&g->envelope, at + strlen(g->form->opening));
		buffer_string(&g->envelope, "\n\n");
	}
	free(text);
	json_decref(chunk);
	if (at && !g->envelope.failed)
		return true;
	buffer_fini(&g->envelope);
	return false;
}

static bool generation_send_plain(request *r, const plain_event_view *e)
{
	generation *g = r->state;
	char id[32] = "id: ";
	if (!g->envelope.data && !generation_make_envelope(g))
		return false;
	if (!r->streaming)
		generation_begin_stream(r);
	if (++g->n_chunks <= g->view.after)
		return true;
	size_t digits = 0;
	char number[24];
	for (uint64_t n = g->n_chunks; n > 0; n /= 10)
		number[digits++] = (char)('0' + n % 10);
	for (size_t i = 0; i < digits; i++)
		id[4 + i] = number[digits - 1 - i];
	buffer_append(&r->out, id, 4 + digits);
	buffer_append(&r->out, g->envelope.data, g->tail);
	buffer_append(&r->out, e->index, e->index_bytes);
	buffer_string(&r->out, g->form->opening);
	buffer_append(&r->out, e->text, e->text_bytes);
	reply_write(r, g->envelope.data + g->tail, g->envelope.used - g->tail);
	return true;
}

/* --- whole ------------------------------------------------------------------------------------ */

static void generation_keep_event(request *r, const json_t *event)
{
	generation *g = r->state;
	switch (generation_answer_add(&g->answer, event)) {
	case GENERATION_MALFORMED:
		reply_refuse(r, 500, "engine_error", NULL, "the engine's answer is malformed");
		break;
	case GENERATION_NO_MEMORY:
		reply_out_of_memory(r);
		break;
	default:
		if (g->ungranted >= GENERATION_GRANT)
			generation_grant(r);
	}
}

/* status: of a kept one; NULL: the engine does not keep it. result: NULL if it has not ended well. */
static void generation_reply(request *r, const json_t *result, const char *status)
{
	generation *g = r->state;
	json_t *answer = generation_answer_whole(&g->answer, result);
	if (answer && status)
		json_object_set_new(answer, "status", json_string(status));
	if (answer && !result)
		json_object_set_new(answer, "usage", json_null());
	reply_json(r, 200, answer);
}

/* --- the call ------------------------------------------------------------------------------------- */

static void generation_note_tokens_of(request *r, size_t tokens)
{
	generation *g = r->state;
	g->ungranted++;
	if (!g->replays)
		generation_note_tokens(r, &g->latest_ns, tokens);
	if (g->n_chunks < g->view.after && g->ungranted >= GENERATION_GRANT)
		generation_grant(r); /* nothing is written, so nothing drains */
}

/* Members that the chunks of a kept generation depend on, beside its events. */
static json_t *generation_about(const generation *g)
{
	const generation_answer *a = &g->answer;
	return json_pack("{s:I, s:s, s:I, s:b, s:b, s:b, s:b, s:O*}", "created", a->created, "fingerprint",
	                 a->fingerprint, "n", g->n, "include_usage", g->include_usage, "timings", a->timings,
	                 "prompt_logprobs", a->prompt_logprobs, "whole", g->whole, "model", a->model);
}

static void generation_recall(generation *g, const json_t *about)
{
	generation_answer *a = &g->answer;
	const char *fingerprint = json_string_value(json_object_get(about, "fingerprint"));
	a->created = json_integer_value(json_object_get(about, "created"));
	a->timings = json_is_true(json_object_get(about, "timings"));
	a->prompt_logprobs = json_is_true(json_object_get(about, "prompt_logprobs"));
	generation_answer_take_model(a, about);
	snprintf(a->fingerprint, sizeof a->fingerprint, "%s", fingerprint ? fingerprint : "");
	g->n = json_integer_value(json_object_get(about, "n"));
	g->include_usage = json_is_true(json_object_get(about, "include_usage"));
	g->whole = json_is_true(json_object_get(about, "whole"));
}

/* The first event about a kept generation. */
static void generation_open(request *r, const json_t *event)
{
	generation *g = r->state;
	g->opened = true;
	g->ungranted++;
	if (g->replays)
		generation_recall(g, json_object_get(event, "about"));
	else
		kept_name(r, g->answer.id);
	if (g->stream && g->whole)
		reply_refuse(r, 400, "invalid_value", "stream",
		             "a completion with 'prompt_logprobs', or with 'best_of' greater than 'n', has no stream");
	else if (g->stream)
		generation_begin_stream(r);
}

static void generation_event(void *context, const frame *f)
{
	request *r = context;
	generation *g = r->state;
	plain_event_view plain;
	if (g->stream && plain_event_read(&plain, f->json, f->json_bytes) && generation_send_plain(r, &plain)) {
		generation_note_tokens_of(r, plain.n_tokens);
		return;
	}
	json_t *event = forward_json(r, f);
	if (!event)
		return;
	if (g->kept && !g->opened) {
		generation_open(r, event);
		json_decref(event);
		return;
	}
	if (!g->answer.model)
		generation_answer_take_model(&g->answer, event);
	generation_note_tokens_of(r, json_array_size(json_object_get(event, "tokens")));
	if (g->stream)
		generation_send_event(r, event);
	else
		generation_keep_event(r, event);
	json_decref(event);
}

/* result: NULL, it failed */
static void generation_note_end(request *r, const json_t *result)
{
	double *mean = &r->server->generation_ms; /* mean of recent ones */
	const json_t *queue = json_object_get(json_object_get(result, "timings"), "queue_ms");
	*mean += (request_seconds(r) * 1e3 - *mean) / 8;
	if (json_is_number(queue))
		metrics_queue(r->server->metrics, json_number_value(queue) / 1e3);
}

json_t *generation_result(request *r, const frame *f)
{
	if (forward_failed(r, f)) {
		generation_note_end(r, NULL);
		return NULL;
	}
	json_t *result = forward_json(r, f);
	const json_t *kept = json_object_get(result, "result"), *generated = kept ? kept : result;
	if (json_object_get(generated, "choices"))
		generation_note_end(r, generated);
	return result;
}

/* The RESULT of a kept generation. */
static void generation_end_kept(request *r, const json_t *outcome)
{
	generation *g = r->state;
	const json_t *result = json_object_get(outcome, "result"), *error = json_object_get(outcome, "error");
	const char *status = json_string_value(json_object_get(outcome, "status"));
	if (g->stream && !result) {
		problem p = problem_from_object(error);
		reply_problem(r, &p);
		return;
	}
	if (g->stream)
		generation_send_result(r, result);
	else
		generation_reply(r, result, status ? status : "failed");
}

static void generation_end(void *context, const frame *f)
{
	request *r = context;
	generation *g = r->state;
	if (g->replays && forward_failed(r, f))
		return;
	json_t *result = g->replays ? forward_json(r, f) : generation_result(r, f);
	if (!result)
		return;
	if (g->kept) {
		generation_end_kept(r, result);
	} else if (g->stream) {
		generation_answer_take_model(&g->answer, result);
		generation_send_result(r, result);
	} else {
		generation_reply(r, result, NULL);
	}
	json_decref(result);
}

static const engine_events generation_events = {.event = generation_event, .end = generation_end};

/* body: of the request that begins it. NULL: the request has been answered. */
static generation *generation_new(request *r, const generation_chunks *chunks, generation_form form, const json_t *body)
{
	generation *g = calloc(1, sizeof *g);
	r->state = g;
	r->release = g ? generation_release : NULL;
	if (!g || !generation_answer_begin(&g->answer, form, body)) {
		reply_out_of_memory(r);
		return NULL;
	}
	g->form = chunks;
	return g;
}

/* True if the request's members can be combined; otherwise it has been answered. */
static bool generation_check(request *r)
{
	const generation *g = r->state;
	const json_t *best = json_object_get(r->body, "best_of");
	if (!g->stream && json_is_object(json_object_get(r->body, "stream_options")))
		reply_refuse(r, 400, "invalid_value", "stream_options", "'stream_options' needs \"stream\": true");
	else if (g->stream && idempotency_key(r))
		reply_refuse(r, 400, "invalid_value", "Idempotency-Key",
		             "Idempotency-Key cannot be combined with \"stream\": true");
	else if (g->stream && g->answer.prompt_logprobs)
		reply_refuse(r, 400, "invalid_value", "prompt_logprobs",
		             "'prompt_logprobs' cannot be combined with \"stream\": true");
	else if (g->stream && json_integer_value(best) > g->n)
		reply_refuse(r, 400, "invalid_value", "best_of",
		             "'best_of' greater than 'n' cannot be combined with \"stream\": true");
	else
		return true;
	return false;
}

static void generation_call(request *r, json_t *params)
{
	const generation *g = r->state;
	if (g->stream) {
		r->drained = generation_drained;
		r->client_reads = generation_taking;
		r->endless = g->kept;
	}
	if (params)
		request_call(r, r->route->engine_method, params, GENERATION_WINDOW, false, &generation_events);
}

static void generation_begin(request *r, const generation_chunks *chunks, generation_form form)
{
	struct timespec now;
	generation *g = generation_new(r, chunks, form, r->body);
	if (!g)
		return;
	const json_t *n = json_object_get(r->body, "n");
	g->n = json_is_integer(n) ? json_integer_value(n) : 1;
	g->stream = json_is_true(json_object_get(r->body, "stream"));
	g->include_usage = json_is_true(json_object_get(json_object_get(r->body, "stream_options"), "include_usage"));
	g->kept = json_is_true(json_object_get(r->body, "background"));
	g->whole = g->answer.prompt_logprobs || json_integer_value(json_object_get(r->body, "best_of")) > g->n;
	clock_gettime(CLOCK_REALTIME, &now); /* time() may lag by a tick */
	g->answer.created = now.tv_sec;
	snprintf(g->answer.fingerprint, sizeof g->answer.fingerprint, "%s", engine_link_fingerprint(r->server->engine));
	request_make_id(g->answer.id, sizeof g->answer.id, generation_answer_prefix(form));
	if (!generation_check(r))
		return;
	json_object_del(r->body, "stream");
	json_object_del(r->body, "stream_options");
	json_object_del(r->body, "background");
	json_t *params = forward_params(r);
	if (params && g->kept && !kept_add(r, params, g->answer.id, generation_about(g), true, g->stream))
		return;
	generation_call(r, params);
}

void generation_handle(request *r)
{
	generation_begin(r, &completion_chunks, GENERATION_COMPLETION);
}

void generation_chat(request *r)
{
	generation_begin(r, &chat_chunks, GENERATION_CHAT);
}

/* --- kept ------------------------------------------------------------------------------------- */

static void generation_view(request *r, const generation_chunks *chunks, generation_form form)
{
	generation *g = generation_new(r, chunks, form, NULL);
	if (!g || !kept_read(r, &g->view))
		return;
	g->kept = g->replays = true;
	g->stream = g->view.stream;
	snprintf(g->answer.id, sizeof g->answer.id, "%s", r->params[0]);
	generation_call(r, kept_params(r, g->stream));
}

void generation_kept(request *r)
{
	generation_view(r, &completion_chunks, GENERATION_COMPLETION);
}

void generation_chat_kept(request *r)
{
	generation_view(r, &chat_chunks, GENERATION_CHAT);
}
