/* query.h - the query parameters of an endpoint: only those that its row lists, each at most once and of its type. */
#ifndef SERVER_QUERY_H
#define SERVER_QUERY_H

#include "server/request.h"

/* Check the query. False: it is invalid, and the request is answered. */
bool query_check(request *r);
/* Add the parameters to an engine's params, in its types, except those that the handler reads itself. False when out of
 * memory. */
bool query_add(const request *r, json_t *params);

#endif
