/* The link and its peer in one loop: the test drives the other end of a Unix socket frame by frame. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/engine_link.h"
#include "tests/unit/support/folder.h"

typedef struct owner {
	int events, credits, ends;
	frame_type ended_with;
	char json[128];
} owner;

typedef struct peer {
	uv_loop_t loop;
	uv_pipe_t listener, connection;
	bool connected;
	frame_decoder decoder;
	char buffer[4096];
	frame seen[32]; /* headers only */
	char payload[256]; /* the latest frame's */
	int n_seen;
	char folder[64], path[96], address[128];
	engine_link *link;
	owner owners[3]; /* they outlive the test function: closing the link ends its calls */
} peer;

static void on_event(void *context, const frame *f)
{
	(void)f;
	((owner *)context)->events++;
}

static void on_credit(void *context)
{
	((owner *)context)->credits++;
}

static void on_end(void *context, const frame *f)
{
	owner *o = context;
	o->ends++;
	o->ended_with = f->type;
	snprintf(o->json, sizeof o->json, "%.*s", (int)f->json_bytes, f->json);
}

static const engine_events events = {.event = on_event, .credit = on_credit, .end = on_end};

static void peer_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
	(void)suggested;
	peer *p = handle->data;
	*out = uv_buf_init(p->buffer, sizeof p->buffer);
}

static void peer_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *data)
{
	peer *p = stream->data;
	if (got < 0) {
		p->connected = false;
		uv_close((uv_handle_t *)stream, NULL);
		return;
	}
	assert_true(frame_decoder_push(&p->decoder, data->base, (size_t)got));
	frame f;
	const char *err;
	while (frame_decoder_next(&p->decoder, &f, &err) == FRAME_OK) {
		assert_true(p->n_seen < 32);
		p->seen[p->n_seen++] = f;
		snprintf(p->payload, sizeof p->payload, "%.*s", (int)f.payload_bytes, (const char *)f.payload);
	}
}

static void peer_accept(uv_stream_t *listener, int status)
{
	peer *p = listener->data;
	assert_int_equal(status, 0);
	uv_pipe_init(&p->loop, &p->connection, 0);
	p->connection.data = p;
	assert_int_equal(uv_accept(listener, (uv_stream_t *)&p->connection), 0);
	uv_read_start((uv_stream_t *)&p->connection, peer_alloc, peer_read);
	p->connected = true;
}

static void peer_answer(peer *p, frame_type type, uint64_t stream, uint32_t credit, const char *json,
                        const char *payload)
{
	unsigned char head[FRAME_HEADER_BYTES];
	frame f = {.type = type,
	           .stream = stream,
	           .credit = credit,
	           .json_bytes = json ? strlen(json) : 0,
	           .payload_bytes = strlen(payload)};
	frame_encode_header(&f, head);
	uv_buf_t pieces[] = {uv_buf_init((char *)head, sizeof head), uv_buf_init((char *)json, (unsigned)f.json_bytes),
	                     uv_buf_init((char *)payload, (unsigned)f.payload_bytes)};
	assert_int_equal(uv_try_write((uv_stream_t *)&p->connection, pieces, 3),
	                 (int)(sizeof head + f.json_bytes + f.payload_bytes));
}

static void peer_send(peer *p, frame_type type, uint64_t stream, uint32_t credit, const char *json)
{
	peer_answer(p, type, stream, credit, json, "");
}

/* Turn the loop until nothing happens for a moment. */
static void settle(peer *p)
{
	for (int i = 0; i < 20; i++) {
		uv_run(&p->loop, UV_RUN_NOWAIT);
		usleep(500);
	}
}

static void wait_until(peer *p, const bool *flag, bool expected)
{
	for (int i = 0; i < 4000 && *flag != expected; i++) {
		uv_run(&p->loop, UV_RUN_NOWAIT);
		usleep(1000);
	}
	assert_int_equal(*flag, expected);
}

