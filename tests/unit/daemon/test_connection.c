/* test_connection.c - one connection over a socket pair, with the test's own handlers: errors that a peer can make, and
 * their effect on its streams. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/net/connection.h"
#include "tests/unit/support/pool.h"

enum { MAX_STREAMS = CONNECTION_MAX_STREAMS + 1 };

typedef struct fixture {
	uv_loop_t loop;
	net net;
	connection *c;
	int peer; /* the other end; -1: closed */
	frame_decoder received;
	bool gone;
	/* Events that the streams received: */
	stream *streams[MAX_STREAMS]; /* in the order of their requests; NULL: answered */
	int n_streams, credits, cancels;
	char method[64];
} fixture;

static fixture *of(const stream *s)
{
	return s->net->owner;
}

static void on_credit(stream *s)
{
	of(s)->credits++;
}

static void on_cancel(stream *s)
{
	of(s)->cancels++;
}

static void on_request(stream *s, const char *method)
{
	static const stream_watch watch = {.credit = on_credit, .cancel = on_cancel};
	fixture *f = of(s);
	snprintf(f->method, sizeof f->method, "%s", method);
	assert_true(f->n_streams < MAX_STREAMS);
	f->streams[f->n_streams++] = s;
	s->watch = &watch;
}

static void on_gone(connection *c)
{
	fixture *f = c->net->owner;
	f->gone = true;
	free(c);
}

