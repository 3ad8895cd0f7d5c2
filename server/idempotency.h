/* idempotency.h - the Idempotency-Key header: a client whose answer was lost repeats its request with the same key, and
 * the engine, which remembers keys and answers, does the work once.
 *
 * Only rows marked `idempotent` look at the header; on others it is ignored. */
#ifndef SERVER_IDEMPOTENCY_H
#define SERVER_IDEMPOTENCY_H

#include "server/request.h"

/* False, refused with 400, when the row wants a key and the header holds none that is valid: 1 to 255 printable ASCII
 * characters, once. */
bool idempotency_check(request *r);
/* The key of a checked request, or NULL when there is none or the row ignores it. */
const char *idempotency_key(const request *r);

#endif
