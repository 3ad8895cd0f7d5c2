/* json_body.h - the JSON of a request, or what is wrong with it in the API's words. Any thread. */
#ifndef SERVER_JSON_BODY_H
#define SERVER_JSON_BODY_H

#include <jansson.h>

#include "proto/schema.h"
#include "server/buffer.h"
#include "server/problem.h"

/* From JSON_BODY_LARGE bytes on a body is large: it is read on the thread pool (large_body.h), and its members of more
 * than JSON_BODY_MEMBER bytes, of which the front end itself needs none, remain text. */
enum { JSON_BODY_LARGE = 64 << 10, JSON_BODY_MEMBER = 16 << 10 };

typedef struct json_body {
	json_t *json;    /* NULL: there is a problem */
	buffer members;  /* of a large body, the members that are not in `json`: ,"NAME":VALUE for each */
	problem problem; /* json NULL: what is wrong */
} json_body;

/* The object that the text holds, whose integers are integers however they were written (1, 1.0, 1e0); NULL, with *out
 * set, when it holds none or memory ran out. The text may be changed.
 */
json_t *json_body_parse(char *text, size_t bytes, problem *out);

/* The same, checked against a schema (NULL: none). */
void json_body_read(json_body *out, char *text, size_t bytes, const schema *expected);
void json_body_fini(json_body *b);
/* Put members that are text (json_body.members) behind those of the object that is the last member of the object in
 * `text`, which is compact, from malloc, and taken over. From malloc; NULL when out of memory. */
char *json_body_join(char *text, const buffer *members);

#endif
