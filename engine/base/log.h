/* log.h - one line per event on standard error, for a supervisor to collect, as text or JSON (proto/log_record.h).
 *
 *   2026-01-31T12:00:00Z error additived: request 5f3a: the stored state is missing
 *
 * Any thread. */
#ifndef ENGINE_BASE_LOG_H
#define ENGINE_BASE_LOG_H

#include <stdbool.h>

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NOTHING } log_level;

/* Set once at start, before threads: program name (not copied) and threshold. */
void log_init(const char *program, log_level threshold);
/* Choose the form. Set before threads; initially text. */
void log_use_json(bool json);
void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Write a line about the request with this id; "": none. */
void log_request(log_level level, const char *request_id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
