/* A request is refused as soon as its head shows an error. If the client is already sending a body, that is read to its
 * end (up to a limit) before the error is sent. Closing early would make the kernel reset the connection, and the
 * client would see the reset instead of the error. Past that limit the error is written past the library, which cannot
 * answer in the middle of a body, and further input is dropped for a moment.
 *
 * Requests whose framing two parsers could read differently (several lengths, a length and chunks, odd header names, a
 * NUL) are never read at all; the library or head_scan.c refuses most of them. */
#include "server/request.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "proto/json_memory.h"
#include "server/call_headers.h"
#include "server/cors.h"
#include "server/idempotency.h"
#include "server/log.h"
#include "server/query.h"

enum {
	REQUEST_DROP_BYTES = 4 << 20,    /* bytes of a refused body that are dropped before the error is sent early */
	REQUEST_LINGER_BYTES = 64 << 20, /* after it went out early */
	REQUEST_LINGER_MS = 2000,
	REQUEST_BODY_RATE = 4 << 10, /* bytes per second that a long body must keep up */
	REQUEST_NO_BODY_BYTES = 64 << 10
};

/* --- the head ------------------------------------------------------------------------- */

const char *request_header_value(const request *r, const char *name)
{
	return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

typedef struct framing {
	int lengths, encodings, hosts;
	bool odd_name, chunked;
} framing;

static enum MHD_Result request_count_header(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
	(void)kind;
	framing *f = context;
	for (const char *c = name; *c; c++)
		f->odd_name |= !isgraph((unsigned char)*c);
	f->odd_name |= *name == '\0';
	f->lengths += strcasecmp(name, "Content-Length") == 0;
	f->hosts += strcasecmp(name, "Host") == 0;
	if (strcasecmp(name, "Transfer-Encoding") == 0) {
		f->encodings++;
		f->chunked = value && strcasecmp(value, "chunked") == 0;
	}
	return MHD_YES;
}

/* False, refused, when the message could be read in two ways. */
static bool request_check_framing(request *r, const char *version)
{
	framing f = {0};
	MHD_get_connection_values(r->connection, MHD_HEADER_KIND, request_count_header, &f);
	bool old = strcmp(version, "HTTP/1.1") != 0;
	const char *reason = NULL;
	if (http_peer_head_is_odd(r->peer))
		reason = "the head holds a NUL, a folded header or a line that does not end with CR LF";
	else if (f.odd_name)
		reason = "a header's name holds a space or a control character";
	else if (f.lengths > 1)
		reason = "more than one Content-Length";
	else if (f.lengths && f.encodings)
		reason = "both Content-Length and Transfer-Encoding";
	else if (f.encodings > 1 || (f.encodings && (!f.chunked || old)))
		reason = "the only Transfer-Encoding understood is chunked, in HTTP/1.1";
	else if (f.hosts > 1 || (f.hosts == 0 && !old))
		reason = "exactly one Host header is needed";
	if (!reason)
		return true;
	r->must_close = true;
	reply_refuse(r, 400, "invalid_framing", NULL, "%s", reason);
	return false;
}

/* The Content-Length, or 0. The library has refused what is not a number. */
static uint64_t request_length(const request *r)
{
	const char *length = request_header_value(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
	return length ? strtoull(length, NULL, 10) : 0;
}

static uint64_t request_body_limit(const request *r)
{
	switch (r->route->body) {
	case BODY_JSON:
		return r->server->limits.json_bytes;
	case BODY_FORM:
	case BODY_OCTETS:
		return r->server->limits.upload_bytes;
	default:
		return REQUEST_NO_BODY_BYTES;
	}
}

static void request_refuse_size(request *r)
{
	reply_refuse(r, 413, "request_too_large", NULL, "the body is larger than %llu bytes",
	             (unsigned long long)request_body_limit(r));
}

/* The address has too many connections: this one was accepted to say so. */
static bool request_check_connection(request *r)
{
	enum { LONGEST_WAIT = 60 };
	if (!http_peer_excess(r->peer))
		return true;
	double wait = ceil(r->server->generation_ms / 1000);
	problem p = {.status = 429,
	             .code = "too_many_connections",
	             .retry_after = wait < 1              ? 1
	                            : wait > LONGEST_WAIT ? LONGEST_WAIT
	                                                  : (int)wait};
	snprintf(p.message, sizeof p.message,
	         "%u connections of one address are open, as many as may be (--max-connections-per-ip)",
	         r->server->limits.connections_per_address);
	r->must_close = true;
	reply_problem(r, &p);
	return false;
}

static void request_refuse_unavailable(request *r)
{
	reply_refuse(r, 503, "engine_unavailable", NULL, "the engine is unavailable; try again shortly");
}

/* Set the request's key. NULL, answered: it has none, or one that is not known. */
static const auth_key *request_find_key(request *r)
{
	const server *s = r->server;
	const char *header = request_header_value(r, MHD_HTTP_HEADER_AUTHORIZATION);
	const auth_key *key = auth_find(s->auth, header);
	r->key_of_file = key != NULL;
	key = key ? key : auth_find(s->keys.known, header);
	if (key) {
		snprintf(r->key, sizeof r->key, "%s", key->name);
	} else if (header && !s->keys.current) { /* it may be a new key of the engine */
		request_refuse_unavailable(r);
	} else {
		reply_refuse(r, 401, "invalid_api_key", NULL, "a valid key is needed: Authorization: Bearer KEY");
	}
	return key;
}

static bool request_needs_key(const server *s)
{
	return s->auth || s->keys.required;
}

static bool request_check_key(request *r)
{
	server *s = r->server;
	engine_keys_open(&s->keys, s->engine);
	if (r->route && r->route->open)
		return true;
	r->unchecked = !s->auth && !s->keys.current;
	if (!request_needs_key(s))
		return true;
	const auth_key *key = request_find_key(r);
	if (!key || !r->route || key->role >= r->route->role)
		return key != NULL;
	reply_refuse(r, 403, "permission_denied", NULL, "this needs a key with the role %s; that of the key is %s",
	             auth_role_name(r->route->role), auth_role_name(key->role));
	return false;
}

/* With keys every origin may send requests, because a page has no key; a preflight asks whether it may read answers. */
static bool request_allows_origin(const request *r, const char *host, bool preflight)
{
	const char *origin = request_header_value(r, "Origin"), *from = request_header_value(r, "Sec-Fetch-Site");
	bool get = r->route && strcmp(r->route->method, "GET") == 0;
	if (preflight)
		return cors_allows(r);
	if (request_needs_key(r->server))
		return true;
	return origin ? site_allows_origin(&r->server->sites, origin, host)
	              : get || !from || strcmp(from, "cross-site") != 0;
}

/* Browsers let any page send requests to a local address. Without keys only the names in them tell such requests apart;
 * site.h says how. */
static bool request_check_site(request *r, bool preflight)
{
	const site_list *sites = &r->server->sites;
	const char *host = request_header_value(r, MHD_HTTP_HEADER_HOST);
	if (!request_needs_key(r->server) && !site_allows_host(sites, host, http_peer_loopback(r->peer))) {
		reply_refuse(r, 403, "forbidden_host", NULL,
		             "the Host header is not a name of this server; --allow-host NAME adds one");
		return false;
	}
	if (request_allows_origin(r, host, preflight))
		return true;
	reply_refuse(r, 403, "cross_site", NULL,
	             "requests from other sites' pages are refused; --allow-host NAME or NAME:PORT allows a site");
	return false;
}

/* A preflight never carries a key. */
static bool request_check_server(request *r, bool preflight)
{
	const server *s = r->server;
	if (!request_check_connection(r) || (!preflight && !request_check_key(r)) || !request_check_site(r, preflight))
		return false;
	if (s->draining && !(r->route && r->route->always)) {
		r->must_close = true;
		reply_refuse(r, 503, "shutting_down", NULL, "the server is shutting down");
		return false;
	}
	return true;
}

static void request_refuse_type(request *r, const char *expected)
{
	reply_refuse(r, 415, "unsupported_media_type", NULL, "the Content-Type must be %s", expected);
}

static void request_refuse_path(request *r, int status, const char *method, const route_match *match)
{
	if (status == 405)
		reply_header(r, "Allow", match->allow);
	const char *nearest = status == 404 ? router_nearest(&r->uri) : NULL;
	const char *invalid = status == 404 ? router_invalid_id(&r->uri) : NULL;
	if (status == 400)
		reply_refuse(r, 400, "invalid_target", NULL, "the path or query is malformed");
	else if (invalid)
		reply_refuse(r, 404, "not_found", NULL,
		             "\"%.80s\" cannot be an id: ids have 1 to 63 letters, digits and . _ : -", invalid);
	else if (nearest)
		reply_refuse(r, 404, "not_found", NULL, "no such path; the nearest one is %s", nearest);
	else if (status == 404)
		reply_refuse(r, 404, "not_found", NULL, "no such path");
	else if (status == 405)
		reply_refuse(r, 405, "method_not_allowed", NULL, "this path answers %s, not %.16s", match->allow,
		             method);
	else
		request_refuse_type(r, match->types);
}

/* Look at the head: afterwards the request is refused, or its body may come. */
static void request_begin(request *r, const char *method, const char *version)
{
	request_take_id(r);
	if (r->server->trace)
		trace_begin(&r->trace, request_header_value(r, "traceparent"));
	if (!request_check_framing(r, version))
		return;
	route_match match = {0};
	int status = 400;
	if (r->uri.memory)
		status = router_find(&r->uri, method, request_header_value(r, MHD_HTTP_HEADER_CONTENT_TYPE), &match);
	r->route = match.route;
	memcpy(r->params, match.params, sizeof r->params);
	const bool preflight = cors_is_preflight(r, method);
	if (!request_check_server(r,
	                          preflight)) /* before a 404: without a key not even the paths that exist are shown */
		return;
	if (r->uri.out_of_memory) {
		reply_out_of_memory(r);
		return;
	}
	if (preflight) {
		cors_reply_preflight(r);
		return;
	}
	if (status != 200) {
		request_refuse_path(r, status, method, &match);
		return;
	}
	const char *coding = request_header_value(r, MHD_HTTP_HEADER_CONTENT_ENCODING);
	if (coding && strcasecmp(coding, "identity") != 0)
		reply_refuse(r, 415, "unsupported_encoding", NULL, "bodies must not be compressed");
	else if (!query_check(r) || !idempotency_check(r) || !call_headers_check(r))
		return;
	else if (request_length(r) > request_body_limit(r))
		request_refuse_size(r);
	else if (r->route->body == BODY_FORM || r->route->body == BODY_OCTETS)
		r->route->handle(r);
}

/* --- the body ----------------------------------------------------------------------------- */

/* The error goes out now, although the client is still sending. */
static bool request_refuse_now(request *r)
{
	reply_send_last(r);
	r->linger = REQUEST_LINGER_BYTES;
	http_peer_deadline(r->peer, REQUEST_LINGER_MS);
	return true;
}

static void request_keep_text(request *r, const char *data, size_t bytes)
{
	server *s = r->server;
	if (s->buffered + bytes > s->limits.buffered_bytes) {
		reply_refuse(r, 503, "overloaded", NULL, "too many large requests at once");
		return;
	}
	s->buffered += bytes;
	r->reserved += bytes;
	buffer_append(&r->text, data, bytes);
	if (r->text.failed)
		reply_out_of_memory(r);
}

/* One piece of the body has arrived. False: close the connection. */
static bool request_take(request *r, const char *data, size_t bytes)
{
	if (r->linger) {
		r->linger = bytes < r->linger ? r->linger - bytes : 0;
		return r->linger > 0;
	}
	r->body_bytes += bytes;
	http_peer_extend(r->peer, (uint64_t)bytes * 1000 / REQUEST_BODY_RATE + 1, r->server->limits.request_ms);
	if (!r->status && r->body_bytes > request_body_limit(r))
		request_refuse_size(r);
	if (r->status)
		return r->body_bytes <= REQUEST_DROP_BYTES || request_refuse_now(r);
	if (r->route->body == BODY_JSON || r->route->body == BODY_NONE)
		request_keep_text(r, data, bytes);
	else if (r->take)
		r->take(r, data, bytes);
	if (r->paused && !r->status)
		request_suspend(r);
	return true;
}

/* The body of a request without fields: nothing, or {}. */
static const schema request_nothing = {"nothing", (const field[]){{.name = NULL}}};

/* The body has been read: *read, of which the request takes what it holds. */
static void request_take_body(request *r, json_body *read)
{
	if (!read->json) {
		reply_problem(r, &read->problem);
		return;
	}
	r->body = read->json;
	r->members = read->members;
	*read = (json_body){0};
	r->route->handle(r);
}

static void request_large_body_read(void *context, json_body *read)
{
	request *r = context;
	r->reading = NULL;
	if (!r->gone && !r->status)
		request_take_body(r, read);
}

/* Read the body of BODY_JSON and BODY_NONE, and hand the request to its handler. */
static void request_read_body(request *r)
{
	const schema *expected = r->route->body == BODY_NONE ? &request_nothing : r->route->schema;
	if ((r->route->optional || r->route->body == BODY_NONE) && r->body_bytes == 0) {
		r->route->handle(r);
		return;
	}
	if (!router_body_fits(r->route, request_header_value(r, MHD_HTTP_HEADER_CONTENT_TYPE))) {
		request_refuse_type(r, router_body_type(r->route));
		return;
	}
	if (r->text.used >= JSON_BODY_LARGE) {
		r->reading = large_body_read(r->server, &r->text, r->reserved, expected, request_large_body_read, r);
		if (r->reading)
			r->reserved = 0;
		else
			reply_out_of_memory(r);
		return;
	}
	json_body body;
	char none[1] = "";
	json_body_read(&body, r->text.data ? r->text.data : none, r->text.used, expected);
	r->server->buffered -= r->reserved;
	r->reserved = 0;
	buffer_fini(&r->text);
	request_take_body(r, &body);
}

/* --- the library's calls --------------------------------------------------------------------- */

enum MHD_Result request_access(request *r, const char *method, const char *version, const char *data, size_t *bytes)
{
	json_memory_forget();
	if (r->gone)
		return MHD_NO;
	if (r->phase == REQUEST_HEAD) {
		r->phase = REQUEST_BODY;
		request_begin(r, method, version);
		if (r->status && (r->must_close || request_header_value(r, MHD_HTTP_HEADER_EXPECT)))
			return reply_queue(r);
		if (r->status && request_length(r) > REQUEST_DROP_BYTES)
			request_refuse_now(r);
		return MHD_YES;
	}
	if (r->phase == REQUEST_BODY && *bytes > 0) {
		if (r->suspended) /* pieces already read keep coming; they stay with the library */
			return MHD_YES;
		bool go_on = request_take(r, data, *bytes);
		*bytes = 0;
		return go_on ? MHD_YES : MHD_NO;
	}
	if (r->linger)
		return MHD_NO;
	r->must_close |= http_peer_head_is_last(r->peer);
	if (r->phase == REQUEST_BODY && !r->status) {
		/* The whole request is here. */
		r->phase = REQUEST_WORKING;
		http_peer_deadline(r->peer, 0);
		if (r->route->body == BODY_FORM || r->route->body == BODY_OCTETS)
			r->taken(r);
		else
			request_read_body(r);
	}
	if (r->status)
		return reply_queue(r);
	request_suspend(r);
	return MHD_YES;
}

request *request_new(server *s, http_peer *peer, struct MHD_Connection *connection, const char *target)
{
	request *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	r->server = s;
	r->connection = connection;
	r->peer = peer;
	r->started_ns = uv_hrtime();
	uri_parse(&r->uri, target ? target : ""); /* errors are reported once the head is complete */
	metrics_request_begins(s->metrics);
	return r;
}

void request_suspend(request *r)
{
	r->suspended = true;
	MHD_suspend_connection(r->connection);
	http_peer_deadline(r->peer, 0);
	http_peer_watch(r->peer);
}

void request_resume(request *r)
{
	if (!r->suspended)
		return;
	r->suspended = false;
	MHD_resume_connection(r->connection);
	http_peer_wake(r->peer);
	if (r->phase == REQUEST_BODY)
		http_peer_deadline(r->peer, r->server->limits.request_ms);
	else if (r->streaming)
		http_peer_deadline(r->peer, reply_patience_ms(r));
}

static void request_cancel(request *r)
{
	if (r->call)
		engine_call_cancel(r->call);
	r->call = NULL;
}

void request_gone(request *r)
{
	r->gone = true;
	request_cancel(r);
	request_resume(r);
}

void request_abort(request *r)
{
	static const problem over = {
	    .status = 503, .code = "shutting_down", .message = "the server is shutting down", .retry_after = 1};
	r->must_close = true;
	reply_problem(r, &over);
	if (r->phase == REQUEST_HEAD || r->phase == REQUEST_BODY)
		http_peer_deadline(r->peer, 1);
}

void request_stuck(request *r)
{
	r->must_close = true;
	if (!r->status)
		reply_refuse(r, 400, "invalid_framing", NULL, "a part of the message's framing is too long");
	reply_send_last(r);
	http_peer_deadline(r->peer, 1);
}

/* Write its line of the access log. */
static void request_log(const request *r)
{
	char client[ADDRESS_TEXT_BYTES];
	const char *method = r->route ? r->route->method : "-", *path = r->route ? r->route->path : "-";
	const double seconds = request_seconds(r);
	http_peer_address(r->peer, client);
	const log_member members[] = {{.name = "client", .text = client},
	                              {.name = "method", .text = method},
	                              {.name = "route", .text = path},
	                              {.name = "status", .number = r->status},
	                              {.name = "seconds", .number = seconds}};
	log_request(r->id, members, sizeof members / sizeof *members, "%s %s %s %s %d %.3f", client, r->id, method, path,
	            r->status, seconds);
}

void request_over(request *r)
{
	request_cancel(r);
	if (r->reading)
		large_body_forget(r->reading);
	if (r->release)
		r->release(r);
	metrics_request_ends(r->server->metrics, r->route, r->status, request_seconds(r));
	if (r->server->trace)
		trace_end(r->server->trace, r);
	if (r->server->access_log)
		request_log(r);
	r->server->buffered -= r->reserved;
	reply_fini(r);
	buffer_fini(&r->text);
	buffer_fini(&r->members);
	json_decref(r->body);
	uri_fini(&r->uri);
	free(r);
}

/* --- for handlers ------------------------------------------------------------------------------ */

static void request_note(void *context, const frame *f)
{
	request *r = context;
	rate_headers_read(&r->limits, f);
}

bool request_call(request *r, const char *method, json_t *params, uint32_t credit, bool upload,
                  const engine_events *events)
{
	const char *key = idempotency_key(r);
	if (key && json_object_set_new(params, "idempotency_key", json_string(key)) != 0) {
		json_decref(params);
		reply_out_of_memory(r);
		return false;
	}
	char address[ADDRESS_TEXT_BYTES];
	http_peer_client(r->peer, address);
	char parent[TRACE_PARENT_BYTES];
	trace_write_parent(&r->trace, parent);
	const engine_caller caller = {.owner = r->key[0] ? r->key : address,
	                              .key = r->key_of_file ? "file"
	                                     : r->key[0]    ? r->key
	                                                    : NULL,
	                              .request_id = r->id,
	                              .timeout = call_headers_timeout(r),
	                              .fairness_id = call_headers_fairness_id(r),
	                              .traceparent = r->trace.sampled ? parent : NULL,
	                              .times = r->trace.sampled ? &r->times : NULL};
	r->times = (engine_times){.called_ns = uv_hrtime()};
	if (r->unchecked)
		json_decref(params);
	else
		r->call = engine_link_call(r->server->engine, method, &caller, params, &r->members, credit, upload, 0,
		                           events, r);
	buffer_fini(&r->members);
	if (r->call)
		engine_call_on_note(r->call, request_note);
	else if (engine_link_up(r->server->engine) && !r->unchecked)
		reply_out_of_memory(r);
	else
		request_refuse_unavailable(r);
	return r->call != NULL;
}

json_t *request_params(const request *r)
{
	json_t *params = json_object();
	char name[32];
	bool ok = params != NULL;
	for (int i = 0; ok && i < ROUTE_MAX_PARAMS && router_param_name(r->route, i, name, sizeof name); i++)
		ok = json_object_set_new(params, name, json_string(r->params[i])) == 0;
	if (ok && query_add(r, params))
		return params;
	json_decref(params);
	return NULL;
}

void request_pause(request *r)
{
	r->paused = true;
}

void request_unpause(request *r)
{
	r->paused = false;
	if (r->phase == REQUEST_BODY)
		request_resume(r);
}

double request_seconds(const request *r)
{
	return (double)(uv_hrtime() - r->started_ns) / 1e9;
}

void request_take_id(request *r)
{
	const char *given = r->id[0] ? NULL : request_header_value(r, "X-Request-Id");
	if (given && frame_request_id_valid(given, strlen(given)))
		strcpy(r->id, given);
	else if (!r->id[0])
		request_make_id(r->id, sizeof r->id, "req_");
}

void request_make_id(char *out, size_t size, const char *prefix)
{
	unsigned char random[12] = {0};
	/* Without entropy, which Linux has had since boot, ids would merely repeat. */
	ssize_t got = getrandom(random, sizeof random, 0);
	(void)got;
	int at = snprintf(out, size, "%s", prefix);
	for (size_t i = 0; i < sizeof random && at >= 0 && (size_t)at < size; i++)
		at += snprintf(out + at, size - (size_t)at, "%02x", random[i]);
}
