#include "server/log.h"

#include <stdarg.h>
#include <stdio.h>

static bool log_json; /* set at start, only read afterwards */

void log_use_json(void)
{
	log_json = true;
}

static void log_write(log_level level, log_record r, const char *format, va_list args)
{
	static const char *const names[] = {"info", "warn", "error"};
	char message[1024];
	vsnprintf(message, sizeof message, format, args);
	r.level = names[level];
	r.program = "additive-httpd";
	r.message = message;
	log_record_write(&r, log_json);
}

void log_line(log_level level, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	log_write(level, (log_record){0}, format, args);
	va_end(args);
}

void log_request(const char *request_id, const log_member *members, int n_members, const char *format, ...)
{
	const log_record r = {.request_id = request_id, .members = members, .n_members = n_members};
	va_list args;
	va_start(args, format);
	log_write(LOG_INFO, r, format, args);
	va_end(args);
}
