/* workers.h - threads that share work with the thread that starts them. */
#ifndef ENGINE_TEXT_WORKERS_H
#define ENGINE_TEXT_WORKERS_H

#include <pthread.h>

enum { WORKERS_MAX = 15 };

typedef struct workers {
	pthread_t threads[WORKERS_MAX];
	int count;
} workers;

/* How many threads work has, with the one that starts it: `wanted`, 0: one for each core; at most WORKERS_MAX + 1. */
int workers_threads(int requested);
/* Call `work` on up to `n` threads: as many as can be had, maybe none. */
void workers_start(workers *w, int n, void *(*work)(void *context), void *context);
void workers_join(workers *w);

#endif
