/* engine.h - the daemon as a whole: its life from start to stop.
 *
 * One loop thread owns the sockets, the store and the tables of models, sessions and jobs (engine_parts.h). The
 * executor thread (executor.h) owns the device. The libuv pool tokenizes, hashes and syncs. Threads share only what a
 * task or a work request hands over, and the snapshot in device.h.
 *
 * Stopping (SIGTERM, SIGINT): new connections and requests are refused. Generations are cancelled and answered
 * "shutting_down". The running job saves a checkpoint and stays "running" in the ledger, so the next start resumes it.
 * Then the loop ends. This may take ENGINE_STOP_MS; unfinished work is safe, because durability does not depend on it.
 *
 * A device that is left (compute/device.h) stops the engine in the same way, with "device_error" instead of
 * "shutting_down". The engine then re-executes itself (successor.h), unless a stop signal arrives before. */
#ifndef ENGINE_DAEMON_ENGINE_H
#define ENGINE_DAEMON_ENGINE_H

#include "engine/base/error.h"
#include "engine/daemon/engine_options.h"

enum { ENGINE_STOP_MS = 8000, ENGINE_TICK_MS = 500 };

/* The end of the engine. */
typedef struct engine_end {
	bool forced;            /* the deadline passed: nothing has been freed, and the process should exit at once */
	bool no_data;           /* the data folder is missing or another one, although it was required */
	bool reexecute;         /* the engine should re-execute itself with: */
	struct successor *next; /* the caller's memory, filled in then */
} engine_end;

/* Serve until a stop signal or until the device is left; both return STATUS_OK. */
status engine_run(const engine_options *options, engine_end *end, error *err);

#endif
