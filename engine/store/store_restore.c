/* The ledger is put into its place last: a data folder whose restoring was cut short holds blobs and no ledger, which a
 * start refuses. Blobs are copied, never linked: the backup stays as it is whatever happens to the restored folder. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/path.h"
#include "engine/store/maintenance.h"
#include "engine/store/store_private.h"

static const char *const folders[] = {"blobs", "models", "adapters", "jobs", "sessions"};
static const char half[] = "ledger.sqlite" FILE_TEMPORARY "restore";

/* --- the backup ------------------------------------------------------------------------------------ */

static bool add_damage(json_t *report, const char *kind, const char *id, const char *problem)
{
	json_t *list = json_object_get(report, "damaged");
	if (!list && json_object_set_new(report, "damaged", list = json_array()) != 0)
		return false;
	return json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "kind", kind, "id", id, "problem", problem)) ==
	       0;
}

/* Verify every page of the ledger, even those without rows. */
static status verify_ledger(const char *from, json_t *report)
{
	char path[PATH_MAX];
	manifest *m;
	error cause = ERROR_INIT;
	if ((size_t)snprintf(path, sizeof path, "%s/ledger.sqlite" MANIFEST_SUFFIX, from) >= sizeof path)
		return STATUS_INVALID;
	status result = manifest_open(&m, path, &cause);
	if (result == STATUS_OK)
		result = manifest_check(m, from, &cause);
	manifest_free(m);
	return result == STATUS_OK || add_damage(report, "ledger", "ledger.sqlite", error_message(&cause))
	           ? STATUS_OK
	           : STATUS_NOMEM;
}

/* *usable: there is a ledger whose rows can be read. */
static status verify_backup(const char *from, json_t *report, bool *usable, error *err)
{
	char ledger[PATH_MAX];
	store *s;
	error cause = ERROR_INIT;
	*usable = false;
	TRY(path_join(ledger, from, "ledger.sqlite", err));
	status result = verify_open(&s, from, ledger, ":memory:", &cause);
	if (result == STATUS_NOMEM || result == STATUS_UNSUPPORTED)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	if (result != STATUS_OK)
		return add_damage(report, "ledger", "ledger.sqlite", error_message(&cause)) ? STATUS_OK : STATUS_NOMEM;
	*usable = true;
	result = verify_all(s, report, err);
	store_close(s);
	return result == STATUS_OK ? verify_ledger(from, report) : result;
}

static status require_backup(const char *from, error *err)
{
	char path[PATH_MAX];
	struct stat st;
	int found = 0;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		found += (size_t)snprintf(path, sizeof path, "%s/%s", from, folders[i]) < sizeof path &&
		         stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	if (found > 0)
		return STATUS_OK;
	return error_set(err, STATUS_NOT_FOUND, NULL, "there is no backup at that place");
}

/* --- the data folder ---------------------------------------------------------------------------------- */

static bool counts(const char *name)
{
	return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "lost+found") != 0;
}

static status require_empty(const char *data, error *err)
{
	int n = 0;
	DIR *dir = opendir(data);
	if (!dir)
		return errno == ENOENT ? STATUS_OK : file_error(err, data, "cannot open folder");
	for (struct dirent *e; (e = readdir(dir));)
		n += counts(e->d_name);
	closedir(dir);
	return n == 0 ? STATUS_OK
	              : error_set(err, STATUS_CONFLICT, NULL, "the data folder to restore into is not empty");
}

static void empty(const char *data)
{
	char path[PATH_MAX];
	DIR *dir = opendir(data);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (counts(e->d_name) && (size_t)snprintf(path, sizeof path, "%s/%s", data, e->d_name) < sizeof path)
			file_remove_tree(path, NULL);
	if (dir)
		closedir(dir);
}

static status copy_blobs(const char *from, const char *data, tree_counts *counted, error *err)
{
	char source[PATH_MAX], target[PATH_MAX];
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		TRY(path_join(source, from, folders[i], err));
		TRY(path_join(target, data, folders[i], err));
		if (access(source, F_OK) == 0)
			TRY(tree_copy(source, target, counted, err));
	}
	return tree_sync(data, err);
}

/* The ledger with what may still be in its log. A start makes a damaged one again from its whole rows. */
static status copy_ledger_to(const char *from, const char *data, error *err)
{
	char source[PATH_MAX], target[PATH_MAX], last[PATH_MAX];
	sqlite3 *db;
	TRY(path_join(source, from, "ledger.sqlite", err));
	TRY(path_join(target, data, half, err));
	snprintf(last, sizeof last, "%s/ledger.sqlite", data);
	TRY(ledger_copy(&db, source, target, err));
	ledger_run(db, NULL, NULL, "PRAGMA journal_mode=DELETE", "");
	sqlite3_close(db);
	int fd = open(target, O_RDONLY | O_CLOEXEC);
	status result = fd < 0 || fsync(fd) != 0 || rename(target, last) != 0 ? file_error(err, target, "cannot keep")
	                                                                      : file_sync_folder(data, err);
	if (fd >= 0)
		close(fd);
	return result;
}

static status restore(const char *from, const char *data, bool usable, tree_counts *counted, error *err)
{
	TRY(file_make_folders(data, err));
	TRY(copy_blobs(from, data, counted, err));
	error cause = ERROR_INIT;
	status copied = copy_ledger_to(from, data, &cause);
	if (copied != STATUS_OK && usable)
		return error_set(err, copied, NULL, "%s", error_message(&cause));
	store *s;
	TRY(copied != STATUS_OK ? store_rebuild(&s, data, err) : store_open(&s, data, err));
	store_close(s);
	return STATUS_OK;
}

static status restore_verified(const char *from, const char *data, bool partial, json_t *report, error *err)
{
	bool usable;
	tree_counts counted = {0};
	TRY(verify_backup(from, report, &usable, err));
	size_t damaged = json_array_size(json_object_get(report, "damaged"));
	if (damaged > 0 && !partial)
		return error_set(
		    err, STATUS_STORAGE, NULL,
		    "the backup is damaged, and nothing was restored; --partial restores its intact parts");
	status result = restore(from, data, usable, &counted, err);
	if (result != STATUS_OK)
		empty(data);
	else if (json_object_set_new(report, "copied_bytes", json_integer(counted.copied)) != 0)
		result = STATUS_NOMEM;
	return result;
}

status backup_restore(const char *from, const char *data, bool partial, json_t **report, error *err)
{
	*report = NULL;
	if (!from[0] || !data[0])
		return error_set(err, STATUS_INVALID, NULL, "a path is empty");
	TRY(require_backup(from, err));
	TRY(require_empty(data, err));
	json_t *made = json_pack("{s:s}", "object", "restore");
	if (!made)
		return STATUS_NOMEM;
	status result = restore_verified(from, data, partial, made, err);
	if (result == STATUS_OK || result == STATUS_STORAGE)
		*report = made;
	else
		json_decref(made);
	return result;
}
