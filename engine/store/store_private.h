/* store_private.h - shared by the files of engine/store, and private to them. */
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

/* Texts to be processed after the outermost commit. */
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
	int backup; /* descriptor of the lock for unlinking blobs; a backup holds it shared */
	uint64_t temporaries;
	int64_t budget;                       /* bytes; 0: none */
	uint64_t ledger_device, ledger_inode; /* identify the open file, to detect that it was replaced */
	int64_t ledger_bytes;                 /* the file's length after the last checkpoint */
	char stuck[160];                      /* the error of the last store_tick(), or "" */
	int wait_ms;                          /* time that commits may wait for a lock before the next store_tick() */
	bool dirty;                           /* commits since the log was last checkpointed */
	bool removals_left;                   /* the last sweep left paths in the queue; the next tick retries */
	char problem[512];                    /* "" if there is none */
	sqlite3_stmt *commit[COMMIT_STATEMENTS];
	int depth;   /* number of nested commits */
	bool broken; /* an inner commit could not be rolled back */
	commit_mark marks[COMMIT_DEPTH];
	after_list unlink, copies, renames; /* paths; ids of jobs; paths in pairs */
	store_damage *damaged;
	int n_damaged;
};

/* STATUS_STORAGE if the ledger was moved or replaced: no change may be acknowledged then. */
status store_writable(const store *s, error *err);

/* Create the data folder's identity if it has none (store_identity.c). */
status identity_ensure(const store *s, error *err);

/* --- commits (store_commit.c) ------------------------------------------------------------- */

status commit_init(store *s, error *err);
void commit_fini(store *s);
/* Inside a commit: give a blob its name; a rollback reverts it. */
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
 *   response                                     the response
 *   adapter                                      the adapter            of the folder
 *   key                                          the key */
typedef struct store_row {
	char id[STORE_ID_BYTES], parent[STORE_ID_BYTES], state[STORE_STATE_BYTES];
	int64_t number, bytes;
	json_t *document;
	const char *text; /* to be stored as the document; NULL: `document` is */
	char *manifest;   /* NULL if it has none */
} store_row;

/* Name of a table's kind in the ledger, in lost/ and in manifests: "file", "model", … */
const char *store_kind(store_table table);
/* The table of a kind; false if there is none. */
bool store_find_kind(const char *kind, store_table *out);

/* STATUS_NOT_FOUND, without a message; STATUS_STORAGE if the row is damaged. Call row_fini also after failure. */
status row_find(store *s, store_table table, const char *id, store_row *out, error *err);
void row_fini(store_row *row);
/* Insert a row, or replace the row with the same id, which keeps its place in the order of creation. */
status row_put(store *s, store_table table, const store_row *row, error *err);
/* *found: the row existed. */
status row_delete(store *s, store_table table, const char *id, bool *found, error *err);
/* *found: the parent has a row with that number. */
status row_has_number(store *s, store_table table, const char *parent, int64_t number, bool *found, error *err);
/* Change the state of an intact row. *found: the row existed. */
status row_set_state(store *s, store_table table, const char *id, const char *state, bool *found, error *err);
/* Call `each` for every intact row, in order of creation, until it fails; damaged rows are skipped and recorded. parent
 * may be NULL. `each` must not change the table. */
typedef status (*row_each)(void *context, const store_row *row, error *err);
status row_walk(store *s, store_table table, const char *parent, row_each each, void *context, error *err);

/* --- objects with a folder of their own (store_folder.c) -------------------------------------------- */

/* Name of the folder below DATA with the table's objects; NULL: they have none of their own. */
const char *folder_of_table(store_table table);
/* Path of an object's folder. */
void folder_path(const store *s, store_table table, const char *id, char *out);
/* Sync and hash a finished folder, and write its manifest. document: the future row's, with an "id". Any thread. */
status folder_seal(store_table table, const json_t *document, const char *folder, error *err);
/* Move a folder in, sealing it if it is not sealed with this document, and add its row. STATUS_CONFLICT: the id exists.
 * STATUS_FULL. */
status folder_add(store *s, store_table table, const char *id, const char *state, const json_t *document,
                  const char *temporary, error *err);
/* As row_find, with a message. */
status folder_find(store *s, store_table table, const char *id, store_row *out, error *err);
status folder_delete(store *s, store_table table, const char *id, error *err);

/* --- blobs ---------------------------------------------------------------------------------------- */

/* Path of an object's manifest, beside or in its blob. */
void store_manifest_path(const store *s, store_table table, const store_row *row, char *out);
/* Folder that the file names in a manifest are relative to. */
void store_manifest_base(const store *s, store_table table, const store_row *row, char *out);

/* Check the blob against the ledger's copy of its manifest: sizes, or with `contents` every byte. A missing or damaged
 * manifest is written again if the files are intact. STATUS_STORAGE. */
status row_check_blob(store *s, store_table table, const store_row *row, bool contents, error *err);
/* Write jobs/<id>/job.json from the row; a failure is logged. */
void job_write_copy(store *s, const char *id);

/* Queue a path below the data folder for removal, in the current commit. */
status removal_queue(store *s, const char *path, error *err);
/* Remove a path from the queue, since it has new contents. */
status removal_cancel(store *s, const char *path, error *err);
/* Unlink the queued paths, after the commit is on the disk, unless a backup is being made. The next sweep retries
 * failures. */
