/* A ledger with a damaged page or row is not discarded as a whole. Its rows are read in both directions of creation
 * until a page fails. Rows with the right digest go into a new ledger, and blobs whose rows are lost get new ones from
 * their manifests. At most, rows without a blob in a damaged page are lost: events and responses. The damaged ledger is
 * kept in lost/ledger. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store_private.h"

#define IS_WHOLE "digest=row_digest(kind, id, parent, number, state, bytes, document, manifest)"

status salvage_is_needed(store *s, bool *needed, error *err)
{
	sqlite3_stmt *row;
	status result;
	*needed = false;
	TRY(ledger_prepare(s->db, &row, err, "SELECT 1 FROM objects NOT INDEXED WHERE NOT " IS_WHOLE " LIMIT 1", ""));
	*needed = ledger_step(s->db, row, &result, NULL);
	sqlite3_finalize(row);
	if (result == STATUS_STORAGE) {
		*needed = true;
		return STATUS_OK;
	}
	return result == STATUS_OK ? result : error_set(err, result, NULL, "the ledger cannot be read");
}

/* --- copying rows ---------------------------------------------------------------------------------- */

/* Copy what a query gives until a page cannot be read. */
static int64_t copy_rows(sqlite3 *from, sqlite3 *to, const char *query, const char *insert)
{
	sqlite3_stmt *rows, *put = NULL;
	int64_t copied = 0;
	status result;
	if (ledger_prepare(from, &rows, NULL, query, "") != STATUS_OK)
		return 0;
	if (ledger_prepare(to, &put, NULL, insert, "") == STATUS_OK) {
		while (ledger_step(from, rows, &result, NULL)) {
			for (int i = 0; i < sqlite3_column_count(rows); i++)
				sqlite3_bind_value(put, i + 1, sqlite3_column_value(rows, i));
			copied += sqlite3_step(put) == SQLITE_DONE && sqlite3_changes(to) > 0;
			sqlite3_reset(put);
		}
	}
	sqlite3_finalize(put);
	sqlite3_finalize(rows);
	return copied;
}

#define OBJECTS                                                                                                        \
	"SELECT seq, kind, id, parent, number, state, bytes, document, manifest, digest FROM objects "                 \
	"NOT INDEXED WHERE " IS_WHOLE " ORDER BY seq "

static status copy_ledger(const char *damaged, sqlite3 *to, error *err)
{
	static const char insert[] = "INSERT OR IGNORE INTO objects VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,"
				     LEDGER_PROJECT("?8") ")"; /* the damaged ledger may be older than the column */
	sqlite3 *from;
	error ignored = ERROR_INIT;
	if (ledger_open_damaged(&from, damaged, &ignored) != STATUS_OK) {
		log_line(LOG_WARN, "nothing of the damaged ledger can be read: %s", error_message(&ignored));
		return STATUS_OK;
	}
	status result = ledger_run(to, NULL, err, "BEGIN", "");
	int64_t copied = copy_rows(from, to, OBJECTS "ASC", insert);
	copied += copy_rows(from, to, OBJECTS "DESC", insert);
	copy_rows(from, to, "SELECT key, request, created, answer FROM answers NOT INDEXED",
	          "INSERT OR IGNORE INTO answers VALUES(?,?,?,?)");
	copy_rows(from, to, "SELECT path FROM removals NOT INDEXED", "INSERT OR IGNORE INTO removals VALUES(?)");
	if (result == STATUS_OK)
		result = ledger_run(to, NULL, err, "COMMIT", "");
	sqlite3_close(from);
	log_line(LOG_WARN, "%lld rows of the damaged ledger are whole", (long long)copied);
	return result;
}

/* --- changing places --------------------------------------------------------------------------------- */

static void beside(const store *s, const char *name, char *out)
{
	snprintf(out, PATH_MAX, "%s/%s", s->folder, name);
}

/* Keep the ledger as lost/ledger/TIME.sqlite, with its log and index beside it. */
static status keep_damaged(store *s, error *err)
{
	static const char *const ends[] = {"-wal", "-shm", ""};
	char folder[PATH_MAX], from[PATH_MAX], to[PATH_MAX + 64];
	beside(s, "lost/ledger", folder);
	TRY(file_make_folders(folder, err));
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		snprintf(from, sizeof from, "%s/ledger.sqlite%s", s->folder, ends[i]);
		snprintf(to, sizeof to, "%s/%lld.sqlite%s", folder, (long long)clock_unix(), ends[i]);
		if (rename(from, to) != 0 && errno != ENOENT)
			return file_error(err, from, "cannot set aside");
		lost_date(to);
	}
	return file_sync_folder(folder, err);
}

