/* A backup is made in three steps: copy the ledger, link the blob of every row of the copy, read everything back. The
 * shared lock is taken before the ledger is copied, so a blob that a row of the copy names exists until the end. Later
 * changes get new names and are ignored. Two things can still change under a name: a model that is deleted and added
 * again, and a checkpoint that is written again. The blob then differs from the copied row. If the ledger has changed
 * in the same way, the backup starts again with a new copy. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/path.h"
#include "engine/store/maintenance.h"
#include "engine/store/store_private.h"

enum { BACKUP_TRIES = 5 };

typedef struct backup {
	char data[PATH_MAX - 256];
	bool copy;
	store_table taking; /* the rows that are walked */
	store *made;        /* the ledger's copy, and the blobs as far as they are linked */
	tree_counts counts;
} backup;

/* --- one object ------------------------------------------------------------------------------- */

/* A file by its path below the data folder. A missing one is found when the object is verified. */
static status store_backup_take(backup *b, const char *path, error *err)
{
	char from[PATH_MAX], to[PATH_MAX];
	error cause = ERROR_INIT;
	TRY(path_join(from, b->data, path, err));
	TRY(path_join(to, b->made->folder, path, err));
	status result = tree_take(from, to, b->copy, &b->counts, &cause);
	if (result == STATUS_OK || result == STATUS_NOT_FOUND)
		return STATUS_OK;
	return error_set(err, result, NULL, "%s", error_message(&cause));
}

static status make_folder(const backup *b, const char *path, error *err)
{
	char whole[PATH_MAX];
	TRY(path_join(whole, b->made->folder, path, err));
	return mkdir(whole, 0700) == 0 || errno == EEXIST ? STATUS_OK : file_error(err, whole, "cannot create folder");
}

/* The manifest of the row, from the ledger when the one beside the blob is damaged. */
static status take_manifest(backup *b, store_table table, const store_row *row, const char *path, error *err)
{
	char whole[PATH_MAX];
	if (!row->manifest)
		return STATUS_OK;
	TRY(store_backup_take(b, path, err));
	if (verify_manifest(b->made, table, row))
		return STATUS_OK;
	store_manifest_path(b->made, table, row, whole);
	return file_write(whole, &(file_part){row->manifest, strlen(row->manifest)}, 1, err);
}

static status take_file(backup *b, const store_row *row, error *err)
{
	char path[STORE_ID_BYTES + 32];
	snprintf(path, sizeof path, "blobs/%s", row->id);
	TRY(store_backup_take(b, path, err));
	strcat(path, MANIFEST_SUFFIX);
	return take_manifest(b, STORE_FILES, row, path, err);
}

/* The files of a folder that its manifest lists; all without one. */
static status take_listed(backup *b, const char *folder, const manifest *m, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, b->data, folder, err));
	DIR *dir = opendir(path);
	status result = STATUS_OK;
	for (struct dirent *e; result == STATUS_OK && dir && (e = readdir(dir));) {
		bool listed = m ? manifest_file_bytes(m, e->d_name) >= 0
		                : e->d_name[0] != '.' && !strstr(e->d_name, FILE_TEMPORARY);
		if (listed && (size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < sizeof path)
			result = store_backup_take(b, path, err);
	}
	if (dir)
		closedir(dir);
	return result;
}

static status take_folder(backup *b, store_table table, const store_row *row, const char *folder, error *err)
{
	char path[PATH_MAX];
	manifest *m = NULL;
	if (row->manifest)
		TRY(manifest_parse(&m, row->manifest, strlen(row->manifest), "the ledger's copy of a manifest", err));
	status result = make_folder(b, folder, err);
	if (result == STATUS_OK)
		result = take_listed(b, folder, m, err);
	manifest_free(m);
	snprintf(path, sizeof path, "%.*s/" MANIFEST_NAME, PATH_MAX - 32, folder);
	return result == STATUS_OK ? take_manifest(b, table, row, path, err) : result;
}

static status take_checkpoint(backup *b, const store_row *row, error *err)
{
	char path[2 * STORE_ID_BYTES];
	snprintf(path, sizeof path, "jobs/%s", row->parent);
	TRY(make_folder(b, path, err));
	snprintf(path, sizeof path, "jobs/%s/step-%lld", row->parent, (long long)row->number);
	return take_folder(b, STORE_CHECKPOINTS, row, path, err);
}

