/* Frames out are copied into one allocation each and handed to uv_write, which writes at once when the socket takes
 * them. What may be queued is bounded: uploads by the engine's credits, requests by the connections we accept.
 *
 * A cancelled call stays in the table, deaf, until the engine has ended its stream: its late frames are then known and
 * ignored rather than a protocol error. Stream ids count up and are never reused on a connection, so
 * the table is indexed by their low bits. */
#include "server/engine_link.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/generation_answer.h"
#include "proto/json_memory.h"
#include "server/json_body.h"
#include "server/log.h"

enum {
	LINK_BUCKETS = 1024,
	LINK_READ_BYTES = 64 << 10,
	LINK_BACKOFF_FIRST_MS = 100,
	LINK_BACKOFF_MAX_MS = 5000,
	LINK_GREETING_MS = 5000,
	LINK_TICK_MS = 250
};

static const char link_gone[] =
    "{\"status\":503,\"code\":\"engine_unavailable\",\"message\":\"the engine is unavailable; "
    "try again shortly\",\"param\":null,\"retry_after\":1}";
static const char link_timeout[] =
    "{\"status\":503,\"code\":\"engine_timeout\",\"message\":\"the engine did not answer "
    "in time\",\"param\":null,\"retry_after\":1}";

struct engine_call {
	engine_link *link;
	uint64_t id;
	const engine_events *events; /* NULL: cancelled */
	void (*note)(void *context, const frame *f);
	void *context;
	uint32_t credit;
	uint64_t deadline;   /* loop time; 0: none */
	engine_times *times; /* NULL: not requested */
	engine_call *next; /* in its bucket */
};

typedef enum link_state { LINK_AWAY, LINK_CONNECTING, LINK_GREETING, LINK_UP, LINK_CLOSED } link_state;

struct engine_link {
	uv_loop_t *loop;
	uint64_t silence_ms;
	void (*up)(void *context); /* NULL is legal */
	void *context;
	char *host, *port; /* port NULL: host is a path */
	link_state state;
	char reason[200];
	union {
		uv_handle_t handle;
		uv_stream_t stream;
		uv_pipe_t pipe;
		uv_tcp_t tcp;
	} socket;
	bool socket_open; /* the handle is initialised and not yet closed */
	uv_connect_t connecting;
	uv_getaddrinfo_t resolving;
	bool resolver_busy;
	uv_timer_t retry, tick;
	uint64_t backoff_ms, since_ms, heard_ms, pinged_ms;
	frame_decoder decoder;
	json_t *hello;
	char fingerprint[GENERATION_ANSWER_FINGERPRINT_BYTES]; /* that of the latest greeting */
	uint64_t last_id;
	engine_call *calls[LINK_BUCKETS];
	char read_buffer[LINK_READ_BYTES];
};

static void link_connect(engine_link *l);

/* --- calls ------------------------------------------------------------------ */

static engine_call **link_slot(engine_link *l, uint64_t id)
{
	engine_call **slot = &l->calls[id % LINK_BUCKETS];
	while (*slot && (*slot)->id != id)
		slot = &(*slot)->next;
	return slot;
}

/* Read the payload of an answer. */
static void link_read_times(engine_times *t, const frame *f)
{
	json_t *report = json_memory_parse(f->payload, f->payload_bytes, JSON_REJECT_DUPLICATES, NULL);
	const struct {
		const char *name;
		double *ms;
	} list[] = {{"queued_ms", &t->queued_ms},
	            {"started_ms", &t->started_ms},
	            {"first_token_ms", &t->first_token_ms},
	            {"ended_ms", &t->ended_ms},
	            {"answered_ms", &t->answered_ms}};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		const json_t *ms = json_object_get(report, list[i].name);
		*list[i].ms = json_is_number(ms) ? json_number_value(ms) : -1;
	}
	json_decref(report);
}

