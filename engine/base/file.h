/* file.h - files that are whole or absent.
 *
 * A write is: temporary name in the same folder, write, fsync, rename, fsync of the folder. After a crash the file has
 * the old or the new content, never a mixture. Every function blocks. */
#ifndef ENGINE_BASE_FILE_H
#define ENGINE_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

/* One segment of a scattered write. */
typedef struct file_part {
	const void *data;
	size_t bytes;
} file_part;

/* The status of errno, with "WHAT "NAME": reason" as its message: STATUS_NOT_FOUND, STATUS_NOMEM, STATUS_FULL (disk
 * or quota), else STATUS_IO. NAME is the last segment of `path`: absolute paths stay private. */
status file_error(error *err, const char *path, const char *what);

/* Unfinished files and folders are called NAME.tmp-XXXXXX, and may be removed by the next start. */
#define FILE_TEMPORARY ".tmp-"

/* Replace `path` by the concatenation of `parts`, atomically and durably. */
status file_write(const char *path, const file_part *parts, size_t count, error *err);

/* Write a file that no crash has to preserve: without fsync, in place. It is removed after an error. */
status file_write_scratch(const char *path, const void *data, size_t bytes, error *err);

/* Read a whole file of at most `limit` bytes; *out is malloc'ed with a NUL
 * after the last byte (not counted in *bytes); NULL on error.
 * STATUS_NOT_FOUND, STATUS_TOO_LARGE, STATUS_IO, STATUS_NOMEM. */
status file_read(const char *path, size_t limit, char **out, size_t *bytes, error *err);

/* A private read-only mapping. data is NULL for an empty file. */
typedef struct file_map {
	const unsigned char *data;
	size_t bytes;
} file_map;
status file_map_open(file_map *out, const char *path, error *err);
void file_map_close(file_map *map);

/* mkdir -p, durably; an existing folder is fine. */
status file_make_folders(const char *path, error *err);
/* fsync a folder, so that renames in it survive a power cut. */
status file_sync_folder(const char *path, error *err);
/* rm -r; missing is fine. Never follows a symbolic link. */
status file_remove_tree(const char *path, error *err);

#endif
