/* ledger.h - the few SQLite operations that the store needs.
 *
 * Private to engine/store. A statement is prepared, bound and finalised per call. The ledger sees a few writes per
 * second, each of which waits for the disk, so cached statements would only add state. */
#ifndef ENGINE_STORE_LEDGER_H
#define ENGINE_STORE_LEDGER_H

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>

#include "engine/base/error.h"

/* SQL for the project that a document names; '' is the default, also of a text that is no JSON. */
#define LEDGER_PROJECT(document)                                                                                       \
	"coalesce(CASE WHEN json_valid(" document ") THEN"                                                             \
	" nullif(json_extract(" document ", '$.project'), 'default') END, '')"

/* Open or create the ledger, check it completely, and upgrade its schema to the version of this program. STATUS_STORAGE
 * if it is damaged; STATUS_UNSUPPORTED if a newer program wrote it. */
status ledger_open(sqlite3 **out, const char *path, error *err);
/* Open a damaged ledger unchecked, to read whatever is readable. */
status ledger_open_damaged(sqlite3 **out, const char *path, error *err);
/* Copy a consistent snapshot of a ledger, which another process may be writing to, to the file `to` (":memory:" is
 * legal), and open the copy. Nothing is verified yet. STATUS_STORAGE if `from` is not a ledger. */
status ledger_copy(sqlite3 **out, const char *from, const char *to, error *err);
/* Run the checks and upgrades of ledger_open on a copy. */
status ledger_verify(sqlite3 *db, error *err);
/* By default a call waits some seconds for another process's lock, then fails with STATUS_UNAVAILABLE. After this call,
 * all calls together wait for at most *left_ms, which every wait reduces. left_ms must outlive db. */
void ledger_wait(sqlite3 *db, int *left_ms);
/* Fail if no commit can begin now. */
status ledger_probe(sqlite3 *db, error *err);
/* Move the write-ahead log into the ledger and empty it. The log's records are chained, so one damaged record
 * invalidates all that follow it. If another process is reading, a later call completes the work. */
status ledger_checkpoint(sqlite3 *db, error *err);

/* Prepare `sql` and bind one argument per letter of `types`: 't' a const char *
 * (NULL binds NULL, the text must outlive the statement), 'i' an int64_t. On success
 * the caller finalises *out; on failure it is NULL. */
status ledger_prepare(sqlite3 *db, sqlite3_stmt **out, error *err, const char *sql, const char *types, ...);
/* Prepare, bind and run a statement to its end; returns when the change is on disk. *changes (may be NULL) gets the
 * number of rows changed. STATUS_CONFLICT if a unique id exists, STATUS_FULL, STATUS_STORAGE, STATUS_UNAVAILABLE. */
status ledger_run(sqlite3 *db, int *changes, error *err, const char *sql, const char *types, ...);
/* *found: the query returns a row. The arguments are texts; `second` is NULL if the query has only one. */
status ledger_has(sqlite3 *db, bool *found, error *err, const char *sql, const char *first, const char *second);

/* Step to the next row: true on a row, false at the end or on failure (*s). */
bool ledger_step(sqlite3 *db, sqlite3_stmt *statement, status *s, error *err);
/* Read a text column as a JSON object (new reference; NULL if damaged or out of memory). */
json_t *ledger_document(sqlite3_stmt *statement, int column);
/* Read a text column into a fixed buffer. */
void ledger_text(sqlite3_stmt *statement, int column, char *out, size_t size);

#endif
