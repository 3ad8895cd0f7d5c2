/* fuzz_http - the front end as a client sees it: bytes on connections, cut and ended at the places that the input
 * gives. Answers are well-formed, state the type of their body, and end with the one that closes the connection.
 * Afterwards neither a request nor a connection is left.
 *
 * In the input 0xff is followed by a command: 1 another connection, 2 let the server read, 3 reset the connection, 4
 * close the sending side, 5 close; anything else is sent as it is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/unit/support/front.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_CLIENTS = 4, ANSWER_BYTES = 256 << 10, QUIET_TURNS = 3, PATIENCE_MS = 4000, REQUEST_MS = 200 };
enum { FINISH = 256 /* close the sending side, after listening */ };

static char answer[ANSWER_BYTES];
static size_t answer_bytes;

static void require(bool condition, const char *what, size_t bytes)
{
	if (condition)
		return;
	fprintf(stderr, "fuzz_http: %s: %.*s\n", what, (int)bytes, answer);
	abort();
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- the shape of an answer; what is cut off is no fault ------------------------------------------ */

typedef struct reading {
	const char *at, *end;
	size_t bytes; /* bytes of all requests, for messages */
	bool closing; /* the latest answer is the last */
} reading;

/* The line up to CR LF; false at the end of what has come. */
static bool take_line(reading *r, const char **line, size_t *bytes)
{
	const char *end = memmem(r->at, (size_t)(r->end - r->at), "\r\n", 2);
	if (!end)
		return false;
	*line = r->at;
	*bytes = (size_t)(end - r->at);
	r->at = end + 2;
	for (size_t i = 0; i < *bytes; i++)
		require((unsigned char)(*line)[i] >= ' ' || (*line)[i] == '\t', "a control character in a head",
		        r->bytes);
	return true;
}

static bool take_chunks(reading *r)
{
	const char *line;
	size_t bytes;
	while (take_line(r, &line, &bytes)) {
		char *end;
		unsigned long size = strtoul(line, &end, 16);
		require(bytes > 0 && end == line + bytes, "a chunk's size", r->bytes);
		if (size == 0)
			return take_line(r, &line, &bytes);
		if ((size_t)(r->end - r->at) < size + 2)
			return false;
		r->at += size;
		require(r->at[0] == '\r' && r->at[1] == '\n', "a chunk's end", r->bytes);
		r->at += 2;
	}
	return false;
}

static bool take_body(reading *r, size_t length, bool json)
{
	/* An answer to HEAD has a length and no body. */
	if (length == 0 || r->at == r->end || (r->end - r->at >= 7 && memcmp(r->at, "HTTP/1.", 7) == 0))
		return true;
	if ((size_t)(r->end - r->at) < length)
		return false;
	json_t *body = json ? json_loadb(r->at, length, JSON_DECODE_ANY, NULL) : NULL;
	require(!json || body, "a body that is not JSON", r->bytes);
	json_decref(body);
	r->at += length;
	return true;
}

/* One answer; false when nothing whole is left. */
static bool take_answer(reading *r)
{
	const char *line;
	size_t bytes, length = 0;
	bool chunked = false, json = false, typed = false;
	if (!take_line(r, &line, &bytes))
		return false;
	require(!r->closing, "an answer behind the last", r->bytes);
	require(bytes >= 12 && memcmp(line, "HTTP/1.", 7) == 0 && line[8] == ' ' && line[9] >= '1' && line[9] <= '5',
	        "a first line", r->bytes);
	bool interim = line[9] == '1';
	const char *first = line;
	while (take_line(r, &line, &bytes) && bytes > 0) {
		require(memmem(line, bytes, ": ", 2) != NULL, "a header", r->bytes);
		if (strncasecmp(line, "Content-Length: ", 16) == 0)
			length = strtoul(line + 16, NULL, 10);
		chunked |= strncasecmp(line, "Transfer-Encoding: chunked", 26) == 0;
		r->closing |= strncasecmp(line, "Connection: close", 17) == 0;
		typed |= strncasecmp(line, "Content-Type: ", 14) == 0;
		json |= strncasecmp(line, "Content-Type: application/json", 30) == 0;
	}
	if (bytes > 0 || r->at > r->end)
		return false;
	require(interim || typed || memcmp(first + 9, "204", 3) == 0, "an answer without a type", r->bytes);
	return interim || (chunked ? take_chunks(r) : take_body(r, length, json));
}

/* --- clients --------------------------------------------------------------------------------------- */

/* again: the new bytes continue those that this client has received before. */
static void listen_to(front *f, int client, bool again)
{
	bool ended;
	size_t before = again ? answer_bytes : 0;
	answer_bytes =
	    before + front_receive(f, client, answer + before, sizeof answer - 1 - before, QUIET_TURNS, &ended);
	answer[answer_bytes] = '\0';
	reading r = {answer, answer + answer_bytes, answer_bytes, false};
	while (r.at < r.end && take_answer(&r))
		;
}

static void leave(front *f, int *client, int how)
{
	if (*client < 0)
		return;
	if (how == 3)
		setsockopt(*client, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	if (how == 4 || how == FINISH) {
		shutdown(*client, SHUT_WR);
		listen_to(f, *client, how == FINISH);
	}
	close(*client);
	*client = -1;
}

static void speak(front *f, const uint8_t *data, size_t size)
{
	int clients[MAX_CLIENTS] = {-1, -1, -1, -1}, n = 0;
	clients[0] = front_client(f);
	for (size_t at = 0; at < size;) {
		const uint8_t *mark = memchr(data + at, 0xff, size - at);
		size_t piece = mark ? (size_t)(mark - data) - at : size - at;
		if (clients[n] >= 0 && piece > 0 && !front_send(f, clients[n], data + at, piece))
			leave(f, &clients[n], 5);
		at += piece + 2;
		int what = mark && at <= size ? mark[1] : 0;
		if (what == 1) {
			n = (n + 1) % MAX_CLIENTS;
			leave(f, &clients[n], 5);
			clients[n] = front_client(f);
		} else if (what == 2) {
			front_turn(f, 1);
		} else if (what >= 3 && what <= 5) {
			leave(f, &clients[n], what);
		}
	}
	for (int i = 0; i < MAX_CLIENTS; i++) {
		if (clients[i] >= 0)
			listen_to(f, clients[i], false);
		leave(f, &clients[i], i % 2 ? 5 : FINISH);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static front *f;
	if (!f)
		f = front_new(REQUEST_MS);
	speak(f, data, size);
	uint64_t end = now_ms() + PATIENCE_MS;
	while (front_requests(f) > 0 || front_connections(f) > 0 || !front_connected(f)) {
		front_turn(f, 1);
		require(now_ms() < end, "a request or a connection is left, or the engine is", 0);
	}
	return 0;
}
