/* request_json.h - the JSON of a REQUEST, parsed on the pool when it is large. Its stream exists from the arrival of
 * its frame. Streams are independent, so a smaller request on another stream may begin earlier. Loop thread. */
#ifndef ENGINE_DAEMON_NET_REQUEST_JSON_H
#define ENGINE_DAEMON_NET_REQUEST_JSON_H

#include "engine/daemon/net/stream.h"

/* Receives the parsed request, which it owns; NULL: not JSON, or no_memory. */
typedef void request_json_done(stream *s, json_t *request, bool no_memory);

/* Parse the text for s and call `done`: at once, or in a later turn of the loop if it has STREAM_LARGE bytes or
 * more. */
void request_json_parse(stream *s, const char *text, size_t bytes, request_json_done *done);

#endif