/* Unlink the call, report its end to its owner, free it. */
static void link_end_call(engine_link *l, engine_call *c, const frame *f)
{
	engine_call **slot = link_slot(l, c->id);
	*slot = c->next;
	if (c->events && c->times && f->payload_bytes)
		link_read_times(c->times, f);
	json_memory_forget();
	if (c->events)
		c->events->end(c->context, f);
	free(c);
}

static void link_end_all(engine_link *l)
{
	for (int i = 0; i < LINK_BUCKETS; i++)
		while (l->calls[i]) {
			frame f = {.type = FRAME_ERROR,
			           .stream = l->calls[i]->id,
			           .json = link_gone,
			           .json_bytes = strlen(link_gone)};
			link_end_call(l, l->calls[i], &f);
		}
}

/* --- going away --------------------------------------------------------------- */

static void link_closed(uv_handle_t *handle)
{
	engine_link *l = handle->data;
	l->socket_open = false;
	frame_decoder_fini(&l->decoder);
}

static void link_retry(uv_timer_t *timer)
{
	engine_link *l = timer->data;
	if (l->socket_open || l->resolver_busy)
		uv_timer_start(timer, link_retry, LINK_BACKOFF_FIRST_MS, 0);
	else
		link_connect(l);
}

static void link_drop(engine_link *l, const char *reason)
{
	if (l->state == LINK_AWAY || l->state == LINK_CLOSED)
		return;
	if (strcmp(l->reason, reason) != 0)
		log_line(LOG_WARN, "engine: %s", reason);
	snprintf(l->reason, sizeof l->reason, "%s", reason);
	l->state = LINK_AWAY;
	json_decref(l->hello);
	l->hello = NULL;
	if (l->socket_open && !uv_is_closing(&l->socket.handle))
		uv_close(&l->socket.handle, link_closed);
	if (l->resolver_busy)
		uv_cancel((uv_req_t *)&l->resolving);
	uv_timer_start(&l->retry, link_retry, l->backoff_ms, 0);
	l->backoff_ms = l->backoff_ms * 2 < LINK_BACKOFF_MAX_MS ? l->backoff_ms * 2 : LINK_BACKOFF_MAX_MS;
	link_end_all(l);
}

static void link_drop_uv(engine_link *l, const char *what, int error)
{
	char reason[sizeof l->reason];
	snprintf(reason, sizeof reason, "%s: %s", what, uv_strerror(error));
	link_drop(l, reason);
}

/* --- frames out ------------------------------------------------------------------ */

typedef struct link_write {
	uv_write_t request;
	char bytes[];
} link_write;

static void link_written(uv_write_t *request, int error)
{
	engine_link *l = request->handle->data;
	free(request->data);
	if (error && error != UV_ECANCELED)
		link_drop_uv(l, "cannot write", error);
}

static bool link_send(engine_link *l, const frame *f)
{
	size_t total = FRAME_HEADER_BYTES + f->json_bytes + f->payload_bytes;
	link_write *w = malloc(sizeof *w + total);
	if (!w)
		return false;
	char *body = w->bytes + FRAME_HEADER_BYTES;
	frame_encode_header(f, (unsigned char *)w->bytes);
	if (f->json_bytes)
		memcpy(body, f->json, f->json_bytes);
	if (f->payload_bytes)
		memcpy(body + f->json_bytes, f->payload, f->payload_bytes);
	w->request.data = w;
	uv_buf_t piece = uv_buf_init(w->bytes, (unsigned)total);
	if (uv_write(&w->request, &l->socket.stream, &piece, 1, link_written) == 0)
		return true;
	free(w);
	return false;
}

static void link_send_control(engine_link *l, frame_type type, uint64_t stream, uint32_t credit)
{
	frame f = {.type = type, .stream = stream, .credit = credit};
	/* A control frame that cannot be queued would leave the peer waiting: start over instead. */
	if (!link_send(l, &f))
		link_drop(l, "out of memory");
}

/* --- frames in ------------------------------------------------------------------- */