static int setup(void **state)
{
	peer *p = calloc(1, sizeof *p);
	folder_new(p->folder);
	snprintf(p->path, sizeof p->path, "%s/sock", p->folder);
	snprintf(p->address, sizeof p->address, "unix:%s", p->path);
	uv_loop_init(&p->loop);
	uv_pipe_init(&p->loop, &p->listener, 0);
	p->listener.data = p;
	assert_int_equal(uv_pipe_bind(&p->listener, p->path), 0);
	assert_int_equal(uv_listen((uv_stream_t *)&p->listener, 4, peer_accept), 0);
	engine_link_options o = {.address = p->address, .silence_ms = 5000};
	p->link = engine_link_new(&p->loop, &o);
	assert_non_null(p->link);
	wait_until(p, &p->connected, true);
	settle(p);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	peer *p = *state;
	engine_link_close(p->link);
	uv_close((uv_handle_t *)&p->listener, NULL);
	if (p->connected)
		uv_close((uv_handle_t *)&p->connection, NULL);
	uv_run(&p->loop, UV_RUN_DEFAULT);
	engine_link_free(p->link);
	assert_int_equal(uv_loop_close(&p->loop), 0); /* no handle is left */
	frame_decoder_fini(&p->decoder);
	unlink(p->path);
	rmdir(p->folder);
	free(p);
	return 0;
}

static void greet(peer *p)
{
	peer_send(p, FRAME_HELLO, 0, 0, "{\"protocol\":1,\"software\":\"peer\"}");
	settle(p);
	assert_true(engine_link_up(p->link));
	p->n_seen = 0;
}

static void the_link_sends_a_greeting_and_is_up_after_the_peers_greeting(void **state)
{
	peer *p = *state;
	assert_int_equal(p->n_seen, 1);
	assert_int_equal(p->seen[0].type, FRAME_HELLO);
	assert_false(engine_link_up(p->link));
	assert_string_equal(engine_link_reason(p->link), "connecting");
	greet(p);
	assert_string_equal(engine_link_reason(p->link), "");
	assert_string_equal(json_string_value(json_object_get(engine_link_hello(p->link), "software")), "peer");
}

static void no_call_is_made_before_the_link_is_up(void **state)
{
	peer *p = *state;
	owner *o = p->owners;
	assert_null(engine_link_call(p->link, "m", NULL, json_object(), NULL, 0, false, 0, &events, o));
	greet(p);
	assert_non_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &events, o));
	assert_int_equal(o->ends, 0);
}

static void another_protocol_is_refused_with_a_message(void **state)
{
	peer *p = *state;
	p->n_seen = 0;
	peer_send(p, FRAME_HELLO, 0, 0, "{\"protocol\":7}");
	wait_until(p, &p->connected, false);
	assert_false(engine_link_up(p->link));
	assert_string_equal(engine_link_reason(p->link), "the engine speaks protocol 7, this front end 1");
	assert_int_equal(p->n_seen, 1);
	assert_int_equal(p->seen[0].type, FRAME_ERROR);
}

static void a_call_gets_its_events_and_one_end(void **state)
{
	peer *p = *state;
	owner *a = &p->owners[0], *b = &p->owners[1];
	greet(p);
	assert_non_null(
	    engine_link_call(p->link, "m", NULL, json_pack("{s:i}", "x", 1), NULL, 5, false, 0, &events, a));
	assert_non_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &events, b));
	settle(p);
	assert_int_equal(p->n_seen, 2);
	assert_int_equal(p->seen[0].type, FRAME_REQUEST);
	assert_int_equal(p->seen[0].credit, 5);
	assert_int_equal(p->seen[0].flags, FRAME_FLAG_END);
	uint64_t first = p->seen[0].stream, second = p->seen[1].stream;
	assert_true(second > first);
	peer_send(p, FRAME_EVENT, first, 0, "{}");
	peer_send(p, FRAME_EVENT, first, 0, "{}");
	peer_send(p, FRAME_RESULT, first, 0, "{\"ok\":1}");
	peer_send(p, FRAME_EVENT, first, 0, "{}");
	peer_send(p, FRAME_ERROR, second, 0, "{\"status\":404}");
	settle(p);
	assert_int_equal(a->events, 2);
	assert_int_equal(a->ends, 1);
	assert_int_equal(a->ended_with, FRAME_RESULT);
	assert_string_equal(a->json, "{\"ok\":1}");
	assert_int_equal(b->ended_with, FRAME_ERROR);
	assert_true(engine_link_up(p->link));
}

