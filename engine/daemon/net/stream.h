/* stream.h - one request and its answer.
 *
 * A stream lives from its REQUEST until its handler answers it, exactly once, with
 * stream_result or stream_error; the handler owns it in between, whatever happens to the
 * connection. When the peer cancels, the connection closes or the engine stops, the handler
 * is notified through `cancel` (if it is set) and still has to answer; an answer to a disconnected peer is
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
#include "proto/frame.h"
#include "proto/schema.h"

enum {
	STREAM_TARGET_BYTES = 64,
	STREAM_OWNER_BYTES = 64,
	STREAM_LARGE = 64 << 10 /* bytes of a REQUEST's JSON */
};

typedef struct stream stream;

/* What a handler is notified of; each may be NULL. Any of them may answer the stream. */
typedef struct stream_watch {
	void (*credit)(stream *s);               /* more may be sent, or the peer has taken something */
	void (*data)(stream *s, const frame *f); /* a DATA frame of an upload */
	void (*cancel)(stream *s);               /* at most once */
} stream_watch;

/* What carries a stream's frames: a connection (connection.h has the contracts). */
typedef struct stream_peer stream_peer;
struct stream_peer {
	void (*send)(stream_peer *p, const frame *f, char *json, void *payload);
	void (*send_copy)(stream_peer *p, const frame *f);
	void (*fail)(stream_peer *p);              /* a frame is missing: end it */
	void (*forget)(stream_peer *p, stream *s); /* the stream has been answered */
	bool blocked;                              /* it takes nothing more for now */
};

/* What follows a stream from its request to its end. Its own data is stream.key. */
typedef struct stream_record {
	void (*event)(stream *s, const char *json, size_t bytes); /* sent; NULL: one that could not be built */
	void (*result)(stream *s, const char *json);
	void (*part)(stream *s, const char *name);                /* of an upload: a part begins, */
	void (*bytes)(stream *s, const void *data, size_t bytes); /* and these are its bytes */
	bool (*detached)(const stream *s);                        /* the request goes on without its client */
	void (*end)(stream *s);
} stream_record;

struct stream {
	net *net;
	struct engine *engine; /* net's; the rooms above know what it is */
	stream_peer *peer;     /* NULL: disconnected */
	uint64_t id;
	int64_t credit;                   /* EVENT and DATA frames the peer still takes */
	char target[STREAM_TARGET_BYTES]; /* the "id" of methods that have one */
	char owner[STREAM_OWNER_BYTES];   /* the request's owner, as given by the front end; "": none */
	int retry_after;                  /* seconds, of an error that may pass; 0: the default */
	json_t *params;                   /* an object, checked against the method's schema */
	uint64_t digest;                  /* hash of the REQUEST's JSON */
	char work[32];                    /* the request's name in the death log; "": not counted */
	bool large;                       /* the loop thread does not walk all of params: the pool does */
	bool upload;                      /* DATA frames are expected */
	bool cancelled;
	const stream_watch *watch;
	void *context;               /* the handler's */
	const stream_record *record; /* NULL: nothing follows it */
	struct request_key *key;     /* the record's */
};

/* Count deaths of the engine under the request from now to its end: `digest` names what it works on.
 * STATUS_UNAVAILABLE: the engine has died too often under such work. */
status stream_count_deaths(stream *s, const char *kind, uint64_t digest, error *err);
/* The answer; both free the stream. `result` is taken over; NULL is answered as out of memory. */
void stream_result(stream *s, json_t *result);
/* The same from JSON text (of json_text_reserve, taken over). */
void stream_result_text(stream *s, char *text);
/* code: a stable word; NULL: the status's name. A cancellation while the engine stops is reported as such. */
void stream_error(stream *s, const error *err, const char *code);
/* The engine stops: "shutting_down", or "device_error" when it stops because of that. */
void stream_refuse_stopping(stream *s);
/* The same from parts. param and code may be NULL. */
void stream_refuse(stream *s, status why, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Does the request continue without its client? */
bool stream_detached(const stream *s);
/* Frames that may be sent now: 0 without credit, while the peer reads too slowly, or after it has disconnected. */
int64_t stream_ready(const stream *s);
/* Send one frame; each costs a credit, which must be there. json and data (malloc'ed) are taken over. */
void stream_event(stream *s, json_t *event);
/* The same of JSON text, at most FRAME_MAX_JSON bytes, which is copied. */
void stream_event_text(stream *s, const char *json, size_t bytes);
void stream_data(stream *s, void *data, size_t bytes);
/* Let the peer send `frames` more DATA frames. */
void stream_grant(stream *s, uint32_t frames);

/* The error object of the protocol. NULL when out of memory. */
json_t *stream_error_object(int http, const char *code, const char *message, const char *param, int retry_after);

#endif
