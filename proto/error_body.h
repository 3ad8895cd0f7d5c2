/* error_body.h - an error as clients see it: {"error":{"message","type","param","code"}}.
 *
 * `type` follows from the status, as OpenAI's clients expect: 401 authentication_error, 429 rate_limit_error, other 4xx
 * invalid_request_error, 5xx server_error. No state. */
#ifndef PROTO_ERROR_BODY_H
#define PROTO_ERROR_BODY_H

#include <jansson.h>

/* Return the object (new reference); bytes that are not UTF-8 become '?'. param: NULL or "" is null. NULL: out of
 * memory. */
json_t *error_body(int status, const char *code, const char *param, const char *message);

#endif
