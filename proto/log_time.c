#include "proto/log_time.h"

#include <time.h>

void log_time(char out[LOG_TIME_BYTES])
{
	time_t now = time(NULL);
	struct tm utc;
	gmtime_r(&now, &utc);
	if (strftime(out, LOG_TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
		out[0] = '\0';
}
