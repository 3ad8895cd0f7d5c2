/* An exclusive lock is granted on a file that is not in use, and on no other. */
#include "engine/base/cache_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/memory.h"

typedef struct entry {
	char path[PATH_MAX];
	struct timespec used;
	int64_t bytes;
} entry;

static int by_use(const void *a, const void *b)
{
	const struct timespec *x = &((const entry *)a)->used, *y = &((const entry *)b)->used;
	return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
	                              : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* The regular files of a folder, to be freed; NULL: none. */
static entry *list(const char *folder, size_t *n)
{
	entry *all = NULL;
	size_t room = 0;
	struct stat st;
	DIR *dir = opendir(folder);
	*n = 0;
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (!MEMORY_ROOM(all, room, *n + 1))
			break;
		entry *x = &all[*n];
		if ((size_t)snprintf(x->path, sizeof x->path, "%s/%s", folder, e->d_name) < sizeof x->path &&
		    lstat(x->path, &st) == 0 && S_ISREG(st.st_mode)) {
			x->used = st.st_mtim;
			x->bytes = st.st_size;
			++*n;
		}
	}
	if (dir)
		closedir(dir);
	return all;
}

static bool remove_unused(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool removed = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0;
	if (fd >= 0)
		close(fd);
	return removed;
}

int64_t cache_folder_collect(const char *folder, int64_t budget)
{
	size_t n;
	int64_t bytes = 0;
	entry *all = list(folder, &n);
	for (size_t i = 0; i < n; i++)
		bytes += all[i].bytes;
	if (all)
		qsort(all, n, sizeof *all, by_use);
	for (size_t i = 0; i < n && bytes > budget; i++)
		bytes -= remove_unused(all[i].path) ? all[i].bytes : 0;
	free(all);
	return bytes;
}
