/* A frame goes out as one uv_write of header, JSON and payload, none of them copied: the write
 * owns them until it is done. Reading uses one buffer for all connections, since libuv
 * hands each chunk over before it reads the next. */
#include "engine/daemon/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/device.h"
#include "engine/daemon/dispatch.h"
#include "engine/daemon/engine.h"

typedef struct outgoing {
	uv_write_t request;
	char *json;
	void *payload;
	unsigned char header[FRAME_HEADER_BYTES];
} outgoing;

/* --- closing ------------------------------------------------------------------ */

static void on_closed(uv_handle_t *handle)
{
	connection *c = handle->data;
	frame_decoder_fini(&c->decoder);
	free(c->streams);
	c->gone(c);
}

static void shut(connection *c)
{
	if (c->state == CONNECTION_CLOSED)
		return;
	c->state = CONNECTION_CLOSED;
	uv_close(&c->socket.handle, on_closed);
}

/* Take every stream from the connection; they end on their own. */
static void abandon_streams(connection *c)
{
	while (c->n_streams) {
		stream *s = c->streams[--c->n_streams];
		s->connection = NULL;
		if (s->cancelled)
			continue;
		s->cancelled = true;
		if (s->watch && s->watch->cancel)
			s->watch->cancel(s);
	}
}

void connection_close(connection *c)
{
	if (c->state >= CONNECTION_CLOSING)
		return;
	c->state = CONNECTION_CLOSING;
	c->heard_ms = uv_now(&c->engine->loop);
	uv_read_stop(&c->socket.stream);
	abandon_streams(c);
	if (uv_stream_get_write_queue_size(&c->socket.stream) == 0)
		shut(c);
}

void connection_refuse(connection *c, int http, const char *code, const char *message)
{
	json_t *object = stream_error_object(http, code, message, NULL, http == 503);
	char *text = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	if (text)
		connection_send(c, &(frame){.type = FRAME_ERROR, .json_bytes = strlen(text)}, text, NULL);
	connection_close(c);
}

static void protocol_error(connection *c, const char *why)
{
	log_line(LOG_WARN, "closing a connection: %s", why);
	connection_refuse(c, 400, "protocol_error", why);
}

/* --- writing ------------------------------------------------------------------ */

static void decongest(connection *c)
{
	c->congested = false;
	for (int i = c->n_streams - 1; i >= 0; i--) {
		stream *s = i < c->n_streams ? c->streams[i] : NULL;
		if (s && s->watch && s->watch->credit && stream_ready(s) > 0)
			s->watch->credit(s);
	}
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out);
static void on_read(uv_stream_t *socket, ssize_t bytes, const uv_buf_t *buffer);

static void on_written(uv_write_t *request, int failed)
{
	outgoing *o = request->data;
	connection *c = request->handle->data;
	free(o->json);
	free(o->payload);
	free(o);
	size_t queued = uv_stream_get_write_queue_size(&c->socket.stream);
	if (c->state == CONNECTION_CLOSED)
		return;
	if (failed || (c->state == CONNECTION_CLOSING && queued == 0)) {
		abandon_streams(c);
		shut(c);
	} else if (c->congested && c->state == CONNECTION_OPEN && queued < CONNECTION_LOW) {
		decongest(c);
		if (c->state == CONNECTION_OPEN && !c->congested)
			uv_read_start(&c->socket.stream, on_alloc, on_read);
	}
}

void connection_send(connection *c, const frame *f, char *json, void *payload)
{
	outgoing *o = c->state < CONNECTION_CLOSING && !c->broken ? memory_new(1, sizeof *o) : NULL;
	if (!o) {
		free(json);
		free(payload);
		c->broken = true; /* a frame that is missing would leave the peer waiting for ever */
		return;
	}
	frame_encode_header(f, o->header);
	o->json = json;
	o->payload = payload;
	o->request.data = o;
	uv_buf_t pieces[] = {uv_buf_init((char *)o->header, sizeof o->header),
	                     uv_buf_init(json, (unsigned)f->json_bytes),
	                     uv_buf_init(payload, (unsigned)f->payload_bytes)};
	if (uv_write(&o->request, &c->socket.stream, pieces, 3, on_written) != 0) {
		free(o->json);
		free(o->payload);
		free(o);
		c->broken = true;
		return;
	}
	size_t queued = uv_stream_get_write_queue_size(&c->socket.stream);
	c->broken |= queued > CONNECTION_MAX_QUEUE;
	if (queued > CONNECTION_HIGH && !c->congested) {
		c->congested = true;
		uv_read_stop(&c->socket.stream);
	}
}

/* --- streams ------------------------------------------------------------------ */

static stream *find_stream(const connection *c, uint64_t id)
{
	for (int i = 0; i < c->n_streams; i++)
		if (c->streams[i]->id == id)
			return c->streams[i];
	return NULL;
}

void connection_forget(connection *c, stream *s)
{
	for (int i = 0; i < c->n_streams; i++) {
		if (c->streams[i] == s) {
			c->streams[i] = c->streams[--c->n_streams];
			return;
		}
	}
}

static stream *add_stream(connection *c, const frame *f)
{
	if (c->n_streams == c->capacity) {
		int capacity = c->capacity ? 2 * c->capacity : 16;
		stream **streams = realloc(c->streams, (size_t)capacity * sizeof *streams);
		if (!streams)
			return NULL;
		c->streams = streams;
		c->capacity = capacity;
	}
	stream *s = memory_new(1, sizeof *s);
	if (!s)
		return NULL;
	s->engine = c->engine;
	s->connection = c;
	s->id = f->stream;
	s->credit = f->credit;
	c->streams[c->n_streams++] = s;
	c->engine->streams++;
	return s;
}

