/* rate_limit.h - a token bucket of one minute's units, refilled continuously.
 *
 * It is full at first, and in memory only. Times are monotonic nanoseconds. */
#ifndef ENGINE_DAEMON_KEYS_RATE_LIMIT_H
#define ENGINE_DAEMON_KEYS_RATE_LIMIT_H

#include <stdint.h>

typedef struct rate_limit {
	int64_t per_minute; /* 0: no limit */
	double level;       /* units that may be taken; negative after a correction */
	uint64_t at_ns;     /* when `level` was right */
} rate_limit;

/* Set the limit. What has been taken stays taken. */
void rate_limit_set(rate_limit *r, int64_t per_minute, uint64_t now_ns);
/* Take n units, n <= per_minute, and return 0, or take none and return the seconds until there are n. */
double rate_limit_take(rate_limit *r, int64_t n, uint64_t now_ns);
/* Correct the level: give n units back, or with n < 0 take -n without asking. */
void rate_limit_correct(rate_limit *r, int64_t n, uint64_t now_ns);
/* Whole units that may be taken now. */
int64_t rate_limit_remaining(rate_limit *r, uint64_t now_ns);
/* Seconds until it is full. */
double rate_limit_reset(rate_limit *r, uint64_t now_ns);

#endif
