#include "server/trace.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "server/address.h"
#include "server/job_spans.h"
#include "server/log.h"
#include "server/request.h"

enum {
	TRACE_RECORDS = 1024, /* requests in the ring */
	TRACE_BATCH = 256,    /* requests in one message */
	TRACE_STEP_MS = 1000,
	TRACE_PATIENCE_MS = 5000,
	TRACE_LAST_MS = 1000,
	TRACE_LAST_STEP_MS = 100
};

typedef struct trace_record {
	trace_ids ids;
	const route *route; /* or NULL */
	char id[FRAME_REQUEST_ID_BYTES];
	int status;
	uint64_t began_ns, ended_ns; /* since 1970 */
	engine_times engine;
	uint64_t called_ns; /* since 1970; 0: the engine has reported no times */
} trace_record;

struct trace {
	uv_loop_t *loop;
	metrics *metrics;
	char authority[112]; /* HOST:PORT, for the header Host */
	char path[256];
	struct addrinfo *addresses;
	trace_record records[TRACE_RECORDS];
	size_t first, count;
	engine_link *engine; /* NULL: no spans of jobs */
	job_spans jobs;
	uv_timer_t timer;
	bool closing, failing;
	uint64_t end; /* loop time at which the last message ends, if closing */

	/* one message */
	bool sending;
	size_t in_message;
	bool jobs_in_message;
	uint64_t deadline;              /* loop time */
	const struct addrinfo *address; /* one of `addresses` */
	uv_tcp_t socket;
	uv_connect_t connect;
	uv_write_t write;
	buffer message;
	char answer[16], rest[512];
	size_t answer_bytes;
};

/* --- ids -------------------------------------------------------------------------------- */

static void trace_fill(unsigned char *id, size_t bytes)
{
	ssize_t got = getrandom(id, bytes, 0);
	if (got != (ssize_t)bytes)
		memset(id, 1, bytes); /* zero is no id */
}

/* Read lower-case hexadecimal digits; false if they are none, or all zero. */
static bool trace_read_id(unsigned char *id, size_t bytes, const char *text)
{
	static const char digits[] = "0123456789abcdef";
	unsigned any = 0;
	for (size_t i = 0; i < bytes; i++) {
		const char *high = memchr(digits, text[2 * i], 16), *low = memchr(digits, text[2 * i + 1], 16);
		if (!high || !low)
			return false;
		id[i] = (unsigned char)((high - digits) << 4 | (low - digits));
		any |= id[i];
	}
	return any != 0;
}

/* VERSION-TRACE-PARENT-FLAGS. Later versions may continue after a dash. */
static bool trace_read_parent(trace_ids *ids, const char *text)
{
	enum { TRACE_AT = 3, PARENT_AT = 36, FLAGS_AT = 53, END = 55 };
	unsigned char version = 0, flags = 0;
	if (strlen(text) < END || text[TRACE_AT - 1] != '-' || text[PARENT_AT - 1] != '-' || text[FLAGS_AT - 1] != '-')
		return false;
	if (strncmp(text, "00", 2) != 0 && !trace_read_id(&version, 1, text))
		return false;
	if (version == 0xff || (text[END] && (version == 0 || text[END] != '-')))
		return false;
	if (strncmp(text + FLAGS_AT, "00", 2) != 0 && !trace_read_id(&flags, 1, text + FLAGS_AT))
		return false;
	ids->sampled = flags & 1;
	return trace_read_id(ids->trace, sizeof ids->trace, text + TRACE_AT) &&
	       trace_read_id(ids->parent, sizeof ids->parent, text + PARENT_AT);
}

void trace_begin(trace_ids *ids, const char *traceparent)
{
	ids->has_parent = traceparent && trace_read_parent(ids, traceparent);
	if (!ids->has_parent) {
		trace_fill(ids->trace, sizeof ids->trace);
		ids->sampled = true;
	}
	trace_fill(ids->span, sizeof ids->span);
}

/* Write an id in hexadecimal digits. Return the end. */
static char *trace_print_id(char *out, const unsigned char *id, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		out += sprintf(out, "%02x", id[i]);
	return out;
}

void trace_write_parent(const trace_ids *ids, char out[TRACE_PARENT_BYTES])
{
	char *end = stpcpy(out, "00-");
	end = stpcpy(trace_print_id(end, ids->trace, sizeof ids->trace), "-");
	strcpy(trace_print_id(end, ids->span, sizeof ids->span), "-01");
}

/* --- records ------------------------------------------------------------------------------- */

