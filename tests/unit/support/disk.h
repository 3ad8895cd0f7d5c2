/* disk.h - a disk that fails when a test says so.
 *
 * Linking this replaces write, pwrite, fsync, fdatasync, ftruncate, mkdir and rename of the whole program, libraries
 * included. Any thread. */
#ifndef TESTS_UNIT_SUPPORT_DISK_H
#define TESTS_UNIT_SUPPORT_DISK_H

/* From now on, calls on files whose path holds one of `parts` (which must stay, NULL-terminated) fail with `number`
 * (ENOSPC, EIO); 0: the disk is well again. Sockets and pipes are left alone. */
void disk_fail(const char *const *parts, int number);
/* Call `synced` with the path of every file and folder that is synced; NULL: no more. */
void disk_watch(void (*synced)(const char *path));
/* Calls that failed since disk_fail. */
int disk_failures(void);

#endif
