/* store_private.h - what the files of the store share. Private to engine/store. */
#ifndef ENGINE_STORE_STORE_PRIVATE_H
#define ENGINE_STORE_STORE_PRIVATE_H

#include "engine/base/manifest.h"
#include "engine/store/ledger.h"
#include "engine/store/store.h"

#include <limits.h>

enum { STORE_STATE_BYTES = 32, STORE_MAX_DAMAGED = 1000 };

typedef struct store_damage {
	const char *kind;
	char id[STORE_ID_BYTES], problem[160];
} store_damage;

typedef enum commit_statement {
	COMMIT_BEGIN,
	COMMIT_END,
	COMMIT_UNDO,
	COMMIT_SAVE,
	COMMIT_RELEASE,
	COMMIT_UNDO_INNER,
	COMMIT_STATEMENTS
} commit_statement;
enum { COMMIT_DEPTH = 8 };

/* Texts that wait for the outermost commit. */
typedef struct after_list {
	char **texts;
	int n;
} after_list;

/* Lengths of the lists when a commit began. */
typedef struct commit_mark {
	int unlink, copies, renames;
} commit_mark;

struct store {
	char folder[PATH_MAX - 256]; /* room for every name the store appends */
	sqlite3 *db;
	int lock;   /* descriptor holding the flock */
	int backup; /* descriptor of the lock under which blobs are unlinked; a backup holds it shared */
	uint64_t temporaries;
	int64_t budget;                       /* bytes; 0: none */
	uint64_t ledger_device, ledger_inode; /* of the file that is open, to notice that it was replaced */
	int64_t ledger_bytes;                 /* the file's length after the last checkpoint */
	char stuck[160];                      /* why the last store_tick() failed; "": it did not */
	int wait_ms;                          /* until the next store_tick() commits may wait this long for a lock */
	bool dirty;                           /* commits since the log was last checkpointed */
	char problem[512];                    /* "" while all is well */
	sqlite3_stmt *commit[COMMIT_STATEMENTS];
	int depth;   /* of commits under way */
	bool broken; /* an inner one could not be rolled back */
	commit_mark marks[COMMIT_DEPTH];
	after_list unlink, copies, renames; /* paths; ids of jobs; paths in pairs */
	store_damage *damaged;
	int n_damaged;
};

/* STATUS_STORAGE when the ledger was moved or replaced: nothing must be acknowledged then. */
status store_writable(const store *s, error *err);

/* Give the data folder an identity if it has none (store_identity.c). */
status identity_ensure(const store *s, error *err);

/* --- commits (store_commit.c) ------------------------------------------------------------- */

status commit_init(store *s, error *err);
void commit_fini(store *s);
/* Inside a commit: give a blob its name, which a rollback takes back. */
status commit_rename(store *s, const char *from, const char *to, error *err);
/* Inside a commit. */
status after_add(after_list *list, const char *text, error *err);

/* --- rows (store_row.c) ------------------------------------------------------------------------ */

/* One row of the ledger. Its meaning by kind:
 *
 *   kind        parent  number    state          document               manifest
 *   file                expires   purpose        the file               of the blob
 *   model                         dtype          the model's row        of the folder
 *   job                           status         the job
 *   event       job     sequence                 the event
 *   checkpoint  job     step      dtype          the checkpoint         of the folder
 *   session             version                  the session
 */
typedef struct store_row {
	char id[STORE_ID_BYTES], parent[STORE_ID_BYTES], state[STORE_STATE_BYTES];
	int64_t number, bytes;
	json_t *document;
	char *manifest; /* NULL: it has none */
} store_row;

/* What the rows of a table are called in the ledger, in lost/ and in manifests: "file", "model", … */
const char *store_kind(store_table table);
/* The table of a kind; false when there is none. */
bool store_find_kind(const char *kind, store_table *out);

/* STATUS_NOT_FOUND, with the message left to the caller; STATUS_STORAGE when the row is damaged. row_fini also after
 * failure. */
status row_find(store *s, store_table table, const char *id, store_row *out, error *err);
void row_fini(store_row *row);
/* Insert, or replace the row of that id, which keeps its place in the order of creation. */
status row_put(store *s, store_table table, const store_row *row, error *err);
/* *found: there was one. */
status row_delete(store *s, store_table table, const char *id, bool *found, error *err);
/* Is there a row of the parent with that number? */
status row_has_number(store *s, store_table table, const char *parent, int64_t number, bool *found, error *err);
/* Change the state of a row that is whole. *found: there was one. */
status row_set_state(store *s, store_table table, const char *id, const char *state, bool *found, error *err);
/* Call `each` for every whole row, in order of creation, until it fails; rows that are damaged are passed over and
 * noted. parent may be NULL. `each` must not change the table. */
typedef status (*row_each)(void *context, const store_row *row, error *err);
status row_walk(store *s, store_table table, const char *parent, row_each each, void *context, error *err);

/* --- blobs ---------------------------------------------------------------------------------------- */

/* The paths of an object: its blob, and the manifest beside or in it. */
void store_manifest_path(const store *s, store_table table, const store_row *row, char *out);
/* The folder that the names of a manifest's files are relative to. */
void store_manifest_base(const store *s, store_table table, const store_row *row, char *out);

