/* Durable sessions: document and state change together. Each version of a state is a
 * file of its own, and the row's version number says which one counts; replacing one
 * file in place could leave a new state beside an old document after a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status current_version(store *s, const char *id, int64_t *version, error *err)
{
	sqlite3_stmt *row;
	*version = 0;
	TRY(ledger_prepare(s->db, &row, err, "SELECT version FROM sessions WHERE id=?", "t", id));
	status result;
	if (ledger_step(s->db, row, &result, err))
		*version = sqlite3_column_int64(row, 0);
	sqlite3_finalize(row);
	return result;
}

status store_session_put(store *s, const char *id, const json_t *session, const void *blob, size_t bytes, error *err)
{
	char path[PATH_MAX], before[PATH_MAX];
	int64_t version;
	if (!store_valid_name(id))
		return error_set(err, STATUS_INVALID, "id", "not a session id");
	TRY(current_version(s, id, &version, err));
	store_session_path(s, id, before);
	snprintf(path, sizeof path, "%s/sessions/%s.%lld", s->folder, id, (long long)version + 1);
	TRY(file_write(path, &(file_part){blob, bytes}, 1, err));
	char *text = store_text(session);
	status result = text ? STATUS_OK : STATUS_NOMEM;
	if (result == STATUS_OK)
		result =
		    ledger_run(s->db, NULL, err,
		               "INSERT INTO sessions(id, version, document) VALUES(?,?,?) "
		               "ON CONFLICT(id) DO UPDATE SET version=excluded.version, document=excluded.document",
		               "tit", id, version + 1, text);
	free(text);
	unlink(result == STATUS_OK ? before : path);
	return result;
}

status store_session_delete(store *s, const char *id, error *err)
{
	char path[PATH_MAX];
	int changes;
	store_session_path(s, id, path);
	TRY(ledger_run(s->db, &changes, err, "DELETE FROM sessions WHERE id=?", "t", id));
	if (!changes)
		return error_set(err, STATUS_NOT_FOUND, "id", "there is no session \"%.64s\"", id);
	unlink(path);
	return STATUS_OK;
}
