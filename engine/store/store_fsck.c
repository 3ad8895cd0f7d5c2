/* Checking reads a copy of the ledger and every byte of every blob, and writes nothing; so it may run beside an engine.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/store/maintenance.h"
#include "engine/store/store_private.h"

enum { FSCK_TRIES = 5 };

/* True if an engine holds the data folder. */
static bool is_running(const char *data)
{
	char path[PATH_MAX];
	if ((size_t)snprintf(path, sizeof path, "%s/lock", data) >= sizeof path)
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
	if (fd >= 0)
		close(fd);
	return held;
}

/* --- names without rows --------------------------------------------------------------------------- */

typedef struct search {
	store *store;
	json_t *unclaimed, *temporary;
	bool failed;
} search;

/* A state that its row does not name. */
static bool is_claimed_session(store *s, const char *name)
{
	char id[STORE_ID_BYTES];
	int64_t version;
	store_row row;
	if (!session_file_name(name, id, &version))
		return false;
	status found = row_find(s, STORE_SESSIONS, id, &row, NULL);
	bool claimed = found == STATUS_STORAGE || (found == STATUS_OK && session_row_has(&row, version));
	row_fini(&row);
	return claimed;
}

static bool is_claimed(store *s, store_table table, const char *name)
{
	char id[256];
	size_t length = strlen(name), suffix = strlen(MANIFEST_SUFFIX);
	if (table == STORE_SESSIONS)
		return is_claimed_session(s, name);
	if (table == STORE_FILES && length > suffix && strcmp(name + length - suffix, MANIFEST_SUFFIX) == 0)
		length -= suffix;
	snprintf(id, sizeof id, "%.*s", (int)length, name);
	store_row row;
	status found = row_find(s, table, id, &row, NULL);
	row_fini(&row);
	return found == STATUS_OK || found == STATUS_STORAGE;
}

static void look_at(search *f, store_table table, const char *folder, const char *name)
{
	char path[PATH_MAX];
	bool pending = false;
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
	    (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
		return;
	json_t *list = strstr(name, FILE_TEMPORARY)        ? f->temporary
	               : is_claimed(f->store, table, name) ? NULL
	                                                   : f->unclaimed;
	if (list == f->unclaimed && removal_pending(f->store, path, &pending, NULL) == STATUS_OK && pending)
		list = NULL;
	f->failed = f->failed || (list && json_array_append_new(list, json_text_repaired(path)) != 0);
}

static void look_into(search *f, store_table table, const char *folder)
{
	char path[PATH_MAX];
	if ((size_t)snprintf(path, sizeof path, "%s/%s", f->store->folder, folder) >= sizeof path)
		return;
	DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));)
		look_at(f, table, folder, e->d_name);
	if (dir)
		closedir(dir);
}

static status find_unclaimed(store *s, json_t *report)
{
	search f = {s, json_object_get(report, "unclaimed"), json_object_get(report, "temporary"), false};
	look_into(&f, STORE_FILES, "blobs");
	look_into(&f, STORE_MODELS, "models");
	look_into(&f, STORE_ADAPTERS, "adapters");
	look_into(&f, STORE_JOBS, "jobs");
	look_into(&f, STORE_SESSIONS, "sessions");
	return f.failed ? STATUS_NOMEM : STATUS_OK;
}

/* --- the check ---------------------------------------------------------------------------------------- */

static status check_once(const char *data, const char *ledger, json_t *report, bool *stale, error *err)
{
	store *s;
	error cause = ERROR_INIT;
	*stale = false;
	status result = verify_open(&s, data, ledger, ":memory:", &cause);
	if (result == STATUS_NOMEM)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	if (result != STATUS_OK)
		return json_object_set_new(report, "problem", json_string(error_message(&cause))) == 0 ? STATUS_OK
		                                                                                       : STATUS_NOMEM;
	result = verify_all(s, report, err);
	if (result == STATUS_OK)
		result = verify_is_stale(s, ledger, stale, err);
	if (result == STATUS_OK && !*stale && !json_is_true(json_object_get(report, "running")))
		result = find_unclaimed(s, report);
	store_close(s);
	return result;
}

static status store_fsck_check(const char *data, json_t *report, error *err)
{
	char ledger[PATH_MAX];
	bool stale = true;
	if ((size_t)snprintf(ledger, sizeof ledger, "%s/ledger.sqlite", data) >= sizeof ledger)
		return error_set(err, STATUS_INVALID, NULL, "the path of the data folder is too long");
	for (int i = 0; i < FSCK_TRIES && stale; i++)
		TRY(check_once(data, ledger, report, &stale, err));
	if (stale)
		return error_set(err, STATUS_BUSY, NULL, "objects change faster than they can be verified; try again");
	bool clean = json_is_null(json_object_get(report, "problem")) &&
	             json_array_size(json_object_get(report, "damaged")) == 0 &&
	             json_array_size(json_object_get(report, "unclaimed")) == 0;
	return json_object_set_new(report, "clean", json_boolean(clean)) == 0 ? STATUS_OK : STATUS_NOMEM;
}

status fsck_check(const char *data, json_t **report, error *err)
{
	int lock;
	*report = NULL;
	TRY(verify_lock(data, &lock, err));
	json_t *storage = store_usage(data, 0);
	json_t *made = json_pack("{s:s, s:b, s:n, s:{}, s:i, s:[], s:[], s:[], s:o}", "object", "fsck", "running",
	                         is_running(data), "problem", "objects", "bytes", 0, "damaged", "unclaimed",
	                         "temporary", "storage", storage);
	status result = made && storage ? store_fsck_check(data, made, err) : STATUS_NOMEM;
	close(lock);
	if (result == STATUS_OK)
		*report = made;
	else
		json_decref(made);
	return result;
}
