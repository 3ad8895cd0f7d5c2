/* call_headers.h - headers that say how the engine treats a request: its time, and the tenant that it is for.
 *
 * X-Request-Timeout: seconds, from any client; ignored by routes that are not `timed`. x-llm-d-inference-fairness-id,
 * or x-gateway-inference-fairness-id: a tenant, from a trusted proxy. The header of another peer is ignored, since it
 * would get a share of its own. */
#ifndef SERVER_CALL_HEADERS_H
#define SERVER_CALL_HEADERS_H

#include "server/request.h"

/* False: a header is malformed, and the request has been answered with 400. */
bool call_headers_check(request *r);
/* Return the seconds that the request allows; 0: no limit. */
double call_headers_timeout(const request *r);
/* Return the tenant, a valid id that needs no escapes in JSON; NULL: none. */
const char *call_headers_fairness_id(const request *r);

#endif
