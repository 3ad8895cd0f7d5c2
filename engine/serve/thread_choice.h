/* thread_choice.h - how the next step of a plan uses the threads.
 *
 *   THREADS_ONE     all of it on one thread
 *   THREADS_LOOPS   every loop inside it on all threads, which wait for each other at its end
 *   THREADS_PARTS   its rows in parts, each on a thread of its own: one wait in all, but every thread reads all weights
 *
 * What a way is worth depends on the plan's work, on the caches that the cores share, and on what else the
 * machine does. A prompt of 27 tokens takes 1.3 ms on one thread; in loops on two it took 4.6 ms under load, since a
 * thread that has to wait for its core delays the other at the end of each loop. Parts are for small models, loops for
 * those whose time goes into reading weights. So it is measured.
 *
 * Each plan has a choice. It begins with one thread, or in parts, and tries the other ways now and then, in turn, each
 * in up to THREAD_CHOICE_PAIRS blocks of steps, of which each is followed by a block in the way that is in use. The
 * first of several steps in a block does not count: the other cores sleep, and what they need is not in their caches.
 * All threads are taken when all blocks with them but one are 1.15 (loops) or 1.1 (parts) times as fast as the median
 * with one: the cores that they take have other work too, that of the event loop, the front end and the clients, and
 * where these are busy, some blocks with all threads are slow; in parts that costs one wait a step. They are given up
 * when the medians say so, and so are loops for parts or parts for loops.
 *
 * The steps that try take one part in THREAD_CHOICE_SHARE of the plan's time. Only the first trial of each way, and
 * those after the way has changed, come early, and then ever later, so that no mistake lasts.
 *
 * Nothing between one and all: OpenMP ends threads when a smaller team runs and starts new ones for the next larger
 * one, and training uses all of them in between.
 *
 * Plain data; no clock of its own. */
#ifndef ENGINE_SERVE_THREAD_CHOICE_H
#define ENGINE_SERVE_THREAD_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define THREAD_CHOICE_GAIN_LOOPS 1.15
#define THREAD_CHOICE_GAIN_PARTS 1.1
/* The same for a plan that uses all threads already, so that it does not go back and forth; and to use them in
 * another way. */
#define THREAD_CHOICE_KEPT_LOOPS 1.05
#define THREAD_CHOICE_KEPT_PARTS 1.05
#define THREAD_CHOICE_GAIN_WAY 1.1
enum { THREAD_CHOICE_PAIRS = 5, THREAD_CHOICE_SHARE = 100, THREAD_CHOICE_FIRST_SHARE = 6 };
#define THREAD_CHOICE_BLOCK_NS UINT64_C(3000000)
/* A trial ends with the pair that makes it so long: steps of a large model are few, and what disturbs them is short. */
#define THREAD_CHOICE_TRIAL_NS UINT64_C(50000000)
#define THREAD_CHOICE_MAX_WAIT_NS UINT64_C(60000000000)

typedef enum thread_way { THREADS_ONE, THREADS_LOOPS, THREADS_PARTS, THREAD_WAYS } thread_way;

typedef struct thread_choice {
	bool parts;                  /* are a way */
	bool warm[THREAD_WAYS];      /* its first step has run, which touches memory for the first time and counts for
	                                nothing */
	thread_way way;              /* in use */
	thread_way compared;         /* with it last, or left for it */
	int blocks;                  /* of the trial, that have ended; */
	uint64_t trial_ns, tried_ns; /* what it took so far, in all and in the other way */
	bool in_block;               /* a step of the next block has run; */
	uint64_t block_ns;           /* those that count */
	int64_t block_work;
	double tried[THREAD_CHOICE_PAIRS], used[THREAD_CHOICE_PAIRS]; /* ns per unit of work, by pair */
	int share;                                                    /* the one now, up to THREAD_CHOICE_SHARE */
	uint64_t wait_ns;                                             /* of the plan's own time until the next trial */
} thread_choice;

/* Of a plan that can be cut into parts, or not; in_parts: it begins in parts, since a whole step would be long. */
thread_choice thread_choice_of(bool parts, bool in_parts);
/* The next step's. */
thread_way thread_choice_way(const thread_choice *c);
/* That step took `ns` and did `work`, in any unit: steps of one plan are compared by their time for a unit. */
void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work);

#endif
