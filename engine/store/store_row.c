/* Rows carry a digest over all their columns, computed by an SQL function that the ledger registers. A bit that changed
 * on the disk is therefore detected when the row is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/store/store_private.h"

#define DIGEST "row_digest(kind, id, parent, number, state, bytes, document, manifest)"
#define COLUMNS "id, parent, number, state, bytes, document, manifest, digest=" DIGEST

static const char *const kinds[] = {[STORE_FILES] = "file",       [STORE_MODELS] = "model",
                                    [STORE_JOBS] = "job",         [STORE_EVENTS] = "event",
                                    [STORE_CHECKPOINTS] = "checkpoint", [STORE_SESSIONS] = "session",
                                    [STORE_RESPONSES] = "response",
                                    [STORE_KEYS] = "key",         [STORE_ADAPTERS] = "adapter"};

const char *store_kind(store_table table)
{
	return kinds[table];
}

bool store_find_kind(const char *kind, store_table *out)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		if (strcmp(kinds[i], kind) == 0) {
			*out = (store_table)i;
			return true;
		}
	}
	return false;
}

void row_fini(store_row *row)
{
	json_decref(row->document);
	free(row->manifest);
	*row = (store_row){0};
}

/* The columns COLUMNS of the statement's current row. */
static status read_row(store *s, store_table table, sqlite3_stmt *statement, store_row *out, error *err)
{
	const char *sealed = (const char *)sqlite3_column_text(statement, 6);
	ledger_text(statement, 0, out->id, sizeof out->id);
	ledger_text(statement, 1, out->parent, sizeof out->parent);
	out->number = sqlite3_column_int64(statement, 2);
	ledger_text(statement, 3, out->state, sizeof out->state);
	out->bytes = sqlite3_column_int64(statement, 4);
	if (!sqlite3_column_int(statement, 7)) {
		store_note_damage(s, table, out->id, "its row in the ledger is damaged");
		return error_set(err, STATUS_STORAGE, NULL, "the ledger's row of %s \"%.64s\" is damaged", kinds[table],
		                 out->id);
	}
	out->document = ledger_document(statement, 5);
	out->manifest = sealed ? strdup(sealed) : NULL;
	return error_settle(err, out->document && (out->manifest || !sealed) ? STATUS_OK : STATUS_NOMEM);
}

status row_find(store *s, store_table table, const char *id, store_row *out, error *err)
{
	sqlite3_stmt *statement;
	status result;
	*out = (store_row){0};
	TRY(ledger_prepare(s->db, &statement, err, "SELECT " COLUMNS " FROM objects WHERE kind=? AND id=?", "tt",
	                   kinds[table], id));
	if (ledger_step(s->db, statement, &result, err))
		result = read_row(s, table, statement, out, err);
	else if (result == STATUS_OK)
		result = STATUS_NOT_FOUND;
	sqlite3_finalize(statement);
	return result;
}

status row_has_number(store *s, store_table table, const char *parent, int64_t number, bool *found, error *err)
{
	sqlite3_stmt *statement;
	status result;
	*found = false;
	TRY(ledger_prepare(s->db, &statement, err, "SELECT 1 FROM objects WHERE kind=? AND parent=? AND number=?", "tti",
	                   kinds[table], parent, number));
	*found = ledger_step(s->db, statement, &result, err);
	sqlite3_finalize(statement);
	return result;
}

status row_put(store *s, store_table table, const store_row *row, error *err)
{
	TRY(store_writable(s, err));
	char *own = row->text ? NULL : store_text(row->document);
	const char *text = row->text ? row->text : own;
	if (!text)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	status result = ledger_run(
	    s->db, NULL, err,
	    "INSERT INTO objects(kind, id, parent, number, state, bytes, document, manifest, digest, project) "
	    "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,row_digest(?1,?2,?3,?4,?5,?6,?7,?8)," LEDGER_PROJECT("?7") ") "
	    "ON CONFLICT(kind, id) DO UPDATE SET parent=excluded.parent, number=excluded.number, state=excluded.state,"
	    " bytes=excluded.bytes, document=excluded.document, manifest=excluded.manifest, digest=excluded.digest,"
	    " project=excluded.project",
	    "tttititt", kinds[table], row->id, row->parent, row->number, row->state, row->bytes, text, row->manifest);
	free(own);
	s->dirty = true;
	return result;
}

status row_delete(store *s, store_table table, const char *id, bool *found, error *err)
{
	int changes;
	*found = false;
	TRY(store_writable(s, err));
	status result =
	    ledger_run(s->db, &changes, err, "DELETE FROM objects WHERE kind=? AND id=?", "tt", kinds[table], id);
	*found = changes > 0;
	s->dirty = true;
	return result;
}

