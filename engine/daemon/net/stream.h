/* stream.h - one request and its answer.
 *
 * A stream exists from its REQUEST until its handler answers it exactly once, with stream_result or stream_error. In
 * between the handler owns it, whatever happens to the connection. When the peer cancels, the connection closes or the
 * engine stops, `cancel` notifies the handler (if set), which must still answer. An answer to a disconnected peer is
 * dropped. So streams need no reference count, and every accepted request ends exactly once.
 *
 * Loop thread only. */
#ifndef ENGINE_DAEMON_NET_STREAM_H
#define ENGINE_DAEMON_NET_STREAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/daemon/net/net.h"
#include "engine/daemon/net/project.h"
#include "proto/frame.h"
#include "proto/schema.h"

enum {
	STREAM_TARGET_BYTES = 64,
	STREAM_OWNER_BYTES = 64,
	STREAM_TRACE_BYTES = 50,
	STREAM_LARGE = 64 << 10 /* bytes of a REQUEST's JSON */
};

#define STREAM_KEY_OF_FILE "file" /* access_id of a request with a key of a front end's file */

typedef struct stream stream;

/* Callbacks of a handler; each may be NULL and may answer the stream. */
typedef struct stream_watch {
	void (*credit)(stream *s);               /* more may be sent, or the peer has read something */
	void (*data)(stream *s, const frame *f); /* a DATA frame of an upload */
	void (*cancel)(stream *s);               /* once; again if a detached request must end */
} stream_watch;

/* Carries a stream's frames: a connection (connection.h has the contracts), or a response (responses.h). */
typedef struct stream_peer stream_peer;
struct stream_peer {
	void (*send)(stream_peer *p, const frame *f, char *json, void *payload);
	void (*send_copy)(stream_peer *p, const frame *f);
	void (*fail)(stream_peer *p);              /* a frame is missing: end the connection */
	void (*forget)(stream_peer *p, stream *s); /* the stream has been answered */
	bool blocked;                              /* accepts nothing more for now */
};

/* When the engine worked on a request, by clock_ns; 0: it has not happened. */
typedef struct stream_times {
	bool requested; /* the peer wants them with the answer */
	uint64_t received;
	uint64_t queued, started, first_token, ended; /* generations only */
} stream_times;

/* Observes a stream from its request to its end; its own data is stream.key. */
typedef struct stream_record {
	void (*event)(stream *s, const char *json, size_t bytes); /* an event was sent; NULL: it could not be built */
	void (*result)(stream *s, const char *json);
	void (*part)(stream *s, const char *name);                /* a part of an upload begins */
	void (*bytes)(stream *s, const void *data, size_t bytes); /* bytes of that part */
	bool (*detached)(const stream *s);                        /* true if the request continues without its client */
	void (*end)(stream *s);
} stream_record;

struct stream {
	net *net;
	void *room;        /* context of the room whose method it calls; set with that method */
	stream_peer *peer; /* NULL: disconnected */
	uint64_t id;
	int64_t credit;                   /* EVENT and DATA frames that the peer accepts */
	char target[STREAM_TARGET_BYTES]; /* the "id" of the request, for methods that have one */
	char owner[STREAM_OWNER_BYTES];   /* the request's owner, as given by the front end; "": none */
	char request_id[FRAME_REQUEST_ID_BYTES]; /* the id of the HTTP request, for the log; "": none */
	char trace[STREAM_TRACE_BYTES];          /* "TRACE-SPAN" of the HTTP request in hex; "": it is not traced */
	stream_times times;
	char access_id[STREAM_OWNER_BYTES]; /* the request's API key, likewise */
	struct access_key *access;          /* its entry (keys.h); NULL: none */
	stream *access_next, **access_at;   /* in the list of the streams of that key */
	project_scope scope;                /* objects that the request sees and creates; set with `access` */
	char fairness[STREAM_OWNER_BYTES];  /* the tenant of the owner that it is for; "": none */
	double timeout;                     /* seconds that its REQUEST allows; 0: no limit */
	uint64_t deadline_ms;               /* end of its time (deadline.h), by the loop's clock */
	stream *deadline_next, **deadline_at; /* in the list of those with an end; NULL: it has none */
	bool expired;                       /* cancelled because its time is over */
	int64_t tokens_reserved;            /* tokens taken from the key's limit */
	bool revoked;                       /* cancelled because its key was revoked */
	const char *method;                 /* its name; NULL: not known yet */
	int retry_after;                  /* seconds, for a temporary error; 0: the default */
	json_t *params;                   /* an object, checked against the method's schema */
	uint64_t digest;                  /* hash of the REQUEST's JSON */
	char work[32];                    /* the request's name in the death log; "": not counted */
	bool large;                       /* params are too large to traverse on the loop thread; use the pool */
	bool upload;                      /* DATA frames are expected */
	bool background;              /* a request of the engine itself (local_request.h) */
	bool unaudited;               /* refused without a line in the audit log, which takes no more */
	bool cancelled;
	void (*begin)(stream *s); /* its method's handler, which may be called again until it answers or takes the
	                           * stream over; NULL for a method of jobs */
	stream *next_waiting;     /* link of those that wait to begin again */
	const stream_watch *watch;
	void *context;               /* owned by the handler */
	const stream_record *record; /* NULL: not observed */
	struct request_key *key;     /* owned by the record */
	frame_type answer_type;      /* RESULT or ERROR, while net.answered holds the answer */
	char *answer;                /* its JSON; NULL: out of memory */
};

