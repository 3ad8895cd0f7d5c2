/* engine_parts.h - the parts of the engine, in the order in which they are opened. Each room gets a context with the
 * parts that it needs (rooms.h), so only files beside this one see them all. Loop thread only. */
#ifndef ENGINE_DAEMON_ENGINE_PARTS_H
#define ENGINE_DAEMON_ENGINE_PARTS_H

#include <limits.h>

#include "engine/base/death_log.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/engine_options.h"
#include "engine/daemon/generation/generation.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/library/library.h"
#include "engine/daemon/net/net.h"

typedef struct engine {
	const engine_options *options;
	uint64_t started_ns;
	uv_loop_t loop;
	net net;
	admission *admission;
	store *store;
	keys *keys;
	struct audit *audit;             /* NULL: no audit log */
	death_log *deaths;               /* work that was running when the engine died; NULL: not counted */
	char cache_folder[PATH_MAX];     /* cached tokens, */
	int64_t cache_budget;            /* limited by options.corpus_cache_bytes */
	struct prefix_disk *prefix_disk; /* limits.prefix_disk */
	fleet *fleet;
	atomic_llong automatic_used, snapshot_used; /* counts that limits points to */
	catalog *catalog;
	sessions *sessions;
	struct trace_outbox *traces;
	job_machine *job_machine;
	generation_room generation; /* contexts of two rooms; those of the others are `sessions` and `job_machine` */
	library library;
	struct statistics_reading *statistics; /* library.statistics points to it */
	int pool_threads;                      /* size of libuv's pool */
	struct storage *storage;
	struct listener *listener;
} engine;

#endif
