/* sessions_private.h - the table's entries: shared by sessions.c, sessions_snapshots.c and sessions_tree.c. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSIONS_PRIVATE_H
#define ENGINE_DAEMON_SESSIONS_SESSIONS_PRIVATE_H

#include "engine/base/string_table.h"
#include "engine/daemon/sessions/sessions.h"

/* Number of sessions that use a model. */
typedef struct model_use {
	string_node node;
	int64_t sessions;
	char id[STORE_ID_BYTES];
} model_use;

typedef struct eviction {
	task task;
	char id[STORE_ID_BYTES];
} eviction;

struct session_entry {
	struct session_entry *older, *newer;             /* in the order of creation */
	struct session_entry *idle_next, *idle_previous; /* links of its device's list of entries whose slot may be
	                                                  * taken */
	string_node node;                                /* in the table, by id */
	struct model_use *use;                           /* the count of sessions of its model */
	struct eviction *eviction;                       /* allocated while live, so giving the slot up needs no
	                                                  * memory */
	char id[STORE_ID_BYTES], model[STORE_ID_BYTES];
	session_options options;
	int64_t tokens, source_tokens, state_bytes, created;
	int64_t stored_tokens; /* durable: tokens when last stored; -1: never */
	int64_t ttl;           /* seconds of life without use; -1: SESSIONS_TTL_SECONDS, or unlimited for a durable
	                        * session */
	uint64_t expires_ns;   /* on the monotonic clock; 0: never */
	int device;            /* number of the device of its slot, while live */
	uint64_t idle_since;   /* while idle: order in which entries became idle */
	bool busy, live, idle; /* idle: in the list of entries whose slot may be taken */
	bool was_live;         /* live when it was taken */
	bool hidden;           /* belongs to one request; no other one finds it */
	bool damaged;          /* durable: its stored state was unreadable when last needed */
	char origin[STORE_ID_BYTES],
	    origin_snapshot[STORE_ID_BYTES]; /* the session and snapshot that it was forked from; "": none */
	int64_t origin_tokens;               /* -1: not known yet */
	struct session_entry *parent;        /* the origin, while it exists */
	struct session_entry *forks, *next_fork, *previous_fork; /* newest first */
	snapshot_list snapshots;
	snapshot_list adding;   /* snapshots that the present request makes */
	int64_t snapshot_bytes; /* host memory of a snapshot of its present state */
	int64_t snapshot_every; /* tokens between automatic snapshots; 0: none are made */
};

/* Entries whose slot may be taken, longest idle first. */
typedef struct idle_list {
	session_entry *first, *last;
} idle_list;

struct sessions {
	session_parts parts;
	session_entry *newest, *oldest;
	idle_list idle[FLEET_MAX]; /* one for each device */
	uint64_t idle_clock;
	string_table ids, models;
	uint64_t soonest_ns;    /* no entry expires earlier */
	int64_t snapshot_bytes; /* host memory of all snapshots */
	status opened;          /* status of reading the stored sessions */
};

/* Return the session `id`, or NULL. */
session_entry *sessions_find(const sessions *all, const char *id);

/* Make the automatic snapshots of a session that is not durable those that the scheduler has. */
void sessions_sync_snapshots(session_entry *e, const session_info *info);

/* --- forks (sessions_tree.c) --- */

/* Link an entry to its origin, if that exists. */
void sessions_tree_link(sessions *all, session_entry *e);
/* Unlink it from its origin and its forks, which keep the origin's id. */
void sessions_tree_unlink(session_entry *e);
/* Return {"session", "snapshot", "tokens"}, or null without an origin. NULL: out of memory. */
json_t *sessions_tree_origin(const session_entry *e);
/* Read it from a document. */
void sessions_tree_read_origin(session_entry *e, const json_t *document);

#endif
