#include "proto/error_body.h"

#include <stdlib.h>
#include <string.h>

/* A JSON string of the text; bytes that are not UTF-8 become '?'. */
static json_t *repaired(const char *text)
{
	json_t *string = json_string(text);
	if (string)
		return string;
	char *copy = strdup(text);
	for (char *c = copy; c && *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	string = copy ? json_string(copy) : NULL;
	free(copy);
	return string;
}

static const char *type_of(int status)
{
	if (status == 401)
		return "authentication_error";
	if (status == 429)
		return "rate_limit_error";
	return status < 500 ? "invalid_request_error" : "server_error";
}

json_t *error_body(int status, const char *code, const char *param, const char *message)
{
	return json_pack("{s:{s:o, s:s, s:o, s:o}}", "error", "message", repaired(message), "type", type_of(status),
	                 "param", param && param[0] ? repaired(param) : json_null(), "code", repaired(code));
}
