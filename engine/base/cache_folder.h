/* cache_folder.h - a folder of files that can be made again, kept below a size.
 *
 * A file that is in use holds a shared lock (flock) and is kept. A file's modification time is the time of its last
 * use. Any thread; several processes may collect at once. */
#ifndef ENGINE_BASE_CACHE_FOLDER_H
#define ENGINE_BASE_CACHE_FOLDER_H

#include <stdint.h>

/* Remove the least recently used files that are not in use until at most `budget` bytes remain. Returns the bytes that
 * remain; 0 without a folder. */
int64_t cache_folder_collect(const char *folder, int64_t budget);

#endif
