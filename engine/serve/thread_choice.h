/* thread_choice.h - one thread or all of them for the next step of a plan.
 *
 * What all threads are worth depends on the plan's work, on the caches that the cores share, and on what else the
 * machine does. A prompt of 27 tokens takes 1.3 ms on one thread; on two it took 4.6 ms under load, since a thread that
 * has to wait for its core delays the other at the end of each loop. So it is measured.
 *
 * Each plan has a choice. It begins with one thread and tries the other number now and then, in up to
 * THREAD_CHOICE_PAIRS steps, each followed by a step with the number in use. All threads are taken when the slowest
 * step with all of them is THREAD_CHOICE_GAIN times as fast as the median with one: the cores that they take have other
 * work too, that of the event loop, the front end and the clients, and where these are busy, some steps with all
 * threads are slow. They are given up when the medians say so.
 *
 * The steps that try take one part in THREAD_CHOICE_SHARE of the plan's time. Only after all threads have been taken
 * the next trial comes early, and then ever later, so that a mistake does not last.
 *
 * Nothing between one and all: OpenMP ends threads when a smaller team runs and starts new ones for the next larger
 * one, and training uses all of them in between.
 *
 * Plain data, zeroed to begin with; no clock of its own. */
#ifndef ENGINE_SERVE_THREAD_CHOICE_H
#define ENGINE_SERVE_THREAD_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define THREAD_CHOICE_GAIN 1.4
/* The same for a plan that uses all threads already, so that it does not go back and forth. */
#define THREAD_CHOICE_GAIN_KEPT 1.25
enum { THREAD_CHOICE_PAIRS = 5, THREAD_CHOICE_SHARE = 100, THREAD_CHOICE_FIRST_SHARE = 6 };
/* A trial ends with the pair that makes it so long: steps of a large model are few, and what disturbs them is short. */
#define THREAD_CHOICE_TRIAL_NS UINT64_C(50000000)
#define THREAD_CHOICE_MAX_WAIT_NS UINT64_C(60000000000)

typedef struct thread_choice {
	bool warm;         /* the first step has run, which touches memory for the first time */
	bool all;          /* in use */
	int trial;         /* steps of the trial that have run, */
	uint64_t trial_ns; /* and how long they took */
	double tried[THREAD_CHOICE_PAIRS], used[THREAD_CHOICE_PAIRS]; /* ns per unit of work, by pair */
	int share;                                                    /* the one now, up to THREAD_CHOICE_SHARE */
	uint64_t wait_ns;                                             /* of the plan's own time until the next trial */
} thread_choice;

/* Does the next step use all threads? */
bool thread_choice_all(const thread_choice *c);
/* That step took `ns` and did `work`, in any unit: steps of one plan are compared by their time for a unit. */
void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work);

#endif
