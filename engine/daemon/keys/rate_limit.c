#include "engine/daemon/keys/rate_limit.h"

enum { MINUTE = 60 };

static void refill(rate_limit *r, uint64_t now_ns)
{
	const double seconds = (double)(now_ns - r->at_ns) / 1e9, full = (double)r->per_minute;
	r->level += full * seconds / MINUTE;
	r->level = r->level < full ? r->level : full;
	r->at_ns = now_ns;
}

void rate_limit_set(rate_limit *r, int64_t per_minute, uint64_t now_ns)
{
	refill(r, now_ns);
	r->level += (double)(per_minute - r->per_minute);
	r->per_minute = per_minute;
}

static double seconds_for(const rate_limit *r, double units)
{
	return units > 0 ? units * MINUTE / (double)r->per_minute : 0;
}

double rate_limit_take(rate_limit *r, int64_t n, uint64_t now_ns)
{
	if (r->per_minute == 0)
		return 0;
	refill(r, now_ns);
	if (r->level < (double)n)
		return seconds_for(r, (double)n - r->level);
	r->level -= (double)n;
	return 0;
}

void rate_limit_correct(rate_limit *r, int64_t n, uint64_t now_ns)
{
	if (r->per_minute == 0)
		return;
	refill(r, now_ns);
	r->level += (double)n;
}

int64_t rate_limit_remaining(rate_limit *r, uint64_t now_ns)
{
	refill(r, now_ns);
	return r->level > 0 ? (int64_t)r->level : 0;
}

double rate_limit_reset(rate_limit *r, uint64_t now_ns)
{
	refill(r, now_ns);
	return seconds_for(r, (double)r->per_minute - r->level);
}
