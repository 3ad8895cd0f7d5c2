/* executor.h - the one thread that computes, and the two queues to and from it.
 *
 *        loop thread                                executor thread
 *   executor_submit(task)  ──▶ tasks    ──▶  task->run(task, device)
 *        task->done(task)  ◀── messages ◀──  (posted when run returns)
 *        task->done(task)  ◀── messages ◀──  executor_post(task), all of a turn at once
 *
 * A task is embedded in the object it works for. Submitting it transfers the right to use that object's fields: between
 * submit and done only `run` may. Both queues are first in, first out, so tasks without `prepare` run, and messages
 * arrive, in the order of submission.
 *
 * A task may have to wait for slow work, such as loading a model. It then has a `prepare`, which does a part of that
 * work (a few milliseconds) and returns false until all of it is done; it is called once per turn. Later tasks do not
 * wait for it: they run when they are ready. Waiting tasks are called in the order of submission, before newer tasks.
 *
 * Bounds: at most EXECUTOR_MAX_TASKS submitted tasks wait or run; one more is refused, which is the
 * engine's "overloaded". executor_control is for tasks that are never refused (cancel, grant, stop). An object has at
 * most one of them submitted, so the number of objects bounds them; it may run before a waiting task of its object.
 * Posted messages are bounded by their senders (a generation by its credits, a training run by its rate).
 *
 * Turns: between two looks at the queue the thread does at most one unit of foreground work (one decode step
 * or step of prompts) and one slice of background work (training). When there is both, each gets half of the
 * time: the thread counts the time of each, and the background has no turn while it has used more, since a slice cannot
 * be shorter than one op. A slice lasts EXECUTOR_SLICE_NS at most (or one op), and so does a request's wait for its
 * first turn. Without work the thread sleeps. */
#ifndef ENGINE_DAEMON_COMPUTE_EXECUTOR_H
#define ENGINE_DAEMON_COMPUTE_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "engine/base/error.h"

enum { EXECUTOR_MAX_TASKS = 1024, EXECUTOR_SLICE_NS = 5000000, EXECUTOR_MAX_DEBT_NS = 100000000 };

typedef struct device device;
typedef struct executor executor;

typedef struct task task;
struct task {
	bool (*prepare)(task *t, device *d); /* executor thread; true: run it now. NULL: it need not wait */
	void (*run)(task *t, device *d);     /* executor thread; NULL for a message */
	void (*done)(task *t);               /* loop thread; may free the task; NULL: nothing to do */
	task *next;
	bool counted;
};

/* The object that a task is a member of. */
#define TASK_OWNER(t, type, member) ((type *)((char *)(t)-offsetof(type, member)))

/* What the thread does at its start and between tasks. The latter two return false when there was nothing to do. */
typedef struct executor_work {
	void (*begin)(device *d); /* once, before executor_start returns; NULL: nothing to do */
	bool (*foreground)(device *d);
	bool (*background)(device *d, uint64_t budget_ns);
} executor_work;

/* Start the thread and wait until its `begin` has returned. `d` is used by that thread only, from here until executor_stop returns. */
status executor_start(executor **out, uv_loop_t *loop, const executor_work *work, device *d, error *err);
/* Run what was submitted, end the thread, deliver every message. Loop thread; then uv_run must
 * close the handle before executor_free. */
void executor_stop(executor *x);
void executor_free(executor *x);

/* Loop thread. False: the queue is full and the task untouched. */
bool executor_submit(executor *x, task *t);
void executor_control(executor *x, task *t);
/* Executor thread: have t->done called on the loop, which is woken at the end of the turn: a step's events wake it
 * once. */
void executor_post(executor *x, task *t);
/* Tasks submitted and not yet done. Loop thread. */
int executor_pending(const executor *x);

#endif
