/* thread_choice.h - chooses the threads that the next step of a plan uses.
 *
 *   THREADS_ONE     the whole step on one thread
 *   THREADS_LOOPS   every loop of the step on all threads, with a barrier after each loop
 *   THREADS_PARTS   the rows in parts, each on one thread: one barrier a step, but every thread reads all weights
 *
 * The fastest way depends on the plan's work, the caches that cores share, and the other load of the machine. Prompts
 * with 27 tokens take 1.3 ms on one thread. In loops on two threads they took 4.6 ms under load, because a thread that
 * waits for its core delays the other at each barrier. Parts suit small models; loops suit models that spend their time
 * reading weights. The choice is therefore made by measurement.
 *
 * Each plan has its own choice. It begins with one thread or with parts, and tries the other ways from time to time, in
 * turn. A trial has up to THREAD_CHOICE_PAIRS pairs: a block of steps in the other way, then a block in the current
 * way. The first step of a longer block is not counted: the other cores are asleep and their caches cold.
 *
 * The plan changes from one thread to all when every block with all threads, except one, is faster than the median with
 * one thread by 1.15 (loops) or 1.1 (parts). The criterion is strict because the other cores also run the event loop,
 * the front end and the clients. Where these are busy, some blocks with all threads are slow. The change back to one
 * thread, and between loops and parts, compares medians.
 *
 * Trials take one part in THREAD_CHOICE_SHARE of the plan's time. The first trial of each way and those after a change
 * come earlier, and then at growing intervals, so that a wrong choice is corrected soon.
 *
 * Numbers of threads between one and all are not tried. OpenMP ends threads when a smaller team runs and starts new
 * ones for the next larger team, and training uses all threads in between.
 *
 * Plain data; the caller measures the time. */
#ifndef ENGINE_SERVE_THREAD_CHOICE_H
#define ENGINE_SERVE_THREAD_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define THREAD_CHOICE_GAIN_LOOPS 1.15
#define THREAD_CHOICE_GAIN_PARTS 1.1
/* Gains that keep a plan on all threads; lower, so that it does not oscillate. WAY: the gain for a change between loops
 * and parts. */
#define THREAD_CHOICE_KEPT_LOOPS 1.05
#define THREAD_CHOICE_KEPT_PARTS 1.05
#define THREAD_CHOICE_GAIN_WAY 1.1
enum { THREAD_CHOICE_PAIRS = 5, THREAD_CHOICE_SHARE = 100, THREAD_CHOICE_FIRST_SHARE = 6 };
#define THREAD_CHOICE_BLOCK_NS UINT64_C(3000000)
/* A trial ends with the pair that reaches this time. A large model runs few steps, and disturbances are short. */
#define THREAD_CHOICE_TRIAL_NS UINT64_C(50000000)
#define THREAD_CHOICE_MAX_WAIT_NS UINT64_C(60000000000)

typedef enum thread_way { THREADS_ONE, THREADS_LOOPS, THREADS_PARTS, THREAD_WAYS } thread_way;

typedef struct thread_choice {
	bool parts;                  /* THREADS_PARTS is available */
	bool warm[THREAD_WAYS];      /* the first step in this way, which touches new memory and is not counted, has
	                              * run */
	thread_way way;              /* current way */
	thread_way compared;         /* the other way of the last trial */
	int blocks;                  /* completed blocks of the current trial */
	uint64_t trial_ns, tried_ns; /* time of the current trial; the part of it in the other way */
	bool in_block;               /* a step of the current block has run */
	uint64_t block_ns;           /* time of the counted steps of the block */
	int64_t block_work;
	double tried[THREAD_CHOICE_PAIRS], used[THREAD_CHOICE_PAIRS]; /* ns per unit of work, by pair */
	int share;                                                    /* current share, up to THREAD_CHOICE_SHARE */
	uint64_t wait_ns;                                             /* run time of the plan until the next trial */
} thread_choice;

/* Return the choice of a new plan. `parts`: the plan can be cut into parts. `in_parts`: it begins with parts, because a
 * whole step is long. */
thread_choice thread_choice_initial(bool parts, bool in_parts);
/* Return the way of the next step. */
thread_way thread_choice_way(const thread_choice *c);
/* Record that this step took `ns` for `work` units of any kind. Steps of one plan are compared by time per unit. */
void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work);

#endif
