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
	bool automatic;  /* made while the session was reading, because of snapshot_every */
	bool leaving;    /* the session's next document is without it */
} snapshot;

typedef struct snapshot_list {
	snapshot *newest;
} snapshot_list; /* {0}: empty */

/* Create a snapshot with an id of its own, in no list. NULL: out of memory. */
snapshot *snapshots_new(const char *name, int64_t tokens);
/* Return the number of all snapshots, or of the automatic ones, that are not leaving. */
int snapshots_count(const snapshot_list *list);
int snapshots_count_automatic(const snapshot_list *list);
/* Return the bytes of those that the scheduler has, without automatic ones, which the scheduler itself counts. */
int64_t snapshots_memory(const snapshot_list *list);
/* Return the oldest automatic snapshot that is not leaving, or NULL. */
snapshot *snapshots_oldest_automatic(const snapshot_list *list);
/* Move all snapshots of `from`, which are newer, to the list. */
void snapshots_move(snapshot_list *list, snapshot_list *from);
/* Add the newest snapshot to the list, which owns it from here on. */
void snapshots_add(snapshot_list *list, snapshot *x);
snapshot *snapshots_find(const snapshot_list *list, const char *id);
/* Remove a snapshot from the list and free it. */
void snapshots_remove(snapshot_list *list, snapshot *x);
void snapshots_fini(snapshot_list *list);

/* Return the API's object. NULL: out of memory. */
json_t *snapshots_object(const snapshot *x, const char *session);
/* Return both lists as a session's document has them, without the snapshots that are leaving. NULL: out of memory. */
json_t *snapshots_document(const snapshot_list *list, const snapshot_list *newer);
/* Read the list of a document into an empty list. STATUS_INVALID: malformed. STATUS_NOMEM. */
status snapshots_read(snapshot_list *list, const json_t *document);

#endif
