#include "engine/serve/thread_choice.h"

/* A trial is under way: its even steps try the number that is not in use. */
static bool trying(const thread_choice *c)
{
	return c->warm && c->wait_ns == 0;
}

bool thread_choice_all(const thread_choice *c)
{
	return trying(c) && c->trial % 2 == 0 ? !c->all : c->all;
}

static void sort(double *times, int n)
{
	for (int i = 1; i < n; i++)
		for (int j = i; j > 0 && times[j] < times[j - 1]; j--) {
			double larger = times[j - 1];
			times[j - 1] = times[j];
			times[j] = larger;
		}
}

static void decide(thread_choice *c, int pairs, int64_t work)
{
	const int median = (pairs - 1) / 2;
	sort(c->tried, pairs);
	sort(c->used, pairs);
	double wait = c->tried[median] * (double)work * pairs;
	if (c->all) {
		c->all = c->tried[median] >= c->used[median] * THREAD_CHOICE_GAIN_KEPT;
		c->share = c->all && 2 * c->share < THREAD_CHOICE_SHARE ? 2 * c->share : THREAD_CHOICE_SHARE;
	} else {
		c->all = c->used[median] >= c->tried[pairs - 1] * THREAD_CHOICE_GAIN;
		c->share = c->all ? THREAD_CHOICE_FIRST_SHARE : THREAD_CHOICE_SHARE;
	}
	wait *= c->share;
	c->wait_ns = wait < THREAD_CHOICE_MAX_WAIT_NS ? 1 + (uint64_t)wait : THREAD_CHOICE_MAX_WAIT_NS;
	c->trial = 0;
	c->trial_ns = 0;
}

void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work)
{
	if (!trying(c)) {
		c->warm = true;
		c->wait_ns -= ns < c->wait_ns ? ns : c->wait_ns;
		return;
	}
	int pair = c->trial / 2;
	bool second = c->trial++ % 2 == 1;
	(second ? c->used : c->tried)[pair] = (double)ns / (double)work;
	c->trial_ns += ns;
	if (second && (pair + 1 == THREAD_CHOICE_PAIRS || c->trial_ns >= THREAD_CHOICE_TRIAL_NS))
		decide(c, pair + 1, work);
}
