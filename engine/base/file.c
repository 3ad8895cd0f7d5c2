/* nftw(3) walks with FTW_PHYS, so a link inside a removed tree is unlinked,
 * never entered. */
#include "engine/base/file.h"
#include "engine/base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static status status_of(int number)
{
	switch (number) {
	case ENOENT:
		return STATUS_NOT_FOUND;
	case ENOMEM:
		return STATUS_NOMEM;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return STATUS_FULL;
	case EMFILE:
	case ENFILE:
		return STATUS_UNAVAILABLE;
	default:
		return STATUS_IO;
	}
}

status file_error(error *err, const char *path, const char *what)
{
	status s = status_of(errno);
	const char *slash = strrchr(path, '/');
	return error_set(err, s, NULL, "%s \"%s\": %s", what, slash ? slash + 1 : path, strerror(errno));
}

static int write_all(int fd, const char *data, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, data, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		data += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static void parent_of(const char *path, char *out, size_t size)
{
	snprintf(out, size, "%s", path);
	char *slash = strrchr(out, '/');
	if (slash == out)
		out[1] = 0;
	else if (slash)
		*slash = 0;
	else
		snprintf(out, size, ".");
}

status file_sync_folder(const char *path, error *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return file_error(err, path, "cannot open folder");
	int rc = fsync(fd);
	close(fd);
	return rc ? file_error(err, path, "cannot sync folder") : STATUS_OK;
}

status file_write(const char *path, const file_part *parts, size_t count, error *err)
{
	char temporary[PATH_MAX], parent[PATH_MAX];
	TRY(path_extend(temporary, path, FILE_TEMPORARY "XXXXXX", err));
	int fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return file_error(err, path, "cannot create");
	int rc = fchmod(fd, 0644);
	for (size_t i = 0; i < count && rc == 0; i++)
		rc = write_all(fd, parts[i].data, parts[i].bytes);
	if (rc == 0)
		rc = fsync(fd);
	int saved = errno;
	if (close(fd) != 0 && rc == 0)
		rc = -1, saved = errno;
	if (rc == 0 && rename(temporary, path) != 0)
		rc = -1, saved = errno;
	if (rc != 0) {
		unlink(temporary);
		errno = saved;
		return file_error(err, path, "cannot write");
	}
	parent_of(path, parent, sizeof parent);
	return file_sync_folder(parent, err);
}

status file_write_scratch(const char *path, const void *data, size_t bytes, error *err)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return file_error(err, path, "cannot create");
	int rc = write_all(fd, data, bytes), saved = errno;
	if (close(fd) != 0 && rc == 0)
		rc = -1, saved = errno;
	if (rc == 0)
		return STATUS_OK;
	unlink(path);
	errno = saved;
	return file_error(err, path, "cannot write");
}

status file_read(const char *path, size_t limit, char **out, size_t *bytes, error *err)
{
	*out = NULL;
	*bytes = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return file_error(err, path, "cannot open");
	struct stat st;
	char *data = NULL;
	status s = STATUS_OK;
	size_t used = 0;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		s = error_set(err, STATUS_IO, NULL, "not a regular file");
		goto done;
	}
	if ((uint64_t)st.st_size > limit) {
		s = error_set(err, STATUS_TOO_LARGE, NULL, "file of %lld bytes is over the limit of %zu",
		              (long long)st.st_size, limit);
		goto done;
	}
	data = malloc((size_t)st.st_size + 1);
	if (!data) {
		s = STATUS_NOMEM;
		goto done;
	}
	while (used < (size_t)st.st_size) {
		ssize_t n = read(fd, data + used, (size_t)st.st_size - used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			s = file_error(err, path, "cannot read");
			goto done;
		}
		if (n == 0)
			break; /* truncated while being read: return the bytes read so far */
		used += (size_t)n;
	}
	data[used] = 0;
	*out = data;
	*bytes = used;
	data = NULL;
done:
	free(data);
	close(fd);
	return s;
}

status file_map_open(file_map *out, const char *path, error *err)
{
	*out = (file_map){0};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return file_error(err, path, "cannot open");
	struct stat st;
	status s = STATUS_OK;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		s = error_set(err, STATUS_IO, NULL, "not a regular file");
	} else if (st.st_size > 0) {
		void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (data == MAP_FAILED)
			s = file_error(err, path, "cannot map");
		else
			*out = (file_map){data, (size_t)st.st_size};
	}
	close(fd);
	return s;
}

void file_map_close(file_map *map)
{
	if (map->data)
		munmap((void *)(uintptr_t)map->data, map->bytes);
	*map = (file_map){0};
}

static bool is_folder(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Make one folder; when it is new, its name is durable on return. */
static status make_folder(const char *path, error *err)
{
	char parent[PATH_MAX];
	if (mkdir(path, 0755) != 0)
		return errno == EEXIST && is_folder(path) ? STATUS_OK : file_error(err, path, "cannot create folder");
	parent_of(path, parent, sizeof parent);
	return file_sync_folder(parent, err);
}

status file_make_folders(const char *path, error *err)
{
	char part[PATH_MAX];
	if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part)
		return error_set(err, STATUS_INVALID, NULL, "path too long");
	for (char *p = part + 1;; p++) {
		if (*p && *p != '/')
			continue;
		char saved = *p;
		*p = 0;
		TRY(make_folder(part, err));
		if (!saved)
			return STATUS_OK;
		*p = saved;
	}
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

status file_remove_tree(const char *path, error *err)
{
	if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return file_error(err, path, "cannot remove");
	return STATUS_OK;
}
