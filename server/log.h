/* log.h - one line per event on standard error, in the form of the engine's log (proto/log_record.h):
 *
 *    2026-01-31T12:00:00Z info additive-httpd: engine: connected
 *    2026-01-31T12:00:00Z info additive-httpd: 192.0.2.7 req-5f3a POST /v1/tokenize 200 0.003
 *
 * A line about a request begins with the client's address and the request's id. */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include "proto/log_record.h"

typedef enum log_level { LOG_INFO, LOG_WARN, LOG_ERROR } log_level;

/* Write JSON from now on. Set once, at start. */
void log_use_json(void);
void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Write a line about a request; in JSON with its id and these members. */
void log_request(const char *request_id, const log_member *members, int n_members, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
