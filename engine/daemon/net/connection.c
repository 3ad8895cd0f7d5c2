/* connection.c - frames are copied to one buffer and written together before the loop sleeps, because a system call
 * costs more than a frame. Only a frame with a payload or large JSON is written on its own, as one uv_write of header,
 * JSON and payload. Nothing is copied then; the write owns them until it completes. One buffer serves the reads of all
 * connections, because libuv delivers each chunk before it reads the next. */
#include "engine/daemon/net/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/net/request_json.h"
#include "proto/json_memory.h"

/* Bytes of the buffer of gathered frames: its first allocation, and what is kept once all is written. */
enum { FIRST_BYTES = 16 << 10, KEEP_BYTES = 1 << 20 };

typedef struct outgoing {
	uv_write_t request;
	char *json;
	void *payload;
	unsigned char header[FRAME_HEADER_BYTES];
} outgoing;

/* Send a frame without payload; its JSON is copied. */
static void connection_send_copy(connection *c, const frame *f);

static void send_text(connection *c, const frame *f, char *text, const char *fallback)
{
	frame whole = *f;
	whole.json = text ? text : fallback;
	whole.json_bytes = strlen(whole.json);
	connection_send_copy(c, &whole);
	reserve_free(text);
}

/* --- closing ------------------------------------------------------------------ */

static void forget_broken(connection *c)
{
	for (connection **at = &c->net->broken; *at; at = &(*at)->next_broken) {
		if (*at == c) {
			*at = c->next_broken;
			return;
		}
	}
}

static void on_closed(uv_handle_t *handle)
{
	connection *c = handle->data;
	forget_broken(c);
	frame_decoder_fini(&c->decoder);
	reserve_free(c->out.data);
	free(c->streams);
	c->gone(c);
}

static void forget_unflushed(connection *c)
{
	connection **at = &c->net->unflushed;
	while (*at != c)
		at = &(*at)->unflushed;
	*at = c->unflushed;
	c->out.used = 0;
}

static void shut(connection *c)
{
	if (c->state == CONNECTION_CLOSED)
		return;
	c->state = CONNECTION_CLOSED;
	if (c->out.used)
		forget_unflushed(c);
	uv_close(&c->socket.handle, on_closed);
}

/* Detach every stream from the connection; the handlers still end them. */
static void abandon_streams(connection *c)
{
	while (c->n_streams) {
		stream *s = c->streams[--c->n_streams];
		s->peer = NULL;
		stream_cancel(s);
	}
}

static size_t queued(const connection *c)
{
	return c->out.used + uv_stream_get_write_queue_size(&c->socket.stream);
}

void connection_close(connection *c)
{
	if (c->state >= CONNECTION_CLOSING)
		return;
	c->state = CONNECTION_CLOSING;
	c->heard_ms = uv_now(c->net->loop);
	uv_read_stop(&c->socket.stream);
	abandon_streams(c);
	if (queued(c) == 0)
		shut(c);
}

void connection_break(connection *c)
{
	if (c->broken)
		return;
	c->broken = c->peer.blocked = true;
	c->next_broken = c->net->broken;
	c->net->broken = c;
}

static void drop_broken(net *n)
{
	for (connection *c; (c = n->broken);) {
		n->broken = c->next_broken;
		if (c->state >= CONNECTION_CLOSING)
			continue;
		log_line(LOG_WARN, "dropping a connection: its peer reads too slowly, or memory ran out");
		abandon_streams(c);
		shut(c);
	}
}

void connection_refuse(connection *c, int http, const char *code, const char *message)
{
	json_t *object = stream_error_object(http, code, message, NULL, http == 503);
	char *text = json_text_reserve(object, JSON_COMPACT);
	json_decref(object);
	send_text(c, &(frame){.type = FRAME_ERROR}, text, stream_out_of_memory);
	connection_close(c);
}

static void protocol_error(connection *c, const char *reason)
{
	log_line(LOG_WARN, "closing a connection: %s", reason);
	connection_refuse(c, 400, "protocol_error", reason);
}

/* --- writing ------------------------------------------------------------------ */

