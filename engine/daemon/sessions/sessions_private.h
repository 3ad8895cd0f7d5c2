/* sessions_private.h - the table's entries: shared by the files sessions*.c. */
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

/* The sessions of a project. */
typedef struct session_project {
	string_node node;
	session_entry *newest, *oldest;
	int64_t sessions, bytes;  /* that are not hidden; on the disk, of durable ones */
	char name[PROJECT_BYTES]; /* "": the default */
} session_project;

/* The task that frees a session's slot. */
typedef struct eviction {
	task task;
	char id[STORE_ID_BYTES];
	/* The rest is for a session that moves to host memory. */
	sessions *all;
	session_entry *entry;
	session_transfer out;
	session *snapshots;
	status result;    /* STATUS_NOT_FOUND: the device has lost the session */
	int64_t expected; /* bytes of the state, before it is known */
} eviction;

/* A list of idle entries, longest idle first. */
typedef struct idle_list {
	session_entry *first, *last;
} idle_list;

/* The part of an entry that exists while a request uses the session, or while its state is in a slot or in host memory.
 */
typedef struct session_place {
	session_entry *idle_next, *idle_previous; /* in `list` */
	idle_list *list;                          /* the list of idle entries that it is in; NULL: none */
	uint64_t idle_since;                      /* while in a list: order in which entries became idle */
	eviction *eviction;                       /* allocated while live, so giving the slot up needs no memory */
	session_away away;                        /* the state while it has no slot; the executor's while busy */
	stream *waiting;                          /* requests that wait until it has moved, first come first */
	int64_t export_bytes;                     /* size of its blob, without header and checksum */
	uint8_t from;                             /* session_tier: where it was when it was taken */
	bool was_live;                            /* live when it was taken */
} session_place;

/* The stored version of a durable session. */
typedef struct session_stored {
	int64_t tokens;      /* when it was last stored; -1: never */
	int64_t state_bytes; /* size of the stored state */
	int64_t counted;     /* bytes counted in its project */
} session_stored;

/* The session that a fork was made from. */
typedef struct session_origin {
	char session[STORE_ID_BYTES], snapshot[STORE_ID_BYTES]; /* snapshot "": none */
	int64_t tokens;                                         /* -1: not known yet */
	session_entry *parent;                                  /* while it exists */
	session_entry *next_fork, *previous_fork;               /* links of the same parent's forks, newest first */
} session_origin;

/* The members that few sessions need. */
typedef struct session_extra {
	session_stored stored;
	session_origin *origin; /* NULL: it is no fork */
	session_entry *forks;   /* newest first */
	snapshot_list snapshots;
	snapshot_list adding; /* snapshots that the present request makes */
	automatic_snapshots automatic;
	char *adapter; /* id; NULL: none */
	int64_t source_tokens;
} session_extra;

struct session_entry {
	session_entry *older, *newer; /* in the order of creation */
	string_node node;             /* in the table, by id */
	model_use *use;               /* its model, with the count of sessions */
	session_project *project;
	session_entry *project_older, *project_newer; /* in the order of creation */
	session_place *place;                         /* NULL: idle, and its state is only on the disk */
	session_extra *extra;                         /* NULL: all of it is empty (sessions_extra) */
	int64_t tokens, state_bytes, created;
	int64_t snapshot_bytes; /* host memory of a snapshot of its present state, with what it would share */
	uint64_t expires_ns;    /* on the monotonic clock; 0: never */
	int64_t tier_bytes;     /* as counted in `tier`; of the file if it is not durable and only on the disk */
	int32_t ttl;            /* seconds of life without use; -1: SESSIONS_TTL_SECONDS, or unlimited for a durable
	                         * session */
	int expiry;             /* its place in the queue of expiry; -1: none */
	uint8_t policy;         /* position_policy */
	bool explain, durable;  /* session_options */
	int8_t device;          /* number of the device of its slot, while live or moving */
	uint8_t tier;           /* session_tier: where it is counted */
	bool busy, live;        /* used by a request; has a slot */
	bool moving;            /* leaves its slot, or is written to the disk */
	bool hidden;            /* belongs to one request; no other one finds it */
	bool damaged;           /* its stored state was unreadable when last needed */
	char id[];
};
/* There may be very many entries. malloc has blocks of 184 bytes and of 200. */
_Static_assert(offsetof(session_entry, id) + sizeof "sess-0123456789abcdef01234567" <= 184,
               "an entry with an id of store_new_id takes a block of 184 bytes");

/* Sessions that are being written to the disk. */
enum { SPILL_MOST = 64 };
typedef struct spill {
	uv_work_t work;
	session_entry *entries[SPILL_MOST];
	int n, written; /* n 0: none */
	status result;  /* status of the first that was not written */
	error error;
} spill;