static void link_refuse_protocol(engine_link *l, int protocol)
{
	char json[200];
	snprintf(json, sizeof json,
	         "{\"status\":400,\"code\":\"protocol_mismatch\",\"message\":\"this front end speaks protocol %d, the "
	         "engine %d\",\"param\":null}",
	         PROTO_VERSION, protocol);
	frame f = {.type = FRAME_ERROR, .json = json, .json_bytes = strlen(json)};
	link_send(l, &f);
	char reason[sizeof l->reason];
	snprintf(reason, sizeof reason, "the engine speaks protocol %d, this front end %d", protocol, PROTO_VERSION);
	l->backoff_ms = LINK_BACKOFF_MAX_MS;
	link_drop(l, reason);
}

static void link_greet(engine_link *l, const frame *f)
{
	json_t *hello =
	    f->type == FRAME_HELLO ? json_memory_parse(f->json, f->json_bytes, JSON_REJECT_DUPLICATES, NULL) : NULL;
	const json_t *protocol = json_object_get(hello, "protocol");
	if (!json_is_integer(protocol)) {
		json_decref(hello);
		link_drop(l, "the engine did not begin with HELLO");
	} else if (json_integer_value(protocol) != PROTO_VERSION) {
		json_int_t theirs = json_integer_value(protocol);
		json_decref(hello);
		link_refuse_protocol(l, theirs >= 0 && theirs <= 1000000 ? (int)theirs : -1);
	} else {
		l->hello = hello;
		generation_answer_fingerprint(l->fingerprint, f->json, f->json_bytes);
		l->state = LINK_UP;
		l->backoff_ms = LINK_BACKOFF_FIRST_MS;
		l->reason[0] = '\0';
		log_line(LOG_INFO, "engine: connected");
		if (l->up)
			l->up(l->context);
	}
}

static void link_dispatch_connection(engine_link *l, const frame *f)
{
	if (f->type == FRAME_PING)
		link_send_control(l, FRAME_PONG, 0, 0);
	else if (f->type == FRAME_ERROR)
		link_drop(l, "the engine ended the connection with an error");
	else if (f->type != FRAME_PONG)
		link_drop(l, "the engine sent an unexpected frame");
}

static void link_dispatch(engine_link *l, const frame *f)
{
	json_memory_forget();
	if (l->state == LINK_GREETING) {
		link_greet(l, f);
		return;
	}
	if (f->stream == 0) {
		link_dispatch_connection(l, f);
		return;
	}
	engine_call *c = *link_slot(l, f->stream);
	if (!c)
		return; /* late frames of a stream we have finished with */
	switch (f->type) {
	case FRAME_EVENT:
	case FRAME_DATA:
		if (c->events)
			c->events->event(c->context, f);
		break;
	case FRAME_CREDIT:
		if (c->events && c->note && f->json_bytes > 0)
			c->note(c->context, f);
		c->credit = f->credit > UINT32_MAX - c->credit ? UINT32_MAX : c->credit + f->credit;
		if (c->events && c->events->credit)
			c->events->credit(c->context);
		break;
	case FRAME_RESULT:
	case FRAME_ERROR:
		link_end_call(l, c, f);
		break;
	default:
		link_drop(l, "the engine sent an unexpected frame");
	}
}

static void link_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
	(void)suggested;
	engine_link *l = handle->data;
	*out = uv_buf_init(l->read_buffer, sizeof l->read_buffer);
}

static void link_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *data)
{
	engine_link *l = stream->data;
	if (got < 0) {
		if (got == UV_EOF)
			link_drop(l, "the engine closed the connection");
		else
			link_drop_uv(l, "cannot read", (int)got);
		return;
	}
	l->heard_ms = uv_now(l->loop);
	if (!frame_decoder_push(&l->decoder, data->base, (size_t)got)) {
		link_drop(l, "out of memory");
		return;
	}
	/* A callback may drop the link; the decoder itself lives until the handle has closed. */
	while (l->state == LINK_GREETING || l->state == LINK_UP) {
		frame f;
		const char *reason = "";
		frame_result r = frame_decoder_next(&l->decoder, &f, &reason);
		if (r == FRAME_MORE)
			break;
		if (r == FRAME_BAD)
			link_drop(l, reason);
		else
			link_dispatch(l, &f);
	}
}

