/* log_time.h - the timestamp of a log line. */
#ifndef PROTO_LOG_TIME_H
#define PROTO_LOG_TIME_H

enum { LOG_TIME_BYTES = 32 };

/* Write the current time in UTC as ISO 8601 with its zone, "2026-01-31T12:00:00Z", as in the engine's log. */
void log_time(char out[LOG_TIME_BYTES]);

#endif
