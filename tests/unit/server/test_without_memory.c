/* The front end without memory: every allocation of a scripted set of requests fails once. Each request then gets its
 * usual answer, an answer that says that memory is exhausted, or an incomplete answer. No memory is leaked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/support/allocations.h"
#include "tests/unit/support/front.h"

enum { ANSWER_BYTES = 512 << 10, QUIET_MS = 3000, TURNS = 3000, LARGE_BYTES = 100 << 10 };

#define HEAD " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
#define JSON HEAD "Content-Type: application/json\r\n"
#define FORM HEAD "Content-Type: multipart/form-data; boundary=bound\r\n"
#define PART(name, rest, content)                                                                                      \
	"--bound\r\nContent-Disposition: form-data; name=\"" name "\"" rest "\r\n\r\n" content "\r\n"

typedef struct scripted {
	const char *head,
	    *body; /* Content-Length and the empty line are inserted between them; * means LARGE_BYTES letters */
	int status;
} scripted;

static const scripted requests[] = {
    {"GET /healthz" HEAD, NULL, 200},
    {"GET /readyz" HEAD, NULL, 200},
    {"GET /version" HEAD, NULL, 200},
    {"GET /metrics" HEAD, NULL, 200},
    {"GET /" HEAD, NULL, 200},
    {"GET /openapi.json" HEAD, NULL, 200},
    {"HEAD /v1/models" HEAD, NULL, 200},
    {"GET /v1/files?limit=2&after=file-1&order=asc" HEAD, NULL, 200},
    {"GET /v1/files?limit=%c3%a4" HEAD, NULL, 400},
    {"GET /v1/models/missing" HEAD, NULL, 404},
    {"PUT /v1/models" HEAD, NULL, 405},
    {"GET /nothing%20here" HEAD, NULL, 404},
    {"GET /v1/models/m/files/config.json" HEAD, NULL, 200},
    {"GET /v1/fine_tuning/jobs/j/events?stream=true" HEAD "Last-Event-ID: e-1\r\n", NULL, 200},
    {"GET /v1/sessions/s/alpha?layers=0,1,2&position=-1&rounds=query" HEAD, NULL, 200},
    {"GET /v1/sessions/s/alpha" HEAD "Accept: text/html\r\n", NULL, 200},
    {"POST /v1/tokenize" JSON, "{\"model\":\"m\",\"text\":\"a text of more than a few bytes, so that it needs room\"}",
     200},
    {"POST /v1/tokenize" JSON, "{\"model\":\"m\",\"text\":\"*\"}", 200},
    {"POST /v1/tokenize" JSON, "{\"model\":\"m\",\"wrong\":12345678901234567}", 400},
    {"POST /v1/tokenize" JSON, "{\"model\":", 400},
    {"POST /v1/sessions/s/fork" HEAD "Idempotency-Key: a key\r\n", NULL, 200},
    {"POST /v1/completions" JSON, "{\"model\":\"m\",\"prompt\":\"Once upon a time there was\",\"timings\":true}", 200},
    {"POST /v1/completions" JSON,
     "{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", 200},
    {"POST /v1/explain" JSON "Accept: text/html\r\n", "{\"model\":\"m\",\"input\":\"ab\"}", 200},
    {"POST /v1/explain" JSON, "{\"model\":\"m\",\"input\":\"ab\",\"compare\":{\"input\":\"b\"}}", 200},
    {"POST /v1/explain" JSON "Accept: text/html\r\n",
     "{\"model\":\"m\",\"input\":\"ab\",\"compare\":{\"input\":\"b\"}}", 200},
    {"POST /v1/explain" JSON "Accept: image/svg+xml\r\n",
     "{\"model\":\"m\",\"input\":\"ab\",\"compare\":{\"input\":\"b\"}}", 200},
    {"POST /v1/explain/evaluate" JSON "Accept: text/html\r\n", "{\"model\":\"m\",\"input\":\"ab\"}", 200},
    {"POST /v1/files" FORM,
     PART("purpose", "", "fine-tune") PART("file", "; filename=\"f\"", "some text") "--bound--\r\n", 200},
    {"POST /v1/models" FORM, PART("id", "", "m") PART("config", "", "{}") PART("weights", "", "w") "--bound--\r\n",
     200},
    {"POST /v1/sessions?model=m" HEAD "Content-Type: application/octet-stream\r\n", "state", 200},
};

static front *the_front;
static char sent[128 << 10], written[128 << 10], got[ANSWER_BYTES], usual[ANSWER_BYTES];

static void settle(void)
{
	for (int i = 0; i < TURNS && !(front_requests(the_front) == 0 && front_connections(the_front) == 0 &&
	                               front_connected(the_front));
	     i++)
		front_turn(the_front, 1);
	assert_int_equal(front_requests(the_front), 0);
	assert_int_equal(front_connections(the_front), 0);
	assert_true(front_connected(the_front));
}

static void write_body(const char *from)
{
	const char *star = strchr(from, '*');
	size_t n = star ? (size_t)(star - from) : 0;
	snprintf(written, sizeof written, "%s", from);
	if (!star)
		return;
	memset(written + n, 'x', LARGE_BYTES);
	snprintf(written + n + LARGE_BYTES, sizeof written - n - LARGE_BYTES, "%s", star + 1);
}

