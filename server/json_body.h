/* json_body.h - the JSON of a request, or what is wrong with it in the API's words. */
#ifndef SERVER_JSON_BODY_H
#define SERVER_JSON_BODY_H

#include <jansson.h>

#include "server/problem.h"

/* The object that the text holds, whose integers are integers however they were written (1, 1.0, 1e0); NULL, with *out
 * set, when it holds none or memory ran out. The text may be changed.
 */
json_t *json_body_parse(char *text, size_t bytes, problem *out);

#endif
