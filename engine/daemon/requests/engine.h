/* engine.h - the daemon as a whole: what its loop thread holds, and its life from start to stop.
 *
 * One loop thread owns everything here: sockets, store, tables of models, sessions and jobs.
 * The executor thread (executor.h) owns the device; the libuv pool tokenises, hashes and
 * syncs. Nothing is shared between threads except what a task or a work request hands over, and the
 * snapshot in device.h.
 *
 * Stopping (SIGTERM, SIGINT): no new connections or requests; generations are cancelled and
 * answered "shutting_down"; the running job saves a checkpoint and stays "running" in the
 * ledger, so the next start resumes it; then the loop ends. It has ENGINE_STOP_MS for that; what is
 * not done by then is left to durability, which does not need it.
 *
 * A device that is left (compute/device.h) stops the engine in the same way, with "device_error" in place of
 * "shutting_down"; then the engine executes itself anew (successor.h). A signal to stop meanwhile makes it a stop. */
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
	bool allow_remote;         /* the socket may be reachable from other machines, which need no key */
	const char *backend;       /* auto, cpu, cuda */
	int device;                /* which of several */
	int threads;               /* 0: all cores */
	bool data_must_exist;      /* never make a new data folder */
	const char *data_identity; /* only the data folder of this identity; NULL: any */
	int64_t data_budget;       /* bytes in the data folder; 0: as much as fits */
	int retain_days;           /* checkpoints of ended jobs stay as long; 0: for ever */
	int64_t retain_bytes;      /* limit of all of those together; 0: none */
	lost_limits lost;
	int64_t corpus_cache_bytes; /* of cached tokens that no job uses */
	scheduler_limits limits;
	int max_known_sessions;         /* live and stored together */
	int max_explanations;           /* being made or sent */
	const struct successor *before; /* what another process has handed over */
} engine_options;

/* How it ended. */
typedef struct engine_end {
	bool forced;            /* not everything in time: nothing has been freed, and the process should end at once */
	bool no_data;           /* the data folder, which must exist, does not, or is another one */
	bool anew;              /* it should be executed anew, with: */
	struct successor *next; /* the caller's, filled in then */
} engine_end;

struct device;
struct executor;
struct listener;
struct catalog;
struct sessions;
struct jobs;
struct evaluations;
struct faithfulness_jobs;
struct idempotency;
struct admission;

typedef struct engine {
	const engine_options *options;
	uv_loop_t loop;
	uv_timer_t
	    tick; /* every ENGINE_TICK_MS: silent peers, expired sessions, retries of jobs, the end of stopping */
	uv_signal_t terminate, interrupt;
	uv_work_t *first_work;     /* one for each thread of libuv's pool, which it creates */
	atomic_int guarded;        /* threads of the pool that have begun theirs */
	uv_prepare_t before_sleep; /* these two write what connections have gathered */
	uv_check_t after_sleep;
	net net;
	store *store;
	death_log *deaths;           /* which work was running when the engine died; NULL: not counted */
	char cache_folder[PATH_MAX]; /* of tokens, */
	int64_t cache_budget;        /* and the options' corpus_cache_bytes */
	struct device *device;       /* its snapshot only, once the executor runs */
	struct executor *executor;
	struct listener *listener;
	struct catalog *catalog;
	struct sessions *sessions;
	struct jobs *jobs;
	struct evaluations *evaluations;
	struct faithfulness_jobs *faithfulness;
	uint64_t storage_looked_ns; /* storage.c's */
	bool storage_warned, expiry_failed;
	uv_work_t lost_sweep; /* storage.c's */
	bool lost_sweeping;
	uint64_t lost_swept_ns;
	int64_t lost, lost_found; /* blobs in lost/; as the sweep under way has found */
	int64_t started_unix;
	struct idempotency *idempotency;
	struct admission *admission;
	int explanations;             /* that are being made or sent */
	uint64_t started_ns, stop_ns; /* stop_ns: deadline of stopping, 0 before */
	bool forced;                  /* the deadline passed */
	bool anew;                    /* it stops to be executed anew */
} engine;

/* Serve until a signal to stop, or until the device is left. STATUS_OK: stopped by one of these. */
status engine_run(const engine_options *options, engine_end *end, error *err);

#endif