/* The copy of the job may be newer than the row: then it is written from the row. */
static status take_job(backup *b, const store_row *row, error *err)
{
	char path[2 * STORE_ID_BYTES], whole[PATH_MAX + 16];
	snprintf(path, sizeof path, "jobs/%s", row->id);
	TRY(make_folder(b, path, err));
	strcat(path, "/job.json");
	TRY(store_backup_take(b, path, err));
	if (verify_job_copy(b->made, row))
		return STATUS_OK;
	store_job_folder(b->made, row->id, whole);
	strcat(whole, "/job.json");
	return manifest_write_document(whole, store_kind(STORE_JOBS), row->id, row->document, err);
}

static status take_session(backup *b, const store_row *row, error *err)
{
	char path[2 * STORE_ID_BYTES];
	for (size_t i = 0; session_row_version(row, i) > 0; i++) {
		snprintf(path, sizeof path, "sessions/%s.%lld", row->id, (long long)session_row_version(row, i));
		TRY(store_backup_take(b, path, err));
	}
	return STATUS_OK;
}

static status take_any(backup *b, store_table table, const store_row *row, error *err)
{
	char path[2 * STORE_ID_BYTES];
	switch (table) {
	case STORE_FILES:
		return take_file(b, row, err);
	case STORE_MODELS:
	case STORE_ADAPTERS:
		snprintf(path, sizeof path, "%s/%s", folder_of_table(table), row->id);
		return take_folder(b, table, row, path, err);
	case STORE_JOBS:
		return take_job(b, row, err);
	case STORE_CHECKPOINTS:
		return take_checkpoint(b, row, err);
	case STORE_SESSIONS:
		return take_session(b, row, err);
	case STORE_EVENTS:
	case STORE_RESPONSES:
	case STORE_KEYS:
		break;
	}
	return STATUS_OK;
}

/* A blob that cannot be read is recorded as damage; one that cannot be written ends the backup. */
static status take_row(void *context, const store_row *row, error *err)
{
	backup *b = context;
	store_table table = b->taking;
	error cause = ERROR_INIT;
	if (!store_valid_name(row->id) || (table == STORE_CHECKPOINTS && !store_valid_name(row->parent)))
		return error_set(err, STATUS_STORAGE, NULL, "the ledger has a row without a name");
	status result = take_any(b, table, row, &cause);
	if (result == STATUS_IO || result == STATUS_STORAGE)
		store_note_damage(b->made, table, row->id, error_message(&cause));
	else if (result != STATUS_OK)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	return STATUS_OK;
}

/* First what can be replaced under its name: linking takes moments, reading everything back takes long. */
static status take_all(backup *b, error *err)
{
	static const store_table order[] = {STORE_MODELS, STORE_ADAPTERS, STORE_CHECKPOINTS,
	                                    STORE_JOBS,   STORE_FILES,    STORE_SESSIONS};
	for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
		b->taking = order[i];
		TRY(row_walk(b->made, order[i], NULL, take_row, b, err));
	}
	return STATUS_OK;
}

/* --- the whole ---------------------------------------------------------------------------------- */

static status make_folders(const backup *b, error *err)
{
	static const char *const folders[] = {"blobs", "models", "adapters", "jobs", "sessions"};
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		TRY(make_folder(b, folders[i], err));
	return STATUS_OK;
}

/* The copied ledger as one file, with a manifest. What waits for its removal is not in the backup. */
static status finish_ledger(store *s, error *err)
{
	char path[PATH_MAX];
	TRY(ledger_run(s->db, NULL, err, "DELETE FROM removals", ""));
	TRY(ledger_run(s->db, NULL, err, "PRAGMA journal_mode=DELETE", ""));
	sqlite3_close(s->db);
	s->db = NULL;
	snprintf(path, sizeof path, "%s/ledger.sqlite", s->folder);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	status result = fd < 0 || fsync(fd) != 0 ? file_error(err, path, "cannot sync") : STATUS_OK;
	if (fd >= 0)
		close(fd);
	TRY(result);
	json_t *about = json_pack("{s:I, s:s}", "created", (json_int_t)clock_unix(), "version", ADDITIVE_VERSION);
	result = about ? manifest_write_file(path, "ledger.sqlite", "ledger", "ledger", about, err) : STATUS_NOMEM;
	json_decref(about);
	return result;
}