static void a_caller_is_named_and_gets_the_times_of_the_answer(void **state)
{
	peer *p = *state;
	owner *o = p->owners;
	engine_times times = {.called_ns = 7};
	const engine_caller named = {.request_id = "req_1"}, timed = {.request_id = "req_2", .times = &times};
	greet(p);
	assert_non_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &events, o));
	settle(p);
	assert_string_equal(p->payload, "");
	assert_non_null(engine_link_call(p->link, "m", &named, NULL, NULL, 0, false, 0, &events, o));
	settle(p);
	assert_string_equal(p->payload, "{\"request_id\":\"req_1\"}");
	assert_non_null(engine_link_call(p->link, "m", &timed, NULL, NULL, 0, false, 0, &events, o));
	settle(p);
	assert_string_equal(p->payload, "{\"request_id\":\"req_2\",\"times\":true}");
	peer_answer(p, FRAME_RESULT, p->seen[1].stream, 0, "{}", "{\"answered_ms\":3}");
	peer_answer(p, FRAME_ERROR, p->seen[2].stream, 0, "{\"status\":500}",
	            "{\"queued_ms\":0.5,\"started_ms\":\"x\",\"ended_ms\":2,\"answered_ms\":2.25}");
	settle(p);
	assert_int_equal(o->ends, 2);
	assert_true(times.called_ns == 7 && times.queued_ms == 0.5 && times.started_ms < 0);
	assert_true(times.first_token_ms < 0 && times.ended_ms == 2 && times.answered_ms == 2.25);
}

static void times_of_a_cancelled_call_are_not_written(void **state)
{
	peer *p = *state;
	engine_times times = {0};
	const engine_caller timed = {.request_id = "req_2", .times = &times};
	greet(p);
	engine_call_cancel(engine_link_call(p->link, "m", &timed, NULL, NULL, 0, false, 0, &events, p->owners));
	settle(p);
	peer_answer(p, FRAME_ERROR, p->seen[0].stream, 0, "{}", "{\"answered_ms\":2}");
	settle(p);
	assert_true(times.answered_ms == 0);
}

static void credit_is_exchanged_in_both_directions(void **state)
{
	peer *p = *state;
	owner *o = p->owners;
	greet(p);
	engine_call *c = engine_link_call(p->link, "m", NULL, NULL, NULL, 0, true, 0, &events, o);
	settle(p);
	assert_int_equal(p->seen[0].flags, 0);
	assert_int_equal(engine_call_credit(c), 0);
	peer_send(p, FRAME_CREDIT, p->seen[0].stream, 2, NULL);
	settle(p);
	assert_int_equal(o->credits, 1);
	assert_int_equal(engine_call_credit(c), 2);
	engine_call_data(c, "file", NULL, "abc", 3, false);
	engine_call_data(c, NULL, NULL, NULL, 0, true);
	engine_call_grant(c, 4);
	engine_call_grant(c, 0);
	settle(p);
	assert_int_equal(engine_call_credit(c), 0);
	assert_int_equal(p->n_seen, 4);
	assert_int_equal(p->seen[1].type, FRAME_DATA);
	assert_int_equal(p->seen[1].payload_bytes, 3);
	assert_int_equal(p->seen[2].flags, FRAME_FLAG_END);
	assert_int_equal(p->seen[3].type, FRAME_CREDIT);
	assert_int_equal(p->seen[3].credit, 4);
	peer_send(p, FRAME_CREDIT, p->seen[0].stream, UINT32_MAX, NULL);
	peer_send(p, FRAME_CREDIT, p->seen[0].stream, UINT32_MAX, NULL);
	settle(p);
	assert_int_equal(engine_call_credit(c), UINT32_MAX);
}