static void refuse_stream(connection *c, uint64_t id, int http, const char *code, const char *message)
{
	json_t *object = stream_error_object(http, code, message, NULL, 1);
	char *text = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	connection_send(c, &(frame){.type = FRAME_ERROR, .stream = id, .json_bytes = text ? strlen(text) : 0}, text,
	                NULL);
}

void connection_cancel_streams(connection *c)
{
	for (int i = c->n_streams - 1; i >= 0; i--) {
		stream *s = i < c->n_streams ? c->streams[i] : NULL;
		if (!s || s->cancelled)
			continue;
		s->cancelled = true;
		if (s->watch && s->watch->cancel)
			s->watch->cancel(s);
	}
}

/* --- reading ------------------------------------------------------------------ */

static void on_hello(connection *c, const frame *f)
{
	char why[128];
	json_t *hello = f->type == FRAME_HELLO && f->stream == 0 ? json_loadb(f->json, f->json_bytes, 0, NULL) : NULL;
	const json_t *version = json_object_get(hello, "protocol");
	json_int_t theirs = json_integer_value(version);
	bool said = json_is_integer(version);
	json_decref(hello);
	if (!said) {
		protocol_error(c, "the first frame must be HELLO with the protocol's version");
	} else if (theirs != PROTO_VERSION) {
		snprintf(why, sizeof why, "the engine speaks protocol %d, the peer %lld", PROTO_VERSION,
		         (long long)theirs);
		connection_refuse(c, 400, "protocol_mismatch", why);
	} else {
		c->state = CONNECTION_OPEN;
	}
}

static void on_request(connection *c, const frame *f)
{
	if (f->stream == 0 || find_stream(c, f->stream)) {
		protocol_error(c, "a REQUEST needs a fresh stream id");
		return;
	}
	json_t *request = json_loadb(f->json, f->json_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	json_t *params = json_object_get(request, "params");
	const char *method = json_string_value(json_object_get(request, "method"));
	if (!method || (params && !json_is_object(params) && !json_is_null(params))) {
		json_decref(request);
		protocol_error(c, "a REQUEST needs a JSON object with a method and params");
		return;
	}
	stream *s = c->n_streams < CONNECTION_MAX_STREAMS ? add_stream(c, f) : NULL;
	if (!s) {
		refuse_stream(c, f->stream, 429, "too_many_streams", "too many requests at once on this connection");
		json_decref(request);
		return;
	}
	s->upload = !(f->flags & FRAME_FLAG_END);
	s->params = json_is_object(params) ? json_incref(params) : json_object();
	dispatch_request(s, method);
	json_decref(request);
}

static void on_stream_frame(connection *c, const frame *f)
{
	stream *s = find_stream(c, f->stream);
	if (!s)
		return; /* finished with: late frames are legal */
	if (f->type == FRAME_DATA) {
		if (s->upload && s->watch && s->watch->data)
			s->watch->data(s, f);
		else
			protocol_error(c, "DATA on a stream that takes none");
	} else if (f->type == FRAME_CREDIT) {
		s->credit = s->credit < INT32_MAX ? s->credit + f->credit : s->credit;
		if (s->watch && s->watch->credit && stream_ready(s) > 0)
			s->watch->credit(s);
	} else if (!s->cancelled) {
		s->cancelled = true;
		if (s->watch && s->watch->cancel)
			s->watch->cancel(s);
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
	*out = uv_buf_init(c->engine->read_buffer, sizeof c->engine->read_buffer);
}

static void on_read(uv_stream_t *socket, ssize_t bytes, const uv_buf_t *buffer)
{
	connection *c = socket->data;
	if (bytes < 0) {
		abandon_streams(c);
		shut(c);
		return;
	}
	c->heard_ms = uv_now(&c->engine->loop);
	c->pinged = false;
	if (!frame_decoder_push(&c->decoder, buffer->base, (size_t)bytes)) {
		connection_refuse(c, 503, "out_of_memory", "out of memory");
		return;
	}
	while (c->state < CONNECTION_CLOSING) {
		frame f;
		const char *why = "";
		frame_result result = frame_decoder_next(&c->decoder, &f, &why);
		if (result == FRAME_MORE)
			return;
		if (result == FRAME_BAD)
			protocol_error(c, why);
		else
			on_frame(c, &f);
	}
}

void connection_begin(connection *c)
{
	c->socket.handle.data = c;
	c->heard_ms = uv_now(&c->engine->loop);
	json_t *hello = json_pack("{s:i, s:s, s:s, s:s}", "protocol", PROTO_VERSION, "software",
	                          "additived " ADDITIVE_VERSION, "backend", device_backend_name(c->engine->device),
	                          "device", device_description(c->engine->device));
	char *text = json_dumps(hello, JSON_COMPACT);
	json_decref(hello);
	connection_send(c, &(frame){.type = FRAME_HELLO, .json_bytes = text ? strlen(text) : 0}, text, NULL);
	if (c->state == CONNECTION_GREETING && uv_read_start(&c->socket.stream, on_alloc, on_read) != 0)
		connection_close(c);
}

void connection_tick(connection *c, uint64_t now_ms)
{
	uint64_t silent = now_ms - c->heard_ms;
	if (c->broken && c->state < CONNECTION_CLOSING) {
		log_line(LOG_WARN, "dropping a connection that does not take its answers");
		abandon_streams(c);
		shut(c);
	} else if (c->state == CONNECTION_CLOSING && silent > CONNECTION_FLUSH_MS) {
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
