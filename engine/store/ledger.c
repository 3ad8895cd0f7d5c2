/* The schema has a version in user_version. ledger_open applies the missing steps, each in its own transaction, so an
 * upgrade that was interrupted by a crash continues at the next start.
 *
 * WAL with synchronous=FULL: a commit is one appended and synced log record. Journal mode DELETE was rejected because
 * it syncs twice per commit; synchronous=NORMAL because a power cut may then lose acknowledged rows. Documents are
 * stored as JSON text: the ledger only needs to find and order them, and a new field needs no migration. */
#include "engine/store/ledger.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/digest.h"

/* Step i brings version i to i + 1; a step that was released never changes. `seq` is the order of creation: paging uses
 * it. One table for all kinds of rows: they differ in their documents only, and all have a digest. `project` repeats
 * the document's member, for lists of one project; a row's digest does not cover it. */
static const char *const ledger_steps[] = {
    "CREATE TABLE answers(key TEXT PRIMARY KEY, request INTEGER NOT NULL, created INTEGER NOT NULL,"
    " answer TEXT NOT NULL);"
    "CREATE INDEX answers_created ON answers(created);"
    "CREATE TABLE objects(seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL,"
    " parent TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, bytes INTEGER NOT NULL,"
    " document TEXT NOT NULL, manifest TEXT, digest INTEGER NOT NULL, UNIQUE(kind, id));"
    "CREATE INDEX objects_page ON objects(kind, parent, seq);"
    "CREATE INDEX objects_number ON objects(kind, parent, number);"
    "CREATE INDEX objects_state ON objects(kind, state, seq);"
    "CREATE TABLE removals(path TEXT PRIMARY KEY);",
    "ALTER TABLE objects ADD COLUMN project TEXT NOT NULL DEFAULT '';"
    "UPDATE objects SET project=json_extract(document, '$.project') WHERE CASE WHEN json_valid(document)"
    " THEN json_extract(document, '$.project') NOTNULL AND json_extract(document, '$.project')<>'default' END;"
    "CREATE INDEX objects_project ON objects(kind, project, seq);",
};
enum {
	LEDGER_VERSION = sizeof ledger_steps / sizeof *ledger_steps,
	LEDGER_MARK = 0x0add0000,
	LEDGER_BUSY_MS = 5000,
	LEDGER_PAUSE_MS = 20,
	LEDGER_NAP_MS = 5
};

static status ledger_fail(sqlite3 *db, error *err)
{
	int code = db ? sqlite3_errcode(db) & 0xff : SQLITE_NOMEM;
	if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the ledger is locked by another process");
	/* without room for the log's index SQLite reports SQLITE_IOERR */
	const bool full = code == SQLITE_FULL || (code == SQLITE_IOERR && sqlite3_system_errno(db) == ENOSPC);
	status s = code == SQLITE_CONSTRAINT                                                   ? STATUS_CONFLICT
	           : code == SQLITE_NOMEM                                                      ? STATUS_NOMEM
	           : full                                                                      ? STATUS_FULL
	           : (code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR) ? STATUS_STORAGE
	                                                                                       : STATUS_IO;
	return error_set(err, s, NULL, "ledger: %s", db ? sqlite3_errmsg(db) : "out of memory");
}

