/* Streams: writers append to r->out, and the library pulls from it when the socket has room. A reader without data
 * suspends the connection, since returning 0 alone would spin. By then the client has read everything, which is the
 * time to grant the engine more credit. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/json_memory.h"
#include "server/accept.h"
#include "server/cors.h"
#include "server/request.h"

enum { REPLY_BLOCK_BYTES = 32 << 10, REPLY_SLOWEST_RATE = 16 << 10 };

void reply_header(request *r, const char *name, const char *value)
{
	assert(r->n_headers < REQUEST_MAX_HEADERS);
	request_header *h = &r->headers[r->n_headers];
	*h = (request_header){name, strdup(value)};
	r->n_headers += h->value != NULL;
	r->header_lost |= h->value == NULL;
}

static const char reply_memory_text[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                                        "\"param\":null,\"code\":\"out_of_memory\"}}";

/* type: NULL if there is no body. */
static bool reply_add_headers(const request *r, const char *type, struct MHD_Response *response)
{
	cors_header cors[CORS_HEADERS];
	bool ok = response && !r->header_lost;
	ok = ok && (!type || MHD_add_response_header(response, "Content-Type", type) == MHD_YES);
	for (int i = 0, n = cors_headers(r, cors); ok && i < n; i++)
		ok = MHD_add_response_header(response, cors[i].name, cors[i].value) == MHD_YES;
	ok = ok && MHD_add_response_header(response, "X-Request-Id", r->id) == MHD_YES;
	ok = ok && MHD_add_response_header(response, "X-Content-Type-Options", "nosniff") == MHD_YES;
	char milliseconds[24];
	snprintf(milliseconds, sizeof milliseconds, "%.0f", request_seconds(r) * 1e3);
	ok = ok && MHD_add_response_header(response, "openai-processing-ms", milliseconds) == MHD_YES;
	rate_header limits[RATE_HEADERS];
	for (int i = 0, n = rate_headers_write(&r->limits, limits); ok && i < n; i++)
		ok = MHD_add_response_header(response, limits[i].name, limits[i].value) == MHD_YES;
	for (int i = 0; ok && i < r->n_headers; i++)
		ok = MHD_add_response_header(response, r->headers[i].name, r->headers[i].value) == MHD_YES;
	return ok && (!r->must_close || MHD_add_response_header(response, "Connection", "close") == MHD_YES);
}

/* A whole answer could not be made: this one takes a few small allocations only. */
static struct MHD_Response *reply_memory_response(request *r)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(
	    sizeof reply_memory_text - 1, (char *)reply_memory_text, MHD_RESPMEM_PERSISTENT);
	r->status = 503;
	r->problem = (problem){.status = 503, .code = "out_of_memory", .message = "out of memory"};
	r->answer_bytes = sizeof reply_memory_text - 1;
	r->header_lost = false;
	for (int i = 0; i < r->n_headers; i++)
		free(r->headers[i].value);
	r->n_headers = 0;
	reply_header(r, "Retry-After", "1");
	if (reply_add_headers(r, "application/json", response))
		return response;
	if (response)
		MHD_destroy_response(response);
	return NULL;
}

/* The response is made: give it its headers and let the library come for it. A stream, and whatever cannot be replaced
 * by an error, has a NULL response: the connection will be closed. */
static void reply_set(request *r, int status, const char *type, struct MHD_Response *response)
{
	assert(r->status == 0);
	r->status = status;
	request_take_id(r);
	if (!reply_add_headers(r, type, response)) {
		if (response)
			MHD_destroy_response(response);
		response = r->streaming ? NULL : reply_memory_response(r);
	}
	r->response = response;
	request_resume(r);
}

void reply_bytes(request *r, int status, const char *type, char *data, size_t bytes)
{
	r->answer_bytes = bytes;
	struct MHD_Response *response =
	    data ? MHD_create_response_from_buffer(bytes, data, MHD_RESPMEM_MUST_FREE) : NULL;
	if (!response)
		free(data);
	reply_set(r, status, type, response);
}

void reply_copy(request *r, int status, const char *type, const void *data, size_t bytes)
{
	char *copy = malloc(bytes ? bytes : 1);
	if (copy && bytes)
		memcpy(copy, data, bytes);
	reply_bytes(r, status, type, copy, bytes);
}

/* Without the header a client takes any coding, but may not be able to read it. */
static bool reply_takes_gzip(const char *accept)
{
	return accept && *accept && accept_pick(accept, (const char *const[]){"gzip"}, 1) == 0;
}

void reply_file(request *r, const char *type, const web_file *f)
{
	const bool gzip = reply_takes_gzip(request_header_value(r, "Accept-Encoding"));
	const embedded_file *data = gzip ? &f->gzip : &f->plain;
	if (gzip)
		reply_header(r, "Content-Encoding", "gzip");
	reply_header(r, "Vary", "Accept-Encoding");
	reply_copy(r, 200, type, data->data, data->bytes);
}

void reply_json(request *r, int status, json_t *json)
{
	char *text = json_memory_print(json, PROTO_JSON);
	json_decref(json);
	reply_bytes(r, status, "application/json", text, text ? strlen(text) : 0);
}

/* --- errors -------------------------------------------------------------------------------- */

static void reply_problem_event(request *r, const problem *p)
{
	buffer event = {0};
	buffer_string(&event, "data: ");
	problem_write(p, &event);
	buffer_string(&event, "\n\n");
	reply_write(r, event.data, event.used);
	reply_end(r, !event.failed);
	http_peer_deadline(r->peer, reply_patience_ms(r));
	buffer_fini(&event);
}

