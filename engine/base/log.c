#include "engine/base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void log_write_text(const char *level, const char *program, const char *request_id, const char *message);

/* Written before any thread starts and only read afterwards. */
static const char *log_program = "additive";
static log_level log_threshold = LOG_INFO;
static log_writer *log_write = log_write_text;

void log_init(const char *program, log_level threshold)
{
	log_program = program;
	log_threshold = threshold;
}

void log_set_writer(log_writer *writer)
{
	log_write = writer ? writer : log_write_text;
}

static void log_write_text(const char *level, const char *program, const char *request_id, const char *message)
{
	char line[1024];
	const bool request = request_id && request_id[0];
	time_t now = time(NULL);
	struct tm utc;
	gmtime_r(&now, &utc);
	size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%SZ", &utc);
	const size_t room = sizeof line - used - 1; /* for the text and its NUL; the newline replaces the NUL */
	int n = snprintf(line + used, room, " %s %s: %s%s%s%s", level, program, request ? "request " : "",
	                 request ? request_id : "", request ? ": " : "", message);
	if (n > 0)
		used += (size_t)n < room ? (size_t)n : room - 1;
	line[used++] = '\n';
	ssize_t written = write(STDERR_FILENO, line, used);
	(void)written; /* a log line that cannot be written has nowhere to go */
}

static void log_format(log_level level, const char *request_id, const char *format, va_list args)
{
	static const char *const names[] = {"debug", "info", "warn", "error"};
	char message[1024];
	if (level < log_threshold)
		return;
	vsnprintf(message, sizeof message, format, args);
	log_write(names[level], log_program, request_id, message);
}

void log_line(log_level level, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	log_format(level, NULL, format, args);
	va_end(args);
}

void log_request(log_level level, const char *request_id, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	log_format(level, request_id, format, args);
	va_end(args);
}
