/* cors.h - let pages of other origins read answers (CORS, as in the Fetch standard): those given with --allow-host.
 *
 * Before a browser sends a request with JSON or a key, it asks with OPTIONS, without a key (a preflight). Every answer
 * to an origin on the list, also an error or a stream, carries the header, with keys or without. Answers to other
 * origins carry none, so the browser hides them from the page. */
#ifndef SERVER_CORS_H
#define SERVER_CORS_H

#include "server/request.h"

enum { CORS_HEADERS = 3 };

typedef struct cors_header {
	const char *name, *value;
} cors_header;

/* Fill out with the headers that an answer to this request carries, whatever its status; return their number. The
 * values live as long as the request. */
int cors_headers(const request *r, cors_header out[CORS_HEADERS]);
/* True if a browser asks whether it may send a request. */
bool cors_is_preflight(const request *r, const char *method);
/* True if the request's Origin is on the list. */
bool cors_allows(const request *r);
/* Answer a preflight of an origin on the list. */
void cors_reply_preflight(request *r);

#endif