/* Hold the blob against the ledger's copy of its manifest: sizes, or with `contents` every byte. A manifest that is
 * missing or damaged is written again when the files are whole. STATUS_STORAGE. */
status row_check_blob(store *s, store_table table, const store_row *row, bool contents, error *err);
/* Write jobs/<id>/job.json as the row says; a failure is logged. */
void job_write_copy(store *s, const char *id);

/* Queue a path below the data folder for removal, in the commit under way. */
status removal_queue(store *s, const char *path, error *err);
/* Something new lies at the path. */
status removal_cancel(store *s, const char *path, error *err);
/* The commit is on the disk: unlink what it queued unless a backup is being made. What is left, the next sweep tries.
 */
void removal_unlink_all(store *s);
status removal_sweep(store *s, error *err);
/* Is it queued? */
status removal_pending(store *s, const char *path, bool *pending, error *err);

/* A removal that is tried again with the room of the reserve when the disk is full. `number`: of a checkpoint. */
typedef status (*store_removal)(store *s, const char *id, int64_t number, error *err);
status store_with_reserve(store *s, store_removal remove, const char *id, int64_t number, error *err);
/* Take the reserve back when there is room. */
void reserve_take(store *s);

/* Move `path`, a blob that no row names, to lost/KIND/NAME, with its manifest. */
status lost_keep(store *s, store_table table, const char *path, const char *name, error *err);

/* Note that the blob in lost/ was set aside now. */
void lost_date(const char *path);
/* Call `each` for every blob in lost/. Any thread. */
typedef void (*lost_each)(void *context, const char *kind, const char *name, const char *path);
void store_lost_walk(const char *data, lost_each each, void *context);
/* Sum of the bytes of a file, or of all files below a folder. Any thread. */
int64_t store_bytes_below(const char *path);

/* Make the row of a blob in its place from its own description. STATUS_STORAGE: the description is incomplete,
 * or is damaged. job: of a checkpoint. */
status adopt_file(store *s, const char *name, error *err);
status adopt_model(store *s, const char *name, error *err);
status adopt_job(store *s, const char *name, error *err);
status adopt_checkpoint(store *s, const char *job, const char *name, error *err);
status adopt_session(store *s, const char *name, error *err);

/* Bring folders and rows together after opening: see store_arrange.c. */
status store_arrange(store *s, error *err);
/* Is every row of the open ledger whole? */
status salvage_is_needed(store *s, bool *needed, error *err);
/* The ledger, closed, is damaged: make a new one of its whole rows and of what the blobs say, keep the damaged one in
 * lost/, and open the new one. */
status salvage_ledger(store *s, error *err);
/* Make rows of all blobs that lie in their places and have none. */
status salvage_rebuild(store *s, error *err);

/* --- beside a running engine (store_verify.c, store_tree.c) --------------------------------------- */

/* While *out, a descriptor to be closed, is open, an engine on this folder unlinks no blob. Waits for an unlinking.
 * STATUS_NOT_FOUND when `folder` is no data folder; *out is -1 on failure. */
status verify_lock(const char *folder, int *out, error *err);
/* A store that must only be read: the blobs of `folder`, and a copy of `ledger` that is made at `copy` (":memory:" is
 * legal). STATUS_NOT_FOUND when there is no ledger, STATUS_STORAGE when it is damaged as a whole. */
status verify_open(store **out, const char *folder, const char *ledger, const char *copy, error *err);
/* Is an object what its row says, in every byte? Changes nothing. */
status verify_row(const store *s, store_table table, const store_row *row, error *err);
/* Is the manifest in the folder the row's? Is the copy of a job what its row says? */
bool verify_manifest(const store *s, store_table table, const store_row *row);
bool verify_job_copy(const store *s, const store_row *row);
/* Verify all. Damage is noted in the store and does not fail. Puts "objects", "bytes" and "damaged" into the report. */
status verify_all(store *s, json_t *report, error *err);
/* Has any row whose object was found damaged changed in `ledger` since it was copied? Then it was the copy that was too
 * old. */
status verify_is_stale(store *s, const char *ledger, bool *stale, error *err);

/* How files came into a tree. */
typedef struct tree_counts {
	int64_t linked, copied; /* bytes */
} tree_counts;
/* The file `to` becomes a hard link of `from`, or a durable copy where that is not possible or `copy` is asked for. */
status tree_take(const char *from, const char *to, bool copy, tree_counts *counts, error *err);
/* Copy the folder `from` with all below it, except temporary names. */
status tree_copy(const char *from, const char *to, tree_counts *counts, error *err);
/* fsync every folder of the tree. */
status tree_sync(const char *path, error *err);

/* --- documents ---------------------------------------------------------------------------------------- */

/* A document as text for the ledger; NULL when out of memory. Free with free(). */
char *store_text(const json_t *document);
/* The document of a session file, and its version; NULL and STATUS_STORAGE when the file is damaged. */
status session_file_document(const char *path, json_t **document, int64_t *version, error *err);
/* "ID.VERSION". */
bool session_file_name(const char *name, char id[STORE_ID_BYTES], int64_t *version);
/* "step-N"; -1: it is none. */
int64_t checkpoint_name_step(const char *name);

#endif