/* --- connecting -------------------------------------------------------------------- */

static void link_connected(uv_connect_t *request, int error)
{
	engine_link *l = request->data;
	if (l->state != LINK_CONNECTING)
		return;
	if (!error)
		error = uv_read_start(&l->socket.stream, link_alloc, link_read);
	if (error) {
		char what[140];
		snprintf(what, sizeof what, "cannot connect to %.108s", l->host);
		link_drop_uv(l, what, error);
		return;
	}
	char hello[96];
	int bytes = snprintf(hello, sizeof hello,
	                     "{\"protocol\":%d,\"software\":\"additive-httpd " ADDITIVE_VERSION "\"}", PROTO_VERSION);
	frame f = {.type = FRAME_HELLO, .json = hello, .json_bytes = (size_t)bytes};
	l->state = LINK_GREETING;
	l->heard_ms = l->pinged_ms = uv_now(l->loop);
	if (!link_send(l, &f))
		link_drop(l, "out of memory");
}

static void link_resolved(uv_getaddrinfo_t *request, int error, struct addrinfo *found)
{
	engine_link *l = request->data;
	l->resolver_busy = false;
	if (l->state == LINK_CONNECTING) {
		if (!error)
			error = uv_tcp_init(l->loop, &l->socket.tcp);
		if (!error) {
			l->socket_open = true;
			l->socket.handle.data = l;
			uv_tcp_nodelay(&l->socket.tcp, 1);
			error = uv_tcp_connect(&l->connecting, &l->socket.tcp, found->ai_addr, link_connected);
		}
		if (error)
			link_drop_uv(l, "cannot connect", error);
	}
	uv_freeaddrinfo(found);
}

static void link_connect(engine_link *l)
{
	l->state = LINK_CONNECTING;
	l->since_ms = uv_now(l->loop);
	l->connecting.data = l;
	if (!l->port) {
		int error = uv_pipe_init(l->loop, &l->socket.pipe, 0);
		if (error) {
			link_drop_uv(l, "cannot connect", error);
			return;
		}
		l->socket_open = true;
		l->socket.handle.data = l;
		uv_pipe_connect(&l->connecting, &l->socket.pipe, l->host, link_connected);
		return;
	}
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	l->resolving.data = l;
	int error = uv_getaddrinfo(l->loop, &l->resolving, link_resolved, l->host, l->port, &hints);
	l->resolver_busy = error == 0;
	if (error)
		link_drop_uv(l, "cannot resolve the engine's name", error);
}

static void link_expire_calls(engine_link *l, uint64_t now)
{
	for (int i = 0; i < LINK_BUCKETS; i++) {
		engine_call *c = l->calls[i];
		while (c && (c->deadline == 0 || now < c->deadline || !c->events))
			c = c->next;
		if (!c)
			continue;
		/* The owner may do anything in `end`, so the bucket is looked at again next tick. */
		const engine_events *events = c->events;
		void *context = c->context;
		engine_call_cancel(c);
		frame f = {.type = FRAME_ERROR, .json = link_timeout, .json_bytes = sizeof link_timeout - 1};
		json_memory_forget();
		events->end(context, &f);
	}
}

static void link_tick(uv_timer_t *timer)
{
	engine_link *l = timer->data;
	uint64_t now = uv_now(l->loop);
	if ((l->state == LINK_CONNECTING || l->state == LINK_GREETING) && now - l->since_ms > LINK_GREETING_MS) {
		link_drop(l, "the engine does not answer");
	} else if (l->state == LINK_UP) {
		if (now - l->heard_ms > l->silence_ms) {
			link_drop(l, "the engine has fallen silent");
		} else if (now - l->heard_ms > l->silence_ms / 3 && now - l->pinged_ms > l->silence_ms / 3) {
			l->pinged_ms = now;
			link_send_control(l, FRAME_PING, 0, 0);
		}
	}
	link_expire_calls(l, now);
}