static int setup(void **state)
{
	int pair[2];
	fixture *f = calloc(1, sizeof *f);
	log_init("test", LOG_ERROR);
	signal(SIGPIPE, SIG_IGN);
	assert_int_equal(uv_loop_init(&f->loop), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
	f->net = (net){.loop = &f->loop, .request = on_request, .owner = f, .backend = "none", .device = "a test"};
	f->peer = pair[0];
	f->c = memory_new(1, sizeof *f->c);
	f->c->net = &f->net;
	f->c->gone = on_gone;
	assert_int_equal(uv_pipe_init(&f->loop, &f->c->socket.pipe, 0), 0);
	assert_int_equal(uv_pipe_open(&f->c->socket.pipe, pair[1]), 0);
	connection_begin(f->c);
	*state = f;
	return 0;
}

/* Turn the loop once, as the engine does. */
static void turn(fixture *f)
{
	connection_flush_all(&f->net);
	uv_run(&f->loop, UV_RUN_NOWAIT);
	connection_flush_all(&f->net);
	uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void answer(fixture *f, int i)
{
	stream *s = f->streams[i];
	f->streams[i] = NULL;
	stream_result(s, json_object());
}

static int teardown(void **state)
{
	fixture *f = *state;
	for (int i = 0; i < f->n_streams; i++)
		if (f->streams[i])
			answer(f, i);
	if (f->peer >= 0)
		close(f->peer);
	while (!f->gone || f->loop.active_reqs.count)
		turn(f);
	assert_int_equal(f->net.streams, 0);
	frame_decoder_fini(&f->received);
	assert_int_equal(uv_loop_close(&f->loop), 0);
	free(f);
	return 0;
}

/* --- the peer's end ------------------------------------------------------------------ */

static void send_bytes(fixture *f, const void *data, size_t bytes)
{
	assert_int_equal(write(f->peer, data, bytes), (ssize_t)bytes);
	turn(f);
}

static size_t encode_with(char *out, frame_type type, uint64_t id, uint32_t credit, const char *json,
                          const char *payload)
{
	frame f = {.type = type,
	           .stream = id,
	           .credit = credit,
	           .json_bytes = strlen(json),
	           .payload_bytes = strlen(payload)};
	if (type == FRAME_REQUEST)
		f.flags = FRAME_FLAG_END;
	frame_encode_header(&f, (unsigned char *)out);
	memcpy(out + FRAME_HEADER_BYTES, json, f.json_bytes);
	memcpy(out + FRAME_HEADER_BYTES + f.json_bytes, payload, f.payload_bytes);
	return FRAME_HEADER_BYTES + f.json_bytes + f.payload_bytes;
}

static size_t encode(char out[512], frame_type type, uint64_t id, uint32_t credit, const char *json)
{
	return encode_with(out, type, id, credit, json, "");
}

static void send_frame(fixture *f, frame_type type, uint64_t id, uint32_t credit, const char *json)
{
	char bytes[512];
	send_bytes(f, bytes, encode(bytes, type, id, credit, json));
}

/* Send a REQUEST with a payload. */
static void send_request(fixture *f, uint64_t id, const char *payload)
{
	char bytes[4096];
	send_bytes(f, bytes, encode_with(bytes, FRAME_REQUEST, id, 0, "{\"method\":\"m\"}", payload));
}

static const char good_hello[] = "{\"protocol\":1}";

/* Read the received frames; returns the number of frames of `type`. *last: text of the last one, and its payload. */
static int receive(fixture *f, frame_type type, char last[256])
{
	static char bytes[1 << 16];
	int n = 0;
	frame got;
	const char *err;
	for (ssize_t more; turn(f), (more = read(f->peer, bytes, sizeof bytes)) > 0;) {
		assert_true(frame_decoder_push(&f->received, bytes, (size_t)more));
		while (frame_decoder_next(&f->received, &got, &err) == FRAME_OK) {
			if (got.type != type)
				continue;
			n++;
			if (last)
				snprintf(last, 256, "%.*s%.*s", (int)got.json_bytes, got.json,
				         (int)got.payload_bytes, (const char *)got.payload);
		}
	}
	return n;
}

/* True if the peer sees that the connection has ended. */
static bool ended(fixture *f)
{
	char byte;
	turn(f);
	return read(f->peer, &byte, 1) == 0;
}

static fixture *opened(void **state)
{
	fixture *f = *state;
	send_frame(f, FRAME_HELLO, 0, 0, good_hello);
	assert_int_equal(f->c->state, CONNECTION_OPEN);
	assert_int_equal(receive(f, FRAME_HELLO, NULL), 1);
	return f;
}

/* --- greeting -------------------------------------------------------------------------- */

static void greets_wrongly(fixture *f, frame_type type, uint64_t id, const char *json, const char *code)
{
	char text[256] = "", expected[64];
	send_frame(f, type, id, 0, json);
	snprintf(expected, sizeof expected, "\"code\":\"%s\"", code);
	assert_int_equal(receive(f, FRAME_ERROR, text), 1);
	assert_non_null(strstr(text, expected));
	assert_true(ended(f));
	assert_int_equal(f->n_streams, 0);
}

static void a_request_before_hello_ends_the_connection(void **state)
{
	greets_wrongly(*state, FRAME_REQUEST, 1, "{\"method\":\"x\"}", "protocol_error");
}

static void a_hello_of_another_version_ends_the_connection(void **state)
{
	greets_wrongly(*state, FRAME_HELLO, 0, "{\"protocol\":2}", "protocol_mismatch");
}

static void a_hello_without_a_version_ends_the_connection(void **state)
{
	greets_wrongly(*state, FRAME_HELLO, 0, "{\"protocol\":\"1\"}", "protocol_error");
}

static void a_hello_that_is_not_json_ends_the_connection(void **state)
{
	greets_wrongly(*state, FRAME_HELLO, 0, "{", "protocol_error");
}

static void a_hello_on_a_stream_ends_the_connection(void **state)
{
	greets_wrongly(*state, FRAME_HELLO, 3, good_hello, "protocol_error");
}

static void a_second_hello_ends_the_connection(void **state)
{
	greets_wrongly(opened(state), FRAME_HELLO, 0, good_hello, "protocol_error");
}

static void a_peer_that_never_greets_is_closed_in_time(void **state)
{
	fixture *f = *state;
	uint64_t now = uv_now(&f->loop);
	connection_tick(f->c, now + CONNECTION_GREETING_MS - 1000);
	assert_int_equal(receive(f, FRAME_ERROR, NULL), 0);
	connection_tick(f->c, now + CONNECTION_GREETING_MS + 1000);
	assert_int_equal(receive(f, FRAME_ERROR, NULL), 1);
	assert_true(ended(f));
}

/* --- frames ------------------------------------------------------------------------------ */

static void frames_that_arrive_byte_by_byte_are_complete_at_the_end(void **state)
{
	fixture *f = *state;
	char bytes[512];
	size_t n = encode(bytes, FRAME_HELLO, 0, 0, good_hello);
	n += encode(bytes + n, FRAME_REQUEST, 9, 5, "{\"method\":\"m\",\"owner\":\"me\",\"params\":{\"a\":1}}");
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(f->n_streams, 0);
		send_bytes(f, bytes + i, 1);
	}
	assert_int_equal(f->n_streams, 1);
	assert_string_equal(f->method, "m");
	assert_string_equal(f->streams[0]->owner, "me");
	assert_int_equal(f->streams[0]->id, 9);
	assert_int_equal(f->streams[0]->credit, 5);
	assert_int_equal(json_integer_value(json_object_get(f->streams[0]->params, "a")), 1);
}

static void a_malformed_request_ends_the_connection_and_cancels_other_requests(void **state)
{
	static const char *const wrong[] = {"{}", "{\"method\":1}", "[]", "{\"method\":\"m\",\"params\":[]}",
	                                    "{\"method\":\"m\",\"method\":\"m\"}"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		void *own = NULL;
		setup(&own);
		fixture *f = opened(&own);
		send_frame(f, FRAME_REQUEST, 1, 0, "{\"method\":\"m\"}");
		send_frame(f, FRAME_REQUEST, 2, 0, wrong[i]);
		assert_int_equal(receive(f, FRAME_ERROR, NULL), 1);
		assert_int_equal(f->n_streams, 1);
		assert_int_equal(f->cancels, 1);
		assert_null(f->streams[0]->peer);
		assert_true(ended(f));
		teardown(&own);
	}
	(void)state;
}

/* --- the payload of a request and of its answer ---------------------------------------------- */

static void a_request_id_reaches_the_stream_and_not_its_digest(void **state)
{
	fixture *f = opened(state);
	send_request(f, 1, "");
	send_request(f, 2, "{\"request_id\":\"req_1:a-b.C\",\"times\":true}");
	send_request(f, 3, "{}");
	assert_int_equal(f->n_streams, 3);
	assert_string_equal(f->streams[0]->request_id, "");
	assert_string_equal(f->streams[1]->request_id, "req_1:a-b.C");
	assert_string_equal(f->streams[2]->request_id, "");
	assert_int_equal(f->streams[0]->digest, f->streams[1]->digest);
	assert_int_equal(f->streams[0]->digest, f->streams[2]->digest);
	assert_int_equal(json_object_size(f->streams[1]->params), 0);
}

static void a_malformed_payload_ends_the_connection(void **state)
{
	char id[FRAME_REQUEST_ID_BYTES + 1], longest[64 + FRAME_REQUEST_ID_BYTES], large[2000];
	memset(id, 'a', sizeof id);
	snprintf(longest, sizeof longest, "{\"request_id\":\"%.*s\"}", FRAME_REQUEST_ID_BYTES, id);
	snprintf(large, sizeof large, "{\"times\":true,\"x\":\"%*s\"}", 1500, "");
	const char *const wrong[] = {"[]",
	                             "{",
	                             "{\"request_id\":1}",
	                             "{\"request_id\":\"\"}",
	                             "{\"request_id\":\"a b\"}",
	                             "{\"request_id\":\"a\\n\"}",
	                             longest,
	                             large};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		void *own = NULL;
		char text[256] = "";
		setup(&own);
		fixture *f = opened(&own);
		send_request(f, 1, wrong[i]);
		assert_int_equal(receive(f, FRAME_ERROR, text), 1);
		assert_non_null(strstr(text, "protocol_error"));
		assert_non_null(strstr(text, "\\\"fairness_id\\\"")); /* lists the members */
		assert_int_equal(f->n_streams, 0);
		assert_true(ended(f));
		teardown(&own);
	}
	(void)state;
}

