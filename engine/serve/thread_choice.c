#include "engine/serve/thread_choice.h"

thread_choice thread_choice_initial(bool parts, bool in_parts)
{
	return (thread_choice){.parts = parts, .way = parts && in_parts ? THREADS_PARTS : THREADS_ONE};
}

/* Return the way that the next trial compares with the current one; the others take turns. */
static thread_way other_way(const thread_choice *c)
{
	thread_way next = c->compared;
	do
		next = next == THREADS_ONE ? THREADS_PARTS : next - 1;
	while (next == c->way || (next == THREADS_PARTS && !c->parts));
	return next;
}

/* True while a trial runs. Its even blocks use the other way. */
static bool trying(const thread_choice *c)
{
	return c->warm[c->way] && c->wait_ns == 0;
}

thread_way thread_choice_way(const thread_choice *c)
{
	return trying(c) && c->blocks % 2 == 0 ? other_way(c) : c->way;
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

static const double
    gains[THREAD_WAYS] = {[THREADS_LOOPS] = THREAD_CHOICE_GAIN_LOOPS, [THREADS_PARTS] = THREAD_CHOICE_GAIN_PARTS},
    gains_kept[THREAD_WAYS] = {[THREADS_LOOPS] = THREAD_CHOICE_KEPT_LOOPS, [THREADS_PARTS] = THREAD_CHOICE_KEPT_PARTS};

/* True if the way that was tried is better. The times are sorted. */
static bool is_better(const thread_choice *c, thread_way tried, int pairs)
{
	const int median = (pairs - 1) / 2, slow = pairs == THREAD_CHOICE_PAIRS ? pairs - 2 : pairs - 1;
	if (c->way == THREADS_ONE)
		return c->used[median] >= c->tried[slow] * gains[tried];
	if (tried == THREADS_ONE)
		return c->tried[median] < c->used[median] * gains_kept[c->way];
	return c->used[median] >= c->tried[median] * THREAD_CHOICE_GAIN_WAY;
}

static void decide(thread_choice *c, int pairs)
{
	thread_way tried = other_way(c);
	sort(c->tried, pairs);
	sort(c->used, pairs);
	bool better = is_better(c, tried, pairs);
	c->compared = better ? c->way : tried;
	if (better)
		c->way = tried;
	bool early = better || c->share == 0;
	c->share = early                                ? THREAD_CHOICE_FIRST_SHARE
	           : 2 * c->share < THREAD_CHOICE_SHARE ? 2 * c->share
	                                                : THREAD_CHOICE_SHARE;
	double wait = (double)c->tried_ns * c->share;
	c->wait_ns = wait < THREAD_CHOICE_MAX_WAIT_NS ? 1 + (uint64_t)wait : THREAD_CHOICE_MAX_WAIT_NS;
	if (!c->warm[THREADS_ONE] || !c->warm[THREADS_LOOPS] || (c->parts && !c->warm[THREADS_PARTS]))
		c->wait_ns = 0;
	c->blocks = 0;
	c->trial_ns = c->tried_ns = 0;
}

static void end_block(thread_choice *c)
{
	int pair = c->blocks / 2;
	bool second = c->blocks++ % 2 == 1;
	(second ? c->used : c->tried)[pair] = (double)c->block_ns / (double)c->block_work;
	c->in_block = false;
	c->block_ns = 0;
	c->block_work = 0;
	if (second && (pair + 1 == THREAD_CHOICE_PAIRS || c->trial_ns >= THREAD_CHOICE_TRIAL_NS))
		decide(c, pair + 1);
}

void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work)
{
	thread_way way = thread_choice_way(c);
	bool first = !c->in_block && ns < THREAD_CHOICE_BLOCK_NS;
	if (!c->warm[way]) {
		c->warm[way] = true;
		return;
	}
	if (!trying(c)) {
		c->wait_ns -= ns < c->wait_ns ? ns : c->wait_ns;
		return;
	}
	c->trial_ns += ns;
	c->tried_ns += c->blocks % 2 == 0 ? ns : 0;
	c->in_block = true;
	if (first)
		return;
	c->block_ns += ns;
	c->block_work += work;
	if (c->block_ns >= THREAD_CHOICE_BLOCK_NS)
		end_block(c);
}
