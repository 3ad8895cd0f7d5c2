/* disk.h - a disk that fails when a test says so.
 *
 * Linking this replaces write, pwrite, fsync, fdatasync, ftruncate, mkdir and rename in the entire program, libraries
 * included. Thread-safe. */
#ifndef TESTS_UNIT_SUPPORT_DISK_H
#define TESTS_UNIT_SUPPORT_DISK_H

/* From now on, calls on files whose path contains one of `parts` fail with `number` (ENOSPC, EIO); 0: calls succeed
 * again. `parts` ends with NULL and must stay valid. Sockets and pipes never fail. */
void disk_fail(const char *const *parts, int number);
/* Call `synced` with the path of every file and folder that is synced; NULL: stop watching. */
void disk_watch(void (*synced)(const char *path));
/* Number of calls that failed since disk_fail. */
int disk_failures(void);

#endif
