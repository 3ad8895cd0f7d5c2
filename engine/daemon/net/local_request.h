/* local_request.h - a request that the engine sends to itself: a line of a batch.
 *
 * It is a stream whose frames go to the caller instead of a connection, so it is checked, computed and answered like a
 * client's request. Two things differ (stream.background): it runs only when no client's request can run, and its
 * caller counts the deaths of the engine. Loop thread only. */
#ifndef ENGINE_DAEMON_NET_LOCAL_REQUEST_H
#define ENGINE_DAEMON_NET_LOCAL_REQUEST_H

#include "engine/daemon/net/stream.h"

typedef struct local_request local_request;

/* Receives the frames. The texts are valid during the call. */
typedef struct local_receiver {
	void (*event)(void *context, const char *json, size_t bytes);
	void (*data)(void *context, const void *data, size_t bytes);
	/* The RESULT, or the ERROR; json NULL: memory ran out. Called exactly once, perhaps before local_request_begin
	 * returns; the request is then freed. */
	void (*end)(void *context, bool failed, const char *json);
} local_receiver;

/* Members of the stream that a connection reads from the REQUEST. */
typedef struct local_origin {
	const char *key;        /* stream.access_id and stream.owner */
	const char *request_id; /* for the log */
	bool large;             /* the params have STREAM_LARGE bytes or more */
} local_origin;

/* NULL: out of memory. */
local_request *local_request_new(net *n, const local_origin *from, const local_receiver *receiver, void *context);
/* Call the method. params (an object) is taken over. */
void local_request_begin(local_request *r, const char *method, json_t *params);
/* Cancel it; `end` follows, perhaps before this function returns. */
void local_request_cancel(local_request *r);

#endif
