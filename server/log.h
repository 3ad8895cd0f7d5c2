/* log.h - one line per event on standard error, in the form of the engine's log:
 *
 *    2026-01-31T12:00:00Z info additive-httpd: engine: connected
 *    2026-01-31T12:00:00Z info additive-httpd: 192.0.2.7 req-5f3a POST /v1/tokenize 200 0.003
 *
 * A line about a request begins with the client's address and the request's id. Each line is one write(2): lines of
 * several processes on one descriptor do not mix. */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

typedef enum log_level { LOG_INFO, LOG_WARN, LOG_ERROR } log_level;

void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
