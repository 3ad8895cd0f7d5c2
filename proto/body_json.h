/* body_json.h - the JSON of a request's body, as the HTTP API reads it. No state. */
#ifndef PROTO_BODY_JSON_H
#define PROTO_BODY_JSON_H

#include <jansson.h>
#include <stddef.h>

/* Parse a text, which is a request or (holder) has one as this member. Integers become integers in every notation (1,
 * 1.0, 1e0), but not in the request's `tools`: the model reads these as text, and has been trained with 1.0 as it is.
 * NULL, with *where set: the text is not valid JSON, or memory ran out (json_memory_failed). The text may be changed.
 */
json_t *body_json_parse(char *text, size_t bytes, const char *holder, json_error_t *where);

#endif
