/* device.h - the state that the executor thread owns: the backend, the scheduler and the work of background turns.
 *
 * All functions belong to the executor thread, except device_open and device_close (before it starts and after it
 * ended), the descriptions, which are constant, and device_snapshot.
 *
 * A device that refuses a call (backend_is_lost returns false) stays open: only the requests or the job that needed the
 * call end, with STATUS_DEVICE.
 *
 * When a device fails for good, every generation has ended with STATUS_DEVICE. Sessions and the background work are
 * dropped, and the backend is opened again. Durable sessions are restored from the store when they are next used,
 * the job from its last checkpoint. A model that was being loaded is loaded again.
 *
 *        fails ──▶ opened again? ──yes──▶ open
 *                     │ no
 *                     ├─ a GPU, no other device is open, fewer than DEVICE_MAX_PROCESSES in vain ──▶ left: another
 *                     │                                                                   process takes over
 *                     └─ else ──▶ tried again after 1 s, 2 s, … 300 s, each time logged
 *
 * A GPU's fault may outlive its reset, but not the process (cuda/BENCHMARKS.md). A device that does not open again is
 * therefore left: device_is_left returns true. Once all requests are answered, the owner re-executes the engine with
 * what device_hand_over returns. A process was in vain unless its device has worked for DEVICE_STEADY_NS. The delay
 * before leaving doubles with each further process in vain, from 1 s. While no device is open, every task gets
 * STATUS_DEVICE with the reason. While another device is open, the process is left only when it is quiet
 * (device_wants_process). */
#ifndef ENGINE_DAEMON_COMPUTE_DEVICE_H
#define ENGINE_DAEMON_COMPUTE_DEVICE_H

#include <stdatomic.h>

#include "engine/daemon/compute/adapter_cache.h"
#include "engine/daemon/compute/executor.h"
#include "engine/serve/scheduler.h"

enum { DEVICE_MAX_MODELS = 64, DEVICE_TICK_BUCKETS = 12, DEVICE_LOAD_NS = 2000000 };
/* One more than the failures that end a job (JOB_STATE_MAX_FAILURES) would need. A job that makes the device fail every
 * time therefore ends before the engine stops trying. */
enum { DEVICE_MAX_PROCESSES = 5 };
#define DEVICE_STEADY_NS 600000000000u

/* Data that a process hands over to its successor. All zero: there was no predecessor. */
typedef struct device_history {
	uint64_t restarts;    /* number of failures of the device */
	int processes;        /* number of successor processes */
	int in_vain;          /* trailing processes in which the device was not steady */
	char name[16];        /* name of the backend, which is not selected again */
	char description[96]; /* description of the device while it does not open */
	bool bf16;
} device_history;

typedef struct device_options {
	const char *backend;
	int device; /* index of the device, for a backend with several */
	int threads;
	scheduler_limits limits; /* max_batch 0: chosen by the backend */
	backend_opener cpu;      /* opens the CPU backend; NULL: cpu_open */
	device_history history;
	struct death_log *deaths; /* counts loads of models; NULL: none */
	const char *cache_folder; /* for what the training backend keeps, outlives the device; NULL: keeps nothing */
	atomic_int *n_open;       /* number of devices of the process that are open, which a device keeps up to date; it
	                           * counts as open until it has failed to open. NULL: there is no other device */
} device_options;

/* Work for background turns, such as a training run; a member of the caller's object. */
typedef struct device_background device_background;
struct device_background {
	bool (*waits)(const device_background *b); /* true if there is nothing to do now */
	/* Work for about budget_ns. STATUS_DEVICE: the device is lost, or the work has ended. */
	status (*advance)(device_background *b, device *d, uint64_t budget_ns);
	void (*lose)(device_background *b, device *d); /* the device is lost: call device_leave_background */
};

/* Data that the loop reads without waiting for the executor. */
typedef struct device_stats {
	scheduler_stats scheduler;
	uint64_t tick_count[DEVICE_TICK_BUCKETS + 1]; /* ticks of at most device_tick_bounds[i] seconds; the last
	                                               * bucket: longer ones */
	double tick_seconds;
	uint64_t training_steps, training_tokens;
	double training_tokens_per_second; /* 0: no training */
	uint64_t restarts;
	int processes;      /* see device_history */
	char problem[320];  /* why the device is not open; "": it is open */
	uint64_t left_ns;   /* time (clock_ns) from which on it is left; 0: not left */
	bool wants_process; /* it does not open in this process, and another one may open it */
	int n_loaded;
	char loaded[DEVICE_MAX_MODELS][SCHEDULER_ID_BYTES];
} device_stats;

/* Upper bounds of the buckets, in seconds. */
extern const double device_tick_bounds[DEVICE_TICK_BUCKETS];

/* Open the device. With a history, a device that cannot be opened is no error: it is left or retried. */
status device_open(device **out, const device_options *options, error *err);
void device_close(device *d);

/* Any thread. */
const char *device_backend_name(const device *d);
const char *device_description(const device *d);
/* Return device_options.device. */
int device_number(const device *d);
/* Return the number of computing threads: those of the CPU backend, otherwise 1. */
int device_threads(const device *d);
/* True if the device can train in bf16. */
bool device_bf16(const device *d);
void device_snapshot(device *d, device_stats *out);
/* False from a failure until the device is open again. */
bool device_is_open(device *d);
/* True if the snapshot lists the model. */
bool device_has_loaded(device *d, const char *id);
/* True if another process must take over. */
bool device_is_left(device *d);
/* True if another process may open the device that this one cannot. */
bool device_wants_process(device *d);
/* Return the data for that process. The executor has ended or is considered dead. */
void device_hand_over(device *d, device_history *out);

/* Return the backend or scheduler; NULL: the device is not open. */
backend *device_training_backend(device *d);
scheduler *device_scheduler(const device *d);
/* A task's `prepare`: load the model `id` for DEVICE_LOAD_NS per turn, however many tasks need it. True: device_model
 * returns at once, in this turn. The model of the first waiting task is loaded first. A load that no task requests in a
 * turn is abandoned. */
bool device_prepare(device *d, const char *id, const char *folder, dtype weights);
/* Return the model `id` of the store, loading it if necessary (blocks, unless device_prepare returned true), and record
 * it for the snapshot. STATUS_STORAGE, logged: its folder is damaged or missing. BUSY, CONFLICT, NOMEM and DEVICE as
 * for scheduler_model. */
status device_model(device *d, const char *id, const char *folder, dtype weights, served_model **out, error *err);
/* Return the adapters that the device has read. */
adapter_cache *device_adapters(device *d);
/* Keep the turn's load of the model `id`, for a `prepare` that waits for another thread to change that model. A turn
 * without other work ends with a pause. */
void device_wait(device *d, const char *id);
/* STATUS_CONFLICT: sessions or requests of this device use the model, or it is being loaded. */
status device_check_idle(device *d, const char *id, error *err);
status device_unload(device *d, const char *id, error *err);
/* Set the work of background turns; there is one at a time. b must stay in place until it leaves. */
void device_enter_background(device *d, device_background *b);
/* End the turns of b; no effect if it has none. */
void device_leave_background(device *d, const device_background *b);
void device_count_training(device *d, int64_t steps, int64_t tokens, double tokens_per_second);

/* The turns of the executor. */
extern const executor_work device_work;

#endif
