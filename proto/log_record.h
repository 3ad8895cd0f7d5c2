/* log_record.h - one line of a log on standard error, as text or as a JSON object.
 *
 *    2026-01-31T12:00:00Z info additived: listening on /run/additive.sock
 *    {"time":"2026-01-31T12:00:00Z","level":"info","program":"additived","message":"listening on /run/additive.sock"}
 *
 * A line is one write(2) of at most LOG_RECORD_BYTES, so lines of several processes on one descriptor do not mix. A
 * longer message is cut. Bytes that are not UTF-8 become "?" in JSON. Any thread; allocates nothing. */
#ifndef PROTO_LOG_RECORD_H
#define PROTO_LOG_RECORD_H

#include <stdbool.h>
#include <stddef.h>

enum { LOG_RECORD_BYTES = 4096, LOG_RECORD_MEMBERS = 8 };

/* A further member of the JSON object. */
typedef struct log_member {
	const char *name; /* needs no escapes; at most 16 bytes */
	const char *text; /* NULL: the value is `number` */
	double number;
} log_member;

typedef struct log_record {
	const char *level, *program;
	const char *message;
	/* JSON only: */
	const char *request_id;    /* NULL or "": none */
	const log_member *members; /* [n_members], at most LOG_RECORD_MEMBERS */
	int n_members;
} log_record;

/* Format the line with its line feed and return its size. */
size_t log_record_format(const log_record *r, bool json, char line[LOG_RECORD_BYTES]);
void log_record_write(const log_record *r, bool json);

#endif
