/* thread_choice.h - how the next step of a plan uses the threads.
 *
 *   THREADS_ONE     the whole step on one thread
 *   THREADS_LOOPS   every loop of the step on all threads, with a barrier at the end of each loop
 *   THREADS_PARTS   the rows in parts, each on one thread: one barrier a step, but every thread reads all weights
 *
 * The fastest way depends on the plan's work, on the caches that the cores share, and on the other load of the machine.
 * A prompt of 27 tokens takes 1.3 ms on one thread; in loops on two it took 4.6 ms under load, because a thread that
 * waits for its core delays the other at the end of each loop. Parts suit small models, loops suit models that spend
 * their time reading weights. So the choice is made by measurement.
 *
 * Each plan has a choice of its own. It begins with one thread, or in parts, and tries the other ways now and then, in
 * turn. A trial has up to THREAD_CHOICE_PAIRS blocks of steps in the other way, each followed by a block in the current
 * way. The first of several steps in a block does not count: the other cores are asleep, and their caches are cold.
 * From one thread the plan changes to all threads when every block with them except one is 1.15 (loops) or 1.1 (parts)
 * times as fast as the median with one thread. The criterion is strict because the other cores also run the event loop,
 * the front end and the clients; where these are busy, some blocks with all threads are slow (in parts that costs one
 * barrier a step). The change back to one thread, and the change between loops and parts, compares medians.
 *
 * Trials take one part in THREAD_CHOICE_SHARE of the plan's time. Only the first trial of each way, and those after a
 * change of way, come earlier and then at growing distances, so that a wrong choice is corrected soon.
 *
 * A number of threads between one and all is not tried: OpenMP ends threads when a smaller team runs and starts new
 * ones for the next larger team, and training uses all threads in between.
 *
 * Plain data; the caller measures the time. */
#ifndef ENGINE_SERVE_THREAD_CHOICE_H
#define ENGINE_SERVE_THREAD_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define THREAD_CHOICE_GAIN_LOOPS 1.15
#define THREAD_CHOICE_GAIN_PARTS 1.1
/* KEPT: the gain that keeps a plan on all threads, lower so that it does not oscillate. WAY: the gain for a change
 * between loops and parts. */
#define THREAD_CHOICE_KEPT_LOOPS 1.05
#define THREAD_CHOICE_KEPT_PARTS 1.05
#define THREAD_CHOICE_GAIN_WAY 1.1
enum { THREAD_CHOICE_PAIRS = 5, THREAD_CHOICE_SHARE = 100, THREAD_CHOICE_FIRST_SHARE = 6 };
#define THREAD_CHOICE_BLOCK_NS UINT64_C(3000000)
/* A trial ends with the pair that reaches this time: a large model runs few steps, and disturbances are short. */
#define THREAD_CHOICE_TRIAL_NS UINT64_C(50000000)
#define THREAD_CHOICE_MAX_WAIT_NS UINT64_C(60000000000)

typedef enum thread_way { THREADS_ONE, THREADS_LOOPS, THREADS_PARTS, THREAD_WAYS } thread_way;

typedef struct thread_choice {
	bool parts;                  /* THREADS_PARTS is available */
	bool warm[THREAD_WAYS];      /* the first step in this way has run; it touches memory for the first time and is
	                                not counted */
	thread_way way;              /* in use */
	thread_way compared;         /* the other way of the last trial */
	int blocks;                  /* of the current trial, that have ended */
	uint64_t trial_ns, tried_ns; /* time of the trial so far, in all and in the other way */
	bool in_block;               /* a step of the current block has run */
	uint64_t block_ns;           /* time of the block's counted steps */
	int64_t block_work;
	double tried[THREAD_CHOICE_PAIRS], used[THREAD_CHOICE_PAIRS]; /* ns per unit of work, by pair */
	int share;                                                    /* the current one, up to THREAD_CHOICE_SHARE */
	uint64_t wait_ns; /* the plan's run time left until the next trial */
} thread_choice;

/* The choice of a new plan. parts: it can be cut into parts; in_parts: it begins with them, as a whole step is long. */
thread_choice thread_choice_of(bool parts, bool in_parts);
/* The way of the next step. */
thread_way thread_choice_way(const thread_choice *c);
/* Record that this step took `ns` for `work` units (any unit): steps of one plan are compared by time per unit. */
void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work);

#endif