static void an_answer_has_the_times_that_it_was_asked_for(void **state)
{
	fixture *f = opened(state);
	char text[256];
	send_request(f, 1, "{\"request_id\":\"a\"}");
	send_request(f, 2, "{\"times\":true}");
	send_request(f, 3, "{\"times\":true}");
	answer(f, 0);
	assert_int_equal(receive(f, FRAME_RESULT, text), 1);
	assert_string_equal(text, "{}");
	stream_times *t = &f->streams[1]->times;
	assert_true(t->received > 0);
	t->queued = t->received + 250000;
	t->ended = t->received + 2000000;
	answer(f, 1);
	assert_int_equal(receive(f, FRAME_RESULT, text), 1);
	assert_ptr_equal(strstr(text, "{}{\"queued_ms\":0.250,\"ended_ms\":2.000,\"answered_ms\":"), text);
	stream *s = f->streams[2];
	f->streams[2] = NULL;
	stream_refuse(s, STATUS_NOT_FOUND, NULL, NULL, "none");
	assert_int_equal(receive(f, FRAME_ERROR, text), 1);
	assert_non_null(strstr(text, "}{\"answered_ms\":"));
}

static void a_stream_id_cannot_be_used_twice_at_a_time(void **state)
{
	fixture *f = opened(state);
	send_frame(f, FRAME_REQUEST, 4, 0, "{\"method\":\"m\"}");
	answer(f, 0);
	send_frame(f, FRAME_REQUEST, 4, 0, "{\"method\":\"m\"}"); /* the id is free again */
	assert_int_equal(f->n_streams, 2);
	send_frame(f, FRAME_REQUEST, 4, 0, "{\"method\":\"m\"}");
	assert_int_equal(f->n_streams, 2);
	assert_int_equal(receive(f, FRAME_ERROR, NULL), 1);
	assert_true(ended(f));
}

