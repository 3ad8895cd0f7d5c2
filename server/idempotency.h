/* idempotency.h - the Idempotency-Key header. A client whose answer was lost repeats its request with the same key. The
 * engine remembers keys and answers, and does the work once.
 *
 * Only rows marked `idempotent` look at the header; on others it is ignored. */
#ifndef SERVER_IDEMPOTENCY_H
#define SERVER_IDEMPOTENCY_H

#include "server/request.h"

/* False, answered with 400, if the row uses keys and the header is not a valid one: 1 to 255 printable ASCII
 * characters, once. */
bool idempotency_check(request *r);
/* The key of a checked request, or NULL when there is none or the row ignores it. */
const char *idempotency_key(const request *r);

#endif
