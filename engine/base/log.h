/* log.h - one line per event on standard error, for a supervisor to collect.
 *
 *   2026-01-31T12:00:00Z info additived: listening on /run/additive.sock
 *   2026-01-31T12:00:00Z error additived: request 5f3a: the stored state is missing
 *
 * Thread-safe: a line is written with a single write(2). */
#ifndef ENGINE_BASE_LOG_H
#define ENGINE_BASE_LOG_H

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NOTHING } log_level;

/* Writes one line in another form. request_id: NULL or "": the line is not about a request. Any thread. */
typedef void log_writer(const char *level, const char *program, const char *request_id, const char *message);

/* Set once at start, before threads: program name (not copied) and threshold. */
void log_init(const char *program, log_level threshold);
/* Replace the form above. Set before threads; NULL: that form. */
void log_set_writer(log_writer *writer);
void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Write a line about the request with this id; "": none. */
void log_request(log_level level, const char *request_id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
