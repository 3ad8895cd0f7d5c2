/* bench_http - load on an OpenAI-like completions endpoint, from one thread over epoll.
 *
 *   bench_http ADDRESS:PORT STREAMS WARM SECONDS BODY [close] [PID…]
 *
 * Keeps STREAMS streams open: each sends the file BODY to /v1/completions, reads its events until the answer ends, and
 * sends it again. It uses the same connection or, with "close", a new one. A connection that the server has closed
 * between two answers is replaced, and the request is sent again. The first WARM seconds are not counted. Prints one
 * JSON object about the SECONDS that follow:
 *
 *   events, requests, seconds   events with text (without an answer's last one, which only has the finish reason)
 *   connections                 opened in that time
 *   first_ms                    from sending a request to its first event, of the first events in that time
 *   arrival_ms                  from one read with events of a stream to the next: as a reader of the stream sees it
 *   burst                       events per such read
 *   cpu                         seconds of processor time: "client" is this program, the others are the PIDs
 *   failed                      answers with another status than 200, or that end without [DONE]; their streams stop
 *
 * An answer is chunked, or it ends with the connection.
 *
 * Each distribution as its median, 99th percentile and maximum. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "tests/bench/support/bench.h"

enum { MAX_PIDS = 8, LINE_BYTES = 32, READ_BYTES = 64 << 10, READY = 256, MAX_BODY = 1 << 24, FAILURES_SHOWN = 3 };

/* The beginning of a line that is being read. */
typedef struct line {
	char text[LINE_BYTES];
	size_t bytes;
} line;

/* Parser state: the kind of the next line, or inside a chunk or an unchunked body. */
typedef enum place { IN_HEAD, IN_SIZE, IN_CHUNK, AFTER_CHUNK, IN_TRAILER, IN_PLAIN } place;

typedef struct client {
	int fd; /* -1: stopped */
	place place;
	line frame, body; /* lines of the transfer, and of its body: one may continue in the next chunk */
	bool chunked;     /* says the head */
	bool started, done; /* a byte of the answer has come; [DONE] has */
	bool reused;      /* the connection has carried an answer */
	size_t chunk;     /* bytes left of it */
	size_t unsent;    /* bytes of the request that are not sent yet */
	uint64_t sent_ns, latest_ns;
} client;

typedef struct load {
	struct sockaddr_in to;
	char *request;
	size_t request_bytes;
	bool reconnect, counting;
	client *clients;
	int epoll, n_live;
	bench_times first, arrival, burst;
	int64_t events, requests, connections, failed;
	char buffer[READ_BYTES];
} load;

/* --- connections ------------------------------------------------------------------------ */

static void watch(const load *l, client *c, int operation, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = c};
	if (epoll_ctl(l->epoll, operation, c->fd, &e) != 0)
		bench_fail("epoll_ctl: %s", strerror(errno));
}

static void send_request(const load *l, client *c)
{
	bool waited = c->unsent < l->request_bytes;
	ssize_t n = send(c->fd, l->request + (l->request_bytes - c->unsent), c->unsent, MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN)
		return; /* the next read reports the error */
	c->unsent -= n > 0 ? (size_t)n : 0;
	if (c->unsent > 0 || waited)
		watch(l, c, EPOLL_CTL_MOD, c->unsent > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void ask(const load *l, client *c, bool reused)
{
	*c = (client){.fd = c->fd, .reused = reused, .unsent = l->request_bytes, .sent_ns = clock_ns()};
	send_request(l, c);
}

static void begin(load *l, client *c)
{
	int on = 1;
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&l->to, sizeof l->to) != 0)
		bench_fail("cannot connect: %s", strerror(errno));
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	fcntl(c->fd, F_SETFL, O_NONBLOCK);
	watch(l, c, EPOLL_CTL_ADD, EPOLLIN);
	l->connections += l->counting;
	ask(l, c, false);
}

static void begin_anew(load *l, client *c)
{
	close(c->fd);
	begin(l, c);
}

static void fail(load *l, client *c, const char *what)
{
	if (l->failed++ < FAILURES_SHOWN)
		fprintf(stderr, "bench_http: %.200s\n", what);
	l->n_live--;
	close(c->fd);
	c->fd = -1;
}

/* --- answers ---------------------------------------------------------------------------- */

/* Bytes taken, up to the end of the line if that has come. */
static size_t take_line(line *l, const char *data, size_t bytes, bool *ended)
{
	const char *end = memchr(data, '\n', bytes);
	size_t n = end ? (size_t)(end - data) : bytes, room = sizeof l->text - 1 - l->bytes;
	size_t kept = n < room ? n : room;
	memcpy(l->text + l->bytes, data, kept);
	l->bytes += kept;
	l->text[l->bytes] = 0;
	*ended = end != NULL;
	return end ? n + 1 : n;
}