static void one_stream_too_many_is_refused_and_the_others_continue(void **state)
{
	fixture *f = opened(state);
	char text[256];
	for (int i = 1; i <= CONNECTION_MAX_STREAMS; i++)
		send_frame(f, FRAME_REQUEST, (uint64_t)i, 0, "{\"method\":\"m\"}");
	assert_int_equal(f->n_streams, CONNECTION_MAX_STREAMS);
	send_frame(f, FRAME_REQUEST, 5000, 0, "{\"method\":\"m\"}");
	assert_int_equal(f->n_streams, CONNECTION_MAX_STREAMS);
	assert_int_equal(receive(f, FRAME_ERROR, text), 1);
	assert_non_null(strstr(text, "too_many_streams"));
	answer(f, 7);
	send_frame(f, FRAME_REQUEST, 5001, 0, "{\"method\":\"m\"}");
	assert_int_equal(f->n_streams, CONNECTION_MAX_STREAMS + 1);
	assert_int_equal(f->net.most_streams, CONNECTION_MAX_STREAMS);
	assert_int_equal(receive(f, FRAME_ERROR, NULL), 0);
	assert_int_equal(f->cancels, 0);
}

/* --- credits and cancelling ------------------------------------------------------------------ */

static void a_stream_sends_as_many_events_as_it_has_credit(void **state)
{
	fixture *f = opened(state);
	send_frame(f, FRAME_REQUEST, 1, 2, "{\"method\":\"m\"}");
	stream *s = f->streams[0];
	assert_int_equal(stream_ready(s), 2);
	stream_event(s, json_pack("{s:i}", "n", 1));
	stream_event_text(s, "{}", 2);
	assert_int_equal(stream_ready(s), 0);
	assert_int_equal(receive(f, FRAME_EVENT, NULL), 2);
	send_frame(f, FRAME_CREDIT, 1, 3, "");
	assert_int_equal(f->credits, 1);
	assert_int_equal(stream_ready(s), 3);
	send_frame(f, FRAME_CREDIT, 99, 3, ""); /* credit for a stream that has ended is legal */
	assert_int_equal(f->credits, 1);
	answer(f, 0);
	assert_int_equal(receive(f, FRAME_RESULT, NULL), 1);
}