void trace_end(trace *t, const request *r)
{
	struct timespec wall;
	const uint64_t now = uv_hrtime();
	if (!r->trace.sampled)
		return;
	if (t->count == TRACE_RECORDS || t->closing) {
		metrics_traces_dropped(t->metrics, 1);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &wall);
	const uint64_t ended_ns = (uint64_t)wall.tv_sec * 1000000000 + (uint64_t)wall.tv_nsec;
	trace_record *record = &t->records[(t->first + t->count++) % TRACE_RECORDS];
	*record = (trace_record){.ids = r->trace,
	                         .route = r->route,
	                         .status = r->status,
	                         .began_ns = ended_ns - (now - r->started_ns),
	                         .ended_ns = ended_ns,
	                         .engine = r->times,
	                         .called_ns = r->times.answered_ms > 0 ? ended_ns - (now - r->times.called_ns) : 0};
	memcpy(record->id, r->id, sizeof record->id);
}

/* --- a message -------------------------------------------------------------------------------- */

static void trace_write_id(buffer *out, const char *name, const unsigned char *id, size_t bytes)
{
	char digits[2 * sizeof((trace_ids *)0)->trace + 1];
	trace_print_id(digits, id, bytes);
	buffer_format(out, "\"%s\":\"%s\",", name, digits);
}

/* Write a span up to its attributes. parent: NULL for none. */
static void trace_write_span(buffer *out, const trace_record *r, const unsigned char *span, const unsigned char *parent,
                             uint64_t began_ns, uint64_t ended_ns)
{
	buffer_string(out, "{");
	trace_write_id(out, "traceId", r->ids.trace, sizeof r->ids.trace);
	trace_write_id(out, "spanId", span, sizeof r->ids.span);
	if (parent)
		trace_write_id(out, "parentSpanId", parent, sizeof r->ids.span);
	buffer_format(out, "\"startTimeUnixNano\":\"%llu\",\"endTimeUnixNano\":\"%llu\",", (unsigned long long)began_ns,
	              (unsigned long long)ended_ns);
}

static void trace_write_request(buffer *out, const trace_record *r)
{
	trace_write_span(out, r, r->ids.span, r->ids.has_parent ? r->ids.parent : NULL, r->began_ns, r->ended_ns);
	buffer_string(out, "\"kind\":2,\"attributes\":[");
	if (r->route)
		buffer_format(out,
		              "{\"key\":\"http.request.method\",\"value\":{\"stringValue\":\"%s\"}},"
		              "{\"key\":\"http.route\",\"value\":{\"stringValue\":\"%s\"}},",
		              r->route->method, r->route->path);
	buffer_format(out,
	              "{\"key\":\"http.response.status_code\",\"value\":{\"intValue\":\"%d\"}},"
	              "{\"key\":\"additive.request_id\",\"value\":{\"stringValue\":\"%s\"}}],"
	              "\"status\":{\"code\":%d},\"name\":\"%s%s%s\"}",
	              r->status ? r->status : 499, r->id, r->status >= 500 ? 2 : 0,
	              r->route ? r->route->method : "HTTP", r->route ? " " : "", r->route ? r->route->path : "");
}

/* Return a time of the engine since 1970, within the request. */
static uint64_t trace_engine_time(const trace_record *r, double ms)
{
	const double most = (double)(r->ended_ns - r->called_ns), ns = ms * 1e6;
	return r->called_ns + (uint64_t)(ns < most ? ns : most);
}

/* Write the spans of the engine: all of its work, and within it the parts of a generation that it came to. */
static void trace_write_engine(buffer *out, const trace_record *r)
{
	const engine_times *t = &r->engine;
	const double read = t->first_token_ms >= 0 ? t->first_token_ms : t->ended_ms;
	const struct {
		const char *name;
		double began_ms, ended_ms;
	} spans[] = {{"engine", 0, t->answered_ms},
	             {"queue", t->queued_ms, t->started_ms >= 0 ? t->started_ms : t->ended_ms},
	             {"prefill", t->started_ms, read},
	             {"decode", t->first_token_ms, t->ended_ms}};
	unsigned char whole[sizeof r->ids.span], part[sizeof r->ids.span];
	trace_fill(whole, sizeof whole);
	for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
		if (spans[i].began_ms < 0 || spans[i].ended_ms < spans[i].began_ms)
			continue;
		trace_fill(part, sizeof part);
		buffer_string(out, ",");
		trace_write_span(out, r, i ? part : whole, i ? whole : r->ids.span,
		                 trace_engine_time(r, spans[i].began_ms), trace_engine_time(r, spans[i].ended_ms));
		buffer_format(out, "\"kind\":1,\"name\":\"%s\"}", spans[i].name);
	}
}