static status store_backup_fill(backup *b, const char *folder, json_t *report, bool *stale, error *err)
{
	char ledger[PATH_MAX], copy[PATH_MAX];
	snprintf(ledger, sizeof ledger, "%s/ledger.sqlite", b->data);
	TRY(path_join(copy, folder, "ledger.sqlite", err));
	b->counts = (tree_counts){0};
	TRY(verify_open(&b->made, folder, ledger, copy, err));
	status result = make_folders(b, err);
	if (result == STATUS_OK)
		result = take_all(b, err);
	if (result == STATUS_OK)
		result = verify_all(b->made, report, err);
	if (result == STATUS_OK)
		result = verify_is_stale(b->made, ledger, stale, err);
	if (result == STATUS_OK && !*stale)
		result = finish_ledger(b->made, err);
	store_close(b->made);
	b->made = NULL;
	return result;
}

/* Fill a new folder until it agrees with its own ledger. */
static status fill_until_steady(backup *b, const char *folder, json_t *report, error *err)
{
	for (int i = 0; i < BACKUP_TRIES; i++) {
		bool stale = false;
		if (mkdir(folder, 0700) != 0)
			return file_error(err, folder, "cannot create folder");
		TRY(store_backup_fill(b, folder, report, &stale, err));
		if (!stale)
			return tree_sync(folder, err);
		TRY(file_remove_tree(folder, err));
	}
	return error_set(err, STATUS_BUSY, NULL,
	                 "models or checkpoints change faster than they can be verified; try again");
}

/* Find the folder that will contain `to`, and its name there. */
static status find_parent(const char *data, const char *to, char *parent, error *err)
{
	static const char *const ours[] = {"blobs",    "models", "adapters", "jobs",
	                                   "sessions", "cache",  "lost",     "tmp"};
	char above[PATH_MAX], own[PATH_MAX];
	struct stat st;
	if (lstat(to, &st) == 0)
		return error_set(err, STATUS_CONFLICT, NULL, "the folder of the backup exists already");
	snprintf(above, sizeof above, "%s", to);
	for (size_t n = strlen(above); n > 1 && above[n - 1] == '/';)
		above[--n] = 0;
	char *slash = strrchr(above, '/');
	if (slash)
		slash[slash == above ? 1 : 0] = 0;
	if (!realpath(slash ? above : ".", parent))
		return file_error(err, to, "there is no folder to put the backup into for");
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		char joined[PATH_MAX];
		if ((size_t)snprintf(joined, sizeof joined, "%s/%s", data, ours[i]) >= sizeof joined ||
		    !realpath(joined, own))
			continue;
		size_t n = strlen(own);
		if (strncmp(parent, own, n) == 0 && (!parent[n] || parent[n] == '/'))
			return error_set(err, STATUS_CONFLICT, NULL,
			                 "a backup must not lie among the blobs of its data folder");
	}
	return STATUS_OK;
}

static status store_backup_make(backup *b, const char *to, json_t *report, error *err)
{
	char parent[PATH_MAX], temporary[PATH_MAX], name[PATH_MAX];
	TRY(find_parent(b->data, to, parent, err));
	snprintf(name, sizeof name, "%s", to);
	for (size_t n = strlen(name); n > 1 && name[n - 1] == '/';)
		name[--n] = 0;
	TRY(path_extend(temporary, name, FILE_TEMPORARY "XXXXXX", err));
	if (!mkdtemp(temporary) || rmdir(temporary) != 0)
		return file_error(err, to, "cannot create");
	status result = fill_until_steady(b, temporary, report, err);
	if (result == STATUS_OK && rename(temporary, name) != 0)
		result = file_error(err, to, "cannot rename");
	if (result == STATUS_OK)
		return file_sync_folder(parent, err);
	file_remove_tree(temporary, NULL);
	return result;
}

status backup_make(const char *data, const char *to, bool copy, json_t **report, error *err)
{
	backup b = {.copy = copy};
	int lock;
	*report = NULL;
	if (!data[0] || !to[0] || (size_t)snprintf(b.data, sizeof b.data, "%s", data) >= sizeof b.data)
		return error_set(err, STATUS_INVALID, NULL, "a path is empty or too long");
	json_t *made = json_pack("{s:s}", "object", "backup");
	if (!made)
		return STATUS_NOMEM;
	status result = verify_lock(data, &lock, err);
	if (result == STATUS_OK)
		result = store_backup_make(&b, to, made, err);
	if (lock >= 0)
		close(lock);
	if (result == STATUS_OK && (json_object_set_new(made, "linked_bytes", json_integer(b.counts.linked)) != 0 ||
	                            json_object_set_new(made, "copied_bytes", json_integer(b.counts.copied)) != 0))
		result = STATUS_NOMEM;
	if (result == STATUS_OK)
		*report = made;
	else
		json_decref(made);
	return result;
}
