/* workers.h - threads that share work with the thread that starts them. */
#ifndef ENGINE_BASE_WORKERS_H
#define ENGINE_BASE_WORKERS_H

#include <pthread.h>
#include <stdint.h>

enum { WORKERS_MAX = 15 };

typedef struct workers {
	pthread_t threads[WORKERS_MAX];
	int count;
} workers;

/* Number of threads for a job, including the one that starts it: `requested`, or one for each core if 0; at most
 * WORKERS_MAX + 1. */
int workers_threads(int requested);
/* Call `work` on up to `n` threads: as many as can be created, possibly none. */
void workers_start(workers *w, int n, void *(*work)(void *context), void *context);
void workers_join(workers *w);

/* Call part(context, i) once for each i from 0 to n - 1, in any order, on up to `threads` threads: the caller's and as
 * many more as can be created. Returns when all calls have returned. */
void workers_divide(int threads, int64_t n, void (*part)(void *context, int64_t i), void *context);

#endif
