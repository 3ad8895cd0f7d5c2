/* connection.h - one front end: frames in, frames out, and its streams.
 *
 *   accepted ─▶ greeting ─HELLO─▶ open ─▶ closing (queue drains) ─▶ closed, freed
 *
 * A peer is not trusted. A frame that is malformed or out of order is answered with ERROR on stream
 * 0 and ends the connection. A peer that does not read cannot slow others. Beyond
 * CONNECTION_HIGH queued bytes its streams get no credit and nothing more is read from it,
 * until the queue is below CONNECTION_LOW. Beyond CONNECTION_MAX_QUEUE it is dropped.
 *
 * Silence: after CONNECTION_PING_MS without a byte a PING goes out, after CONNECTION_SILENT_MS the
 * connection ends. Loop thread only. */
#ifndef ENGINE_DAEMON_NET_CONNECTION_H
#define ENGINE_DAEMON_NET_CONNECTION_H

#include <uv.h>

#include "engine/daemon/net/stream.h"
#include "proto/generation_answer.h"

enum {
	CONNECTION_MAX_STREAMS = 1024,
	CONNECTION_HIGH = 8 << 20,
	CONNECTION_LOW = 1 << 20,
	CONNECTION_MAX_QUEUE = 512 << 20,
	CONNECTION_GREETING_MS = 10000,
	CONNECTION_PING_MS = 15000,
	CONNECTION_SILENT_MS = 30000,
	CONNECTION_FLUSH_MS = 5000
};

typedef struct connection connection;
struct connection {
	stream_peer peer;         /* blocked: `congested` or `broken` */
	connection *next, **link; /* links of the listener's list */
	struct listener *listener;
	net *net;
	union {
		uv_handle_t handle;
		uv_stream_t stream;
		uv_pipe_t pipe;
		uv_tcp_t tcp;
	} socket;
	frame_decoder decoder;
	stream **streams;
	int n_streams, capacity;
	uint64_t heard_ms; /* time of the last byte from the peer, or of the start of closing */
	enum { CONNECTION_GREETING, CONNECTION_OPEN, CONNECTION_CLOSING, CONNECTION_CLOSED } state;
	struct {
		char *data;
		size_t used, capacity;
	} out;                 /* frames gathered for the next flush */
	connection *unflushed; /* next connection with gathered frames */
	bool congested, pinged;
	bool broken; /* a frame could not be queued; see connection_break */
	connection *next_broken;
	void (*gone)(connection *c); /* called when the socket is closed; frees it */
};

/* Write the fingerprint of this engine (proto/generation_answer.h): that of its HELLO. STATUS_NOMEM. */
status connection_fingerprint(const net *n, char out[GENERATION_ANSWER_FINGERPRINT_BYTES]);

/* Greet a peer whose socket has been accepted into c->socket. */
void connection_begin(connection *c);
/* Refuse a peer: send the reason on stream 0 and close. */
void connection_refuse(connection *c, int http, const char *code, const char *message);
/* End a connection without writing its queue, because a frame could not be queued. A caller further up may still use
 * it, so it ends when the loop sleeps or wakes. */
void connection_break(connection *c);
/* Close once the queue is written, or after CONNECTION_FLUSH_MS. Cancels its streams. */
void connection_close(connection *c);
/* Check the time limits: silent peers, late greetings, stuck flushes. */
void connection_tick(connection *c, uint64_t now_ms);
/* Cancel every stream (the engine is stopping); they answer on the open connection. */
void connection_cancel_streams(connection *c);

/* Write the frames sent since the last call. The loop calls it before it sleeps and when it wakes, so all frames of a
 * step are one write. */
void connection_flush_all(net *n);

#endif