static bool link_parse_address(engine_link *l, const char *address)
{
	if (strncmp(address, "unix:", 5) == 0) {
		l->host = strdup(address + 5);
		return l->host && l->host[0];
	}
	const char *colon = strrchr(address, ':');
	if (!colon || colon == address || !colon[1])
		return false;
	size_t bytes = (size_t)(colon - address);
	if (address[0] == '[' && address[bytes - 1] == ']') {
		address++;
		bytes -= 2;
	}
	l->host = strndup(address, bytes);
	l->port = strdup(colon + 1);
	return l->host && l->port;
}

engine_link *engine_link_new(uv_loop_t *loop, const engine_link_options *o)
{
	engine_link *l = calloc(1, sizeof *l);
	if (!l)
		return NULL;
	l->loop = loop;
	l->silence_ms = o->silence_ms;
	l->up = o->up;
	l->context = o->context;
	l->backoff_ms = LINK_BACKOFF_FIRST_MS;
	if (!link_parse_address(l, o->address)) {
		engine_link_free(l);
		return NULL;
	}
	uv_timer_init(loop, &l->retry);
	uv_timer_init(loop, &l->tick);
	l->retry.data = l->tick.data = l;
	uv_timer_start(&l->tick, link_tick, LINK_TICK_MS, LINK_TICK_MS);
	link_connect(l);
	return l;
}

void engine_link_close(engine_link *l)
{
	if (!l || l->state == LINK_CLOSED)
		return;
	l->state = LINK_CLOSED;
	snprintf(l->reason, sizeof l->reason, "shutting down");
	link_end_all(l);
	if (l->resolver_busy)
		uv_cancel((uv_req_t *)&l->resolving);
	if (l->socket_open && !uv_is_closing(&l->socket.handle))
		uv_close(&l->socket.handle, link_closed);
	uv_close((uv_handle_t *)&l->retry, NULL);
	uv_close((uv_handle_t *)&l->tick, NULL);
}

void engine_link_free(engine_link *l)
{
	if (!l)
		return;
	frame_decoder_fini(&l->decoder);
	json_decref(l->hello);
	free(l->host);
	free(l->port);
	free(l);
}

bool engine_link_up(const engine_link *l)
{
	return l->state == LINK_UP;
}

const char *engine_link_reason(const engine_link *l)
{
	if (l->state == LINK_UP)
		return "";
	return l->reason[0] ? l->reason : "connecting";
}

const char *engine_link_fingerprint(const engine_link *l)
{
	return l->fingerprint;
}

const json_t *engine_link_hello(const engine_link *l)
{
	return l->hello;
}

/* --- the callers' side --------------------------------------------------------------- */

/* Print {"method":…,"owner":…,"key":…,"params":{…}} with the members after those of params. NULL when out of memory. */
static char *link_print_request(const char *method, const engine_caller *from, json_t *params, const buffer *members)
{
	/* An allocation for params may have failed already, so failures are not forgotten here. */
	json_t *request = json_pack("{s:s, s:s*, s:s*, s:O}", "method", method, "owner", from ? from->owner : NULL,
	                            "key", from ? from->key : NULL, "params", params);
	char *text = json_memory_print(request, JSON_COMPACT);
	json_decref(request);
	return text && members && members->used > 0 ? json_body_join(text, members) : text;
}

/* Print the payload of a REQUEST. Returns its bytes, or more than `size` if it does not fit. */
static int link_print_context(char *out, size_t size, const engine_caller *from)
{
	const char *tenant = from->fairness_id ? from->fairness_id : "";
	char timeout[48] = "";
	if (from->timeout > 0)
		snprintf(timeout, sizeof timeout, ",\"timeout\":%.9g", from->timeout);
	const char *trace = from->traceparent ? from->traceparent : "";
	return snprintf(out, size, "{\"request_id\":\"%s\"%s%s%s%s%s%s%s%s}", from->request_id,
	                from->times ? ",\"times\":true" : "", *trace ? ",\"traceparent\":\"" : "", trace,
	                *trace ? "\"" : "", timeout, *tenant ? ",\"fairness_id\":\"" : "", tenant,
	                *tenant ? "\"" : "");
}