static void a_cancelled_stream_is_notified_once_and_still_answered(void **state)
{
	fixture *f = opened(state);
	send_frame(f, FRAME_REQUEST, 1, 5, "{\"method\":\"m\"}");
	send_frame(f, FRAME_CANCEL, 1, 0, "");
	send_frame(f, FRAME_CANCEL, 1, 0, "");
	assert_int_equal(f->cancels, 1);
	assert_int_equal(stream_ready(f->streams[0]), 0);
	answer(f, 0);
	assert_int_equal(receive(f, FRAME_RESULT, NULL), 1);
}

static void streams_of_a_disconnected_peer_end_without_it(void **state)
{
	fixture *f = opened(state);
	send_frame(f, FRAME_REQUEST, 1, 5, "{\"method\":\"m\"}");
	send_frame(f, FRAME_REQUEST, 2, 5, "{\"method\":\"m\"}");
	close(f->peer);
	f->peer = -1;
	while (!f->gone)
		turn(f);
	assert_int_equal(f->cancels, 2);
	assert_int_equal(f->net.streams, 2);
	assert_int_equal(stream_ready(f->streams[0]), 0);
	stream_event_text(f->streams[0], "{}", 2); /* the event is dropped */
	answer(f, 0);
	answer(f, 1);
	assert_int_equal(f->net.streams, 0);
}

/* --- large requests ------------------------------------------------------------------------------- */

static void release_pool(fixture *f)
{
	pool_release();
	while (f->loop.active_reqs.count)
		turn(f);
}

/* A REQUEST whose JSON is `head`, blanks up to STREAM_LARGE, and `tail`. */
static void send_large(fixture *f, uint64_t id, uint32_t credit, const char *head, const char *tail)
{
	static char bytes[FRAME_HEADER_BYTES + STREAM_LARGE + 256];
	size_t before = strlen(head), after = strlen(tail), n = STREAM_LARGE + before + after;
	frame r = {.type = FRAME_REQUEST, .stream = id, .credit = credit, .flags = FRAME_FLAG_END, .json_bytes = n};
	frame_encode_header(&r, (unsigned char *)bytes);
	memset(bytes + FRAME_HEADER_BYTES, ' ', n);
	memcpy(bytes + FRAME_HEADER_BYTES, head, before);
	memcpy(bytes + FRAME_HEADER_BYTES + n - after, tail, after);
	send_bytes(f, bytes, FRAME_HEADER_BYTES + n);
	turn(f);
}

static void a_large_request_is_parsed_on_the_pool_while_other_frames_are_served(void **state)
{
	fixture *f = opened(state);
	pool_hold();
	send_large(f, 1, 2, "{\"method\":\"large\",\"params\":{\"a\":", "7}}");
	send_frame(f, FRAME_CREDIT, 1, 3, "");
	send_frame(f, FRAME_REQUEST, 2, 0, "{\"method\":\"small\"}");
	send_frame(f, FRAME_PING, 0, 0, "");
	assert_int_equal(f->n_streams, 1);
	assert_string_equal(f->method, "small");
	assert_int_equal(receive(f, FRAME_PONG, NULL), 1);
	release_pool(f);
	assert_int_equal(f->n_streams, 2);
	assert_string_equal(f->method, "large");
	assert_int_equal(json_integer_value(json_object_get(f->streams[1]->params, "a")), 7);
	assert_int_equal(stream_ready(f->streams[1]), 5);
	answer(f, 1);
	assert_int_equal(receive(f, FRAME_RESULT, NULL), 1);
}