static void decongest(connection *c)
{
	c->congested = false;
	c->peer.blocked = c->broken;
	for (int i = c->n_streams - 1; i >= 0; i--) {
		stream *s = i < c->n_streams ? c->streams[i] : NULL;
		if (s && s->watch && s->watch->credit && stream_ready(s) > 0)
			s->watch->credit(s);
	}
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out);
static void on_read(uv_stream_t *socket, ssize_t bytes, const uv_buf_t *buffer);

/* Called when queued bytes have been written. */
static void written(connection *c, bool failed)
{
	if (c->state == CONNECTION_CLOSED)
		return;
	if (failed || (c->state == CONNECTION_CLOSING && queued(c) == 0)) {
		abandon_streams(c);
		shut(c);
	} else if (c->congested && c->state == CONNECTION_OPEN && queued(c) < CONNECTION_LOW) {
		decongest(c);
		if (c->state == CONNECTION_OPEN && !c->congested)
			uv_read_start(&c->socket.stream, on_alloc, on_read);
	}
}

static void on_written(uv_write_t *request, int failed)
{
	outgoing *o = request->data;
	connection *c = request->handle->data;
	reserve_free(o->json);
	free(o->payload);
	reserve_free(o);
	written(c, failed != 0);
}

/* Pass the pieces to libuv; o owns them. */
static bool write_pieces(connection *c, outgoing *o, const uv_buf_t *pieces, unsigned n)
{
	o->request.data = o;
	if (uv_write(&o->request, &c->socket.stream, pieces, n, on_written) == 0)
		return true;
	reserve_free(o->json);
	free(o->payload);
	reserve_free(o);
	return false;
}

/* Write the gathered frames. Bytes that the socket does not accept wait in libuv's queue. False: the connection has
 * failed. */
static bool flush(connection *c)
{
	char *data = c->out.data;
	size_t used = c->out.used, done = 0;
	if (used == 0)
		return true;
	forget_unflushed(c);
	if (uv_stream_get_write_queue_size(&c->socket.stream) == 0) {
		int n = uv_try_write(&c->socket.stream, &(uv_buf_t){data, used}, 1);
		if (n < 0 && n != UV_EAGAIN)
			return false;
		done = n > 0 ? (size_t)n : 0;
	}
	if (done < used) {
		outgoing *o = reserve_calloc(1, sizeof *o);
		uv_buf_t rest = {data + done, used - done};
		if (o)
			o->json = data;
		c->out.data = NULL;
		c->out.capacity = 0;
		if (!o)
			reserve_free(data);
		return o && write_pieces(c, o, &rest, 1);
	}
	if (c->out.capacity > KEEP_BYTES) {
		reserve_free(data);
		c->out.data = NULL;
		c->out.capacity = 0;
	}
	return true;
}

void connection_flush_all(net *n)
{
	while (n->unflushed) {
		connection *c = n->unflushed;
		written(c, !flush(c));
	}
	drop_broken(n);
}

static char *connection_reserve(connection *c, size_t bytes)
{
	size_t needed = c->out.used + bytes;
	if (needed > c->out.capacity) {
		size_t capacity = needed > 2 * c->out.capacity ? needed + FIRST_BYTES : 2 * c->out.capacity;
		char *data = reserve_realloc(c->out.data, capacity);
		if (!data)
			return NULL;
		c->out.data = data;
		c->out.capacity = capacity;
	}
	return c->out.data + c->out.used;
}

static void look_at_queue(connection *c)
{
	if (queued(c) > CONNECTION_MAX_QUEUE)
		connection_break(c);
	if (queued(c) > CONNECTION_HIGH && !c->congested) {
		c->congested = c->peer.blocked = true;
		uv_read_stop(&c->socket.stream);
	}
}

static void connection_send_copy(connection *c, const frame *f)
{
	size_t bytes = FRAME_HEADER_BYTES + f->json_bytes;
	char *at = c->state < CONNECTION_CLOSING && !c->broken ? connection_reserve(c, bytes) : NULL;
	if (!at) {
		connection_break(c); /* without this frame the peer would wait for ever */
		return;
	}
	frame_encode_header(f, (unsigned char *)at);
	if (f->json_bytes)
		memcpy(at + FRAME_HEADER_BYTES, f->json, f->json_bytes);
	if (c->out.used == 0) {
		c->unflushed = c->net->unflushed;
		c->net->unflushed = c;
	}
	c->out.used += bytes;
	look_at_queue(c);
}

