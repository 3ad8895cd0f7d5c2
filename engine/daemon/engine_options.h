/* engine_options.h - options of the engine, from its command line. */
#ifndef ENGINE_DAEMON_ENGINE_OPTIONS_H
#define ENGINE_DAEMON_ENGINE_OPTIONS_H

#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/requests/responses.h"
#include "engine/store/store.h"

/* Defaults of retention. */
enum { ENGINE_RETAIN_DAYS = 7, ENGINE_RETAIN_BYTES = 1 << 30, ENGINE_LOST_DAYS = 30, ENGINE_PREFIX_BYTES = 256 << 20 };
static const int64_t ENGINE_LOST_BYTES = INT64_C(16) << 30;

typedef struct engine_options {
	const char *data;       /* folder */
	const char *socket;     /* "unix:PATH" or "HOST:PORT"; NULL: unix:DATA/engine.sock */
	bool allow_remote;      /* the socket may be reachable from other machines, without a key */
	const char *backend;    /* auto, cpu, cuda */
	int devices[FLEET_MAX]; /* numbers of the devices */
	int n_devices;
	int threads;               /* 0: all cores */
	bool data_must_exist;      /* never create a data folder */
	const char *data_identity; /* accept only the data folder with this identity; NULL: any */
	int64_t data_budget;       /* bytes; 0: unlimited */
	int retain_days;           /* age limit for checkpoints of ended jobs; 0: none */
	int64_t retain_bytes;      /* limit of all of them together; 0: none */
	lost_limits lost;
	int64_t corpus_cache_bytes; /* limit of cached tokens that no job uses */
	scheduler_limits limits;
	int max_known_sessions;         /* wherever their states are */
	int64_t session_memory_bytes;   /* host memory for sessions without a slot */
	int64_t session_disk_bytes;     /* files of those that are not durable */
	int64_t prefix_disk_bytes;      /* files of states of prompts; 0: none */
	const char *state_key_file;     /* the key that seals states in answers; NULL: none */
	const char *audit_log;          /* a file; NULL: none */
	int max_snapshots;              /* per session */
	int64_t snapshot_bytes;         /* host memory for snapshots */
	int max_explanations;           /* answers being made or sent */
	responses_limits responses;     /* generations that are kept */
	const struct successor *before; /* data from a previous process */
} engine_options;

#endif