/* Move the oldest records into t->message, and copy the spans of a job. */
static void trace_write_message(trace *t)
{
	buffer body = {0};
	buffer_string(&body, "{\"resourceSpans\":[{\"resource\":{\"attributes\":["
	                     "{\"key\":\"service.name\",\"value\":{\"stringValue\":\"additive\"}},"
	                     "{\"key\":\"service.version\",\"value\":{\"stringValue\":\"" ADDITIVE_VERSION "\"}}]},"
	                     "\"scopeSpans\":[{\"scope\":{\"name\":\"additive-httpd\"},\"spans\":[");
	t->in_message = t->count < TRACE_BATCH ? t->count : TRACE_BATCH;
	for (size_t i = 0; i < t->in_message; i++) {
		const trace_record *r = &t->records[(t->first + i) % TRACE_RECORDS];
		buffer_string(&body, i ? "," : "");
		trace_write_request(&body, r);
		if (r->called_ns)
			trace_write_engine(&body, r);
	}
	t->jobs_in_message = t->jobs.held.used > 0;
	if (t->jobs_in_message) {
		buffer_string(&body, t->in_message ? "," : "");
		buffer_append(&body, t->jobs.held.data, t->jobs.held.used);
	}
	buffer_string(&body, "]}]}]}");
	t->first = (t->first + t->in_message) % TRACE_RECORDS;
	t->count -= t->in_message;
	buffer_format(&t->message,
	              "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
	              "Connection: close\r\n\r\n",
	              t->path, t->authority, body.used);
	buffer_append(&t->message, body.data, body.used);
	t->message.failed |= body.failed;
	buffer_fini(&body);
}

/* --- sending ------------------------------------------------------------------------------------ */

static void trace_send(trace *t);

static bool trace_has_work(const trace *t)
{
	return t->count > 0 || t->jobs.held.used > 0;
}

/* Log the first failure and the first success after it. */
static void trace_note(trace *t, const char *failure)
{
	if (failure && !t->failing)
		log_line(LOG_WARN, "traces: %s: %s; spans of requests are dropped until it takes them", t->authority,
		         failure);
	if (!failure && t->failing)
		log_line(LOG_INFO, "traces: %s takes spans again", t->authority);
	t->failing = failure != NULL;
	if (failure)
		metrics_traces_dropped(t->metrics, t->in_message);
}

static void trace_on_closed(uv_handle_t *handle)
{
	trace *t = handle->data;
	t->sending = false;
	buffer_fini(&t->message);
	t->message = (buffer){0};
	if (trace_has_work(t) && !t->failing && !(t->closing && uv_now(t->loop) >= t->end))
		trace_send(t);
	else if (t->closing)
		uv_close((uv_handle_t *)&t->timer, NULL);
}

static void trace_finish(trace *t, const char *failure)
{
	if (uv_is_closing((uv_handle_t *)&t->socket))
		return;
	trace_note(t, failure);
	uv_close((uv_handle_t *)&t->socket, trace_on_closed);
}

static void trace_on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
	trace *t = handle->data;
	(void)suggested;
	*out = uv_buf_init(t->rest, sizeof t->rest);
}

/* True for the statuses after which OTLP's clients send again. */
static bool trace_may_retry(const char *http_status)
{
	static const char *const again[] = {"429", "502", "503", "504"};
	for (size_t i = 0; i < sizeof again / sizeof *again; i++)
		if (strncmp(http_status, again[i], 3) == 0)
			return true;
	return false;
}

/* The first bytes, "HTTP/1.1 200", say whether the spans were taken. */
static void trace_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *data)
{
	trace *t = stream->data;
	const size_t room = sizeof t->answer - 1 - t->answer_bytes;
	if (n > 0) {
		const size_t bytes = (size_t)n < room ? (size_t)n : room;
		memcpy(t->answer + t->answer_bytes, data->base, bytes);
		t->answer_bytes += bytes;
	}
	t->answer[t->answer_bytes] = '\0';
	if (t->answer_bytes >= sizeof "HTTP/1.1 200" - 1) {
		const bool valid = strncmp(t->answer, "HTTP/1.", 7) == 0 && t->answer[8] == ' ';
		const bool taken = valid && t->answer[9] == '2';
		if (valid && t->jobs_in_message && !trace_may_retry(t->answer + 9)) {
			metrics_traces_dropped(t->metrics, !taken);
			job_spans_done(&t->jobs);
		}
		trace_finish(t, taken ? NULL : "the answer's status is not 2xx");
	} else if (n < 0) {
		trace_finish(t, "the connection ended without an answer");
	}
}

static void trace_on_written(uv_write_t *write, int status)
{
	trace *t = write->data;
	if (status < 0)
		trace_finish(t, uv_strerror(status));
}

static void trace_connect(trace *t);

static void trace_on_failed_socket_closed(uv_handle_t *handle)
{
	trace *t = handle->data;
	t->address = t->address->ai_next;
	trace_connect(t);
}