static void a_large_request_cancelled_while_it_is_parsed_never_starts(void **state)
{
	fixture *f = opened(state);
	char text[256];
	pool_hold();
	send_large(f, 1, 2, "{\"method\":\"large\"", "}");
	send_frame(f, FRAME_CANCEL, 1, 0, "");
	release_pool(f);
	assert_int_equal(f->n_streams, 0);
	assert_int_equal(receive(f, FRAME_ERROR, text), 1);
	assert_non_null(strstr(text, "\"code\":\"cancelled\""));
}

static void a_stream_id_is_in_use_while_its_request_is_parsed(void **state)
{
	fixture *f = opened(state);
	pool_hold();
	send_large(f, 1, 2, "{\"method\":\"large\"", "}");
	send_frame(f, FRAME_REQUEST, 1, 0, "{\"method\":\"small\"}");
	assert_int_equal(receive(f, FRAME_ERROR, NULL), 1);
	assert_true(ended(f));
	release_pool(f);
	assert_int_equal(f->n_streams, 0);
}

static void a_peer_may_disconnect_while_its_request_is_parsed(void **state)
{
	fixture *f = opened(state);
	pool_hold();
	send_large(f, 1, 2, "{\"method\":\"large\"", "}");
	close(f->peer);
	f->peer = -1;
	while (!f->gone)
		turn(f);
	release_pool(f);
	assert_int_equal(f->n_streams, 0);
	assert_int_equal(f->net.streams, 0);
}

static void a_large_request_that_is_malformed_ends_the_connection(void **state)
{
	fixture *f = opened(state);
	char text[256];
	send_frame(f, FRAME_REQUEST, 1, 0, "{\"method\":\"m\"}");
	pool_hold();
	send_large(f, 2, 2, "{\"method\":1", "}");
	release_pool(f);
	assert_int_equal(f->cancels, 1);
	assert_int_equal(receive(f, FRAME_ERROR, text), 1);
	assert_non_null(strstr(text, "protocol_error"));
	assert_true(ended(f));
}

/* --- silence and slow readers ------------------------------------------------------------------ */

static void a_silent_peer_is_pinged_once_and_then_closed(void **state)
{
	fixture *f = opened(state);
	uint64_t now = uv_now(&f->loop);
	send_frame(f, FRAME_REQUEST, 1, 0, "{\"method\":\"m\"}");
	connection_tick(f->c, now + CONNECTION_PING_MS - 1000);
	assert_int_equal(receive(f, FRAME_PING, NULL), 0);
	connection_tick(f->c, now + CONNECTION_PING_MS + 1000);
	connection_tick(f->c, now + CONNECTION_PING_MS + 1500);
	assert_int_equal(receive(f, FRAME_PING, NULL), 1);
	send_frame(f, FRAME_PONG, 0, 0, ""); /* resets the timer */
	connection_tick(f->c, now + CONNECTION_PING_MS + 1500);
	assert_int_equal(receive(f, FRAME_PING, NULL), 1);
	connection_tick(f->c, now + CONNECTION_SILENT_MS + 1000);
	assert_int_equal(f->cancels, 1);
	assert_true(ended(f));
}

static void a_ping_is_answered(void **state)
{
	fixture *f = opened(state);
	send_frame(f, FRAME_PING, 0, 0, "");
	assert_int_equal(receive(f, FRAME_PONG, NULL), 1);
}