struct sessions {
	session_parts parts;
	session_entry *newest, *oldest;
	idle_list idle[FLEET_MAX]; /* live ones of each device */
	idle_list held;            /* those in host memory */
	uint64_t idle_clock;
	string_table ids, models, projects;
	session_entry **expiring; /* [n_expiring] a heap, soonest first (sessions_expiry.c) */
	int n_expiring, expiring_room;
	int64_t snapshot_bytes; /* maximum host memory of the snapshots that are being made */
	sessions_stats stats;
	int64_t moving_bytes; /* expected bytes of the states that leave a slot */
	spill spill;
	error disk_error;       /* why the last state could not be written; STATUS_OK: it could */
	uint64_t disk_retry_ns; /* no earlier attempt after an error */
	status opened;          /* status of reading the stored sessions */
	bool draining;          /* the engine stops */
};

/* Return the session `id`, or NULL. */
session_entry *sessions_find(const sessions *all, const char *id);

/* Return what few sessions need of an entry: a constant if it has nothing of it. */
const session_extra *sessions_extra(const session_entry *e);
/* Return it to be changed, allocated if necessary. NULL: out of memory. */
session_extra *sessions_use_extra(session_entry *e);

/* Add a new entry to its project's list, or remove it. STATUS_NOMEM. */
status sessions_join_project(sessions *all, session_entry *e, const char *name);
void sessions_leave_project(sessions *all, session_entry *e);
/* STATUS_RATE_LIMITED: the project has as many sessions as the request allows. */
status sessions_check_quota(const sessions *all, const project_scope *scope, const char *project, error *err);
/* Count what the stored session has on the disk. */
void sessions_count_bytes(session_entry *e);

/* Make the automatic snapshots of a session that is not durable those that the scheduler has. */
void sessions_sync_snapshots(session_entry *e, const session_info *info);

/* --- places of states (sessions_tiers.c) --- */

/* Give the entry a slot, on the device `preferred` if possible. The session that is idle longest gives up its slot if
 * there is no free one; without any, the scheduler refuses the session. STATUS_NOMEM; STATUS_FULL or STATUS_STORAGE:
 * that session would have to be written to the disk, which failed. */
status tiers_make_live(sessions *all, session_entry *e, int preferred, error *err);
/* Record whether the entry has a slot. */
void tiers_set_live(sessions *all, session_entry *e, bool live);
/* Take the entry from the list of idle ones, or add it to that of its place. */
void tiers_set_idle(sessions *all, session_entry *e, bool idle);
/* Free the slot of a session whose state is not needed. */
void tiers_discard(sessions *all, session_entry *e);
/* Count a session that has returned to its slot. */
void tiers_count_return(sessions *all, session_entry *e);
/* Where the state of a session without a slot is. */
session_away tiers_away(const session_entry *e);
/* Free the state of a session that has no slot. */
void tiers_forget_away(sessions *all, session_entry *e);
/* True if the session has a state somewhere; otherwise the device has lost it. */
bool tiers_have_state(const session_entry *e);
/* Remove the entry from all counts. */
void tiers_leave(sessions *all, session_entry *e);
/* Write the sessions that host memory has no room for to the disk, some at a time. */
void tiers_spill(sessions *all);
/* Call begin again when the move has ended. */
void sessions_wait(session_entry *e, stream *s);

/* --- lifetimes (sessions_expiry.c) --- */

/* Let the entry expire in this many seconds; negative: never. The queue has room for every entry of the table. */
void expiry_set(sessions *all, session_entry *e, int64_t seconds);
/* Take the entry from the queue. */
void expiry_remove(sessions *all, session_entry *e);
/* Return the entry that expires first, if it has expired. */
session_entry *expiry_due(const sessions *all);

/* --- forks (sessions_tree.c) --- */

/* Create the origin of a fork of a session, or of its snapshot `from` (NULL: none). NULL: out of memory. */
session_origin *sessions_tree_new_origin(const char *id, const char *from, int64_t tokens);
/* Link an entry to its origin, if that exists. Both have extra members. */
void sessions_tree_link(sessions *all, session_entry *e);
/* Unlink it from its origin and its forks, which keep the origin's id. */
void sessions_tree_unlink(session_entry *e);
/* Return {"session", "snapshot", "tokens"}, or null without an origin. NULL: out of memory. */
json_t *sessions_tree_origin(const session_entry *e);
/* Read it from a document. STATUS_NOMEM. */
status sessions_tree_read_origin(session_entry *e, const json_t *document);

#endif
