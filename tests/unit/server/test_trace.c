/* Spans on their way to a collector in the same loop. getaddrinfo is replaced: a name has two addresses, and the
 * collector listens on the second one. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "server/request.h"
#include "server/trace.h"

typedef struct collector {
	uv_loop_t loop;
	uv_tcp_t listener;
	uint64_t delay_ms; /* before each answer */
	int messages;      /* begun */
} collector;

typedef struct visitor {
	uv_tcp_t socket;
	uv_timer_t timer;
	collector *collector;
	char room[4096];
	bool began;
} visitor;

static struct sockaddr_in places[2];
static struct addrinfo found[2];

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
	(void)host, (void)port, (void)hints;
	for (int i = 0; i < 2; i++)
		found[i] = (struct addrinfo){.ai_family = AF_INET,
		                             .ai_socktype = SOCK_STREAM,
		                             .ai_addr = (struct sockaddr *)&places[i],
		                             .ai_addrlen = sizeof places[i],
		                             .ai_next = i ? NULL : &found[1]};
	*out = found;
	return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
	(void)list;
}

static void on_timer_closed(uv_handle_t *handle)
{
	free(handle->data);
}

static void on_socket_closed(uv_handle_t *handle)
{
	visitor *v = handle->data;
	uv_close((uv_handle_t *)&v->timer, on_timer_closed);
}

static void answer(uv_timer_t *timer)
{
	visitor *v = timer->data;
	uv_buf_t text = uv_buf_init("HTTP/1.1 200 OK\r\n\r\n", 19);
	uv_try_write((uv_stream_t *)&v->socket, &text, 1);
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
	visitor *v = handle->data;
	(void)suggested;
	*out = uv_buf_init(v->room, sizeof v->room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *data)
{
	visitor *v = stream->data;
	(void)data;
	if (n < 0) {
		uv_close((uv_handle_t *)stream, on_socket_closed);
	} else if (!v->began) {
		v->began = true;
		v->collector->messages++;
		uv_timer_start(&v->timer, answer, v->collector->delay_ms, 0);
	}
}

static void on_connection(uv_stream_t *listener, int status)
{
	collector *c = listener->data;
	visitor *v = calloc(1, sizeof *v);
	assert_int_equal(status, 0);
	assert_non_null(v);
	v->collector = c;
	v->socket.data = v->timer.data = v;
	uv_tcp_init(&c->loop, &v->socket);
	uv_timer_init(&c->loop, &v->timer);
	assert_int_equal(uv_accept(listener, (uv_stream_t *)&v->socket), 0);
	uv_read_start((uv_stream_t *)&v->socket, on_room, on_read);
}

/* End n requests, close the trace and wait until it has ended. Return the messages that the collector got. */
static int messages_of(int n, uint64_t delay_ms)
{
	collector c = {.delay_ms = delay_ms};
	int bytes = sizeof places[1];
	request r = {.trace.sampled = true, .id = "r"};
	metrics *m = metrics_new();
	uv_loop_init(&c.loop);
	uv_tcp_init(&c.loop, &c.listener);
	c.listener.data = &c;
	uv_ip4_addr("127.0.0.1", 0, &places[1]);
	assert_int_equal(uv_tcp_bind(&c.listener, (struct sockaddr *)&places[1], 0), 0);
	assert_int_equal(uv_listen((uv_stream_t *)&c.listener, 8, on_connection), 0);
	assert_int_equal(uv_tcp_getsockname(&c.listener, (struct sockaddr *)&places[1], &bytes), 0);
	uv_ip4_addr("127.0.0.2", ntohs(places[1].sin_port), &places[0]);
	uv_unref((uv_handle_t *)&c.listener);
	trace *t = trace_new(&c.loop, m, "http://collector:4318");
	assert_non_null(t);
	for (int i = 0; i < n; i++)
		trace_end(t, &r);
	trace_close(t);
	uv_run(&c.loop, UV_RUN_DEFAULT);
	trace_free(t);
	uv_close((uv_handle_t *)&c.listener, NULL);
	uv_run(&c.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&c.loop), 0);
	metrics_free(m);
	return c.messages;
}

static void the_next_address_is_tried_when_one_refuses(void **state)
{
	(void)state;
	assert_int_equal(messages_of(1, 0), 1);
}

/* The last second has room for two messages that take 600 ms each. */
static void all_messages_of_the_end_share_a_second(void **state)
{
	(void)state;
	assert_int_equal(messages_of(1024, 0), 4);
	assert_in_range(messages_of(1024, 600), 1, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(the_next_address_is_tried_when_one_refuses),
	                                   cmocka_unit_test(all_messages_of_the_end_share_a_second)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
