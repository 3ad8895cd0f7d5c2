/* DATA/lost/KIND/NAME: blobs that no row speaks for. They are set aside, never deleted, until somebody who runs the
 * service adopts or removes them (store_maintenance). A name that is taken gets a number behind it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store_private.h"

enum { LOST_TRIES = 10000 };

static status free_name(const char *folder, const char *name, char *out, error *err)
{
	struct stat st;
	for (int i = 0; i < LOST_TRIES; i++) {
		int n = i ? snprintf(out, PATH_MAX, "%s/%s~%d", folder, name, i)
		          : snprintf(out, PATH_MAX, "%s/%s", folder, name);
		if (n < 0 || n >= PATH_MAX)
			break;
		if (lstat(out, &st) != 0 && errno == ENOENT)
			return STATUS_OK;
	}
	return error_set(err, STATUS_STORAGE, NULL, "lost/ has no room for another \"%.64s\"", name);
}

status lost_keep(store *s, store_table table, const char *path, const char *name, error *err)
{
	char folder[PATH_MAX], kept[PATH_MAX], from[PATH_MAX + 16], to[PATH_MAX + 16];
	snprintf(folder, sizeof folder, "%s/lost/%s", s->folder, store_kind(table));
	TRY(file_make_folders(folder, err));
	TRY(free_name(folder, name, kept, err));
	snprintf(from, sizeof from, "%s" MANIFEST_SUFFIX, path);
	snprintf(to, sizeof to, "%s" MANIFEST_SUFFIX, kept);
	if (rename(path, kept) != 0)
		return file_error(err, path, "cannot set aside");
	rename(from, to); /* most have none */
	log_line(LOG_WARN, "%s \"%s\" has no row in the ledger: it is kept as lost/%s/%s (see additive fsck)",
	         store_kind(table), name, store_kind(table), strrchr(kept, '/') + 1);
	return file_sync_folder(folder, err);
}
