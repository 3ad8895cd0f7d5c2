/* log.h - one line per event on standard error, for a supervisor to collect.
 *
 *   2026-01-31T12:00:00Z info additived: listening on /run/additive.sock
 *
 * Thread-safe: a line is written with a single write(2). */
#ifndef ENGINE_BASE_LOG_H
#define ENGINE_BASE_LOG_H

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NOTHING } log_level;

/* Set once at start, before threads: program name (not copied) and threshold. */
void log_init(const char *program, log_level threshold);
void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
