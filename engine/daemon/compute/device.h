/* device.h - what the executor thread owns: the backend, the scheduler and the work of background turns.
 *
 * All functions belong to the executor thread, except device_open and device_close (before it starts and
 * after it ended), the three descriptions, which never change, and device_snapshot.
 *
 * A device that fails (STATUS_DEVICE) has ended every generation with that status already. Sessions and
 * the background work are given up and the backend is opened again; durable sessions come back from the store
 * when they are next used, and the job from its last checkpoint. A model that was being loaded is begun anew.
 *
 *        fails ──▶ opened again? ──yes──▶ open
 *                     │ no
 *                     ├─ a GPU, fewer than DEVICE_MAX_PROCESSES in vain ──▶ left: another process is to go on
 *                     └─ else ──▶ tried again after 1 s, 2 s, … 300 s, each time logged
 *
 * A GPU's fault may outlive its reset, but not the process (cuda/README.md). So a device that does not open again is
 * left: device_is_left becomes true, and the owner executes the engine anew with what device_history says, once what
 * was asked of it is answered. A process in which the device has worked for DEVICE_STEADY_NS was not in vain. Each
 * further process in vain waits twice as long before the device is left, 1 s at first. Without an open device every
 * task gets STATUS_DEVICE, with the reason. */
#ifndef ENGINE_DAEMON_COMPUTE_DEVICE_H
#define ENGINE_DAEMON_COMPUTE_DEVICE_H

#include "engine/daemon/compute/executor.h"
#include "engine/serve/scheduler.h"

enum { DEVICE_MAX_MODELS = 64, DEVICE_TICK_BUCKETS = 12, DEVICE_LOAD_NS = 2000000 };
/* One more than the failures that end a job (JOB_STATE_MAX_FAILURES) would do: a job that makes the device fail each
 * time ends before the engine stops trying. */
enum { DEVICE_MAX_PROCESSES = 5 };
#define DEVICE_STEADY_NS 600000000000u

/* What a process hands over to the one that takes its place. All zero: there was none before. */
typedef struct device_history {
	uint64_t restarts;    /* times that the device failed */
	int processes;        /* times that another process took over, */
	int in_vain;          /* and of these the last ones, in which the device was not steady */
	char name[16];        /* of the backend: it is not chosen anew */
	char description[96]; /* of the device, for as long as it does not open */
	bool bf16;
} device_history;

typedef struct device_options {
	const char *backend;
	int device; /* which one, for a backend that has several */
	int threads;
	scheduler_limits limits; /* max_batch 0: as suits the backend */
	backend_opener cpu;      /* opens the CPU backend; NULL: cpu_open */
	device_history history;
	struct death_log *deaths; /* counts loads of models; NULL: not counted */
} device_options;

/* Work for background turns, such as a training run; a member of the object it works for. */
typedef struct device_background device_background;
struct device_background {
	bool (*waits)(const device_background *b); /* nothing to do for now */
	/* About budget_ns of it; STATUS_DEVICE when the device failed. */
	status (*advance)(device_background *b, device *d, uint64_t budget_ns);
	void (*lose)(device_background *b, device *d); /* the device is lost: leave */
};

/* The data that the loop reads without waiting for the executor. */
typedef struct device_stats {
	scheduler_stats scheduler;
	uint64_t
	    tick_count[DEVICE_TICK_BUCKETS + 1]; /* ticks of at most device_tick_bounds[i] seconds; the last: longer */
	double tick_seconds;
	uint64_t training_steps, training_tokens;
	double training_tokens_per_second; /* 0: nothing trains */
	uint64_t restarts;
	int processes;     /* as in device_history */
	char problem[320]; /* why the device is not open; "": it is */
	uint64_t left_ns;  /* it is left from then on, by clock_ns; 0: it is not */
	int n_loaded;
	char loaded[DEVICE_MAX_MODELS][SCHEDULER_ID_BYTES];
} device_stats;

/* Upper bounds of the buckets, seconds. */
extern const double device_tick_bounds[DEVICE_TICK_BUCKETS];

/* With a history, a device that cannot be opened is no error: it is left or tried again. */
status device_open(device **out, const device_options *options, error *err);
void device_close(device *d);

/* Any thread. */
const char *device_backend_name(const device *d);
const char *device_description(const device *d);
/* Threads that compute: those of the CPU backend, else 1. */
int device_threads(const device *d);
/* Can it train in bf16? */
bool device_bf16(const device *d);
void device_snapshot(device *d, device_stats *out);
/* False from a failure until it has been opened again. */
bool device_is_open(device *d);
/* Is another process to go on? */
bool device_is_left(device *d);
/* For that process. The executor has ended, or will not be heard of again. */
void device_hand_over(device *d, device_history *out);

/* NULL, both: the device is not open. */
backend *device_training_backend(device *d);
scheduler *device_scheduler(device *d);
/* A task's `prepare`: load the model of that id for DEVICE_LOAD_NS per turn, however many tasks ask. True:
 * device_model answers at once now, in this turn. The model of the first task that waits is loaded first; one that no
 * task has asked for in a turn is given up. */
bool device_prepare(device *d, const char *id, const char *folder, dtype weights);
/* The model of that id, which lies in the store: loaded if need be (blocks, unless device_prepare said true),
 * remembered for the snapshot. STATUS_STORAGE: its folder is damaged or missing; that has been logged. BUSY, CONFLICT,
 * NOMEM and DEVICE as of scheduler_model. */
status device_model(device *d, const char *id, const char *folder, dtype weights, served_model **out, error *err);
status device_unload(device *d, const char *id, error *err);
/* Set the work of background turns; one at a time. It stays in place until it leaves. */
void device_enter_background(device *d, device_background *b);
/* No more turns for b; no effect when it has none. */
void device_leave_background(device *d, const device_background *b);
void device_count_training(device *d, int64_t steps, int64_t tokens, double tokens_per_second);

/* The executor's turns. */
extern const executor_work device_work;

#endif
