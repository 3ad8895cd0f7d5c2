/* json_body.h - the JSON of a request, or an error in the API's words. Any thread. */
#ifndef SERVER_JSON_BODY_H
#define SERVER_JSON_BODY_H

#include <jansson.h>

#include "proto/schema.h"
#include "server/buffer.h"
#include "server/problem.h"

/* A body of JSON_BODY_LARGE bytes or more is read on the thread pool (large_body.h). Its members of more than
 * JSON_BODY_MEMBER bytes remain text; the front end itself needs none of them. */
enum { JSON_BODY_LARGE = 64 << 10, JSON_BODY_MEMBER = 16 << 10 };

typedef struct json_body {
	json_t *json;    /* NULL: see `problem` */
	buffer members;  /* members of a large body that are not in `json`, ,"NAME":VALUE for each */
	problem problem; /* the error, if json is NULL */
} json_body;

/* Parse and check against a schema (NULL: none). */
void json_body_read(json_body *out, char *text, size_t bytes, const schema *expected);
void json_body_fini(json_body *b);
/* Append members that are text (json_body.members) to the object that is the last member of the object in `text`.
 * `text` is compact, malloc'ed and taken over. Returns malloc'ed text; NULL when out of memory. */
char *json_body_join(char *text, const buffer *members);

#endif