/* Try the next address of the collector. */
static void trace_connect_failed(trace *t, int error)
{
	if (uv_is_closing((uv_handle_t *)&t->socket))
		return;
	if (t->address->ai_next)
		uv_close((uv_handle_t *)&t->socket, trace_on_failed_socket_closed);
	else
		trace_finish(t, uv_strerror(error));
}

static void trace_on_connected(uv_connect_t *connect, int status)
{
	trace *t = connect->data;
	if (status < 0) {
		trace_connect_failed(t, status);
		return;
	}
	const uv_buf_t data = uv_buf_init(t->message.data, (unsigned)t->message.used);
	t->write.data = t;
	status = uv_write(&t->write, (uv_stream_t *)&t->socket, &data, 1, trace_on_written);
	if (status == 0)
		status = uv_read_start((uv_stream_t *)&t->socket, trace_on_room, trace_on_read);
	if (status < 0)
		trace_finish(t, uv_strerror(status));
}

/* Connect to t->address. */
static void trace_connect(trace *t)
{
	uv_tcp_init(t->loop, &t->socket);
	t->socket.data = t->connect.data = t;
	int failed = t->message.failed ? UV_ENOMEM : 0;
	if (!failed)
		failed = uv_tcp_connect(&t->connect, &t->socket, t->address->ai_addr, trace_on_connected);
	if (failed)
		trace_connect_failed(t, failed);
}

static void trace_send(trace *t)
{
	t->sending = true;
	t->deadline = t->closing ? t->end : uv_now(t->loop) + TRACE_PATIENCE_MS;
	t->answer_bytes = 0;
	t->address = t->addresses;
	trace_write_message(t);
	trace_connect(t);
}

static void trace_on_timer(uv_timer_t *timer)
{
	trace *t = timer->data;
	if (t->sending && uv_now(t->loop) >= t->deadline)
		trace_finish(t, "no answer in time");
	else if (!t->sending && trace_has_work(t))
		trace_send(t);
	job_spans_open(&t->jobs, t->engine);
}

/* --- life ------------------------------------------------------------------------------------------ */

/* Split the endpoint and resolve its name. */
static bool trace_read_endpoint(trace *t, const char *endpoint)
{
	static const char scheme[] = "http://";
	char host[96], port[8];
	const char *authority = endpoint + sizeof scheme - 1;
	size_t bytes = strncmp(endpoint, scheme, sizeof scheme - 1) == 0 ? strcspn(authority, "/") : 0;
	if (bytes == 0 || bytes >= sizeof t->authority || strpbrk(endpoint, " \t\r\n?#@") ||
	    (size_t)snprintf(t->path, sizeof t->path, "%s", authority[bytes] ? authority + bytes : "/v1/traces") >=
	        sizeof t->path) {
		log_line(LOG_ERROR, "--otlp-endpoint %s: expected http://HOST:PORT, with a path or without", endpoint);
		return false;
	}
	memcpy(t->authority, authority, bytes);
	t->authority[bytes] = '\0';
	if (!address_split(t->authority, host, sizeof host, port, sizeof port)) {
		log_line(LOG_ERROR, "--otlp-endpoint %s: expected http://HOST:PORT", endpoint);
		return false;
	}
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	int error = getaddrinfo(host, port, &hints, &t->addresses);
	if (error) {
		log_line(LOG_ERROR, "--otlp-endpoint %s: %s", endpoint, gai_strerror(error));
		return false;
	}
	return true;
}

trace *trace_new(uv_loop_t *loop, metrics *m, const char *endpoint)
{
	trace *t = calloc(1, sizeof *t);
	if (!t || !trace_read_endpoint(t, endpoint)) {
		free(t);
		return NULL;
	}
	t->loop = loop;
	t->metrics = m;
	t->timer.data = t;
	uv_timer_init(loop, &t->timer);
	uv_timer_start(&t->timer, trace_on_timer, TRACE_STEP_MS, TRACE_STEP_MS);
	return t;
}

void trace_follow_jobs(trace *t, engine_link *l)
{
	t->engine = l;
}

void trace_close(trace *t)
{
	t->closing = true;
	t->end = uv_now(t->loop) + TRACE_LAST_MS;
	uv_timer_start(&t->timer, trace_on_timer, TRACE_LAST_STEP_MS, TRACE_LAST_STEP_MS);
	t->engine = NULL;
	if (!t->sending && trace_has_work(t))
		trace_send(t);
	if (!t->sending)
		uv_close((uv_handle_t *)&t->timer, NULL);
	else if (t->deadline > t->end)
		t->deadline = t->end;
}

void trace_free(trace *t)
{
	if (t) {
		freeaddrinfo(t->addresses);
		job_spans_fini(&t->jobs);
	}
	free(t);
}