static status bind_all(sqlite3_stmt *statement, const char *types, va_list args)
{
	for (int i = 1; *types; types++, i++) {
		int rc;
		if (*types == 'i') {
			rc = sqlite3_bind_int64(statement, i, va_arg(args, int64_t));
		} else {
			const char *text = va_arg(args, const char *);
			rc = sqlite3_bind_text(statement, i, text, -1, SQLITE_STATIC);
		}
		if (rc != SQLITE_OK)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

static status prepare(sqlite3 *db, sqlite3_stmt **out, error *err, const char *sql, const char *types, va_list args)
{
	*out = NULL;
	if (sqlite3_prepare_v2(db, sql, -1, out, NULL) != SQLITE_OK)
		return ledger_fail(db, err);
	if (bind_all(*out, types, args) != STATUS_OK) {
		sqlite3_finalize(*out);
		*out = NULL;
		return ledger_fail(db, err);
	}
	return STATUS_OK;
}

status ledger_prepare(sqlite3 *db, sqlite3_stmt **out, error *err, const char *sql, const char *types, ...)
{
	va_list args;
	va_start(args, types);
	status s = prepare(db, out, err, sql, types, args);
	va_end(args);
	return s;
}

status ledger_run(sqlite3 *db, int *changes, error *err, const char *sql, const char *types, ...)
{
	sqlite3_stmt *statement;
	va_list args;
	va_start(args, types);
	status s = prepare(db, &statement, err, sql, types, args);
	va_end(args);
	while (s == STATUS_OK && ledger_step(db, statement, &s, err))
		;
	if (changes)
		*changes = s == STATUS_OK ? sqlite3_changes(db) : 0;
	sqlite3_finalize(statement);
	return s;
}

status ledger_has(sqlite3 *db, bool *found, error *err, const char *sql, const char *first, const char *second)
{
	sqlite3_stmt *statement;
	*found = false;
	TRY(ledger_prepare(db, &statement, err, sql, second ? "tt" : "t", first, second));
	status s;
	*found = ledger_step(db, statement, &s, err);
	sqlite3_finalize(statement);
	return s;
}

bool ledger_step(sqlite3 *db, sqlite3_stmt *statement, status *s, error *err)
{
	int rc = sqlite3_step(statement);
	*s = rc == SQLITE_ROW || rc == SQLITE_DONE ? STATUS_OK : ledger_fail(db, err);
	return rc == SQLITE_ROW;
}

json_t *ledger_document(sqlite3_stmt *statement, int column)
{
	const char *text = (const char *)sqlite3_column_text(statement, column);
	return text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
}

void ledger_text(sqlite3_stmt *statement, int column, char *out, size_t size)
{
	const char *text = (const char *)sqlite3_column_text(statement, column);
	snprintf(out, size, "%s", text ? text : "");
}

/* row_digest(…): one number over all its arguments, as texts with a separator. */
static void row_digest(sqlite3_context *context, int count, sqlite3_value **values)
{
	sqlite3_str *all = sqlite3_str_new(NULL);
	for (int i = 0; i < count; i++) {
		const char *text = (const char *)sqlite3_value_text(values[i]);
		sqlite3_str_append(all, text ? text : "", sqlite3_value_bytes(values[i]));
		sqlite3_str_appendchar(all, 1, '\x1f');
	}
	int failed = sqlite3_str_errcode(all), bytes = sqlite3_str_length(all);
	char *text = sqlite3_str_finish(all);
	if (failed || !text)
		sqlite3_result_error_nomem(context);
	else
		sqlite3_result_int64(context, (sqlite3_int64)digest_bytes(text, (size_t)bytes));
	sqlite3_free(text);
}

static status run_script(sqlite3 *db, error *err, const char *sql)
{
	return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? STATUS_OK : ledger_fail(db, err);
}

/* The first column of the first row. */
static status read_number(sqlite3 *db, const char *sql, int64_t *out, error *err)
{
	sqlite3_stmt *statement;
	TRY(ledger_prepare(db, &statement, err, sql, ""));
	status s;
	*out = ledger_step(db, statement, &s, err) ? sqlite3_column_int64(statement, 0) : 0;
	sqlite3_finalize(statement);
	return s;
}

/* A header may say that the format is too new to be written. */
static status check_writable(sqlite3 *db, const char *path, error *err)
{
	error cause = ERROR_INIT;
	status s = run_script(db, &cause, "BEGIN IMMEDIATE; ROLLBACK;");
	bool header = s != STATUS_OK && (sqlite3_errcode(db) & 0xff) == SQLITE_READONLY && access(path, W_OK) == 0;
	return s == STATUS_OK ? s : error_set(err, header ? STATUS_STORAGE : s, NULL, "%s", error_message(&cause));
}

/* Pages, their order, and that indexes and tables say the same. */
static status check_whole(sqlite3 *db, error *err)
{
	sqlite3_stmt *statement;
	char said[160] = "ok";
	status s;
	TRY(ledger_prepare(db, &statement, err, "PRAGMA integrity_check(1)", ""));
	if (ledger_step(db, statement, &s, err))
		ledger_text(statement, 0, said, sizeof said);
	sqlite3_finalize(statement);
	if (s == STATUS_OK && strcmp(said, "ok") != 0)
		s = error_set(err, STATUS_STORAGE, NULL, "the ledger is damaged: %s", said);
	return s;
}

/* The header holds the version twice, so that a changed bit there is damage, not another version. A new file has none.
 */
static status read_version(sqlite3 *db, int64_t *version, error *err)
{
	int64_t mark;
	TRY(read_number(db, "PRAGMA user_version", version, err));
	TRY(read_number(db, "PRAGMA application_id", &mark, err));
	if (mark == LEDGER_MARK + *version || (mark == 0 && *version == 0))
		return STATUS_OK;
	return error_set(err, STATUS_STORAGE, NULL, "the ledger is damaged: its version is unclear");
}

static status upgrade(sqlite3 *db, error *err)
{
	int64_t version;
	TRY(read_version(db, &version, err));
	if (version > LEDGER_VERSION)
		return error_set(err, STATUS_UNSUPPORTED, NULL,
		                 "the ledger has version %lld, this program knows up to %d", (long long)version,
		                 LEDGER_VERSION);
	for (int i = (int)version; i < LEDGER_VERSION; i++) {
		char done[96];
		snprintf(done, sizeof done, "PRAGMA user_version=%d; PRAGMA application_id=%d; COMMIT;", i + 1,
		         LEDGER_MARK + i + 1);
		TRY(run_script(db, err, "BEGIN IMMEDIATE;"));
		TRY(run_script(db, err, ledger_steps[i]));
		TRY(run_script(db, err, done));
	}
	return STATUS_OK;
}

/* A connection that knows row_digest. On error *out is NULL. */
static status connect(sqlite3 **out, const char *path, int flags, error *err)
{
	sqlite3 *db = NULL;
	status s = STATUS_OK;
	if (sqlite3_open_v2(path, &db, flags | SQLITE_OPEN_NOFOLLOW, NULL) != SQLITE_OK ||
	    sqlite3_create_function(db, "row_digest", -1, SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL, row_digest, NULL,
	                            NULL) != SQLITE_OK)
		s = ledger_fail(db, err);
	if (s == STATUS_OK) {
		sqlite3_extended_result_codes(db, 1);
		sqlite3_busy_timeout(db, LEDGER_BUSY_MS);
	} else {
		sqlite3_close(db);
		db = NULL;
	}
	*out = db;
	return s;
}

status ledger_open_damaged(sqlite3 **out, const char *path, error *err)
{
	return connect(out, path, SQLITE_OPEN_READWRITE, err);
}

status ledger_open(sqlite3 **out, const char *path, error *err)
{
	sqlite3 *db;
	status s = connect(&db, path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, err);
	if (s == STATUS_OK)
		s = run_script(db, err, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;");
	if (s == STATUS_OK)
		s = check_writable(db, path, err);
	if (s == STATUS_OK)
		s = check_whole(db, err);
	if (s == STATUS_OK)
		s = upgrade(db, err);
	if (s != STATUS_OK) {
		sqlite3_close(db); /* rolls an unfinished step back */
		db = NULL;
	}
	*out = db;
	return s;
}

/* A copy is ours to write: when it cannot be written, its header says so. */
status ledger_verify(sqlite3 *db, error *err)
{
	status s = run_script(db, err, "BEGIN IMMEDIATE; ROLLBACK;");
	if (s != STATUS_OK && (sqlite3_errcode(db) & 0xff) == SQLITE_READONLY)
		return STATUS_STORAGE;
	TRY(s);
	TRY(check_whole(db, err));
	return upgrade(db, err);
}

/* Copy all pages in one read transaction. Copying in pieces would start again with every commit of the other
 * process. */
static status copy_pages(sqlite3 *to, sqlite3 *from, error *err)
{
	sqlite3_backup *copying = sqlite3_backup_init(to, "main", from, "main");
	int rc = SQLITE_OK;
	for (int waited = 0; copying && waited <= LEDGER_BUSY_MS; waited += LEDGER_PAUSE_MS) {
		rc = sqlite3_backup_step(copying, -1) & 0xff;
		if (rc != SQLITE_BUSY && rc != SQLITE_LOCKED)
			break;
		sqlite3_sleep(LEDGER_PAUSE_MS);
	}
	bool done = copying && rc == SQLITE_DONE;
	int end = copying ? sqlite3_backup_finish(copying) : SQLITE_OK; /* leaves its code in `to` */
	if (done && end == SQLITE_OK)
		return STATUS_OK;
	return rc == SQLITE_BUSY || rc == SQLITE_LOCKED
	           ? error_set(err, STATUS_BUSY, NULL, "the ledger is in use for too long")
	           : ledger_fail(to, err);
}

status ledger_copy(sqlite3 **out, const char *from, const char *to, error *err)
{
	sqlite3 *source = NULL, *copy = NULL;
	status s = connect(&source, from, SQLITE_OPEN_READONLY, err);
	if (s == STATUS_OK)
		s = connect(&copy, to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, err);
	if (s == STATUS_OK)
		s = copy_pages(copy, source, err);
	sqlite3_close(source);
	if (s != STATUS_OK) {
		sqlite3_close(copy);
		copy = NULL;
	}
	*out = copy;
	return s;
}

status ledger_checkpoint(sqlite3 *db, error *err)
{
	int rc = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
	return rc == SQLITE_OK || rc == SQLITE_BUSY ? STATUS_OK : ledger_fail(db, err);
}

static int wait_for_lock(void *context, int tries)
{
	int *left_ms = context;
	(void)tries;
	if (*left_ms <= 0)
		return 0;
	sqlite3_sleep(LEDGER_NAP_MS);
	*left_ms -= LEDGER_NAP_MS;
	return 1;
}

void ledger_wait(sqlite3 *db, int *left_ms)
{
	sqlite3_busy_handler(db, wait_for_lock, left_ms);
}

status ledger_probe(sqlite3 *db, error *err)
{
	return sqlite3_get_autocommit(db) ? run_script(db, err, "BEGIN IMMEDIATE; ROLLBACK;") : STATUS_OK;
}
