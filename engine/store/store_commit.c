/* Nested commits, and actions after them.
 *
 * The statements that begin and end a commit are prepared when the store is opened. A commit that fails for lack of
 * memory must still be able to roll back. If a rollback fails nevertheless, the commits around it fail too, and the
 * next one begins by rolling back.
 *
 * Actions that must wait until the outermost commit is on the disk are kept in lists: paths to unlink, and jobs whose
 * copies are to be written. A rollback drops the actions added since its own begin, and reverts the names that blobs
 * were given since. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

static const char *const texts[COMMIT_STATEMENTS] = {
    [COMMIT_BEGIN] = "BEGIN IMMEDIATE", [COMMIT_END] = "COMMIT",
    [COMMIT_UNDO] = "ROLLBACK",         [COMMIT_SAVE] = "SAVEPOINT inner",
    [COMMIT_RELEASE] = "RELEASE inner", [COMMIT_UNDO_INNER] = "ROLLBACK TO inner"};

status commit_init(store *s, error *err)
{
	for (int i = 0; i < COMMIT_STATEMENTS; i++)
		TRY(ledger_prepare(s->db, &s->commit[i], err, texts[i], ""));
	return STATUS_OK;
}

void commit_fini(store *s)
{
	for (int i = 0; i < COMMIT_STATEMENTS; i++)
		sqlite3_finalize(s->commit[i]);
}

static status store_commit_run(store *s, commit_statement which, error *err)
{
	status result;
	ledger_step(s->db, s->commit[which], &result, err);
	sqlite3_reset(s->commit[which]);
	return result;
}

/* --- what waits for the outermost commit ------------------------------------------------- */

status after_add(after_list *list, const char *text, error *err)
{
	char **more = realloc(list->texts, (size_t)(list->n + 1) * sizeof *more);
	char *copy = more ? strdup(text) : NULL;
	if (more)
		list->texts = more;
	if (!copy)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	list->texts[list->n++] = copy;
	return STATUS_OK;
}

static void truncate_list(after_list *list, int n)
{
	while (list->n > n)
		free(list->texts[--list->n]);
	if (n > 0)
		return;
	free(list->texts);
	list->texts = NULL;
}

status commit_rename(store *s, const char *from, const char *to, error *err)
{
	int n = s->renames.n;
	assert(s->depth > 0);
	status result = after_add(&s->renames, from, err);
	if (result == STATUS_OK)
		result = after_add(&s->renames, to, err);
	if (result == STATUS_OK && rename(from, to) != 0)
		result = file_error(err, to, "cannot keep");
	if (result != STATUS_OK)
		truncate_list(&s->renames, n);
	return result;
}

static void store_commit_finish(store *s)
{
	if (s->unlink.n > 0)
		removal_unlink_all(s);
	for (int i = 0; i < s->copies.n; i++)
		job_write_copy(s, s->copies.texts[i]);
	truncate_list(&s->unlink, 0);
	truncate_list(&s->copies, 0);
	truncate_list(&s->renames, 0);
}

/* --- the commit ------------------------------------------------------------------------------ */

status store_begin(store *s, error *err)
{
	TRY(store_writable(s, err));
	assert(s->depth < COMMIT_DEPTH);
	if (s->depth == 0 && !sqlite3_get_autocommit(s->db))
		TRY(store_commit_run(s, COMMIT_UNDO, err));
	TRY(store_commit_run(s, s->depth ? COMMIT_SAVE : COMMIT_BEGIN, err));
	s->marks[s->depth++] = (commit_mark){s->unlink.n, s->copies.n, s->renames.n};
	return STATUS_OK;
}

status store_commit(store *s, error *err)
{
	assert(s->depth > 0);
	status result =
	    s->broken ? error_set(err, STATUS_IO, NULL, "an earlier change could not be rolled back") : STATUS_OK;
	if (result == STATUS_OK)
		result = store_commit_run(s, s->depth > 1 ? COMMIT_RELEASE : COMMIT_END, err);
	if (result != STATUS_OK) {
		store_rollback(s);
		return result;
	}
	s->dirty = true;
	if (--s->depth == 0)
		store_commit_finish(s);
	return STATUS_OK;
}

/* An error may have rolled back all by itself: then the commits around this one find none under way, and fail. */
void store_rollback(store *s)
{
	assert(s->depth > 0);
	bool inner = s->depth > 1, gone = sqlite3_get_autocommit(s->db);
	if (!gone && inner)
		s->broken |= store_commit_run(s, COMMIT_UNDO_INNER, NULL) != STATUS_OK ||
		             store_commit_run(s, COMMIT_RELEASE, NULL) != STATUS_OK;
	else if (!gone)
		store_commit_run(s, COMMIT_UNDO, NULL);
	s->depth--;
	truncate_list(&s->unlink, s->marks[s->depth].unlink);
	truncate_list(&s->copies, s->marks[s->depth].copies);
	/* Renames in pairs: the name before, the name since. */
	const int n = s->marks[s->depth].renames;
	for (int i = s->renames.n - 2; i >= n; i -= 2)
		rename(s->renames.texts[i + 1], s->renames.texts[i]);
	truncate_list(&s->renames, n);
	if (s->depth == 0)
		s->broken = false;
}

status store_end(store *s, status result, error *err)
{
	if (result == STATUS_OK)
		return store_commit(s, err);
	store_rollback(s);
	return error_settle(err, result);
}
