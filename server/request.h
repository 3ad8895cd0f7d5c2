/* request.h - one HTTP request from its first line to its last byte, and how to answer it.
 *
 *    head ──▶ body ──▶ working ──▶ answering ──▶ over
 *       └─ refused at any point: the body is read and dropped up to a limit, then the error is sent
 *
 * A handler answers once: with reply_bytes, reply_json, reply_refuse or reply_problem; or with reply_begin, any number
 * of reply_write, and reply_end. It may do so at once or later, from an engine event. After reply_begin, reply_problem
 * ends the stream: with an error event in SSE, otherwise by closing the connection, so that a truncated answer never
 * looks complete.
 *
 * While a handler works, or a stream has nothing to send, the connection is suspended. When the client leaves, the
 * engine's call is cancelled at once. The request owns everything attached to it. `release` is called exactly once, at
 * the end; no callback follows it. */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <jansson.h>

#include "server/auth.h"
#include "server/buffer.h"
#include "server/embedded.h"
#include "server/http.h"
#include "server/large_body.h"
#include "server/problem.h"
#include "server/rate_headers.h"
#include "server/router.h"
#include "server/server.h"
#include "server/trace.h"
#include "server/uri.h"

enum { REQUEST_MAX_HEADERS = 4 };

typedef enum request_phase { REQUEST_HEAD, REQUEST_BODY, REQUEST_WORKING, REQUEST_ANSWERING } request_phase;

typedef struct request_header {
	const char *name;
	char *value;
} request_header;

typedef struct request {
	/* For handlers to read. */
	server *server;
	struct MHD_Connection *connection;
	const route *route;                   /* NULL if none fits */
	const char *params[ROUTE_MAX_PARAMS]; /* values of the path's {…} */
	uri uri;
	json_t *body;   /* BODY_JSON: checked; NULL when it was optional and absent */
	buffer members; /* members of a large body that are not in `body` (json_body.h); sent by request_call */
	char key[AUTH_NAME_BYTES]; /* name of its API key; "": none was needed */
	bool key_of_file;          /* the key is one of the file's */
	bool unchecked;      /* true if the need for a key is not known yet: the request must not reach the engine */
	rate_headers limits; /* state of its key's limits */
	char id[FRAME_REQUEST_ID_BYTES]; /* X-Request-Id; "" before the head is complete */
	uint64_t started_ns;       /* uv_hrtime when its first line was read */
	trace_ids trace;           /* zero without --otlp-endpoint */
	engine_times times;        /* the latest call's */

	/* For handlers to set. */
	void *state;
	void (*release)(struct request *r);
	void (*drained)(struct request *r);      /* streams: the client has read everything written */
	void (*client_reads)(struct request *r); /* streams: the client has read something; at most once a second */
	bool endless;      /* a stream that shutdown does not wait for: the client can continue it */
	engine_call *call; /* set to NULL when it has ended; cancelled with the request */
	void (*take)(struct request *r, const char *data, size_t bytes); /* streamed bodies: a piece has arrived */
	void (*taken)(struct request *r);                                /* streamed bodies: the body is complete */

	/* request.c's and reply.c's own. */
	http_peer *peer;
	request_phase phase;
	bool suspended, gone, paused, must_close;
	bool queueing;       /* our answer is being passed to the library (refusal.c) */
	buffer text;         /* the JSON body as it arrives */
	large_body *reading; /* while the pool reads the body */
	uint64_t body_bytes; /* bytes of the body so far */
	uint64_t reserved;   /* our share of server.buffered */
	uint64_t linger;     /* after an early answer: bytes still read and dropped */
	struct MHD_Response *response;
	int status;            /* 0: not answered yet */
	problem problem;       /* the error that was answered or ended the stream, if any */
	uint64_t answer_bytes; /* size of an answer that is not a stream */
	request_header headers[REQUEST_MAX_HEADERS];
	int n_headers;
	bool header_lost; /* a header could not be kept */
	bool streaming, sse, ended, broken;
	uint64_t pinged_ns;
	buffer out;  /* streams: bytes written by the handler */
	size_t sent; /* streams: bytes of `out` that the library has read */
} request;