void reply_problem(request *r, const problem *p)
{
	if (r->call)
		engine_call_cancel(r->call);
	r->call = NULL;
	if (r->streaming && !r->ended) {
		r->problem = *p;
		if (r->sse)
			reply_problem_event(r, p);
		else
			reply_end(r, false);
	}
	if (r->status)
		return;
	r->problem = *p;
	if (p->retry_after > 0) {
		char seconds[16];
		snprintf(seconds, sizeof seconds, "%d", p->retry_after);
		reply_header(r, "Retry-After", seconds);
	} else if (p->status == 429) { /* a quota, which time alone does not free; OpenAI's clients read this header */
		reply_header(r, "x-should-retry", "false");
	}
	if (p->status == 401)
		reply_header(r, "WWW-Authenticate", "Bearer");
	buffer body = {0};
	problem_write(p, &body);
	if (body.failed)
		buffer_fini(&body);
	reply_bytes(r, p->status, "application/json", body.data, body.used);
}

void reply_out_of_memory(request *r)
{
	reply_refuse(r, 503, "out_of_memory", NULL, "out of memory");
}

void reply_refuse(request *r, int status, const char *code, const char *param, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	problem p = problem_make(status, code, param, format, arguments);
	va_end(arguments);
	reply_problem(r, &p);
}

/* --- streams --------------------------------------------------------------------------------- */

static ssize_t reply_read(void *context, uint64_t position, char *out, size_t room)
{
	(void)position;
	request *r = context;
	if (r->gone || r->out.failed)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (r->sent == r->out.used) {
		buffer_clear(&r->out);
		r->sent = 0;
		if (!r->ended && r->drained)
			r->drained(r);
	}
	size_t left = r->out.used - r->sent;
	if (left == 0 && r->ended)
		return r->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
	if (left == 0) {
		request_suspend(r);
		return 0;
	}
	size_t bytes = left < room ? left : room;
	memcpy(out, r->out.data + r->sent, bytes);
	r->sent += bytes;
	http_peer_deadline(r->peer, reply_patience_ms(r));
	return (ssize_t)bytes;
}

void reply_begin(request *r, const char *type, uint64_t bytes, bool sse)
{
	r->streaming = true;
	r->sse = sse;
	r->pinged_ns = uv_hrtime();
	if (sse) {
		reply_header(r, "Cache-Control", "no-cache");
		reply_header(r, "X-Accel-Buffering", "no");
	}
	reply_set(r, 200, type,
	          MHD_create_response_from_callback(bytes == REPLY_SIZE_UNKNOWN ? MHD_SIZE_UNKNOWN : bytes,
	                                            REPLY_BLOCK_BYTES, reply_read, r, NULL));
}

void reply_write(request *r, const void *data, size_t bytes)
{
	buffer_append(&r->out, data, bytes);
	r->pinged_ns = uv_hrtime();
	request_resume(r);
}

bool reply_is_drained(const request *r)
{
	return r->sent == r->out.used;
}

void reply_end(request *r, bool complete)
{
	r->ended = true;
	r->broken = !complete;
	request_resume(r);
}

/* A stream that has ended with an error holds its connection no longer than a whole answer would. */
uint64_t reply_patience_ms(const request *r)
{
	const server_limits *limits = &r->server->limits;
	bool failed = r->ended && r->problem.status;
	return failed && limits->request_ms < limits->stall_ms ? limits->request_ms : limits->stall_ms;
}

void reply_tick(request *r, bool takes)
{
	if (takes && r->streaming && r->client_reads)
		r->client_reads(r);
	if (r->sse && r->suspended && !r->ended && uv_hrtime() - r->pinged_ns >= r->server->limits.ping_ms * 1000000)
		reply_write(r, ": ping\n\n", 8);
}

/* --- to the library ---------------------------------------------------------------------------- */

enum MHD_Result reply_queue(request *r)
{
	r->phase = REQUEST_ANSWERING;
	struct MHD_Response *response = r->response;
	r->response = NULL;
	if (!response)
		return MHD_NO;
	/* A client must take a whole answer at no less than the slowest rate; a stream only must not stall. */
	const server_limits *limits = &r->server->limits;
	http_peer_deadline(r->peer, r->streaming ? limits->stall_ms
	                                         : limits->request_ms + r->answer_bytes * 1000 / REPLY_SLOWEST_RATE);
	r->queueing = true;
	enum MHD_Result queued = MHD_queue_response(r->connection, (unsigned)r->status, response);
	r->queueing = false;
	MHD_destroy_response(response);
	return queued;
}

void reply_past_library(http_peer *peer, request *r, const problem *p)
{
	buffer message = {0}, body = {0};
	cors_header cors[CORS_HEADERS];
	char id[32];
	if (r)
		request_take_id(r);
	request_make_id(id, sizeof id, "req_");
	problem_write(p, &body);
	buffer_format(&message,
	              "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\n"
	              "Content-Length: %zu\r\nConnection: close\r\n",
	              p->status, MHD_get_reason_phrase_for((unsigned)p->status), r ? r->id : id, body.used);
	for (int i = 0, n = r ? cors_headers(r, cors) : 0; i < n; i++)
		buffer_format(&message, "%s: %s\r\n", cors[i].name, cors[i].value);
	buffer_string(&message, "\r\n");
	buffer_append(&message, body.data, body.used);
	if (!message.failed && !body.failed)
		http_peer_send_last(peer, message.data, message.used);
	buffer_fini(&message);
	buffer_fini(&body);
}

void reply_send_last(request *r)
{
	reply_past_library(r->peer, r, &r->problem);
}

void reply_fini(request *r)
{
	if (r->response)
		MHD_destroy_response(r->response);
	for (int i = 0; i < r->n_headers; i++)
		free(r->headers[i].value);
	buffer_fini(&r->out);
}