void removal_unlink_all(store *s);
/* Unlink every queued path and take it from the queue. Sets `removals_left`. */
status removal_sweep(store *s, error *err);
/* *pending: the path is queued. */
status removal_pending(store *s, const char *path, bool *pending, error *err);

/* A removal that is retried with the reserve's room if the disk is full. `number`: step of a checkpoint. */
typedef status (*store_removal)(store *s, const char *id, int64_t number, error *err);
status store_with_reserve(store *s, store_removal remove, const char *id, int64_t number, error *err);
/* Remove the reserve, for its room. False: there is none. */
bool reserve_release(store *s);
/* Create the reserve again if there is room. */
void reserve_take(store *s);

/* Move `path`, a blob that no row names, to lost/KIND/NAME, with its manifest. */
status lost_keep(store *s, store_table table, const char *path, const char *name, error *err);

/* Record that the blob in lost/ was set aside now. */
void lost_date(const char *path);
/* Call `each` for every blob in lost/. Any thread. */
typedef void (*lost_each)(void *context, const char *kind, const char *name, const char *path);
void store_lost_walk(const char *data, lost_each each, void *context);
/* Sum of the bytes of a file, or of all files below a folder. Any thread. */
int64_t store_bytes_below(const char *path);

/* Build the row of a blob in place from its own description. STATUS_STORAGE: the description is incomplete or damaged.
 * job: a checkpoint's job. */
status adopt_file(store *s, const char *name, error *err);
status adopt_folder_object(store *s, store_table table, const char *name, error *err);
status adopt_job(store *s, const char *name, error *err);
status adopt_checkpoint(store *s, const char *job, const char *name, error *err);
status adopt_session(store *s, const char *name, error *err);

/* Reconcile folders and rows after opening: see store_arrange.c. */
status store_arrange(store *s, error *err);
/* *needed: a row of the open ledger is damaged. */
status salvage_is_needed(store *s, bool *needed, error *err);
/* Replace the ledger, closed and damaged, by a new one with its intact rows and the descriptions of the blobs. The
 * damaged one is kept in lost/, and the new one is opened. */
status salvage_ledger(store *s, error *err);
/* Build rows of all blobs in place that have none. */
status salvage_rebuild(store *s, error *err);

/* --- beside a running engine (store_verify.c, store_tree.c) --------------------------------------- */

/* Keep an engine on this folder from unlinking blobs while the descriptor *out is open; the caller closes it. Waits for
 * an unlinking in progress. STATUS_NOT_FOUND if `folder` is not a data folder; *out is -1 on failure. */
status verify_lock(const char *folder, int *out, error *err);
/* Open a read-only store: the blobs of `folder`, and a copy of `ledger` made at `copy` (":memory:" is legal).
 * STATUS_NOT_FOUND if there is no ledger, STATUS_STORAGE if it is damaged as a whole. */
status verify_open(store **out, const char *folder, const char *ledger, const char *copy, error *err);
/* True if the manifest in the folder, or the copy of a job, equals the row's. */
bool verify_manifest(const store *s, store_table table, const store_row *row);
bool verify_job_copy(const store *s, const store_row *row);
/* Verify everything. Damage is recorded in the store and is not an error. Puts "objects", "bytes" and "damaged" into
 * the report. */
status verify_all(store *s, json_t *report, error *err);
/* *stale: a row whose object was found damaged has changed in `ledger` since it was copied, so the copy was too old. */
status verify_is_stale(store *s, const char *ledger, bool *stale, error *err);

/* Number of files linked and copied into a tree. */
typedef struct tree_counts {
	int64_t linked, copied; /* bytes */
} tree_counts;
/* Make the file `to` a hard link of `from`, or a durable copy if that is impossible or `copy` is set. */
status tree_take(const char *from, const char *to, bool copy, tree_counts *counts, error *err);
/* Copy the folder `from` with its contents, except temporary names. */
status tree_copy(const char *from, const char *to, tree_counts *counts, error *err);
/* fsync every folder of the tree. */
status tree_sync(const char *path, error *err);

/* --- documents ---------------------------------------------------------------------------------------- */

/* Return the value of the member "project" for json_pack's "s*": NULL for the default, "". */
const char *store_project_member(const char *project);
/* Copy the member "project", "" if there is none. */
void store_read_project(const json_t *document, char out[STORE_ID_BYTES]);
/* Print a document for the ledger; NULL when out of memory. Free with free(). */
char *store_text(const json_t *document);
/* The document and the version in a session file; NULL and STATUS_STORAGE if the file is damaged. */
status session_file_document(const char *path, json_t **document, int64_t *version, error *err);
/* Return version i that a session's row names: i = 0 the current one, then those of its snapshots. 0: no more. */
int64_t session_row_version(const store_row *row, size_t i);
bool session_row_has(const store_row *row, int64_t version);
/* Sum of the bytes of the snapshots' files, as the document states them. */
int64_t session_row_snapshot_bytes(const store_row *row);
/* Parse "ID.VERSION". */
bool session_file_name(const char *name, char id[STORE_ID_BYTES], int64_t *version);
/* Parse "step-N"; -1 if malformed. */
int64_t checkpoint_name_step(const char *name);

#endif
