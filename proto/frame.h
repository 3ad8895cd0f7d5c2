/* frame.h - the wire format between front ends and the engine: codec only, no I/O.
 *
 * A frame is a 24-byte little-endian header, then JSON, then binary payload:
 *
 *    0        4        8        12     13     14      16              24
 *    | length | json   | credit | type | flags| zero  | stream (u64)  | JSON … | payload … |
 *
 *    length   bytes after the header (JSON and payload together)
 *    json     bytes of JSON (UTF-8, one object; 0: none)
 *    credit   CREDIT and REQUEST frames: frames granted to the peer on this stream
 *    stream   request id chosen by the client, never reused on a connection; 0: the connection itself
 *
 * PROTOCOL.md defines the types, their order and the JSON of every method. The decoder never trusts a length: it
 * reports FRAME_BAD as soon as a header cannot be valid, before buffering any body. */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PROTO_VERSION = 1,
	FRAME_HEADER_BYTES = 24,
	FRAME_MAX_JSON = 64 << 20,
	FRAME_MAX_PAYLOAD = 1 << 20,
	FRAME_REQUEST_ID_BYTES = 65, /* maximum size of an HTTP request's id, with its NUL */
	FRAME_FLAG_END = 1 /* REQUEST, DATA: the sender sends nothing more on this stream */
};

typedef enum frame_type {
	FRAME_HELLO = 1, /* both, first on a connection, stream 0 */
	FRAME_REQUEST,   /* client: opens a stream */
	FRAME_DATA,      /* both: binary payload of an upload or download; costs one credit */
	FRAME_EVENT,     /* engine: one item of a stream; costs one credit */
	FRAME_RESULT,    /* engine: success, the stream is closed */
	FRAME_ERROR,     /* engine: failure, closes the stream; on stream 0, the connection */
	FRAME_CREDIT,    /* both: grants more credits */
	FRAME_CANCEL,    /* client: stop this stream; answered by RESULT or ERROR "cancelled" */
	FRAME_PING,      /* both, stream 0: answered by PONG */
	FRAME_PONG,
	FRAME_TYPE_COUNT
} frame_type;

typedef struct frame {
	frame_type type;
	uint8_t flags;
	uint32_t credit;
	uint64_t stream;
	const char *json; /* not NUL-terminated */
	size_t json_bytes;
	const void *payload;
	size_t payload_bytes;
} frame;

/* Write the header of f; the bodies follow it on the wire, JSON first. Asserts that they are within FRAME_MAX_JSON and
 * FRAME_MAX_PAYLOAD. */
void frame_encode_header(const frame *f, unsigned char out[FRAME_HEADER_BYTES]);

/* True if the text is 1 to 64 letters, digits and . _ : - */
bool frame_request_id_valid(const char *text, size_t bytes);

typedef enum frame_result { FRAME_OK, FRAME_MORE, FRAME_BAD } frame_result;

/* Incremental decoder over one growing buffer. Zero-initialise; free with _fini. */
typedef struct frame_decoder {
	unsigned char *data;
	size_t used, capacity, consumed;
} frame_decoder;

/* Append received bytes; false when out of memory (nothing was appended). Invalidates frames returned earlier. A buffer
 * grown by a large frame is released once it is empty. */
bool frame_decoder_push(frame_decoder *d, const void *data, size_t bytes);
/* Take the next whole frame; its pointers are valid until the next push or _fini. FRAME_BAD: *reason is a static text;
 * the connection must be closed, and later calls return the same. Otherwise *reason is NULL. *out is zero unless a
 * frame is returned. */
frame_result frame_decoder_next(frame_decoder *d, frame *out, const char **reason);
void frame_decoder_fini(frame_decoder *d);

#endif
