/* Disk usage. The budget counts the cache and the blobs that rows name; the report counts the contents of the
 * folders. */
#include <dirent.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "engine/base/cache_folder.h"
#include "engine/base/json_text.h"
#include "engine/store/store_private.h"

enum { LOST_LISTED = 1000 };

void store_set_budget(store *s, int64_t bytes)
{
	s->budget = bytes;
}

status store_bytes(store *s, int64_t *out, error *err)
{
	sqlite3_stmt *row;
	status result;
	*out = 0;
	TRY(ledger_prepare(
	    s->db, &row, err,
	    "SELECT coalesce(sum(bytes), 0) FROM objects WHERE kind IN ('file', 'model', 'checkpoint', 'session')",
	    ""));
	if (ledger_step(s->db, row, &result, err))
		*out = sqlite3_column_int64(row, 0);
	sqlite3_finalize(row);
	return result;
}

status store_cache_room(store *s, int64_t *out, error *err)
{
	int64_t used = 0;
	*out = INT64_MAX;
	if (s->budget <= 0)
		return STATUS_OK;
	TRY(store_bytes(s, &used, err));
	*out = used < s->budget ? s->budget - used : 0;
	return STATUS_OK;
}

/* The cache is removed first. */
status store_check_room(store *s, int64_t bytes, error *err)
{
	char cache[PATH_MAX];
	int64_t used;
	if (s->budget <= 0)
		return STATUS_OK;
	TRY(store_bytes(s, &used, err));
	store_cache_folder(s, cache);
	used += cache_folder_collect(cache, bytes < s->budget - used ? s->budget - used - bytes : 0);
	if (bytes <= s->budget - used)
		return STATUS_OK;
	return error_set(err, STATUS_FULL, NULL,
	                 "the data budget of %" PRId64 " bytes does not hold %" PRId64 " more: %" PRId64 " are in use",
	                 s->budget, bytes, used);
}

/* --- the report --------------------------------------------------------------------------------- */

static _Thread_local int64_t walked_bytes; /* nftw(3) passes no context */

static int add_bytes(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)path, (void)ftw;
	walked_bytes += flag == FTW_F ? st->st_size : 0;
	return 0;
}

int64_t store_bytes_below(const char *path)
{
	walked_bytes = 0;
	nftw(path, add_bytes, 16, FTW_PHYS);
	return walked_bytes;
}

/* Names in a folder that `counts` accepts. */
static int64_t count_names(const char *folder, bool (*counts)(const char *name))
{
	int64_t n = 0;
	DIR *dir = opendir(folder);
	for (struct dirent *e; dir && (e = readdir(dir));)
		n += e->d_name[0] != '.' && counts(e->d_name);
	if (dir)
		closedir(dir);
	return n;
}

static bool any_name(const char *name)
{
	(void)name;
	return true;
}

static bool is_no_manifest(const char *name)
{
	size_t length = strlen(name), suffix = strlen(MANIFEST_SUFFIX);
	return length < suffix || strcmp(name + length - suffix, MANIFEST_SUFFIX) != 0;
}

static bool is_checkpoint(const char *name)
{
	return checkpoint_name_step(name) >= 0;
}

static int64_t count_checkpoints(const char *jobs)
{
	char path[PATH_MAX];
	int64_t n = 0;
	DIR *dir = opendir(jobs);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.' && (size_t)snprintf(path, sizeof path, "%s/%s", jobs, e->d_name) < sizeof path)
			n += count_names(path, is_checkpoint);
	if (dir)
		closedir(dir);
	return n;
}

static bool add_kind(json_t *kinds, const char *kind, int64_t count, int64_t bytes)
{
	return json_array_append_new(kinds, json_pack("{s:s, s:I, s:I}", "kind", kind, "count", (json_int_t)count,
	                                              "bytes", (json_int_t)bytes)) == 0;
}

