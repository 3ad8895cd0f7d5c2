/* log_time.h - the time at which a line of a program's log begins. */
#ifndef PROTO_LOG_TIME_H
#define PROTO_LOG_TIME_H

enum { LOG_TIME_BYTES = 32 };

/* The current time in UTC as ISO 8601 with its zone, "2026-01-31T12:00:00Z", as in the engine's log. */
void log_time(char out[LOG_TIME_BYTES]);

#endif
