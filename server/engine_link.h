/* engine_link.h - the one connection to the engine, and the calls on it.
 *
 *   away ──connect──▶ greeting ──HELLO of the same protocol──▶ up
 *    ▲  backoff 0.1 … 5 s │                                    │
 *    └──── any failure ───┴────────────────────────────────────┘
 *
 * The link reconnects by itself for ever. While it is not up, no call can be made. When it falls, every call on it
 * ends with an ERROR frame (503, "engine_unavailable"), so a caller sees one kind of ending only.
 *
 * Flow control is the protocol's: the engine sends no more EVENT and DATA frames than were granted, the
 * client no more DATA frames than engine_call_credit says.
 *
 * Loop thread only. A call is owned by the link: it is gone after `end`, or after engine_call_cancel. */
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
	uint64_t silence_ms; /* a peer silent for that long is gone; pings go out at a third of it */
} engine_link_options;

/* What a call reports; frames are valid during the callback only. `end` comes exactly once unless
 * the call is cancelled: with a RESULT or an ERROR frame. */
typedef struct engine_events {
	void (*event)(void *context, const frame *f); /* EVENT and DATA */
	void (*credit)(void *context);                /* uploads: more may be sent; NULL for others */
	void (*end)(void *context, const frame *f);
} engine_events;

/* Begin connecting. NULL when out of memory or the address is malformed. */
engine_link *engine_link_new(uv_loop_t *loop, const engine_link_options *o);
/* Close the connection for good; every call ends first. Run the loop once more before the loop is closed. */
void engine_link_close(engine_link *l);
/* After engine_link_close and the loop's end. */
void engine_link_free(engine_link *l);

bool engine_link_up(const engine_link *l);
/* Why the link is not up; "" when it is. */
const char *engine_link_reason(const engine_link *l);
/* The engine's HELLO, or NULL while away; borrowed. */
const json_t *engine_link_hello(const engine_link *l);
/* A short word that changes when the greeting does: another version, backend or device. "" before the first one. */
const char *engine_link_fingerprint(const engine_link *l);

/* Open a stream. owner: the API key or address that the request counts for, NULL: the one of all requests without.
 * `params` is stolen and may be NULL. members: more of them as JSON text, ,"NAME":VALUE for each, and none of params'
 * names; NULL: none. upload: DATA frames of ours follow. timeout_ms 0: none. NULL when the link is not
 * up (or memory is out): nothing is called back. */
engine_call *engine_link_call(engine_link *l, const char *method, const char *owner, json_t *params,
                              const buffer *members, uint32_t credit, bool upload, uint64_t timeout_ms,
                              const engine_events *events, void *context);
/* Grant the engine `frames` more EVENT or DATA frames. */
void engine_call_grant(engine_call *c, uint32_t frames);
/* Say that the call's client takes what it was sent, though not all of it yet. */
void engine_call_alive(engine_call *c);
/* How many DATA frames may be sent now. */
uint32_t engine_call_credit(const engine_call *c);
/* Send one DATA frame, at most FRAME_MAX_PAYLOAD bytes; costs one credit, which must be there.
 * part: name of the part that begins with this frame, or NULL; file: the name of the file that it is, or NULL; neither
 * needs escapes in JSON. last: nothing follows. */
enum { ENGINE_FILE_BYTES = 128 };
void engine_call_data(engine_call *c, const char *part, const char *file, const void *data, size_t bytes, bool last);
/* Forget the call: CANCEL goes to the engine and nothing is called back any more. */
void engine_call_cancel(engine_call *c);

#endif