static void a_cancelled_call_gets_no_more_events(void **state)
{
	peer *p = *state;
	owner *o = p->owners;
	greet(p);
	engine_call *c = engine_link_call(p->link, "m", NULL, NULL, NULL, 9, false, 0, &events, o);
	engine_call_cancel(c);
	settle(p);
	assert_int_equal(p->n_seen, 2);
	assert_int_equal(p->seen[1].type, FRAME_CANCEL);
	peer_send(p, FRAME_EVENT, p->seen[0].stream, 0, "{}");
	peer_send(p, FRAME_ERROR, p->seen[0].stream, 0, "{}");
	settle(p);
	assert_int_equal(o->events + o->ends + o->credits, 0);
	assert_true(engine_link_up(p->link));
}

static void a_call_may_have_a_deadline(void **state)
{
	peer *p = *state;
	owner *o = p->owners;
	greet(p);
	assert_non_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 50, &events, o));
	for (int i = 0; i < 1500 && o->ends == 0; i++) {
		uv_run(&p->loop, UV_RUN_NOWAIT);
		usleep(1000);
	}
	assert_int_equal(o->ended_with, FRAME_ERROR);
	assert_non_null(strstr(o->json, "engine_timeout"));
	settle(p);
	assert_int_equal(p->seen[p->n_seen - 1].type, FRAME_CANCEL);
}

static void a_ping_is_answered(void **state)
{
	peer *p = *state;
	greet(p);
	peer_send(p, FRAME_PING, 0, 0, NULL);
	settle(p);
	assert_int_equal(p->n_seen, 1);
	assert_int_equal(p->seen[0].type, FRAME_PONG);
}

/* An owner whose end callback makes another call, as a handler might. */
static void call_again(void *context, const frame *f)
{
	peer *p = context;
	(void)f;
	assert_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &events, p));
}

static void when_the_link_breaks_every_call_ends_and_it_reconnects(void **state)
{
	static const engine_events again = {.event = on_event, .end = call_again};
	peer *p = *state;
	owner *o = p->owners;
	greet(p);
	for (int i = 0; i < 3; i++)
		assert_non_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &events, &o[i]));
	assert_non_null(engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &again, p));
	engine_call *cancelled = engine_link_call(p->link, "m", NULL, NULL, NULL, 0, false, 0, &events, NULL);
	engine_call_cancel(cancelled);
	settle(p);
	uv_close((uv_handle_t *)&p->connection, NULL);
	p->connected = false;
	settle(p);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(o[i].ends, 1);
		assert_int_equal(o[i].ended_with, FRAME_ERROR);
		assert_non_null(strstr(o[i].json, "engine_unavailable"));
	}
	assert_false(engine_link_up(p->link));
	assert_null(engine_link_hello(p->link));
	wait_until(p, &p->connected, true);
	frame_decoder_fini(&p->decoder);
	p->decoder = (frame_decoder){0};
	settle(p);
	greet(p);
}

static void a_malformed_address_is_refused(void **state)
{
	(void)state;
	uv_loop_t loop;
	uv_loop_init(&loop);
	static const char *const bad[] = {"", "unix:", "host", "host:", ":80"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		engine_link_options o = {.address = bad[i], .silence_ms = 1000};
		assert_null(engine_link_new(&loop, &o));
	}
	assert_int_equal(uv_loop_close(&loop), 0);
	engine_link_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(the_link_sends_a_greeting_and_is_up_after_the_peers_greeting, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(no_call_is_made_before_the_link_is_up, setup, teardown),
	    cmocka_unit_test_setup_teardown(another_protocol_is_refused_with_a_message, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_call_gets_its_events_and_one_end, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_caller_is_named_and_gets_the_times_of_the_answer, setup, teardown),
	    cmocka_unit_test_setup_teardown(times_of_a_cancelled_call_are_not_written, setup, teardown),
	    cmocka_unit_test_setup_teardown(credit_is_exchanged_in_both_directions, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_cancelled_call_gets_no_more_events, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_call_may_have_a_deadline, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_ping_is_answered, setup, teardown),
	    cmocka_unit_test_setup_teardown(when_the_link_breaks_every_call_ends_and_it_reconnects, setup, teardown),
	    cmocka_unit_test(a_malformed_address_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
