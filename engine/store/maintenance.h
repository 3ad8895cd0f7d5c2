/* maintenance.h - work on a data folder beside the engine: back up, restore, check, lost blobs.
 *
 * These functions run in a process of their own. backup_make, fsck_check and lost_remove may run while an engine serves
 * from the same folder: they read a copy of its ledger as of one moment, and a shared lock on DATA/backup.lock keeps
 * the engine from unlinking any blob meanwhile (what it deletes is unlinked afterwards). All block on the disk.
 *
 * A backup is a data folder: the same names at the same places, without lost/ and tmp/, and with ledger.sqlite.manifest
 * beside the ledger. Its blobs are hard links to the live ones where the file system allows it. That is safe because
 * nothing writes into a blob once it has its name: every change is a new file and a rename. It also means that a backup
 * on the same disk protects from mistakes and not from the disk: copy it elsewhere for that.
 *
 * Reports are JSON objects; the caller owns them, and *report is NULL when there is nothing to report. */
#ifndef ENGINE_STORE_MAINTENANCE_H
#define ENGINE_STORE_MAINTENANCE_H

#include <stdbool.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/store/store.h"

/* Make the backup `to`, which must not exist yet; it appears under that name when it is complete and on the disk. Every
 * byte is verified. An object that is missing or damaged in `data` is listed in "damaged", which makes the rest no
 * worse. copy: link nothing. Report: {"object": "backup", "objects": {kind: count}, "bytes", "linked_bytes",
 * "copied_bytes", "damaged": [{"kind", "id", "problem"}]} Errors: STATUS_CONFLICT (`to` exists or lies among the
 * blobs), STATUS_NOT_FOUND (no ledger), STATUS_STORAGE (the ledger is damaged), STATUS_BUSY (objects changed faster
 * than they could be verified), STATUS_FULL, STATUS_IO. */
status backup_make(const char *data, const char *to, bool copy, json_t **report, error *err);

/* Verify the backup `from` byte by byte, copy it to `data`, which must be missing or empty, and open the result once.
 * partial: restore also what is left of a damaged backup; without a usable ledger one is made from the blobs.
 * Report: as above, with "object": "restore".
 * Errors: STATUS_STORAGE (damaged and not partial: nothing was written), STATUS_CONFLICT (`data` is not empty),
 * STATUS_FULL, STATUS_IO. After an error `data` is as empty as before. */
status backup_restore(const char *from, const char *data, bool partial, json_t **report, error *err);

/* Verify a data folder and change nothing. STATUS_OK whatever is found.
 * Report: {"object": "fsck", "clean", "running", "problem": text or null, "objects", "bytes", "damaged",
 *          "unclaimed": [path…]   blobs without a row: the next start sets them aside (not looked for while running)
 *          "temporary": [path…]   left by a crash; the next start removes them (likewise)
 *          "storage"}             as store_usage: "lost" lists what is in lost/
 * "clean": no problem, nothing damaged or unclaimed. STATUS_NOT_FOUND: there is no data folder. */
status fsck_check(const char *data, json_t **report, error *err);

/* Move lost/KIND/NAME back to its place and make its row from its own description; a job comes with its checkpoints.
 * STATUS_NOT_FOUND; STATUS_CONFLICT when the object exists, or a checkpoint's job does not; STATUS_STORAGE when it is
 * damaged: then it stays in lost/. */
status lost_adopt(store *s, const char *kind, const char *name, error *err);
/* Delete lost/KIND/NAME. STATUS_NOT_FOUND. */
status lost_remove(const char *data, const char *kind, const char *name, error *err);

#endif