static bool link_send_request(engine_link *l, uint64_t id, const char *method, const engine_caller *caller,
                              json_t *params, const buffer *members, uint32_t credit, bool upload)
{
	char *text = link_print_request(method, caller, params, members);
	char context[512];
	const int context_bytes = caller->request_id ? link_print_context(context, sizeof context, caller) : 0;
	assert(context_bytes >= 0 && (size_t)context_bytes < sizeof context);
	frame f = {.type = FRAME_REQUEST,
	           .stream = id,
	           .credit = credit,
	           .flags = upload ? 0 : FRAME_FLAG_END,
	           .json = text,
	           .json_bytes = text ? strlen(text) : 0,
	           .payload = context,
	           .payload_bytes = (size_t)context_bytes};
	bool sent = text && f.json_bytes <= FRAME_MAX_JSON && link_send(l, &f);
	free(text);
	return sent;
}

engine_call *engine_link_call(engine_link *l, const char *method, const engine_caller *caller, json_t *params,
                              const buffer *members, uint32_t credit, bool upload, uint64_t timeout_ms,
                              const engine_events *events, void *context)
{
	static const engine_caller nobody;
	engine_call *c = l->state == LINK_UP ? calloc(1, sizeof *c) : NULL;
	params = params ? params : json_object();
	caller = caller ? caller : &nobody;
	if (c && !link_send_request(l, l->last_id + 1, method, caller, params, members, credit, upload)) {
		free(c);
		c = NULL;
	}
	json_decref(params);
	if (!c)
		return NULL;
	c->link = l;
	c->id = ++l->last_id;
	c->events = events;
	c->context = context;
	c->times = caller->times;
	c->deadline = timeout_ms ? uv_now(l->loop) + timeout_ms : 0;
	engine_call **slot = &l->calls[c->id % LINK_BUCKETS];
	c->next = *slot;
	*slot = c;
	return c;
}

void engine_call_on_note(engine_call *c, void (*note)(void *context, const frame *f))
{
	c->note = note;
}

void engine_call_grant(engine_call *c, uint32_t frames)
{
	if (frames > 0 && c->link->state == LINK_UP)
		link_send_control(c->link, FRAME_CREDIT, c->id, frames);
}

void engine_call_alive(engine_call *c)
{
	if (c->link->state == LINK_UP)
		link_send_control(c->link, FRAME_CREDIT, c->id, 0);
}

uint32_t engine_call_credit(const engine_call *c)
{
	return c->credit;
}

void engine_call_data(engine_call *c, const char *part, const char *file, const void *data, size_t bytes, bool last)
{
	assert(c->credit > 0 && bytes <= FRAME_MAX_PAYLOAD);
	c->credit--;
	char json[ENGINE_FILE_BYTES + 96];
	const char *before = file ? "\",\"file\":\"" : "";
	int n = part ? snprintf(json, sizeof json, "{\"part\":\"%s%s%s\"}", part, before, file ? file : "") : 0;
	assert(n >= 0 && (size_t)n < sizeof json);
	frame f = {.type = FRAME_DATA,
	           .stream = c->id,
	           .flags = last ? FRAME_FLAG_END : 0,
	           .json = json,
	           .json_bytes = (size_t)n,
	           .payload = data,
	           .payload_bytes = bytes};
	if (c->link->state == LINK_UP && !link_send(c->link, &f))
		link_drop(c->link, "out of memory");
}

void engine_call_cancel(engine_call *c)
{
	c->events = NULL;
	if (c->link->state == LINK_UP)
		link_send_control(c->link, FRAME_CANCEL, c->id, 0);
}
