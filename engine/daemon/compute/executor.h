/* executor.h - the one thread that computes on a device, and the two queues to and from it.
 *
 *        loop thread                                executor thread
 *   executor_submit(task)  ──▶ tasks    ──▶  task->run(task, device)
 *        task->done(task)  ◀── messages ◀──  (posted when run returns)
 *        task->done(task)  ◀── messages ◀──  executor_post(task), all of a turn at once
 *
 * A task is embedded in the object it works for. Submitting it transfers that object's fields: between submit and done
 * only `run` may use them. Both queues are first in, first out. Tasks without `prepare` run, and messages arrive, in
 * the order of submission.
 *
 * A task that must wait for slow work, such as loading a model, has a `prepare`. It is called once per turn, does a few
 * milliseconds of that work, and returns false until the work is complete. Later tasks do not wait for it. Waiting
 * tasks are called in the order of submission, before newer tasks.
 *
 * Limits: at most EXECUTOR_MAX_TASKS submitted tasks wait or run; one more is refused ("overloaded" in the API).
 * executor_control is for tasks that must not be refused (cancel, grant, stop). Each object has at most one of them
 * submitted, so their number is bounded; it may run before a waiting task of its object. Senders limit posted messages:
 * a generation by its credits, a training run by its rate.
 *
 * Turns: between two looks at the queue the thread runs at most one unit of foreground work and one slice of background
 * work (training). A unit of foreground work is a decode step or a step of prompts. A slice lasts at most
 * EXECUTOR_SLICE_NS or one op, and so does a request's wait for its first turn. With both kinds, each gets half of the
 * time. The thread measures them: the background has no slice while it has used more, and after a unit slices until
 * its credit is used, up to EXECUTOR_SHARE_NS. A request that comes meanwhile goes first. Without work the thread
 * sleeps. */
#ifndef ENGINE_DAEMON_COMPUTE_EXECUTOR_H
#define ENGINE_DAEMON_COMPUTE_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "engine/base/error.h"

enum { EXECUTOR_MAX_TASKS = 1024, EXECUTOR_SLICE_NS = 1000000 };
enum { EXECUTOR_SHARE_NS = 5 * EXECUTOR_SLICE_NS, EXECUTOR_MAX_DEBT_NS = 100 * EXECUTOR_SLICE_NS };

typedef struct device device;
typedef struct executor executor;

typedef struct task task;
struct task {
	bool (*prepare)(task *t, device *d); /* executor thread; returns true if the task can run now. NULL: it need not
	                                      * wait */
	void (*run)(task *t, device *d);     /* executor thread; NULL for a message */
	void (*done)(task *t);               /* loop thread; may free the task; may be NULL */
	task *next;
	bool counted;
};

/* The object that contains task t as a member. */
#define TASK_OWNER(t, type, member) ((type *)((char *)(t)-offsetof(type, member)))

/* Functions that the thread calls at its start and between tasks. The latter two return false if there was nothing to
 * do. */
typedef struct executor_work {
	void (*begin)(device *d); /* once, before executor_start returns; may be NULL */
	bool (*foreground)(device *d);
	bool (*background)(device *d, uint64_t budget_ns);
} executor_work;

/* Start the thread and wait until `begin` has returned. Only that thread uses `d` until executor_stop returns. */
status executor_start(executor **out, uv_loop_t *loop, const executor_work *work, device *d, error *err);
/* Run the submitted tasks, end the thread and deliver every message. Loop thread. uv_run must then close the handle
 * before executor_free. */
void executor_stop(executor *x);
void executor_free(executor *x);

/* Submit a task. False: the queue is full and the task unchanged. Loop thread. */
bool executor_submit(executor *x, task *t);
void executor_control(executor *x, task *t);
/* Have t->done called on the loop, which is woken once at the end of the turn. Executor thread. */
void executor_post(executor *x, task *t);
/* Return the number of tasks submitted and not done. Loop thread. */
int executor_pending(const executor *x);

#endif