status row_set_state(store *s, store_table table, const char *id, const char *state, bool *found, error *err)
{
	int changes;
	*found = false;
	TRY(store_writable(s, err));
	status result = ledger_run(s->db, &changes, err,
	                           "UPDATE objects SET state=?3, digest=row_digest(kind, id, parent, number, ?3, bytes,"
	                           " document, manifest) WHERE kind=?1 AND id=?2 AND digest=" DIGEST,
	                           "ttt", kinds[table], id, state);
	*found = changes > 0;
	s->dirty = true;
	return result;
}

status row_walk(store *s, store_table table, const char *parent, row_each each, void *context, error *err)
{
	sqlite3_stmt *statement;
	status result;
	TRY(ledger_prepare(s->db, &statement, err,
	                   parent ? "SELECT " COLUMNS " FROM objects WHERE kind=? AND parent=? ORDER BY seq"
	                          : "SELECT " COLUMNS " FROM objects WHERE kind=? ORDER BY seq",
	                   parent ? "tt" : "t", kinds[table], parent));
	while (ledger_step(s->db, statement, &result, err)) {
		store_row row = {0};
		error damage = ERROR_INIT;
		result = read_row(s, table, statement, &row, &damage);
		if (result == STATUS_OK)
			result = each(context, &row, err);
		else if (result == STATUS_STORAGE)
			result = STATUS_OK;
		row_fini(&row);
		if (result != STATUS_OK)
			break;
	}
	sqlite3_finalize(statement);
	return result;
}

/* --- listing ------------------------------------------------------------------------------------- */

/* True if the row is in the list. A damaged one is, so that pages continue after it. */
static status is_listed(store *s, store_table table, const store_page *page, bool *listed, error *err)
{
	store_row row;
	*listed = true;
	if (!page->match)
		return STATUS_OK;
	const status result = row_find(s, table, page->after, &row, err);
	if (result == STATUS_OK)
		*listed = page->match(page->match_context, row.document);
	row_fini(&row);
	return result == STATUS_STORAGE ? STATUS_OK : result;
}

/* Position of the row `after`, which must be in the list itself. */
static status find_after(store *s, store_table table, const store_page *page, int64_t *seq, error *err)
{
	sqlite3_stmt *row;
	status result;
	TRY(ledger_prepare(s->db, &row, err, "SELECT seq FROM objects WHERE kind=? AND id=? AND (parent=?3 OR ?3 IS NULL)",
	                   "ttt", kinds[table], page->after, page->parent));
	bool listed = ledger_step(s->db, row, &result, err);
	*seq = listed ? sqlite3_column_int64(row, 0) : 0;
	sqlite3_finalize(row);
	if (listed)
		result = is_listed(s, table, page, &listed, err);
	if (result == STATUS_OK && !listed)
		result = error_set(err, STATUS_NOT_FOUND, "after", "there is no \"%.64s\" in this list", page->after);
	return result;
}

/* A row's number in order of creation (seq) is the key that pages follow, so rows added or deleted meanwhile neither
 * repeat nor hide others. A damaged row is passed over: one row does not spoil the list. */
status store_list(store *s, store_table table, const store_page *page, store_each each, void *context, bool *has_more,
                  error *err)
{
	char sql[512];
	sqlite3_stmt *rows;
	const char *types = page->project ? "tittt" : page->filter ? "titt" : page->parent ? "tit" : "ti";
	int64_t after = page->ascending ? 0 : INT64_MAX, given = 0;
	*has_more = false;
	if (page->after)
		TRY(find_after(s, table, page, &after, err));
	snprintf(sql, sizeof sql, "SELECT " COLUMNS " FROM objects%s WHERE kind=?1 AND seq%s?2%s%s%s ORDER BY seq %s",
	         page->project ? " INDEXED BY objects_project" : "", page->ascending ? ">" : "<",
	         page->parent ? " AND parent=?3" : "", page->filter ? " AND state=?4" : "",
	         page->project ? " AND project=?5" : "", page->ascending ? "ASC" : "DESC");
	TRY(ledger_prepare(s->db, &rows, err, sql, types, kinds[table], after, page->parent, page->filter,
	                   page->project));
	status result = STATUS_OK;
	bool more = true;
	while (more && ledger_step(s->db, rows, &result, err)) {
		store_row row = {0};
		result = read_row(s, table, rows, &row, NULL);
		bool matches = result == STATUS_OK && (!page->match || page->match(page->match_context, row.document));
		*has_more = matches && page->limit > 0 && given == page->limit;
		if (matches && !*has_more) {
			more = each(context, row.document);
			given++;
		}
		row_fini(&row);
		if (*has_more)
			break;
		if (result == STATUS_NOMEM) {
			error_set(err, STATUS_NOMEM, NULL, "out of memory");
			break;
		}
		result = STATUS_OK;
	}
	sqlite3_finalize(rows);
	return result;
}