/* Send a frame. json (from json_text_reserve, or NULL) and payload (from malloc, or NULL) are taken over. Never closes
 * the connection at once, so the stream of the calling handler stays valid. */
static void connection_send(connection *c, const frame *f, char *json, void *payload)
{
	if (!payload && f->json_bytes < STREAM_LARGE) {
		frame whole = *f;
		whole.json = json;
		connection_send_copy(c, &whole);
		reserve_free(json);
		return;
	}
	if (!flush(c))
		connection_break(c);
	outgoing *o = c->state < CONNECTION_CLOSING && !c->broken ? reserve_calloc(1, sizeof *o) : NULL;
	if (!o) {
		reserve_free(json);
		free(payload);
		connection_break(c);
		return;
	}
	frame_encode_header(f, o->header);
	o->json = json;
	o->payload = payload;
	uv_buf_t pieces[] = {uv_buf_init((char *)o->header, sizeof o->header),
	                     uv_buf_init(json, (unsigned)f->json_bytes),
	                     uv_buf_init(payload, (unsigned)f->payload_bytes)};
	if (!write_pieces(c, o, pieces, 3))
		connection_break(c);
	else
		look_at_queue(c);
}

/* --- streams ------------------------------------------------------------------ */

static stream *find_stream(const connection *c, uint64_t id)
{
	for (int i = 0; i < c->n_streams; i++)
		if (c->streams[i]->id == id)
			return c->streams[i];
	return NULL;
}

static void connection_forget(stream_peer *p, stream *s)
{
	connection *c = (connection *)p;
	for (int i = 0; i < c->n_streams; i++) {
		if (c->streams[i] == s) {
			c->streams[i] = c->streams[--c->n_streams];
			return;
		}
	}
}

static stream *add_stream(connection *c, const frame *f)
{
	if (!MEMORY_ROOM(c->streams, c->capacity, c->n_streams + 1))
		return NULL;
	stream *s = stream_new(c->net, &c->peer, f->stream, f->credit);
	if (!s)
		return NULL;
	s->times.received = clock_ns();
	c->streams[c->n_streams++] = s;
	return s;
}

void connection_cancel_streams(connection *c)
{
	for (int i = c->n_streams - 1; i >= 0; i--)
		if (i < c->n_streams) /* cancelling may end other streams */
			stream_cancel(c->streams[i]);
}

/* --- reading ------------------------------------------------------------------ */

static void on_hello(connection *c, const frame *f)
{
	char message[128];
	reserve_forget();
	json_t *hello =
	    f->type == FRAME_HELLO && f->stream == 0 ? json_memory_parse(f->json, f->json_bytes, 0, NULL) : NULL;
	const json_t *version = json_object_get(hello, "protocol");
	json_int_t theirs = json_integer_value(version);
	bool said = json_is_integer(version);
	json_decref(hello);
	if (!hello && reserve_failed()) {
		connection_refuse(c, 503, "out_of_memory", "out of memory");
	} else if (!said) {
		protocol_error(c, "the first frame must be HELLO with the protocol's version");
	} else if (theirs != PROTO_VERSION) {
		snprintf(message, sizeof message, "the engine speaks protocol %d, the peer %lld", PROTO_VERSION,
		         (long long)theirs);
		connection_refuse(c, 400, "protocol_mismatch", message);
	} else {
		c->state = CONNECTION_OPEN;
	}
}

/* Take a traceparent of version 00 without its version and flags. False: it is malformed. */
static bool take_trace(stream *s, const json_t *traceparent)
{
	static const char form[] = "00-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
	const char *text = json_string_value(traceparent);
	if (!traceparent)
		return true;
	if (!text || json_string_length(traceparent) != strlen(form))
		return false;
	for (size_t i = 0; form[i]; i++)
		if (!text[i] || (form[i] == 'h' ? !strchr("0123456789abcdef", text[i]) : text[i] != form[i]))
			return false;
	memcpy(s->trace, text + 3, sizeof s->trace - 1);
	return true;
}

/* Read the payload of a REQUEST: what does not change the answer and so is not hashed with the request. False: it is
 * malformed. Without memory the request runs without it. */
