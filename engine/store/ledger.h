/* ledger.h - SQLite in the few shapes the store needs.
 *
 * Private to engine/store. A statement is prepared, bound and finalised per call: the
 * ledger sees a few writes per second, each of which waits for the disk, so
 * cached statements would only add state. */
#ifndef ENGINE_STORE_LEDGER_H
#define ENGINE_STORE_LEDGER_H

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>

#include "engine/base/error.h"

/* Open or create the ledger, check it as a whole, and bring its schema to the version of this program. STATUS_STORAGE
 * when it is damaged; STATUS_UNSUPPORTED when a newer program wrote it. */
status ledger_open(sqlite3 **out, const char *path, error *err);
/* Open one as it is, to read what can be read. */
status ledger_open_damaged(sqlite3 **out, const char *path, error *err);
/* Copy a ledger, which another process may be writing to, as of one moment to the file `to` (":memory:" is legal), and
 * open the copy. Nothing is verified yet. STATUS_STORAGE when `from` is no ledger at all. */
status ledger_copy(sqlite3 **out, const char *from, const char *to, error *err);
/* The checks and steps of ledger_open, on a copy. */
status ledger_verify(sqlite3 *db, error *err);
/* A connection waits some seconds for a lock of another process, then a call fails with STATUS_UNAVAILABLE. From now on
 * all calls together wait for *left_ms, which every wait reduces. left_ms must outlive db. */
void ledger_wait(sqlite3 *db, int *left_ms);
/* Fail if no commit can begin now. */
status ledger_probe(sqlite3 *db, error *err);
/* Move the write-ahead log into the ledger and empty it: the log's records are chained, so one damaged record takes all
 * that follow it. If another process reads, a later call does the rest. */
status ledger_checkpoint(sqlite3 *db, error *err);

/* Prepare `sql` and bind one argument per letter of `types`: 't' a const char *
 * (NULL binds NULL, the text must outlive the statement), 'i' an int64_t. On success
 * the caller finalises *out; on failure it is NULL. */
status ledger_prepare(sqlite3 *db, sqlite3_stmt **out, error *err, const char *sql, const char *types, ...);
/* The same, run to its end; returns when the change is on disk. *changes (may be
 * NULL) gets the number of rows changed. STATUS_CONFLICT when a unique id exists, STATUS_FULL,
 * STATUS_STORAGE, STATUS_UNAVAILABLE. */
status ledger_run(sqlite3 *db, int *changes, error *err, const char *sql, const char *types, ...);
/* Does the query give a row? The arguments are texts: `second` may be NULL when the query has one only. */
status ledger_has(sqlite3 *db, bool *found, error *err, const char *sql, const char *first, const char *second);

/* Step to the next row: true on a row, false at the end or on failure (*s). */
bool ledger_step(sqlite3 *db, sqlite3_stmt *statement, status *s, error *err);
/* A text column as a JSON object (new reference; NULL when damaged or out of memory). */
json_t *ledger_document(sqlite3_stmt *statement, int column);
/* A text column into a fixed buffer. */
void ledger_text(sqlite3_stmt *statement, int column, char *out, size_t size);

#endif
