/* event_message.h - one event of a generation, copied for the loop.
 *
 * The scheduler's arrays are valid during its callback only, so the message is one block with copies of them. Any
 * thread; the receiver frees it with free(). */
#ifndef ENGINE_DAEMON_GENERATION_EVENT_MESSAGE_H
#define ENGINE_DAEMON_GENERATION_EVENT_MESSAGE_H

#include "engine/daemon/compute/executor.h"
#include "engine/serve/scheduler.h"

typedef struct event_message {
	task task; /* first: `done` receives its address */
	void *owner;
	generation_event event; /* its pointers lead into this block */
} event_message;

/* Return a copy of e that task.done = done delivers to owner; NULL: out of memory. */
event_message *event_message_new(const generation_event *e, void *owner, void (*done)(task *t));
/* Keep the n ≤ event.n_top most likely alternatives of each token; -1: drop the log-probabilities. */
void event_message_keep_top(event_message *m, int n);

#endif
