#include "server/call_headers.h"

#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MAX = 86400, TIMEOUT_BYTES = 32, FAIRNESS_MAX = 63 };

static const char timeout_header[] = "X-Request-Timeout";

static bool timeout_is_valid(const char *text)
{
	const size_t bytes = strlen(text);
	char *end;
	const double seconds = strtod(text, &end);
	return bytes < TIMEOUT_BYTES && strspn(text, "0123456789.") == bytes && !*end && seconds > 0 &&
	       seconds <= TIMEOUT_MAX;
}

static bool fairness_id_is_valid(const char *text)
{
	const size_t bytes = strlen(text);
	bool plain = bytes >= 1 && bytes <= FAIRNESS_MAX;
	for (size_t i = 0; i < bytes && plain; i++)
		plain = text[i] > ' ' && text[i] <= '~' && text[i] != '"' && text[i] != '\\';
	return plain;
}

/* Return the header where it applies, valid or not. */
static const char *timeout_given(const request *r)
{
	return r->route && r->route->timed ? request_header_value(r, timeout_header) : NULL;
}

/* Return the id that a trusted proxy has given, valid or not. */
static const char *fairness_id_given(const request *r)
{
	const char *id = request_header_value(r, "x-llm-d-inference-fairness-id");
	id = id ? id : request_header_value(r, "x-gateway-inference-fairness-id");
	return id && http_peer_trusted(r->peer) ? id : NULL;
}

double call_headers_timeout(const request *r)
{
	const char *text = timeout_given(r);
	return text ? strtod(text, NULL) : 0;
}

/* The peer may have become trusted after call_headers_check, by a reload. */
const char *call_headers_fairness_id(const request *r)
{
	const char *id = fairness_id_given(r);
	return id && fairness_id_is_valid(id) ? id : NULL;
}

bool call_headers_check(request *r)
{
	const char *timeout = timeout_given(r), *id = fairness_id_given(r);
	if (timeout && !timeout_is_valid(timeout))
		reply_refuse(r, 400, "invalid_value", timeout_header,
		             "X-Request-Timeout must be a number of seconds above 0 and at most %d", TIMEOUT_MAX);
	else if (id && !fairness_id_is_valid(id))
		reply_refuse(r, 400, "invalid_value", "x-llm-d-inference-fairness-id",
		             "the fairness id must have 1 to %d visible ASCII characters, without \" and \\",
		             FAIRNESS_MAX);
	else
		return true;
	return false;
}
