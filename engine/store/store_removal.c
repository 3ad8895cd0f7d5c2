/* A blob is removed in two steps. The commit that deletes its row also lists its path in `removals`; once it is on the
 * disk, the path is unlinked. Only listed paths are ever unlinked, so a ledger that has lost rows costs no blob. A
 * crash between the two steps leaves nothing, since the next start finds the list.
 *
 * Rejected: listing blobs before they arrive, so that a crash before their row's commit leaves nothing. A log that lost
 * its end would then cause acknowledged blobs to be removed. Such blobs go to lost/ (store_arrange.c).
 *
 * Nothing is unlinked while a backup is being made: it holds DATA/backup.lock shared, and unlinking needs it
 * exclusively. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

status removal_queue(store *s, const char *path, error *err)
{
	TRY(after_add(&s->unlink, path, err));
	s->dirty = true;
	return ledger_run(s->db, NULL, err, "INSERT OR IGNORE INTO removals(path) VALUES(?)", "t", path);
}

status removal_cancel(store *s, const char *path, error *err)
{
	s->dirty = true;
	return ledger_run(s->db, NULL, err, "DELETE FROM removals WHERE path=?", "t", path);
}

static bool is_gone(store *s, const char *path)
{
	char whole[PATH_MAX];
	if ((size_t)snprintf(whole, sizeof whole, "%s/%s", s->folder, path) >= sizeof whole)
		return true;
	return file_remove_tree(whole, NULL) == STATUS_OK;
}

static bool may_unlink(const store *s)
{
	return flock(s->backup, LOCK_EX | LOCK_NB) == 0;
}

void removal_unlink_all(store *s)
{
	if (!may_unlink(s))
		return;
	for (int i = 0; i < s->unlink.n; i++)
		is_gone(s, s->unlink.texts[i]);
	flock(s->backup, LOCK_UN);
}

/* The list, as an array of texts: it must not change while it is read. */
static status read_list(store *s, json_t **out, error *err)
{
	sqlite3_stmt *rows;
	status result;
	*out = NULL;
	TRY(ledger_prepare(s->db, &rows, err, "SELECT path FROM removals", ""));
	json_t *list = json_array();
	while (ledger_step(s->db, rows, &result, err)) {
		const char *path = (const char *)sqlite3_column_text(rows, 0);
		if (json_array_append_new(list, json_string(path ? path : "")) != 0) {
			result = STATUS_NOMEM;
			break;
		}
	}
	sqlite3_finalize(rows);
	if (result == STATUS_OK)
		*out = list;
	else
		json_decref(list);
	return result;
}

/* Unlink the paths of a list and delete their rows. */
static status unlink_listed(store *s, const json_t *list, error *err)
{
	json_t *path;
	size_t i;
	bool left = false;
	json_array_foreach(list, i, path)
	{
		const char *text = json_string_value(path);
		if (is_gone(s, text))
			TRY(ledger_run(s->db, NULL, err, "DELETE FROM removals WHERE path=?", "t", text));
		else
			left = true;
	}
	s->removals_left = left;
	return STATUS_OK;
}

status removal_sweep(store *s, error *err)
{
	json_t *list;
	TRY(read_list(s, &list, err));
	s->removals_left = json_array_size(list) > 0;
	if (!s->removals_left || !may_unlink(s)) {
		json_decref(list);
		return STATUS_OK;
	}
	status result = store_begin(s, err);
	if (result == STATUS_OK)
		result = store_end(s, unlink_listed(s, list, err), err);
	flock(s->backup, LOCK_UN);
	json_decref(list);
	return result;
}

status removal_pending(store *s, const char *path, bool *pending, error *err)
{
	return ledger_has(s->db, pending, err, "SELECT 1 FROM removals WHERE path=?", path, NULL);
}