/* Send the request and return the bytes of the answer; the connection must have ended. If memory fails, the front end
 * must give the reason. */
static size_t ask(const scripted *s, int64_t fails_after, char *answer)
{
	int n = snprintf(sent, sizeof sent, "%s", s->head);
	write_body(s->body ? s->body : "");
	if (s->body)
		n += snprintf(sent + n, sizeof sent - (size_t)n, "Content-Length: %zu\r\n", strlen(written));
	n += snprintf(sent + n, sizeof sent - (size_t)n, "\r\n%s", written);
	allocations_fail(fails_after, false);
	int client = front_client(the_front);
	assert_true(client >= 0);
	bool ended;
	front_send(the_front, client, sent, (size_t)n);
	size_t bytes = front_receive(the_front, client, answer, ANSWER_BYTES - 1, QUIET_MS, &ended);
	allocations_limit(-1);
	close(client);
	answer[bytes] = '\0';
	if (!ended)
		print_message("no end after %zu bytes of %s", bytes, s->head);
	assert_true(ended);
	settle();
	return bytes;
}

/* Length of the chunk size at `text` with its two line ends; 0 if there is none. */
static size_t chunk_size(const char *text)
{
	size_t digits = strncmp(text, "\r\n", 2) == 0 ? strspn(text + 2, "0123456789ABCDEF") : 0;
	return digits && strncmp(text + 2 + digits, "\r\n", 2) == 0 ? digits + 4 : 0;
}

/* Length of the date at `text`, whose day and month are words; 0 if there is none. */
static size_t date_size(const char *text)
{
	return strncmp(text, "\r\nDate: ", 8) == 0 ? 2 + strcspn(text + 2, "\r") : 0;
}

/* Remove dates, digits, hexadecimal ids and chunk sizes, which differ from one answer to the next. */
static size_t without_numbers(char *text)
{
	char *out = text;
	for (const char *in = text; *in; in++) {
		in += date_size(in);
		in += chunk_size(in);
		if (!*in)
			break;
		if (!strchr("0123456789abcdef.", *in))
			*out++ = *in;
	}
	*out = '\0';
	return (size_t)(out - text);
}

static const char *body_of(const char *answer)
{
	const char *body = strstr(answer, "\r\n\r\n");
	return body ? body + 4 : NULL;
}

/* True if the answer is complete by its framing: its Content-Length, its last chunk, or else the end of the
 * connection. */
static bool is_complete(const char *answer, size_t bytes)
{
	const char *body = body_of(answer), *length = strstr(answer, "Content-Length: ");
	if (!body)
		return false;
	if (length && length < body)
		return (size_t)(answer + bytes - body) >= strtoul(length + 16, NULL, 10);
	return bytes >= 5 && memcmp(answer + bytes - 5, "0\r\n\r\n", 5) == 0;
}

static void check(const scripted *s, int64_t n, size_t bytes, const char *expected)
{
	int status = bytes >= 12 ? atoi(got + 9) : 0;
	bool head = strncmp(s->head, "HEAD", 4) == 0;
	const char *problem = NULL;
	if (!body_of(got) || (!head && !is_complete(got, bytes)))
		return; /* the client sees that the answer is incomplete */
	if (status == 503 && (strstr(got, "out_of_memory") || strstr(got, "engine_unavailable") || head))
		return;
	if (status == 200 && strstr(got, "text/event-stream") && strstr(got, "out_of_memory"))
		return;
	if (status != s->status)
		problem = "another status";
	else if (strstr(s->head, "/metrics"))
		problem = strstr(got, "additive_engine_step_seconds_count") &&
		                  strstr(got, "additive_queue_time_seconds_count")
		              ? NULL
		              : "metrics are missing";
	else {
		static char copy[ANSWER_BYTES];
		memcpy(copy, got, bytes + 1);
		without_numbers(copy);
		problem = strcmp(copy, expected) == 0 ? NULL : "another answer";
	}
	if (problem)
		print_message("%sallocation %lld: %s:\n%s\n", s->head, (long long)n, problem, got);
	assert_null(problem);
}

/* Ask until the engine is connected and its keys are known, which a failed allocation before may have ended. */
static void ask_when_ready(const scripted *s, char *answer)
{
	for (int tries = 0; tries < 1000; tries++) {
		ask(s, -1, answer);
		if (atoi(answer + 9) != 503)
			return;
		usleep(10000);
	}
}

static void every_allocation_of_a_request_may_fail(void **state)
{
	(void)state;
	int64_t failed = 0;
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
		const scripted *s = &requests[i];
		ask_when_ready(s, usual); /* fill caches before counting */
		int64_t before = allocations_count();
		ask(s, -1, usual);
		int64_t allocations = allocations_count() - before;
		assert_int_equal(atoi(usual + 9), s->status);
		assert_true(allocations > 0);
		without_numbers(usual);
		for (int64_t n = 0; n <= allocations; n++, failed++)
			check(s, n, ask(s, n, got), usual);
	}
	print_message("%lld allocations failed\n", (long long)failed);
}

int main(void)
{
	the_front = front_new(10000);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_allocation_of_a_request_may_fail),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	front_free(the_front);
	return failed;
}
