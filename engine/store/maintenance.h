/* maintenance.h - maintenance of a data folder: back up, restore, check, manage lost blobs.
 *
 * These functions run in a process of their own. backup_make, fsck_check and lost_remove may run while an engine serves
 * from the same folder. They read a snapshot of its ledger. A shared lock on DATA/backup.lock delays the unlinking of
 * blobs that the engine deletes meanwhile. All functions block on the disk.
 *
 * A backup is a data folder with the same names at the same places, without lost/ and tmp/, and with
 * ledger.sqlite.manifest beside the ledger. Its blobs are hard links to the live ones if the file system allows it.
 * This is safe because a blob is never written to after it has its name: every change is a new file and a rename. A
 * backup on the same disk protects from mistakes but not from a disk failure; copy it elsewhere for that.
 *
 * Reports are JSON objects; the caller owns them, and *report is NULL if there is nothing to report. */
#ifndef ENGINE_STORE_MAINTENANCE_H
#define ENGINE_STORE_MAINTENANCE_H

#include <stdbool.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/store/store.h"

/* Make the backup `to`, which must not exist yet; it appears under that name when it is complete and on the disk. Every
 * byte is verified. An object that is missing or damaged in `data` is listed in "damaged" and does not affect the
 * others. copy: link nothing. Report:
 *   {"object": "backup", "objects": {kind: count}, "bytes", "linked_bytes", "copied_bytes",
 *    "damaged": [{"kind", "id", "problem"}]}
 * Errors: STATUS_CONFLICT (`to` exists or is inside the blobs), STATUS_NOT_FOUND (no ledger), STATUS_STORAGE (the
 * ledger is damaged), STATUS_BUSY (objects changed faster than they could be verified), STATUS_FULL, STATUS_IO. */
status backup_make(const char *data, const char *to, bool copy, json_t **report, error *err);

/* Verify the backup `from` byte by byte, copy it to `data`, which must be missing or empty, and open the result once.
 * partial: restore the intact parts of a damaged backup; without a usable ledger one is built from the blobs. Report:
 * as for backup_make, with "object": "restore". Errors: STATUS_STORAGE (damaged and not partial: nothing was written),
 * STATUS_CONFLICT (`data` is not empty), STATUS_FULL, STATUS_IO. After an error `data` is as empty as before. */
status backup_restore(const char *from, const char *data, bool partial, json_t **report, error *err);

/* Verify a data folder without changing it. STATUS_OK whatever is found. Report:
 *   {"object": "fsck", "clean", "running", "problem": text or null, "objects", "bytes", "damaged",
 *    "unclaimed": [path…]   blobs without a row: the next start sets them aside (not searched while running)
 *    "temporary": [path…]   left by a crash; the next start removes them (not searched while running)
 *    "storage"}             as store_usage: "lost" lists the contents of lost/
 * "clean": no problem, nothing damaged or unclaimed. STATUS_NOT_FOUND: there is no data folder. */
status fsck_check(const char *data, json_t **report, error *err);

/* Move lost/KIND/NAME back to its place and build its row from its own description; a job comes with its checkpoints.
 * STATUS_NOT_FOUND. STATUS_CONFLICT if the object exists, or a checkpoint's job does not. STATUS_STORAGE if it is
 * damaged; it then stays in lost/. */
status lost_adopt(store *s, const char *kind, const char *name, error *err);
/* Delete lost/KIND/NAME. STATUS_NOT_FOUND. */
status lost_remove(const char *data, const char *kind, const char *name, error *err);

#endif
