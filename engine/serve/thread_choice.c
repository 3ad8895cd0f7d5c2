#include "engine/serve/thread_choice.h"

#include <string.h>

/* A trial is under way: its even steps try the number that is not in use. */
static bool trying(const thread_choice *c)
{
	return c->warm && c->wait_ns == 0;
}

bool thread_choice_all(const thread_choice *c)
{
	return trying(c) && c->trial % 2 == 0 ? !c->all : c->all;
}

static double median(const double *times)
{
	double sorted[THREAD_CHOICE_PAIRS];
	memcpy(sorted, times, sizeof sorted);
	for (int i = 1; i < THREAD_CHOICE_PAIRS; i++)
		for (int j = i; j > 0 && sorted[j] < sorted[j - 1]; j--) {
			double larger = sorted[j - 1];
			sorted[j - 1] = sorted[j];
			sorted[j] = larger;
		}
	return sorted[THREAD_CHOICE_PAIRS / 2];
}

/* The wait goes by the median too: a process that was stopped for an hour does not wait for a hundred. */
static void decide(thread_choice *c, int64_t work)
{
	double tried = median(c->tried), used = median(c->used);
	c->all = c->all ? tried >= used * THREAD_CHOICE_GAIN_KEPT : used >= tried * THREAD_CHOICE_GAIN;
	c->wait_ns = 1 + (uint64_t)(tried * (double)work * THREAD_CHOICE_PAIRS * THREAD_CHOICE_SHARE);
	c->trial = 0;
}

void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work)
{
	if (!trying(c)) {
		c->warm = true;
		c->wait_ns -= ns < c->wait_ns ? ns : c->wait_ns;
		return;
	}
	(c->trial % 2 == 0 ? c->tried : c->used)[c->trial / 2] = (double)ns / (double)work;
	if (++c->trial == 2 * THREAD_CHOICE_PAIRS)
		decide(c, work);
}
