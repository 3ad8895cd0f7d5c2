/* engine_link.h - the one connection to the engine, and the calls on it.
 *
 *    away ──connect──▶ greeting ──HELLO of the same protocol──▶ up
 *     ▲  backoff 0.1 … 5 s │                                    │
 *     └──── any failure ───┴────────────────────────────────────┘
 *
 * The link reconnects by itself without limit. While it is not up, no call can be made. When it goes down, every call
 * on it ends with an ERROR frame (503, "engine_unavailable"), so callers handle one kind of ending only.
 *
 * Flow control is the protocol's: the engine sends at most as many EVENT and DATA frames as were granted. The
 * client sends at most as many DATA frames as engine_call_credit returns.
 *
 * Loop thread only. The link owns a call, which is freed after `end` or engine_call_cancel. */
#ifndef SERVER_ENGINE_LINK_H
#define SERVER_ENGINE_LINK_H

#include <jansson.h>
#include <uv.h>

#include "proto/frame.h"
#include "server/buffer.h"

typedef struct engine_link engine_link;
typedef struct engine_call engine_call;

typedef struct engine_link_options {
	const char *address; /* "unix:PATH" or "HOST:PORT" */
	uint64_t silence_ms; /* a peer silent for that long is unavailable; pings are sent at a third of it */
	void (*up)(void *context); /* called whenever the link has come up; NULL: nothing */
	void *context;
} engine_link_options;

/* When the engine worked on a call, in milliseconds since it received it; negative: it has not happened. */
typedef struct engine_times {
	uint64_t called_ns; /* uv_hrtime of the call, set by the caller; 0: there was none */
	double queued_ms, started_ms, first_token_ms, ended_ms; /* generations only */
	double answered_ms;                                     /* 0: nothing is known */
} engine_times;

/* The request that causes a call. */
typedef struct engine_caller {
	const char *owner;      /* the API key or address that it counts for; NULL: the shared owner */
	const char *key;        /* id of its key, or "file"; NULL: none */
	const char *request_id; /* named in the engine's log; it must be valid (frame.h). NULL: none, and no times */
	double timeout;         /* seconds until the engine ends it; 0: no limit */
	const char *fairness_id; /* its tenant, without characters that need escapes in JSON; NULL: none */
	const char *traceparent; /* W3C Trace Context, of a request whose trace is sent; NULL: none */
	engine_times *times;    /* set before `end` is called, if the engine reports them; NULL: not requested */
} engine_caller;

/* Callbacks of a call; frames are valid during the callback only. `end` is called exactly once, with a RESULT or an
 * ERROR frame, unless the call is cancelled. */
typedef struct engine_events {
	void (*event)(void *context, const frame *f); /* EVENT and DATA */
	void (*credit)(void *context);                /* uploads: more may be sent; NULL for others */
	void (*end)(void *context, const frame *f);
} engine_events;

/* Start connecting. NULL when out of memory or the address is malformed. */
engine_link *engine_link_new(uv_loop_t *loop, const engine_link_options *o);
/* Close the connection permanently; every call ends first. Run the loop once more before the loop is closed. */
void engine_link_close(engine_link *l);
/* Call after engine_link_close and the loop's end. */
void engine_link_free(engine_link *l);

bool engine_link_up(const engine_link *l);
/* Return the reason for which the link is not up; "" when it is. */
const char *engine_link_reason(const engine_link *l);
/* Return the engine's HELLO, or NULL while it is unavailable. Borrowed while the link is up. */
const json_t *engine_link_hello(const engine_link *l);
/* A short word that changes when the greeting does: another version, backend or device. "" before the first one. */
const char *engine_link_fingerprint(const engine_link *l);

/* Open a stream. caller: NULL for none; times must outlive the call. `params` is taken over and may be NULL. members: further members as JSON text, ,"NAME":VALUE for each, with names not in params; NULL:
 * none. upload: DATA frames of ours follow. timeout_ms 0: none. NULL when the link is not up or memory is out; nothing
 * is called back then. */
engine_call *engine_link_call(engine_link *l, const char *method, const engine_caller *caller, json_t *params,
                              const buffer *members, uint32_t credit, bool upload, uint64_t timeout_ms,
                              const engine_events *events, void *context);
/* Call `note` with each note about the request: a CREDIT frame with JSON. */
void engine_call_on_note(engine_call *c, void (*note)(void *context, const frame *f));
/* Grant the engine `frames` more EVENT or DATA frames. */
void engine_call_grant(engine_call *c, uint32_t frames);
/* Report that the client is reading, though it has not read everything yet. */
void engine_call_alive(engine_call *c);
/* Number of DATA frames that may be sent now. */
uint32_t engine_call_credit(const engine_call *c);
/* Send one DATA frame of at most FRAME_MAX_PAYLOAD bytes; costs one credit, which must be available. part: name of the
 * part that begins with this frame, or NULL. file: name of its file, or NULL. Neither may need escapes in JSON. last:
 * nothing follows. */
enum { ENGINE_FILE_BYTES = 128 };
void engine_call_data(engine_call *c, const char *part, const char *file, const void *data, size_t bytes, bool last);
/* Forget the call: the engine gets CANCEL, and no callback is called any more. */
void engine_call_cancel(engine_call *c);

#endif
