/* DATA/reserve: a file that reserves disk space. It is removed so that a deletion or an upgrade of the ledger can be
 * committed on a full disk, and created again when there is space. Without it a full disk could not be emptied through
 * the service, since a commit needs to write too. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/store/store_private.h"

enum { RESERVE_BYTES = 2 << 20, RESERVE_ROOM = 8 * RESERVE_BYTES }; /* created again when this much is free */

static void reserve_path(const store *s, char *out)
{
	snprintf(out, PATH_MAX, "%s/reserve", s->folder);
}

void reserve_take(store *s)
{
	char path[PATH_MAX];
	struct statvfs disk;
	struct stat st;
	reserve_path(s, path);
	if ((lstat(path, &st) == 0 && st.st_size == RESERVE_BYTES) || statvfs(s->folder, &disk) != 0 ||
	    disk.f_bavail * disk.f_frsize < RESERVE_ROOM)
		return;
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return;
	bool taken = posix_fallocate(fd, 0, RESERVE_BYTES) == 0;
	close(fd);
	if (!taken)
		unlink(path);
}

bool reserve_release(store *s)
{
	char path[PATH_MAX];
	reserve_path(s, path);
	const bool released = unlink(path) == 0;
	s->dirty |= released; /* the next tick creates it again */
	return released;
}

status store_with_reserve(store *s, store_removal remove, const char *id, int64_t number, error *err)
{
	error cause = ERROR_INIT;
	status result = remove(s, id, number, &cause);
	if (result == STATUS_FULL && reserve_release(s)) {
		cause = (error)ERROR_INIT;
		result = remove(s, id, number, &cause);
	}
	if (result != STATUS_OK)
		error_set(err, result, cause.param[0] ? cause.param : NULL, "%s", error_message(&cause));
	return result;
}
