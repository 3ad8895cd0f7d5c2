/* parts.c - backend.side_by_side (host.h).
 *
 * The threads are OpenMP's, but their cores are not left to the system alone. When one thread wakes another, Linux may
 * put it on the waker's core, to keep caches warm or to let another core sleep (usual in a virtual machine). Two parts
 * that take half a millisecond then run one after the other, long before the load is balanced. So the caller stays
 * on its core until the parts are done. A thread that finds itself on the core of another thread of the team moves to a
 * free one, where it also wakes up the next time. With 2 cores and 64 rows a step, d 128 and 6 layers, that gives 1.5
 * times the tokens per second. */
#include "engine/cpu/host.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/cpu/kernels/kernels.h"

enum { NOT_YET = -1 };

typedef struct team {
	cpu_set_t allowed; /* empty: threads stay where they are */
	int caller;        /* its core, and those of the other threads in the order of their arrival: */
	_Atomic int arrived, cores[CPU_MAX_THREADS];
	_Atomic int next; /* part */
	int n;
	status (*part)(void *context, int i);
	void *context;
	_Atomic int failure; /* a status */
} team;

static void keep_caller(team *t)
{
	cpu_set_t here;
	t->caller = sched_getcpu();
	if (sched_getaffinity(0, sizeof t->allowed, &t->allowed) != 0 || CPU_COUNT(&t->allowed) < 2 || t->caller < 0)
		CPU_ZERO(&t->allowed);
	if (CPU_COUNT(&t->allowed) == 0)
		return;
	CPU_ZERO(&here);
	CPU_SET(t->caller, &here);
	sched_setaffinity(0, sizeof here, &here);
}

static void release_caller(const team *t)
{
	if (CPU_COUNT(&t->allowed) > 0)
		sched_setaffinity(0, sizeof t->allowed, &t->allowed);
}

/* Move the calling thread to a core that no earlier thread has, if there is one. */
static void move_apart(team *t)
{
	int before = t->arrived++;
	cpu_set_t free = t->allowed;
	CPU_CLR(t->caller, &free);
	for (int i = 0; i < before; i++)
		if (t->cores[i] != NOT_YET)
			CPU_CLR(t->cores[i], &free);
	if (CPU_COUNT(&free) > 0 && !CPU_ISSET(sched_getcpu(), &free))
		sched_setaffinity(0, sizeof free, &free);
	t->cores[before] = sched_getcpu();
}

static void take_parts(team *t)
{
	for (int i = t->next++; i < t->n; i = t->next++) {
		status s = t->part(t->context, i);
		if (s != STATUS_OK)
			t->failure = s;
	}
}

status parts_run(backend *b, int n, status (*part)(void *context, int i), void *context)
{
	cpu *c = (cpu *)b;
	int threads = c->threads < n ? c->threads : n, sharing = c->sharing;
	team t = {.n = n, .part = part, .context = context, .failure = STATUS_OK};
	for (int i = 0; i < threads; i++)
		t.cores[i] = NOT_YET;
	c->sharing = 1;
	keep_caller(&t);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		if (thread > 0)
			move_apart(&t);
		take_parts(&t);
	}
	release_caller(&t);
	c->sharing = sharing;
	return (status)t.failure;
}
