/* Symbols of the program take precedence over those of the C library, so defining them here is enough. System calls do
 * the work. */
#include "tests/unit/support/disk.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static const char *const *_Atomic failing;
static atomic_int error_number, failures;

void disk_fail(const char *const *parts, int number)
{
	error_number = number;
	failing = number ? parts : NULL;
	failures = 0;
}

int disk_failures(void)
{
	return failures;
}

static bool fails_path(const char *path)
{
	const char *const *part = failing;
	for (; part && *part; part++)
		if (strstr(path, *part)) {
			failures++;
			errno = error_number;
			return true;
		}
	return false;
}

static void path_of(int fd, char path[PATH_MAX])
{
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, PATH_MAX - 1);
	path[n > 0 ? n : 0] = 0;
}

static bool fails(int fd)
{
	char path[PATH_MAX];
	if (!failing)
		return false;
	path_of(fd, path);
	return path[0] == '/' && fails_path(path);
}

static void (*_Atomic watch)(const char *path);

void disk_watch(void (*synced)(const char *path))
{
	watch = synced;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
	return fails(fd) ? -1 : syscall(SYS_write, fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
	return fails(fd) ? -1 : syscall(SYS_pwrite64, fd, data, bytes, at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at)
{
	return fails(fd) ? -1 : syscall(SYS_pwrite64, fd, data, bytes, at);
}

int ftruncate(int fd, off_t bytes)
{
	return fails(fd) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

int ftruncate64(int fd, off64_t bytes)
{
	return fails(fd) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

int fsync(int fd)
{
	char path[PATH_MAX];
	if (watch) {
		path_of(fd, path);
		watch(path);
	}
	return fails(fd) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return fails(fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int mkdir(const char *path, mode_t mode)
{
	return access(path, F_OK) != 0 && fails_path(path) ? -1 : (int)syscall(SYS_mkdirat, -100, path, mode);
}

int rename(const char *from, const char *to)
{
	return fails_path(to) ? -1 : (int)syscall(SYS_renameat2, -100, from, -100, to, 0);
}
