/* kept.h - generations that the engine keeps under an id (PROTOCOL.md, Responses): what the three forms share.
 *
 * The engine sends the first EVENT about a response, then its events from the first one on, and a RESULT with its
 * status. The chunks of a form depend on nothing else, so any front end makes the same ones again. To continue after
 * chunk N it makes all of them and omits the first N. */
#ifndef SERVER_KEPT_H
#define SERVER_KEPT_H

#include "server/request.h"

/* Form of the answer to a request for a kept generation. */
typedef struct kept_view {
	bool stream;
	bool resumes;   /* `after` was given */
	uint64_t after; /* the number of the last event that the client has */
} kept_view;

/* Add the member that makes a request a response; with the id NULL it only names the key. about is taken over.
 * False: out of memory, which has been answered. */
bool kept_add(request *r, json_t *params, const char *id, json_t *about, bool background, bool stream);
/* Add the header Content-Location; call before the stream begins. */
void kept_name(request *r, const char *id);
/* Read a view from the query and the header Last-Event-ID. False: the request has been answered. */
bool kept_read(request *r, kept_view *view);
/* Params of a method on the id in the path, whose prefix must be that of the row's form. NULL: the request has been
 * answered. */
json_t *kept_params(request *r, bool follow);

#endif
