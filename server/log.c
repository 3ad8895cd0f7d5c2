#include "server/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "proto/log_time.h"

void log_line(log_level level, const char *format, ...)
{
	static const char *const names[] = {"info", "warn", "error"};
	char time[LOG_TIME_BYTES], line[1024];
	log_time(time);
	int used = snprintf(line, sizeof line, "%s %s additive-httpd: ", time, names[level]);
	const size_t room = sizeof line - (size_t)used - 1; /* for the text and its NUL; the newline replaces the NUL */
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line + used, room, format, args);
	va_end(args);
	if (n > 0)
		used += (size_t)n < room ? n : (int)room - 1;
	line[used++] = '\n';
	ssize_t written = write(STDERR_FILENO, line, (size_t)used);
	(void)written; /* there is no other place to report it */
}
