/* fleet.h - the engine's devices, and the choice of one for each piece of work.
 *
 * Each device has its own executor thread, scheduler and recovery (executor.h, device.h). Devices compute at the same
 * time, and a load, a long prompt or a loss of one delays no other. One thread for all devices was rejected: it would
 * wait for the tokens of one device while another is idle.
 *
 * Every piece of work belongs to one device from fleet_enter to fleet_leave: the generations of a request, a score
 * task, a training run. All of its tasks go to that device's executor. Work with a session belongs to the session's
 * device. Other work goes to the open device with the least load; a device that trains counts twice, because training
 * takes half of its time. The first work on a device loads its model there, so each device has its own replica.
 *
 * A session is placed where most slots are free (sessions.h), a training run where the fewest sessions and pieces of
 * work are. While a device is not open, nothing new is placed on it. It is opened again as device.h says. The process
 * is left while no device is open, or when it is quiet (engine.c).
 *
 * Limits: max_models, max_sessions and max_batch are per device, max_generations is for all together.
 *
 * Loop thread only, except fleet_executor after fleet_start. */
#ifndef ENGINE_DAEMON_COMPUTE_FLEET_H
#define ENGINE_DAEMON_COMPUTE_FLEET_H

#include "engine/base/device_list.h"
#include "engine/daemon/compute/device.h"

enum { FLEET_MAX = DEVICE_LIST_MAX, FLEET_ANY = -1, FLEET_DESCRIPTION_BYTES = 128 };

typedef struct fleet fleet;

/* Open n devices, 1 to FLEET_MAX. They differ in `device` and `history`, and share their backend. STATUS_INVALID
 * "device": several devices of the CPU backend, unless `cpu` is set. */
status fleet_open(fleet **out, const device_options *options, int n, error *err);
/* Start the executors. On error those that have been started must be stopped. */
status fleet_start(fleet *f, uv_loop_t *loop, error *err);
/* Stop the executors that have been started. uv_run must then close their handles before fleet_free. */
void fleet_stop(fleet *f);
void fleet_free(fleet *f); /* NULL is legal */

int fleet_count(const fleet *f);
device *fleet_device(const fleet *f, int i);
executor *fleet_executor(const fleet *f, int i);
/* Return the name of the backend, and the description of all devices. */
const char *fleet_backend_name(const fleet *f);
const char *fleet_description(const fleet *f);
/* Write the numbers of the devices, as in the option --device. */
void fleet_device_list(const fleet *f, char out[DEVICE_LIST_BYTES]);
/* Return the number of computing threads. */
int fleet_threads(const fleet *f);

/* Return the number of tasks submitted and not done. */
int fleet_pending(const fleet *f);
/* True if a device is open. */
bool fleet_is_open(const fleet *f);
/* True if another process must take over. */
bool fleet_is_left(const fleet *f);
/* True if a device is open, and another one only needs another process. */
bool fleet_wants_process(const fleet *f);
/* Write what that process must know of each device: history[fleet_count]. The executors have ended or are considered
 * dead. */
void fleet_hand_over(const fleet *f, device_history *history);
/* Add up the snapshots; `problem` is set while no device is open. The list of models is empty. */
void fleet_snapshot(const fleet *f, device_stats *out);
/* True if a device has loaded the model. */
bool fleet_has_loaded(const fleet *f, const char *id);

/* Place `units` generations or score tasks on device i, or on the least loaded (FLEET_ANY); return its number. */
int fleet_enter(fleet *f, int i, int units);
void fleet_leave(fleet *f, int i, int units);
/* Place a training run; return the number of its device. */
int fleet_enter_training(fleet *f);
void fleet_leave_training(fleet *f, int i);
/* True while a training run is on device i. */
bool fleet_trains(const fleet *f, int i);
/* Count sessions with a slot: the sum of all `change` of a device is their number. */
void fleet_count_sessions(fleet *f, int i, int change);
int fleet_sessions(const fleet *f, int i);
/* Return the open device with the fewest sessions, the less loaded of two. If none is open, device 0. */
int fleet_emptiest(const fleet *f);

/* A change on every device or on none; a member of the caller's object. `check` runs on each device in turn, then `run`
 * on each in turn, then `commit`. The first failure of a check ends the round, and nothing has happened. After a
 * failure of `run` or `commit`, `undo` runs on each device on which `run` was called. */
typedef enum fleet_stage { FLEET_CHECK, FLEET_RUN, FLEET_UNDO } fleet_stage;
typedef struct fleet_round fleet_round;
struct fleet_round {
	/* Set by the caller; executor threads: */
	bool (*prepare)(fleet_round *r, device *d); /* as in a task, before each of the three; may be NULL */
	status (*check)(fleet_round *r, device *d); /* may be NULL */
	status (*run)(fleet_round *r, device *d);
	void (*undo)(fleet_round *r, device *d); /* may be NULL */
	/* Loop thread: */
	status (*commit)(fleet_round *r); /* may be NULL */
	void (*done)(fleet_round *r);     /* `result` is the first failure */
	bool only_open;                   /* skip devices that are not open, if any is */
	/* For the callbacks to read: */
	const fleet *fleet;
	fleet_stage stage;
	int at; /* the device's index in the fleet */
	status result;
	/* Private. */
	task task;
	int last; /* FLEET_UNDO: the last device */
};
/* Start a round. False: the first executor's queue is full. */
bool fleet_begin_round(const fleet *f, fleet_round *r);

#endif
