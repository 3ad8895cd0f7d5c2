/* Trees of files for backups. Data of a linked file is durable already, since every blob was synced before it got its
 * name; names are synced folder by folder at the end (tree_sync). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/path.h"
#include "engine/store/store_private.h"

enum { TREE_BUFFER = 1 << 20 };

/* errno says why when false. */
static bool copy_bytes(int from, int to, char *buffer, int64_t *bytes)
{
	for (;;) {
		ssize_t n = read(from, buffer, TREE_BUFFER);
		if (n == 0)
			return fsync(to) == 0;
		if (n < 0 && errno == EINTR)
			continue;
		for (ssize_t done = 0; n > 0 && done < n;) {
			ssize_t written = write(to, buffer + done, (size_t)(n - done));
			if (written < 0 && errno != EINTR)
				return false;
			done += written > 0 ? written : 0;
		}
		if (n < 0)
			return false;
		*bytes += n;
	}
}

static status copy_file(const char *from, const char *to, tree_counts *counts, error *err)
{
	char *buffer = malloc(TREE_BUFFER);
	if (!buffer)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	status result = STATUS_OK;
	int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), out = -1;
	if (in < 0)
		result = file_error(err, from, "cannot open");
	else if ((out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0)
		result = file_error(err, to, "cannot create");
	else if (!copy_bytes(in, out, buffer, &counts->copied))
		result = file_error(err, from, "cannot copy");
	if (in >= 0)
		close(in);
	if (out >= 0 && close(out) != 0 && result == STATUS_OK)
		result = file_error(err, to, "cannot copy");
	if (out >= 0 && result != STATUS_OK)
		unlink(to);
	free(buffer);
	return result;
}

/* A link fails across file systems, where there are no links, and for files of another user; a copy says whether there
 * is more to it. */
status tree_take(const char *from, const char *to, bool copy, tree_counts *counts, error *err)
{
	struct stat st;
	if (copy || lstat(from, &st) != 0 || !S_ISREG(st.st_mode) || link(from, to) != 0)
		return copy_file(from, to, counts, err);
	counts->linked += st.st_size;
	return STATUS_OK;
}

static status copy_entry(const char *from, const char *to, const char *name, tree_counts *counts, error *err)
{
	char source[PATH_MAX], target[PATH_MAX];
	struct stat st;
	TRY(path_join(source, from, name, err));
	TRY(path_join(target, to, name, err));
	if (lstat(source, &st) != 0)
		return file_error(err, source, "cannot read");
	if (S_ISDIR(st.st_mode))
		return tree_copy(source, target, counts, err);
	return S_ISREG(st.st_mode) ? tree_take(source, target, true, counts, err) : STATUS_OK;
}

status tree_copy(const char *from, const char *to, tree_counts *counts, error *err)
{
	if (mkdir(to, 0700) != 0 && errno != EEXIST)
		return file_error(err, to, "cannot create folder");
	DIR *dir = opendir(from);
	if (!dir)
		return file_error(err, from, "cannot open folder");
	status result = STATUS_OK;
	for (struct dirent *e; result == STATUS_OK && (e = readdir(dir));)
		if (e->d_name[0] != '.' && !strstr(e->d_name, FILE_TEMPORARY))
			result = copy_entry(from, to, e->d_name, counts, err);
	closedir(dir);
	return result;
}

static int sync_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)ftw;
	return flag == FTW_DP && file_sync_folder(path, NULL) != STATUS_OK;
}

status tree_sync(const char *path, error *err)
{
	return nftw(path, sync_one, 16, FTW_DEPTH | FTW_PHYS) == 0 ? STATUS_OK : file_error(err, path, "cannot sync");
}
