/* executor.c - both queues are intrusive lists, each with its own mutex. The receiver takes the whole list at once, so
 * a mutex is held for a few instructions and never while a task runs. A lock-free ring was rejected: at thousands of
 * tasks per second the mutex does not show, and intrusive tasks need no memory.
 *
 * The loop is woken through our own descriptor. uv_async_send marks its handle as busy until its write returns. A loop
 * that this write wakes on the same core spins until the mark is cleared, for a whole time slice. */
#include "engine/daemon/compute/executor.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/memory.h"
#include "engine/base/reserve.h"

typedef struct queue {
	task *first, **last;
} queue;

struct executor {
	executor_work work;
	device *device;
	pthread_t thread;
	pthread_mutex_t mutex; /* guards tasks, started, stopping */
	pthread_cond_t wake;
	queue tasks;
	bool started, stopping;
	int64_t credit_ns;             /* time that background work has not had; executor thread */
	bool trains;                   /* the latest turn had background work; executor thread */
	bool yielded;                  /* in the current turn; executor thread */
	queue posted;                  /* messages of the current turn; executor thread */
	queue waiting;                 /* tasks whose `prepare` is not complete; executor thread */
	pthread_mutex_t message_mutex; /* guards messages */
	queue messages;
	int wake_fd; /* eventfd that signals messages; -1: not open */
	uv_poll_t poll;
	int pending; /* loop thread */
};

static void queue_init(queue *q)
{
	q->first = NULL;
	q->last = &q->first;
}

static void queue_push(queue *q, task *t)
{
	t->next = NULL;
	*q->last = t;
	q->last = &t->next;
}

static task *queue_take_all(queue *q)
{
	task *all = q->first;
	queue_init(q);
	return all;
}

/* --- executor thread -------------------------------------------------------- */

void executor_post(executor *x, task *t)
{
	queue_push(&x->posted, t);
}

/* Wake the loop once for all messages of a turn, and not at all while it still has others to take. It may then be
 * waiting for this core, which Linux would give to it after up to 4 ms. So the thread lets others run first, once in a
 * turn. */
static void publish(executor *x)
{
	if (!x->posted.first)
		return;
	pthread_mutex_lock(&x->message_mutex);
	bool first = !x->messages.first;
	*x->messages.last = x->posted.first;
	x->messages.last = x->posted.last;
	pthread_mutex_unlock(&x->message_mutex);
	queue_init(&x->posted);
	if (first)
		eventfd_write(x->wake_fd, 1);
	else if (!x->yielded)
		sched_yield();
	x->yielded |= !first;
}

/* Run the tasks that are ready. Others are appended to those that wait already. True: one was not a control task. */
static bool run_tasks(executor *x, task *t)
{
	bool requests = false;
	while (t) {
		task *next = t->next;
		requests |= t->counted;
		reserve_forget();
		if (t->prepare && !t->prepare(t, x->device)) {
			queue_push(&x->waiting, t);
		} else {
			t->run(t, x->device);
			executor_post(x, t);
		}
		t = next;
	}
	return requests;
}

/* Run foreground work and set the background's credit. Returns false if there was none. */
static bool serve(executor *x)
{
	const uint64_t began = clock_ns();
	const bool served = x->work.foreground(x->device);
	publish(x);
	reserve_forget();
	x->credit_ns = served ? x->credit_ns + (int64_t)(clock_ns() - began) : EXECUTOR_SHARE_NS;
	x->credit_ns = x->credit_ns > EXECUTOR_SHARE_NS ? EXECUTOR_SHARE_NS : x->credit_ns;
	return served;
}

/* Run a slice of background work if it has credit. Returns false if there was none. */
static bool train(executor *x)
{
	const uint64_t began = clock_ns();
	const int64_t budget = x->credit_ns < EXECUTOR_SLICE_NS ? x->credit_ns : EXECUTOR_SLICE_NS;
	const bool trained = budget > 0 && x->work.background(x->device, (uint64_t)budget);
	publish(x);
	x->credit_ns -= trained ? (int64_t)(clock_ns() - began) : 0;
	x->credit_ns = x->credit_ns < -EXECUTOR_MAX_DEBT_NS ? -EXECUTOR_MAX_DEBT_NS : x->credit_ns;
	return trained;
}

/* Take the submitted tasks and run one turn. Background work that has begun uses all of its credit before foreground
 * work continues, unless a request has come. False: the thread is to stop. */
