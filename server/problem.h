/* problem.h - an error as clients see it (proto/error_body.h). Its texts are cut to fixed sizes. */
#ifndef SERVER_PROBLEM_H
#define SERVER_PROBLEM_H

#include <jansson.h>
#include <stdarg.h>

#include "proto/frame.h"
#include "proto/schema.h"
#include "server/buffer.h"

typedef struct problem {
	int status; /* 400 … 599 */
	char code[64];
	char param[128]; /* "": null */
	char message[512];
	int retry_after; /* seconds; 0: absent */
} problem;

__attribute__((format(printf, 4, 0))) problem problem_make(int status, const char *code, const char *param,
                                                           const char *format, va_list arguments);
/* Convert an error object of the engine, whatever it contains; and the one in an ERROR frame. */
problem problem_from_object(const json_t *error);
problem problem_from_frame(const frame *f);
problem problem_from_schema(const schema_error *e);
/* Append the JSON. */
void problem_write(const problem *p, buffer *out);

#endif