static bool take_context(stream *s, const frame *f)
{
	enum { MOST = 1 << 10 };
	if (f->payload_bytes == 0)
		return true;
	if (f->payload_bytes > MOST)
		return false;
	json_t *context = json_memory_parse(f->payload, f->payload_bytes, JSON_REJECT_DUPLICATES, NULL);
	const json_t *id = json_object_get(context, "request_id");
	const bool valid =
	    json_is_object(context) &&
	    (!id || (json_is_string(id) && frame_request_id_valid(json_string_value(id), json_string_length(id)))) &&
	    take_trace(s, json_object_get(context, "traceparent"));
	const bool sound = valid || (!context && json_memory_failed());
	if (valid && id)
		strcpy(s->request_id, json_string_value(id));
	s->times.requested = valid && json_is_true(json_object_get(context, "times"));
	s->timeout = valid ? json_number_value(json_object_get(context, "timeout")) : 0;
	const char *fairness = valid ? json_string_value(json_object_get(context, "fairness_id")) : NULL;
	snprintf(s->fairness, sizeof s->fairness, "%s", fairness ? fairness : "");
	json_decref(context);
	return sound;
}

/* The peer may be gone, and with it the stream's frames. */
static void request_parsed(stream *s, json_t *request, bool no_memory)
{
	json_t *params = json_object_get(request, "params");
	const char *method = json_string_value(json_object_get(request, "method"));
	const char *owner = json_string_value(json_object_get(request, "owner"));
	const char *key = json_string_value(json_object_get(request, "key"));
	bool sound = method && (!params || json_is_object(params) || json_is_null(params));
	if (!sound && !no_memory && s->peer)
		protocol_error((connection *)s->peer, "a REQUEST needs a JSON object with a method and params");
	if (no_memory) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
	} else if (s->cancelled || !sound) {
		stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
	} else {
		snprintf(s->owner, sizeof s->owner, "%s", owner ? owner : "");
		snprintf(s->access_id, sizeof s->access_id, "%s", key ? key : "");
		s->params = json_is_object(params) ? json_incref(params) : json_object();
		s->net->request(s, method);
	}
	json_decref(request);
}

static void on_request(connection *c, const frame *f)
{
	if (f->stream == 0 || find_stream(c, f->stream)) {
		protocol_error(c, "a REQUEST needs a new stream id");
		return;
	}
	bool full = c->n_streams >= CONNECTION_MAX_STREAMS;
	reserve_forget();
	stream *s = full ? NULL : add_stream(c, f);
	if (!s) {
		json_t *object = stream_error_object(
		    full ? 429 : 503, full ? "too_many_streams" : "out_of_memory",
		    full ? "too many requests at once on this connection" : "out of memory", NULL, 1);
		char *text = json_text_reserve(object, JSON_COMPACT);
		json_decref(object);
		send_text(c, &(frame){.type = FRAME_ERROR, .stream = f->stream}, text, stream_out_of_memory);
		return;
	}
	if (!take_context(s, f)) {
		protocol_error(c, "the payload of a REQUEST is {\"request_id\",\"times\",\"traceparent\",\"timeout\","
		                  "\"fairness_id\"}, up to 1 KiB");
		stream_refuse(s, STATUS_CANCELLED, NULL, NULL, "cancelled");
		return;
	}
	s->upload = !(f->flags & FRAME_FLAG_END);
	request_json_parse(s, f->json, f->json_bytes, request_parsed);
}

static void on_stream_frame(connection *c, const frame *f)
{
	stream *s = find_stream(c, f->stream);
	if (!s)
		return; /* the stream has ended; late frames are legal */
	if (f->type == FRAME_DATA) {
		if (s->upload && s->watch && s->watch->data)
			s->watch->data(s, f);
		else
			protocol_error(c, "DATA on a stream that accepts none");
	} else if (f->type == FRAME_CREDIT) {
		s->credit = s->credit < INT32_MAX ? s->credit + f->credit : s->credit;
		if (s->watch && s->watch->credit && (stream_ready(s) > 0 || f->credit == 0))
			s->watch->credit(s);
	} else {
		stream_cancel(s);
	}
}

