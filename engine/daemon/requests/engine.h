/* engine.h - the daemon as a whole: the data of its loop thread, and its life from start to stop.
 *
 * One loop thread owns everything here: sockets, store, tables of models, sessions and jobs. The executor thread
 * (executor.h) owns the device. The libuv pool tokenizes, hashes and syncs. Threads share only what a task or a work
 * request hands over, and the snapshot in device.h.
 *
 * Stopping (SIGTERM, SIGINT): new connections and requests are refused. Generations are cancelled and answered
 * "shutting_down". The running job saves a checkpoint and stays "running" in the ledger, so the next start resumes it.
 * Then the loop ends. This may take ENGINE_STOP_MS; unfinished work is safe, because durability does not depend on it.
 *
 * A device that is left (compute/device.h) stops the engine in the same way, with "device_error" instead of
 * "shutting_down". The engine then re-executes itself (successor.h), unless a stop signal arrives before. */
#ifndef ENGINE_DAEMON_REQUESTS_ENGINE_H
#define ENGINE_DAEMON_REQUESTS_ENGINE_H

#include <limits.h>
#include <stdatomic.h>
#include <uv.h>

#include "engine/base/death_log.h"
#include "engine/daemon/net/net.h"
#include "engine/serve/scheduler.h"
#include "engine/store/store.h"

enum { ENGINE_STOP_MS = 8000, ENGINE_TICK_MS = 500 };
/* Defaults of retention. */
enum { ENGINE_RETAIN_DAYS = 7, ENGINE_RETAIN_BYTES = 1 << 30, ENGINE_LOST_DAYS = 30 };
static const int64_t ENGINE_LOST_BYTES = INT64_C(16) << 30;

typedef struct engine_options {
	const char *data;          /* folder */
	const char *socket;        /* "unix:PATH" or "HOST:PORT"; NULL: unix:DATA/engine.sock */
	bool allow_remote;         /* the socket may be reachable from other machines, without a key */
	const char *backend;       /* auto, cpu, cuda */
	int device;                /* index of the device */
	int threads;               /* 0: all cores */
	bool data_must_exist;      /* never create a data folder */
	const char *data_identity; /* accept only the data folder with this identity; NULL: any */
	int64_t data_budget;       /* bytes; 0: unlimited */
	int retain_days;           /* age limit for checkpoints of ended jobs; 0: none */
	int64_t retain_bytes;      /* limit of all of them together; 0: none */
	lost_limits lost;
	int64_t corpus_cache_bytes; /* limit of cached tokens that no job uses */
	scheduler_limits limits;
	int max_known_sessions;         /* live and stored together */
	int max_explanations;           /* answers being made or sent */
	const struct successor *before; /* data from a previous process */
} engine_options;

/* The end of the engine. */
typedef struct engine_end {
	bool forced;            /* the deadline passed: nothing has been freed, and the process should exit at once */
	bool no_data;           /* the data folder is missing or another one, although it was required */
	bool reexecute;              /* the engine should re-execute itself with: */
	struct successor *next; /* the caller's memory, filled in then */
} engine_end;

struct device;
struct executor;
struct listener;
struct catalog;
struct sessions;
struct job_machine;
struct idempotency;
struct admission;

typedef struct engine {
	const engine_options *options;
	uv_loop_t loop;
	uv_timer_t tick; /* every ENGINE_TICK_MS: silent peers, expired sessions, job retries, progress of stopping */
	uv_signal_t terminate, interrupt;
	uv_work_t *first_work;     /* one for each thread of libuv's pool */
	atomic_int guarded;        /* threads of the pool that have started theirs */
	uv_prepare_t before_sleep; /* these two write the gathered frames of connections */
	uv_check_t after_sleep;
	net net;
	store *store;
	death_log *deaths;           /* work that was running when the engine died; NULL: not counted */
	char cache_folder[PATH_MAX]; /* cached tokens, */
	int64_t cache_budget;        /* limited by options.corpus_cache_bytes */
	struct device *device;       /* only its snapshot, once the executor runs */
	struct executor *executor;
	struct listener *listener;
	struct catalog *catalog;
	struct sessions *sessions;
	struct job_machine *job_machine;
	uint64_t storage_looked_ns; /* private to storage.c */
	bool storage_warned, expiry_failed;
	uv_work_t lost_sweep; /* private to storage.c */
	bool lost_sweeping;
	uint64_t lost_swept_ns;
	int64_t lost, lost_found; /* blobs in lost/; blobs found so far by the running sweep */
	int64_t started_unix;
	struct idempotency *idempotency;
	struct admission *admission;
	int explanations;             /* answers being made or sent */
	uint64_t started_ns, stop_ns; /* stop_ns: deadline for stopping; 0: not stopping */
	bool forced;                  /* the deadline passed */
	bool reexecute;                    /* re-execute after stopping */
} engine;

/* Serve until a stop signal or until the device is left; both return STATUS_OK. */
status engine_run(const engine_options *options, engine_end *end, error *err);

#endif
