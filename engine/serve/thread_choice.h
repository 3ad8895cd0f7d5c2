/* thread_choice.h - one thread or all of them for the next step of a plan.
 *
 * What all threads are worth depends on the plan's work and on what else the machine does: on 2 cores a chunk of 64
 * tokens takes 1.3 ms on one thread, and 0.9 or 4.6 on two, as the other core is idle or busy with clients. So it is
 * measured. Each plan has a choice. It starts with one thread and now and then tries the other number:
 * THREAD_CHOICE_PAIRS steps with it, each followed by one with the number in use, and compares the medians. All threads
 * are used while they make a step THREAD_CHOICE_GAIN times as fast, since the cores that they take have other work too:
 * the event loop, the front end, clients. Trials take at most one part in THREAD_CHOICE_SHARE of the plan's time.
 *
 * Nothing between one and all: OpenMP ends its threads when a smaller team runs and starts new ones for the next larger
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
enum { THREAD_CHOICE_PAIRS = 3, THREAD_CHOICE_SHARE = 100 };

typedef struct thread_choice {
	bool warm;        /* the first step, which touches the plan's memory for the first time, has run */
	bool all;         /* in use */
	int trial;        /* steps of the trial that have run */
	uint64_t wait_ns; /* of the plan's own time until the next trial */
	double tried[THREAD_CHOICE_PAIRS], used[THREAD_CHOICE_PAIRS]; /* ns per unit of work */
} thread_choice;

/* Does the next step use all threads? */
bool thread_choice_all(const thread_choice *c);
/* That step took `ns` and did `work`, in any unit: steps of one plan are compared by their time for a unit. */
void thread_choice_took(thread_choice *c, uint64_t ns, int64_t work);

#endif
