#include "engine/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Written before any thread starts and only read afterwards. */
static const char *log_program = "additive";
static log_level log_threshold = LOG_INFO;

void log_init(const char *program, log_level threshold)
{
	log_program = program;
	log_threshold = threshold;
}

void log_line(log_level level, const char *format, ...)
{
	static const char *const names[] = {"debug", "info", "warn", "error"};
	if (level < log_threshold)
		return;
	char line[1024];
	time_t now = time(NULL);
	struct tm utc;
	gmtime_r(&now, &utc);
	size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%SZ", &utc);
	used += (size_t)snprintf(line + used, sizeof line - used, " %s %s: ", names[level], log_program);
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line + used, sizeof line - used - 1, format, args);
	va_end(args);
	if (n > 0)
		used += (size_t)n < sizeof line - used - 1 ? (size_t)n : sizeof line - used - 2;
	line[used++] = '\n';
	ssize_t written = write(STDERR_FILENO, line, used);
	(void)written; /* a log line that cannot be written has nowhere to go */
}
