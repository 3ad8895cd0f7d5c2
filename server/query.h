/* query.h - the query parameters of an endpoint: only those its row names, each once, each of its type. */
#ifndef SERVER_QUERY_H
#define SERVER_QUERY_H

#include "server/request.h"

/* False, refused, when something is wrong with the query. */
bool query_check(request *r);
/* Add the parameters to an engine's params, as its types, but not those that the handler reads itself. False
 * when out of memory. */
bool query_add(const request *r, json_t *params);

#endif