static void a_peer_that_does_not_read_stops_its_streams_until_it_reads(void **state)
{
	enum { BYTES = 1 << 18 };
	fixture *f = opened(state);
	int sent = 0;
	send_frame(f, FRAME_REQUEST, 1, 1000, "{\"method\":\"m\"}");
	stream *s = f->streams[0];
	char *text = malloc(BYTES);
	memset(text, ' ', BYTES);
	memcpy(text, "{}", 2);
	for (; stream_ready(s) > 0; sent++) {
		stream_event_text(s, text, BYTES);
		turn(f);
	}
	free(text);
	/* At most the bound, one frame, and the socket's buffer. */
	assert_in_range(sent, CONNECTION_HIGH / BYTES, CONNECTION_HIGH / BYTES + 4);
	assert_int_equal(s->credit, 1000 - sent);
	assert_int_equal(f->credits, 0);
	send_frame(f, FRAME_REQUEST, 2, 1, "{\"method\":\"m\"}"); /* no more frames are read from the peer */
	assert_int_equal(f->n_streams, 1);
	assert_int_equal(receive(f, FRAME_EVENT, NULL), sent);
	turn(f);
	assert_int_equal(f->credits, 1);
	assert_int_equal(stream_ready(s), 1000 - sent);
	assert_int_equal(f->n_streams, 2);
}

static void a_connection_with_a_missing_frame_is_dropped_at_the_next_flush(void **state)
{
	fixture *f = opened(state);
	send_frame(f, FRAME_REQUEST, 1, 5, "{\"method\":\"m\"}");
	connection_break(f->c);
	assert_int_equal(f->cancels, 0); /* the stream's handler may be running */
	assert_int_equal(stream_ready(f->streams[0]), 0);
	turn(f);
	assert_int_equal(f->cancels, 1);
	assert_true(f->gone);
}

static void a_refused_peer_that_does_not_read_is_closed_in_time(void **state)
{
	fixture *f = opened(state);
	char *much = calloc(1, 2 << 20);
	memset(much, ' ', 2 << 20);
	memcpy(much, "{}", 2);
	send_frame(f, FRAME_REQUEST, 1, 5, "{\"method\":\"m\"}");
	stream_event_text(f->streams[0], much, 2 << 20);
	free(much);
	turn(f);
	connection_close(f->c);
	turn(f);
	assert_false(f->gone); /* the peer may still read queued frames */
	connection_tick(f->c, uv_now(&f->loop) + CONNECTION_FLUSH_MS + 1000);
	turn(f);
	assert_true(f->gone);
}

int main(void)
{
	pool_setup();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    TEST(a_request_before_hello_ends_the_connection),
	    TEST(a_hello_of_another_version_ends_the_connection),
	    TEST(a_hello_without_a_version_ends_the_connection),
	    TEST(a_hello_that_is_not_json_ends_the_connection),
	    TEST(a_hello_on_a_stream_ends_the_connection),
	    TEST(a_second_hello_ends_the_connection),
	    TEST(a_peer_that_never_greets_is_closed_in_time),
	    TEST(frames_that_arrive_byte_by_byte_are_complete_at_the_end),
	    cmocka_unit_test(a_malformed_request_ends_the_connection_and_cancels_other_requests),
	    TEST(a_request_id_reaches_the_stream_and_not_its_digest),
	    TEST(a_malformed_payload_ends_the_connection),
	    TEST(an_answer_has_the_times_that_it_was_asked_for),
	    TEST(a_stream_id_cannot_be_used_twice_at_a_time),
	    TEST(one_stream_too_many_is_refused_and_the_others_continue),
	    TEST(a_stream_sends_as_many_events_as_it_has_credit),
	    TEST(a_cancelled_stream_is_notified_once_and_still_answered),
	    TEST(streams_of_a_disconnected_peer_end_without_it),
	    TEST(a_large_request_is_parsed_on_the_pool_while_other_frames_are_served),
	    TEST(a_large_request_cancelled_while_it_is_parsed_never_starts),
	    TEST(a_stream_id_is_in_use_while_its_request_is_parsed),
	    TEST(a_peer_may_disconnect_while_its_request_is_parsed),
	    TEST(a_large_request_that_is_malformed_ends_the_connection),
	    TEST(a_silent_peer_is_pinged_once_and_then_closed),
	    TEST(a_ping_is_answered),
	    TEST(a_peer_that_does_not_read_stops_its_streams_until_it_reads),
	    TEST(a_connection_with_a_missing_frame_is_dropped_at_the_next_flush),
	    TEST(a_refused_peer_that_does_not_read_is_closed_in_time),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