/* Return a stream of an empty request. NULL: out of memory. */
stream *stream_new(net *n, stream_peer *p, uint64_t id, int64_t credit);
/* Cancel the request, once. The handler may answer the stream, which frees it. */
void stream_cancel(stream *s);
/* Cancel it even if it has been cancelled before, because a detached request must end. */
void stream_cancel_again(stream *s);

/* Count deaths of the engine during the request from now on; `digest` identifies its input. STATUS_UNAVAILABLE: the
 * engine has died too often with this input. */
status stream_count_deaths(stream *s, const char *kind, uint64_t digest, error *err);
/* Answer the stream and free it. `result` is taken over; NULL is answered as out of memory. */
void stream_result(stream *s, json_t *result);
/* Answer with JSON text (from json_text_reserve, taken over). */
void stream_result_text(stream *s, char *text);
/* Answer with an error and free the stream. code: a stable word; NULL: the status's name. A cancellation while the
 * engine stops is reported as shutting down. */
void stream_error(stream *s, const error *err, const char *code);
/* Answer with an error object as text (from json_text_reserve, taken over; NULL: out of memory). result: its status. */
void stream_error_text(stream *s, status result, char *text);
/* Send an answer that net.answered has held, and free the stream. */
void stream_release(stream *s);
/* Answer because the engine stops: "shutting_down", or "device_error" if that is the reason. */
void stream_refuse_stopping(stream *s);
/* Answer with an error from its parts. param and code may be NULL. */
void stream_refuse(stream *s, status result, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Cancel s for a reason, and set *reason, a member of s. A request that continues without its client ends, too. */
void stream_stop(stream *s, bool *reason);
/* Print its owner in the shares of slots and steps: the request's owner, and the tenant that it is for. */
void stream_full_owner(const stream *s, char out[2 * STREAM_OWNER_BYTES]);
/* Remove s from the list of streams with a limit of time; it may be in none. */
void stream_remove_deadline(stream *s);
/* True if the request continues without its client. */
bool stream_detached(const stream *s);
/* Return the frames that may be sent now: 0 without credit, while the peer reads too slowly, or after it has
 * disconnected. */
int64_t stream_ready(const stream *s);
/* Send one frame, which uses one credit; there must be one. json and data (from malloc) are taken over. */
void stream_event(stream *s, json_t *event);
/* Send an event as JSON text of at most FRAME_MAX_JSON bytes, which is copied. */
void stream_event_text(stream *s, const char *json, size_t bytes);
void stream_data(stream *s, void *data, size_t bytes);
/* Send a note about the request for its answer's head: CREDIT of 0 frames with JSON. note is taken over. */
void stream_note(stream *s, json_t *note);
/* As stream_note, with JSON text, which is copied. */
void stream_note_text(stream *s, const char *json, size_t bytes);
/* Allow the peer `frames` more DATA frames. */
void stream_grant(stream *s, uint32_t frames);

/* The error object that is sent if there is no memory for the real one. */
extern const char stream_out_of_memory[];
/* Return the error object of the protocol. NULL: out of memory. */
json_t *stream_error_object(int http, const char *code, const char *message, const char *param, int retry_after);

#endif
