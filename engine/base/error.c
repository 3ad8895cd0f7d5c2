#include "engine/base/error.h"

#include <stdio.h>
#include <string.h>

status error_set(error *err, status s, const char *param, const char *format, ...)
{
	if (!err || err->status != STATUS_OK)
		return s;
	err->status = s;
	snprintf(err->param, sizeof err->param, "%s", param ? param : "");
	va_list args;
	va_start(args, format);
	vsnprintf(err->message, sizeof err->message, format, args);
	va_end(args);
	return s;
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
	return err->message[0] ? err->message : status_text(err->status);
}
