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

/* Of n times; of two, the smaller. */
static double median(const double *times, int n)
{
	double sorted[THREAD_CHOICE_PAIRS];
	for (int i = 0; i < n; i++) {
		int at = i;
		for (; at > 0 && times[i] < sorted[at - 1]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = times[i];
	}
	return sorted[(n - 1) / 2];
}

static void decide(thread_choice *c, int pairs, int64_t work)
{
	double tried = median(c->tried, pairs), used = median(c->used, pairs);
	double wait = tried * (double)work * pairs * THREAD_CHOICE_SHARE;
	c->all = c->all ? tried >= used * THREAD_CHOICE_GAIN_KEPT : used >= tried * THREAD_CHOICE_GAIN;
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
