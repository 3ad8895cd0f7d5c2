#include "engine/base/workers.h"

#include <sched.h>
#include <stdatomic.h>

int workers_threads(int requested)
{
	cpu_set_t set;
	const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
	requested = requested > 0 ? requested : cores;
	return requested < WORKERS_MAX + 1 ? requested : WORKERS_MAX + 1;
}

void workers_start(workers *w, int n, void *(*work)(void *context), void *context)
{
	w->count = 0;
	while (w->count < n && w->count < WORKERS_MAX &&
	       pthread_create(&w->threads[w->count], NULL, work, context) == 0)
		w->count++;
}

void workers_join(workers *w)
{
	while (w->count > 0)
		pthread_join(w->threads[--w->count], NULL);
}

typedef struct division {
	_Atomic int64_t next;
	int64_t n;
	void (*part)(void *context, int64_t i);
	void *context;
} division;

static void *run_division(void *context)
{
	division *d = context;
	for (int64_t i = d->next++; i < d->n; i = d->next++)
		d->part(d->context, i);
	return NULL;
}

void workers_divide(int threads, int64_t n, void (*part)(void *context, int64_t i), void *context)
{
	division d = {.n = n, .part = part, .context = context};
	workers helpers;
	workers_start(&helpers, (int)(threads < n ? threads : n) - 1, run_division, &d);
	run_division(&d);
	workers_join(&helpers);
}
