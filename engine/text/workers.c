#include "engine/text/workers.h"

#include <sched.h>

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