/* The events that end in these bytes of a chunk. The one before [DONE] has no text. */
static int64_t take_body(client *c, const char *data, size_t bytes)
{
	int64_t events = 0;
	for (size_t at = 0; at < bytes;) {
		bool ended;
		at += take_line(&c->body, data + at, bytes - at, &ended);
		if (!c->done && strncmp(c->body.text, "data: [DONE]", 12) == 0) { /* the last line may lack its end */
			c->done = true;
			events--;
		}
		if (!ended)
			break;
		events += strncmp(c->body.text, "data: {", 7) == 0;
		c->body.bytes = 0;
	}
	return events;
}

/* A line of the transfer is whole. False: the answer is not one of a stream. */
static bool take_frame(client *c, bool *ended)
{
	bool empty = c->frame.bytes == 0 || c->frame.text[0] == '\r';
	const char *text = c->frame.bytes ? c->frame.text : "";
	char *rest;
	c->frame.bytes = 0;
	switch (c->place) {
	case IN_HEAD:
		c->chunked |= strncasecmp(text, "Transfer-Encoding: chunked", 26) == 0;
		c->place = !empty ? IN_HEAD : c->chunked ? IN_SIZE : IN_PLAIN;
		return strncmp(text, "HTTP/", 5) != 0 || strncmp(text, "HTTP/1.1 200", 12) == 0;
	case IN_SIZE:
		c->chunk = strtoul(text, &rest, 16);
		c->place = c->chunk > 0 ? IN_CHUNK : IN_TRAILER;
		return rest != text;
	case AFTER_CHUNK:
		c->place = IN_SIZE;
		return true;
	default:
		*ended = empty;
		return true;
	}
}

/* Count the events in the received bytes; false: see take_frame. */
static bool take_answer(client *c, const char *data, size_t bytes, int64_t *events, bool *ended)
{
	*events = 0;
	*ended = false;
	for (size_t at = 0; at < bytes && !*ended;) {
		if (c->place == IN_PLAIN) {
			*events += take_body(c, data + at, bytes - at);
			at = bytes;
		} else if (c->place == IN_CHUNK) {
			size_t n = bytes - at < c->chunk ? bytes - at : c->chunk;
			*events += take_body(c, data + at, n);
			c->chunk -= n;
			c->place = c->chunk > 0 ? IN_CHUNK : AFTER_CHUNK;
			at += n;
		} else {
			bool whole;
			at += take_line(&c->frame, data + at, bytes - at, &whole);
			if (whole && !take_frame(c, ended))
				return false;
		}
	}
	return true;
}

static void count(load *l, client *c, int64_t events)
{
	uint64_t now = clock_ns();
	if (l->counting && c->latest_ns)
		bench_times_add(&l->arrival, (double)(now - c->latest_ns));
	else if (l->counting)
		bench_times_add(&l->first, (double)(now - c->sent_ns));
	if (l->counting)
		bench_times_add(&l->burst, (double)events);
	l->events += l->counting ? events : 0;
	c->latest_ns = now;
}

static void end_answer(load *l, client *c, bool closed)
{
	l->requests += l->counting;
	if (!c->done)
		fail(l, c, "an answer ended without [DONE]");
	else if (closed || l->reconnect)
		begin_anew(l, c);
	else
		ask(l, c, true);
}

/* Servers may close a connection after any answer, announced or not, so that a request sent on it is never read. */
static void take_close(load *l, client *c)
{
	if (c->reused && !c->started)
		begin_anew(l, c);
	else if (c->place == IN_PLAIN)
		end_answer(l, c, true);
	else
		fail(l, c, "an answer was cut short");
}

static void read_answer(load *l, client *c)
{
	int64_t events;
	bool ended;
	ssize_t n = read(c->fd, l->buffer, sizeof l->buffer - 1);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		take_close(l, c);
		return;
	}
	c->started = true;
	l->buffer[n] = 0;
	if (!take_answer(c, l->buffer, (size_t)n, &events, &ended)) {
		fail(l, c, l->buffer);
		return;
	}
	if (events > 0)
		count(l, c, events);
	if (ended)
		end_answer(l, c, false);
}

/* --- a run -------------------------------------------------------------------------------- */

static void run_until(load *l, uint64_t end)
{
	struct epoll_event ready[READY];
	for (uint64_t now = clock_ns(); now < end && l->n_live > 0; now = clock_ns()) {
		int n = epoll_wait(l->epoll, ready, READY, (int)((end - now) / 1000000) + 1);
		for (int i = 0; i < n; i++) {
			client *c = ready[i].data.ptr;
			if (c->unsent > 0 && (ready[i].events & EPOLLOUT))
				send_request(l, c);
			if (ready[i].events & ~(uint32_t)EPOLLOUT)
				read_answer(l, c);
		}
	}
}