static void on_frame(connection *c, const frame *f)
{
	if (c->state == CONNECTION_GREETING) {
		on_hello(c, f);
		return;
	}
	switch (f->type) {
	case FRAME_REQUEST:
		on_request(c, f);
		break;
	case FRAME_DATA:
	case FRAME_CREDIT:
	case FRAME_CANCEL:
		on_stream_frame(c, f);
		break;
	case FRAME_PING:
		connection_send(c, &(frame){.type = FRAME_PONG}, NULL, NULL);
		break;
	case FRAME_PONG:
		break;
	default:
		protocol_error(c, "a frame that only the engine sends, or a second HELLO");
	}
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
	const connection *c = handle->data;
	(void)suggested;
	*out = uv_buf_init(c->net->read_buffer, sizeof c->net->read_buffer);
}

static void on_read(uv_stream_t *socket, ssize_t bytes, const uv_buf_t *buffer)
{
	connection *c = socket->data;
	if (bytes < 0) {
		abandon_streams(c);
		shut(c);
		return;
	}
	c->heard_ms = uv_now(c->net->loop);
	c->pinged = false;
	if (!frame_decoder_push(&c->decoder, buffer->base, (size_t)bytes)) {
		connection_refuse(c, 503, "out_of_memory", "out of memory");
		return;
	}
	while (c->state < CONNECTION_CLOSING) {
		frame f;
		const char *reason = "";
		frame_result result = frame_decoder_next(&c->decoder, &f, &reason);
		if (result == FRAME_MORE)
			return;
		if (result == FRAME_BAD)
			protocol_error(c, reason);
		else
			on_frame(c, &f);
	}
}

static void peer_send(stream_peer *p, const frame *f, char *json, void *payload)
{
	connection_send((connection *)p, f, json, payload);
}

static void peer_send_copy(stream_peer *p, const frame *f)
{
	connection_send_copy((connection *)p, f);
}

static void peer_fail(stream_peer *p)
{
	connection_break((connection *)p);
}

static char *hello_text(const net *n)
{
	reserve_forget();
	json_t *hello = json_pack("{s:i, s:s, s:s, s:s}", "protocol", PROTO_VERSION, "software",
	                          "additived " ADDITIVE_VERSION, "backend", n->backend, "device", n->device);
	char *text = json_text_reserve(hello, JSON_COMPACT);
	json_decref(hello);
	return text;
}

status connection_fingerprint(const net *n, char out[GENERATION_ANSWER_FINGERPRINT_BYTES])
{
	char *text = hello_text(n);
	if (!text)
		return STATUS_NOMEM;
	generation_answer_fingerprint(out, text, strlen(text));
	reserve_free(text);
	return STATUS_OK;
}

void connection_begin(connection *c)
{
	c->peer = (stream_peer){peer_send, peer_send_copy, peer_fail, connection_forget, c->peer.blocked};
	c->socket.handle.data = c;
	c->heard_ms = uv_now(c->net->loop);
	char *text = hello_text(c->net);
	if (!text) {
		connection_refuse(c, 503, "out_of_memory", "out of memory");
		return;
	}
	connection_send(c, &(frame){.type = FRAME_HELLO, .json_bytes = strlen(text)}, text, NULL);
	if (c->state == CONNECTION_GREETING && uv_read_start(&c->socket.stream, on_alloc, on_read) != 0)
		connection_close(c);
}

void connection_tick(connection *c, uint64_t now_ms)
{
	uint64_t silent = now_ms - c->heard_ms;
	if (c->state == CONNECTION_CLOSING && silent > CONNECTION_FLUSH_MS) {
		shut(c);
	} else if (c->state == CONNECTION_GREETING && silent > CONNECTION_GREETING_MS) {
		protocol_error(c, "no HELLO in time");
	} else if (c->state == CONNECTION_OPEN && silent > CONNECTION_SILENT_MS) {
		log_line(LOG_WARN, "closing a connection that has been silent for %d s", CONNECTION_SILENT_MS / 1000);
		connection_close(c);
	} else if (c->state == CONNECTION_OPEN && silent > CONNECTION_PING_MS && !c->pinged) {
		c->pinged = true;
		connection_send(c, &(frame){.type = FRAME_PING}, NULL, NULL);
	}
}