static int64_t ledger_bytes(const char *folder)
{
	static const char *const names[] = {"ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"};
	char path[PATH_MAX];
	struct stat st;
	int64_t bytes = 0;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, names[i]) < sizeof path &&
		    stat(path, &st) == 0)
			bytes += st.st_size;
	return bytes;
}

static void walk_kind(const char *all, const char *kind, lost_each each, void *context)
{
	char folder[PATH_MAX], path[PATH_MAX];
	if (kind[0] == '.' || (size_t)snprintf(folder, sizeof folder, "%s/%s", all, kind) >= sizeof folder)
		return;
	DIR *dir = opendir(folder);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.' && is_no_manifest(e->d_name) &&
		    (size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < sizeof path)
			each(context, kind, e->d_name, path);
	if (dir)
		closedir(dir);
}

void store_lost_walk(const char *data, lost_each each, void *context)
{
	char all[PATH_MAX];
	if ((size_t)snprintf(all, sizeof all, "%s/lost", data) >= sizeof all)
		return;
	DIR *dir = opendir(all);
	for (struct dirent *e; dir && (e = readdir(dir));)
		walk_kind(all, e->d_name, each, context);
	if (dir)
		closedir(dir);
}

typedef struct lost_listing {
	json_t *lost;
	bool failed;
} lost_listing;

static void list_lost(void *context, const char *kind, const char *name, const char *path)
{
	lost_listing *l = context;
	if (l->failed || json_array_size(l->lost) >= LOST_LISTED)
		return;
	l->failed = json_array_append_new(l->lost, json_pack("{s:o, s:o, s:I}", "name", json_text_repaired(name),
	                                                     "kind", json_text_repaired(kind), "bytes",
	                                                     (json_int_t)store_bytes_below(path))) != 0;
}

static bool add_kinds(json_t *kinds, json_t *lost, const char *folder)
{
	static const struct {
		const char *kind, *folder;
		bool (*counts)(const char *name);
	} folders[] = {{"files", "blobs", is_no_manifest},
	               {"models", "models", any_name},
	               {"adapters", "adapters", any_name},
	               {"sessions", "sessions", any_name},
	               {"cache", "cache", any_name},
	               {"temporary", "tmp", any_name}};
	char path[PATH_MAX];
	bool ok = true;
	for (size_t i = 0; i < sizeof folders / sizeof *folders && ok; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, folders[i].folder);
		ok = add_kind(kinds, folders[i].kind, count_names(path, folders[i].counts), store_bytes_below(path));
	}
	snprintf(path, sizeof path, "%s/jobs", folder);
	ok = ok && add_kind(kinds, "checkpoints", count_checkpoints(path), store_bytes_below(path));
	ok = ok && add_kind(kinds, "ledger", 1, ledger_bytes(folder));
	snprintf(path, sizeof path, "%s/lost", folder);
	lost_listing listing = {.lost = lost};
	store_lost_walk(folder, list_lost, &listing);
	return ok && !listing.failed &&
	       add_kind(kinds, "lost", (int64_t)json_array_size(lost), store_bytes_below(path));
}

json_t *store_usage(const char *folder, int64_t budget)
{
	struct statvfs disk = {0};
	int64_t total = 0;
	size_t i;
	json_t *kinds = json_array(), *lost = json_array(), *kind;
	if (!kinds || !lost || !add_kinds(kinds, lost, folder)) {
		json_decref(kinds);
		json_decref(lost);
		return NULL;
	}
	json_array_foreach(kinds, i, kind) total += json_integer_value(json_object_get(kind, "bytes"));
	statvfs(folder, &disk);
	return json_pack("{s:s, s:I, s:I, s:I, s:o, s:o}", "object", "storage", "data_bytes", (json_int_t)total,
	                 "budget_bytes", (json_int_t)budget, "disk_free_bytes",
	                 (json_int_t)disk.f_bavail * (json_int_t)disk.f_frsize, "kinds", kinds, "lost", lost);
}
