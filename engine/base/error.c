#include "engine/base/error.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

status error_set_list(error *err, status s, const char *param, const char *format, va_list arguments)
{
	if (!err || s == STATUS_OK || err->status != STATUS_OK)
		return s;
	err->status = s;
	snprintf(err->param, sizeof err->param, "%s", param ? param : "");
	vsnprintf(err->message, sizeof err->message, format, arguments);
	utf8_repair(err->param);
	utf8_repair(err->message);
	return s;
}

status error_set(error *err, status s, const char *param, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	error_set_list(err, s, param, format, arguments);
	va_end(arguments);
	return s;
}

status error_settle(error *err, status s)
{
	return s == STATUS_OK ? s : error_set(err, s, NULL, "%s", status_text(s));
}

status error_no_memory(error *err, const char *purpose)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory for %s", purpose);
}

void error_prefix(error *err, const char *prefix)
{
	if (!err || err->status == STATUS_OK || !err->param[0])
		return;
	char joined[sizeof err->param];
	int n = snprintf(joined, sizeof joined, "%s.%s", prefix, err->param);
	if (n > 0 && (size_t)n < sizeof joined)
		memcpy(err->param, joined, (size_t)n + 1);
}

const char *error_message(const error *err)
{
	status s = err->status == STATUS_OK ? STATUS_INTERNAL : err->status;
	return err->message[0] ? err->message : status_text(s);
}
