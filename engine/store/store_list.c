/* One listing for every table. A row's number in order of creation (seq) is the key that
 * pages follow, so rows added or deleted meanwhile neither repeat nor hide others. */
#include <stdio.h>

#include "engine/store/store_private.h"

static const struct {
	const char *name, *parent, *filter, *document;
} tables[] = {
    [STORE_FILES] =
        {"files", NULL, "purpose",
         "json_object('id', id, 'filename', filename, 'purpose', purpose, 'bytes', bytes, 'created', created)"},
    [STORE_MODELS] =
        {"models", NULL, NULL,
         "json_object('id', id, 'owned_by', owned_by, 'architecture', architecture, 'parameters', parameters,"
         " 'created', created)"},
    [STORE_JOBS] = {"jobs", NULL, "status", "document"},
    [STORE_EVENTS] = {"events", "job", NULL, "document"},
    [STORE_CHECKPOINTS] = {"checkpoints", "job", NULL, "document"},
    [STORE_SESSIONS] = {"sessions", NULL, NULL, "document"},
};

/* Position of the row `after`, which must lie in the list itself. */
static status find_after(store *s, store_table table, const store_page *page, const char *parent, int64_t *seq,
                         error *err)
{
	char sql[256];
	sqlite3_stmt *row;
	bool parented = tables[table].parent && parent;
	snprintf(sql, sizeof sql, "SELECT seq FROM %s WHERE id=?1%s%s%s", tables[table].name, parented ? " AND " : "",
	         parented ? tables[table].parent : "", parented ? "=?2" : "");
	TRY(ledger_prepare(s->db, &row, err, sql, parented ? "tt" : "t", page->after, parent));
	status result;
	if (ledger_step(s->db, row, &result, err))
		*seq = sqlite3_column_int64(row, 0);
	else if (result == STATUS_OK)
		result = error_set(err, STATUS_NOT_FOUND, "after", "there is no \"%.64s\" in this list", page->after);
	sqlite3_finalize(row);
	return result;
}

status store_list(store *s, store_table table, const store_page *page, store_each each, void *context, bool *has_more,
                  error *err)
{
	char sql[512];
	sqlite3_stmt *rows;
	const char *parent = tables[table].parent ? page->parent : NULL;
	const char *filter = tables[table].filter ? page->filter : NULL;
	int64_t after = page->ascending ? 0 : INT64_MAX, given = 0;
	*has_more = false;
	if (page->after)
		TRY(find_after(s, table, page, parent, &after, err));
	snprintf(sql, sizeof sql, "SELECT %s FROM %s WHERE seq%s?1%s%s%s%s%s%s ORDER BY seq %s", tables[table].document,
	         tables[table].name, page->ascending ? ">" : "<", parent ? " AND " : "",
	         parent ? tables[table].parent : "", parent ? "=?2" : "", filter ? " AND " : "",
	         filter ? tables[table].filter : "", filter ? "=?3" : "", page->ascending ? "ASC" : "DESC");
	TRY(ledger_prepare(s->db, &rows, err, sql, filter ? "itt" : parent ? "it" : "i", after, parent, filter));
	status result = STATUS_OK;
	bool wanted = true;
	while (wanted && ledger_step(s->db, rows, &result, err)) {
		if (page->limit > 0 && given == page->limit) {
			*has_more = true;
			break;
		}
		json_t *object = ledger_document(rows, 0);
		if (!object) {
			result = error_set(err, STATUS_CORRUPT, NULL, "a row of the ledger is damaged");
			break;
		}
		wanted = each(context, object);
		json_decref(object);
		given++;
	}
	sqlite3_finalize(rows);
	return result;
}
