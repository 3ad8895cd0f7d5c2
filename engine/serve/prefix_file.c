#include "engine/serve/prefix_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/serve/session_blob.h"

enum { NAME_BYTES = 72 };

/* --- names --------------------------------------------------------------------------- */

static void path_of(const char *folder, const prefix_key *key, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s/%016" PRIx64 "-%016" PRIx64 "-%016" PRIx64 "-%" PRId64, PATH_MAX - NAME_BYTES,
	         folder, key->model, key->owner, key->hash, key->tokens);
}

/* False: not the name of a state. */
static bool parse_name(const char *name, prefix_key *key)
{
	enum { PART = DIGEST_TEXT_BYTES }; /* 16 digits and a dash */
	char *end;
	if (strlen(name) <= 3 * PART || name[PART - 1] != '-' || name[2 * PART - 1] != '-' ||
	    name[3 * PART - 1] != '-' || !digest_read(name, &key->model) || !digest_read(name + PART, &key->owner) ||
	    !digest_read(name + 2 * PART, &key->hash))
		return false;
	key->tokens = strtoll(name + 3 * PART, &end, 10);
	return !*end && key->tokens > 0 && key->tokens <= INT32_MAX;
}

/* --- contents ------------------------------------------------------------------------ */

bool prefix_file_read(const char *folder, const prefix_key *key, session_transfer *t, uint64_t *ns)
{
	char path[PATH_MAX], *data;
	size_t bytes;
	const uint64_t began = clock_ns();
	path_of(folder, key, path);
	const status s = file_read(path, PREFIX_DISK_STATE_BYTES, &data, &bytes, NULL);
	const bool damaged = s == STATUS_OK ? session_blob_take(t, data, bytes) != STATUS_OK : s != STATUS_NOMEM;
	free(data);
	*ns = clock_ns() - began;
	if (t->done)
		utimensat(AT_FDCWD, path, NULL, 0); /* the time of its last use, for the next start */
	return !damaged;
}

status prefix_file_write(const char *folder, const prefix_key *key, const session_transfer *t, error *err)
{
	char path[PATH_MAX];
	void *blob;
	path_of(folder, key, path);
	if (scheduler_transfer_whole(t, &blob) != STATUS_OK)
		return error_set(err, STATUS_NOMEM, NULL, "no memory for a state of %zu bytes", t->bytes);
	const status s = file_write_scratch(path, blob, t->bytes, err);
	free(blob);
	return s;
}

void prefix_file_remove(const char *folder, const prefix_key *key)
{
	char path[PATH_MAX];
	path_of(folder, key, path);
	unlink(path);
}

/* --- the folder ---------------------------------------------------------------------- */

static int by_use(const void *a, const void *b)
{
	const struct timespec *x = &((const found_file *)a)->used, *y = &((const found_file *)b)->used;
	return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
	                              : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* Return a file of the folder, which is removed if it is no state or past the limits; NULL then. */
static prefix_entry *look_at(const char *folder, const char *name, size_t n, struct timespec *used)
{
	char path[PATH_MAX];
	struct stat st;
	prefix_entry e = {0}, *out;
	if (name[0] == '.' || (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
		return NULL;
	if (n < PREFIX_DISK_MOST && parse_name(name, &e.key) && lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	    (out = memory_new(1, sizeof *out))) {
		e.bytes = st.st_size;
		*used = st.st_mtim;
		*out = e;
		return out;
	}
	unlink(path);
	return NULL;
}

size_t prefix_file_list(const char *folder, found_file **out)
{
	found_file *all = NULL;
	size_t n = 0, room = 0;
	DIR *dir = opendir(folder);
	for (struct dirent *e; dir && (e = readdir(dir)) && MEMORY_ROOM(all, room, n + 1);)
		n += (all[n].entry = look_at(folder, e->d_name, n, &all[n].used)) != NULL;
	if (dir)
		closedir(dir);
	if (n > 0)
		qsort(all, n, sizeof *all, by_use);
	*out = all;
	return n;
}

int64_t prefix_file_least_free(const char *folder)
{
	struct statvfs fs;
	const bool known = statvfs(folder, &fs) == 0;
	const int64_t share = known ? (int64_t)fs.f_blocks / PREFIX_DISK_FREE_SHARE * (int64_t)fs.f_frsize : INT64_MAX;
	return share < PREFIX_DISK_FREE ? share : PREFIX_DISK_FREE;
}

int64_t prefix_file_free(const char *folder)
{
	struct statvfs fs;
	return statvfs(folder, &fs) == 0 ? (int64_t)fs.f_bavail * (int64_t)fs.f_frsize : INT64_MAX;
}
