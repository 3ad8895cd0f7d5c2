/* snapshots.h - the list of a session's snapshots, newest first. The loop thread keeps what the API shows of them. The
 * states are in the scheduler (engine/serve/scheduler.h), or in the store for a durable session. */
#ifndef ENGINE_DAEMON_SESSIONS_SNAPSHOTS_H
#define ENGINE_DAEMON_SESSIONS_SNAPSHOTS_H

#include <jansson.h>

#include "engine/store/store.h"

enum { SNAPSHOT_NAME_BYTES = 64 /* maximum */ };

typedef struct snapshot {
	struct snapshot *older;
	char id[STORE_ID_BYTES], name[SNAPSHOT_NAME_BYTES + 1]; /* name "": none */
	int64_t tokens, created;
	int64_t bytes;   /* in host memory, or of the stored file */
	int64_t version; /* version of the stored state (store.h); 0: the scheduler has the state */
	bool damaged;    /* the stored state was unreadable when last needed */
} snapshot;

typedef struct snapshot_list {
	snapshot *newest;
	int count;
	int64_t bytes; /* sum of those that the scheduler has */
} snapshot_list;       /* {0}: empty */

/* Create a snapshot with an id of its own, in no list. NULL: out of memory. */
snapshot *snapshots_new(const char *name, int64_t tokens);
/* Add the newest snapshot to the list, which owns it from here on. */
void snapshots_add(snapshot_list *list, snapshot *x);
snapshot *snapshots_find(const snapshot_list *list, const char *id);
/* Remove a snapshot from the list and free it. */
void snapshots_remove(snapshot_list *list, snapshot *x);
void snapshots_fini(snapshot_list *list);

/* Return the API's object. NULL: out of memory. */
json_t *snapshots_object(const snapshot *x, const char *session);
/* Return the list as a session's document has it, without `except` and with `also` (both may be NULL). NULL: out of
 * memory. */
json_t *snapshots_document(const snapshot_list *list, const snapshot *except, const snapshot *also);
/* Read the list of a document into an empty list. STATUS_INVALID: malformed. STATUS_NOMEM. */
status snapshots_read(snapshot_list *list, const json_t *document);

#endif
