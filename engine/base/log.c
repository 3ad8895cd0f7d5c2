#include "engine/base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "proto/log_record.h"

/* Written before any thread starts and only read afterwards. */
static const char *log_program = "additive";
static log_level log_threshold = LOG_INFO;
static bool log_json;

void log_init(const char *program, log_level threshold)
{
	log_program = program;
	log_threshold = threshold;
}

void log_use_json(bool json)
{
	log_json = json;
}

static void log_format(log_level level, const char *request_id, const char *format, va_list args)
{
	static const char *const names[] = {"debug", "info", "warn", "error"};
	char message[1024];
	int used = 0;
	if (level < log_threshold)
		return;
	if (!log_json && request_id && request_id[0])
		used = snprintf(message, sizeof message, "request %.128s: ", request_id);
	vsnprintf(message + used, sizeof message - (size_t)used, format, args);
	log_record_write(
	    &(log_record){.level = names[level], .program = log_program, .request_id = request_id, .message = message},
	    log_json);
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
