/* libmicrohttpd hands out a header's value without the blanks around it. */
#include "server/idempotency.h"

#include <string.h>
#include <strings.h>

enum { IDEMPOTENCY_KEY_MAX = 255 };

static const char idempotency_header[] = "Idempotency-Key";

static enum MHD_Result idempotency_count(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
	(void)kind;
	(void)value;
	*(int *)context += strcasecmp(name, idempotency_header) == 0;
	return MHD_YES;
}

const char *idempotency_key(const request *r)
{
	return r->route && r->route->idempotent ? request_header_value(r, idempotency_header) : NULL;
}

bool idempotency_check(request *r)
{
	const char *key = idempotency_key(r);
	if (!key)
		return true;
	int times = 0;
	MHD_get_connection_values(r->connection, MHD_HEADER_KIND, idempotency_count, &times);
	size_t bytes = strlen(key);
	bool printable = true;
	for (size_t i = 0; i < bytes; i++)
		printable &= key[i] >= ' ' && key[i] <= '~';
	if (times == 1 && bytes >= 1 && bytes <= IDEMPOTENCY_KEY_MAX && printable)
		return true;
	reply_refuse(r, 400, "invalid_value", idempotency_header,
	             "Idempotency-Key must be one header of 1 to %d printable ASCII characters", IDEMPOTENCY_KEY_MAX);
	return false;
}