static bool take_turn(executor *x, bool *idle)
{
	pthread_mutex_lock(&x->mutex);
	while (*idle && !x->tasks.first && !x->waiting.first && !x->stopping)
		pthread_cond_wait(&x->wake, &x->mutex);
	task *all = queue_take_all(&x->tasks);
	bool stop = x->stopping && !all && !x->waiting.first;
	pthread_mutex_unlock(&x->mutex);
	x->yielded = false;
	bool requests = run_tasks(x, queue_take_all(&x->waiting));
	requests |= run_tasks(x, all);
	publish(x);
	if (stop)
		return false;
	const bool turns = requests || !x->trains || x->credit_ns <= 0, served = turns && serve(x);
	x->trains = train(x);
	*idle = turns && !served && !x->trains;
	return true;
}

static void *executor_thread(void *argument)
{
	executor *x = argument;
	bool idle = false;
	death_log_guard_thread();
	if (x->work.begin)
		x->work.begin(x->device);
	pthread_mutex_lock(&x->mutex);
	x->started = true;
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->mutex);
	while (take_turn(x, &idle))
		;
	return NULL;
}

/* --- loop thread ------------------------------------------------------------ */

static void deliver(executor *x)
{
	pthread_mutex_lock(&x->message_mutex);
	task *t = queue_take_all(&x->messages);
	pthread_mutex_unlock(&x->message_mutex);
	while (t) {
		task *next = t->next;
		x->pending -= t->counted;
		t->counted = false;
		reserve_forget(); /* an allocation failure in one task must not affect the next */
		if (t->done)
			t->done(t);
		t = next;
	}
}

/* The descriptor is reset before the messages are taken, so a message posted in between wakes the loop again. */
static void on_messages(uv_poll_t *poll, int failed, int events)
{
	executor *x = poll->data;
	eventfd_t count;
	(void)failed;
	(void)events;
	eventfd_read(x->wake_fd, &count);
	deliver(x);
}

static bool watch_messages(executor *x, uv_loop_t *loop)
{
	x->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (x->wake_fd < 0 || uv_poll_init(loop, &x->poll, x->wake_fd) != 0)
		return false;
	x->poll.data = x;
	uv_poll_start(&x->poll, UV_READABLE, on_messages); /* fails only for handles that are closing */
	return true;
}

void executor_control(executor *x, task *t)
{
	assert(t->run);
	pthread_mutex_lock(&x->mutex);
	queue_push(&x->tasks, t);
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->mutex);
}

bool executor_submit(executor *x, task *t)
{
	if (x->pending >= EXECUTOR_MAX_TASKS)
		return false;
	x->pending++;
	t->counted = true;
	executor_control(x, t);
	return true;
}

int executor_pending(const executor *x)
{
	return x->pending;
}

status executor_start(executor **out, uv_loop_t *loop, const executor_work *work, device *d, error *err)
{
	*out = NULL;
	executor *x = memory_new(1, sizeof *x);
	if (!x)
		return STATUS_NOMEM;
	x->work = *work;
	x->device = d;
	x->wake_fd = -1;
	queue_init(&x->tasks);
	queue_init(&x->messages);
	queue_init(&x->posted);
	queue_init(&x->waiting);
	pthread_mutex_init(&x->mutex, NULL);
	pthread_mutex_init(&x->message_mutex, NULL);
	pthread_cond_init(&x->wake, NULL);
	if (!watch_messages(x, loop)) {
		executor_free(x);
		return error_set(err, STATUS_IO, NULL, "cannot watch the executor");
	}
	if (pthread_create(&x->thread, NULL, executor_thread, x) != 0) {
		/* The loop must close the handle before its memory is freed. */
		uv_close((uv_handle_t *)&x->poll, NULL);
		uv_run(loop, UV_RUN_NOWAIT);
		executor_free(x);
		return error_set(err, STATUS_NOMEM, NULL, "cannot start the executor thread");
	}
	pthread_mutex_lock(&x->mutex);
	while (!x->started)
		pthread_cond_wait(&x->wake, &x->mutex);
	pthread_mutex_unlock(&x->mutex);
	*out = x;
	return STATUS_OK;
}

void executor_stop(executor *x)
{
	pthread_mutex_lock(&x->mutex);
	x->stopping = true;
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->mutex);
	pthread_join(x->thread, NULL);
	deliver(x);
	uv_close((uv_handle_t *)&x->poll, NULL);
}

void executor_free(executor *x)
{
	if (!x)
		return;
	pthread_mutex_destroy(&x->mutex);
	pthread_mutex_destroy(&x->message_mutex);
	pthread_cond_destroy(&x->wake);
	if (x->wake_fd >= 0)
		close(x->wake_fd);
	free(x);
}