/* --- for handlers --------------------------------------------------------------------- */

const char *request_header_value(const request *r, const char *name);
/* Open r->call. False: the request has been answered with 503. params is taken over. */
bool request_call(request *r, const char *method, json_t *params, uint32_t credit, bool upload,
                  const engine_events *events);
/* Return the path's and the query's parameters as an object in the engine's types. New reference; NULL: out of memory.
 */
json_t *request_params(const request *r);
/* Stop and continue reading a streamed body. */
void request_pause(request *r);
void request_unpause(request *r);
/* Seconds since the request began. */
double request_seconds(const request *r);
/* Set r->id, unless it is set: the header X-Request-Id if that is valid, otherwise a fresh id. */
void request_take_id(request *r);
/* Write a fresh id: the prefix and 24 random hex digits. */
void request_make_id(char *out, size_t size, const char *prefix);

/* --- reply.c ----------------------------------------------------------------------------- */

/* Add a header, before the reply. */
void reply_header(request *r, const char *name, const char *value);
/* Answer with bytes from malloc, which are taken over; NULL: out of memory, answered with 503. */
void reply_bytes(request *r, int status, const char *type, char *data, size_t bytes);
/* Answer with a copy of the bytes. */
void reply_copy(request *r, int status, const char *type, const void *data, size_t bytes);
/* Answer with 200 and a copy of the file, compressed if the client takes gzip. */
void reply_file(request *r, const char *type, const web_file *f);
/* Answer with a document, which is taken over; NULL or an incomplete one is answered with 503. */
void reply_json(request *r, int status, json_t *json);
void reply_problem(request *r, const problem *p);
__attribute__((format(printf, 5, 6))) void reply_refuse(request *r, int status, const char *code, const char *param,
                                                        const char *format, ...);

/* Answer with 503 out_of_memory. */
void reply_out_of_memory(request *r);

#define REPLY_SIZE_UNKNOWN UINT64_MAX
/* Begin a stream of `bytes` bytes (or unknown). sse: errors become events, and comments fill silence. */
void reply_begin(request *r, const char *type, uint64_t bytes, bool sse);
void reply_write(request *r, const void *data, size_t bytes);
/* True if the library has read everything written: `drained` is called at most once more before the next write. */
bool reply_is_drained(const request *r);
/* complete false: close the connection after the bytes written. */
void reply_end(request *r, bool complete);
/* Keep a silent SSE stream alive; called periodically. takes: the client has read something since the last call. */
void reply_tick(request *r, bool takes);
/* Time after which a client that reads nothing from a stream is disconnected. */
uint64_t reply_patience_ms(const request *r);
/* Pass the answer to the library. */
enum MHD_Result reply_queue(request *r);
/* Write the error past the library, because the client is still sending its body. */
void reply_send_last(request *r);
/* Write an error past the library, as the last bytes of the connection. r: its request, NULL if its first line could
 * not be read. */
void reply_past_library(http_peer *peer, request *r, const problem *p);
void reply_fini(request *r);

/* --- for http.c and reply.c ------------------------------------------------------------------ */

/* Create the request whose first line has arrived; NULL: out of memory. Freed by request_over. */
request *request_new(server *s, http_peer *peer, struct MHD_Connection *connection, const char *target);
/* Pass what the library has read: the head first, then each piece of the body, then its end. */
enum MHD_Result request_access(request *r, const char *method, const char *version, const char *data, size_t *bytes);
/* The client has left while the connection was not being watched. */
void request_gone(request *r);
/* Shutdown no longer waits for the request. */
void request_abort(request *r);
/* The library has stopped reading in the middle of the request: answer past it and close. */
void request_stuck(request *r);
/* The library has finished with the request, or its connection is gone; frees it. */
void request_over(request *r);
/* Let the library continue with a suspended request. */
void request_resume(request *r);
void request_suspend(request *r);

#endif