/* Processor time of a process, of all its threads. */
static double process_seconds(const char *pid)
{
	char path[64], text[1024] = "";
	unsigned long user = 0, system = 0;
	snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
	const char *after_name = n ? strrchr(text, ')') : NULL;
	if (f)
		fclose(f);
	if (!after_name ||
	    sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		bench_fail("no process %s", pid);
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double own_seconds(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static json_t *distribution(bench_times *t, double unit)
{
	if (t->count == 0)
		return json_null();
	double median = bench_times_median(t), p99 = bench_times_p99(t);
	return json_pack("{s:f, s:f, s:f, s:i}", "p50", median / unit, "p99", p99 / unit, "max",
	                 t->ns[t->count - 1] / unit, "count", t->count);
}

static void report(load *l, double seconds, json_t *cpu)
{
	json_t *all = json_pack("{s:f, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "seconds", seconds, "events",
	                        (json_int_t)l->events, "requests", (json_int_t)l->requests, "connections",
	                        (json_int_t)l->connections, "failed", (json_int_t)l->failed, "first_ms",
	                        distribution(&l->first, 1e6), "arrival_ms", distribution(&l->arrival, 1e6), "burst",
	                        distribution(&l->burst, 1), "cpu", cpu);
	json_dumpf(all, stdout, JSON_COMPACT);
	printf("\n");
	json_decref(all);
}

static void make_request(load *l, const char *address, const char *path)
{
	error err = ERROR_INIT;
	char *body;
	size_t bytes;
	bench_check(file_read(path, MAX_BODY, &body, &bytes, &err), &err);
	char head[256];
	int n = snprintf(head, sizeof head,
	                 "POST /v1/completions HTTP/1.1\r\nHost: %.64s\r\nContent-Type: application/json\r\n"
	                 "Content-Length: %zu\r\n%s\r\n",
	                 address, bytes, l->reconnect ? "Connection: close\r\n" : "");
	l->request_bytes = (size_t)n + bytes;
	l->request = malloc(l->request_bytes);
	if (!l->request)
		bench_fail("out of memory");
	memcpy(l->request, head, (size_t)n);
	memcpy(l->request + n, body, bytes);
	free(body);
}

static void read_address(load *l, const char *address)
{
	char host[64];
	const char *colon = strrchr(address, ':');
	snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - address) : 0, address);
	l->to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)(colon ? atoi(colon + 1) : 0))};
	if (inet_pton(AF_INET, host, &l->to.sin_addr) != 1)
		bench_fail("%s is not ADDRESS:PORT", address);
}

static void measure(load *l, double warm, double seconds, char **pids, int n_pids)
{
	double before[MAX_PIDS], own;
	uint64_t began = clock_ns(), from = began + (uint64_t)(warm * 1e9);
	run_until(l, from);
	for (int i = 0; i < n_pids; i++)
		before[i] = process_seconds(pids[i]);
	own = own_seconds();
	from = clock_ns();
	l->counting = true;
	run_until(l, from + (uint64_t)(seconds * 1e9));
	double took = (double)(clock_ns() - from) * 1e-9;
	json_t *cpu = json_pack("{s:f}", "client", own_seconds() - own);
	for (int i = 0; i < n_pids; i++)
		json_object_set_new(cpu, pids[i], json_real(process_seconds(pids[i]) - before[i]));
	report(l, took, cpu);
}

int main(int argc, char **argv)
{
	if (argc < 6)
		bench_fail("usage: bench_http ADDRESS:PORT STREAMS WARM SECONDS BODY [close] [PID...]");
	static load l;
	int streams = atoi(argv[2]), first_pid = 6;
	l.reconnect = argc > 6 && strcmp(argv[6], "close") == 0;
	first_pid += l.reconnect;
	if (streams < 1 || argc - first_pid > MAX_PIDS)
		bench_fail("STREAMS must be at least 1, and there are at most %d PIDs", MAX_PIDS);
	read_address(&l, argv[1]);
	make_request(&l, argv[1], argv[5]);
	l.epoll = epoll_create1(EPOLL_CLOEXEC);
	l.clients = calloc((size_t)streams, sizeof *l.clients);
	if (l.epoll < 0 || !l.clients)
		bench_fail("out of memory or descriptors");
	l.n_live = streams;
	for (int i = 0; i < streams; i++)
		begin(&l, &l.clients[i]);
	measure(&l, atof(argv[3]), atof(argv[4]), argv + first_pid, argc - first_pid);
	free(l.clients);
	free(l.request);
	return 0;
}