status salvage_ledger(store *s, error *err)
{
	char fresh[PATH_MAX], path[PATH_MAX];
	sqlite3 *db;
	beside(s, "tmp/ledger.sqlite", fresh);
	beside(s, "ledger.sqlite", path);
	unlink(fresh);
	TRY(ledger_open(&db, fresh, err));
	status result = copy_ledger(path, db, err);
	if (result == STATUS_OK)
		result = ledger_checkpoint(db, err);
	sqlite3_close(db);
	if (result == STATUS_OK)
		result = keep_damaged(s, err);
	if (result == STATUS_OK && rename(fresh, path) != 0)
		result = file_error(err, fresh, "cannot keep");
	if (result == STATUS_OK)
		result = file_sync_folder(s->folder, err);
	return result == STATUS_OK ? ledger_open(&s->db, path, err) : result;
}

/* --- rows from blobs ------------------------------------------------------------------------------------ */

typedef status (*adopt_one)(store *s, const char *parent, const char *name, error *err);

static status adopt_blob(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	size_t length = strlen(name), suffix = strlen(MANIFEST_SUFFIX);
	return length > suffix && strcmp(name + length - suffix, MANIFEST_SUFFIX) == 0 ? STATUS_OK
	                                                                               : adopt_file(s, name, err);
}

static status adopt_model_folder(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	return adopt_folder_object(s, STORE_MODELS, name, err);
}

static status adopt_adapter_folder(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	return adopt_folder_object(s, STORE_ADAPTERS, name, err);
}

static status adopt_state(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	char id[STORE_ID_BYTES];
	int64_t version;
	store_row row;
	if (!session_file_name(name, id, &version))
		return STATUS_OK;
	status found = row_find(s, STORE_SESSIONS, id, &row, NULL);
	int64_t current = row.number;
	row_fini(&row);
	return found == STATUS_OK && current >= version ? STATUS_OK : adopt_session(s, name, err);
}

/* A deleted blob that a backup keeps from being unlinked. */
static bool is_pending(store *s, const char *folder, const char *name)
{
	char path[PATH_MAX];
	bool pending = false;
	if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path)
		removal_pending(s, path, &pending, NULL);
	return pending;
}

static void adopt_all(store *s, const char *folder, const char *parent, store_table table, adopt_one adopt)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", s->folder, folder);
	DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		store_row row;
		error err = ERROR_INIT;
		bool known;
		if (e->d_name[0] == '.' || strstr(e->d_name, FILE_TEMPORARY) || is_pending(s, folder, e->d_name))
			continue;
		if (table == STORE_CHECKPOINTS) {
			if (checkpoint_name_step(e->d_name) < 0 ||
			    row_has_number(s, table, parent, checkpoint_name_step(e->d_name), &known, NULL) !=
			        STATUS_OK)
				continue;
		} else {
			known = table != STORE_SESSIONS && row_find(s, table, e->d_name, &row, NULL) == STATUS_OK;
			if (table != STORE_SESSIONS)
				row_fini(&row);
		}
		if (!known && adopt(s, parent, e->d_name, &err) != STATUS_OK)
			log_line(LOG_WARN, "%s \"%s\" gets no row: %s", store_kind(table), e->d_name,
			         error_message(&err));
	}
	if (dir)
		closedir(dir);
}

static status adopt_job_folder(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	TRY(adopt_job(s, name, err));
	log_line(LOG_WARN, "job %s is made again from its folder; its events are lost", name);
	return STATUS_OK;
}

typedef struct job_list {
	store *store;
	json_t *ids;
} job_list;

static status collect_job(void *context, const store_row *row, error *err)
{
	job_list *list = context;
	(void)err;
	return json_array_append_new(list->ids, json_string(row->id)) == 0 ? STATUS_OK : STATUS_NOMEM;
}

status salvage_rebuild(store *s, error *err)
{
	job_list jobs = {s, json_array()};
	size_t i;
	json_t *id;
	TRY(removal_sweep(s, err)); /* deleted objects must not reappear */
	adopt_all(s, "blobs", NULL, STORE_FILES, adopt_blob);
	adopt_all(s, "models", NULL, STORE_MODELS, adopt_model_folder);
	adopt_all(s, "adapters", NULL, STORE_ADAPTERS, adopt_adapter_folder);
	adopt_all(s, "jobs", NULL, STORE_JOBS, adopt_job_folder);
	adopt_all(s, "sessions", NULL, STORE_SESSIONS, adopt_state);
	status result = jobs.ids ? row_walk(s, STORE_JOBS, NULL, collect_job, &jobs, err) : STATUS_NOMEM;
	json_array_foreach(jobs.ids, i, id)
	{
		char folder[2 * STORE_ID_BYTES];
		snprintf(folder, sizeof folder, "jobs/%s", json_string_value(id));
		adopt_all(s, folder, json_string_value(id), STORE_CHECKPOINTS, adopt_checkpoint);
	}
	json_decref(jobs.ids);
	return result;
}
