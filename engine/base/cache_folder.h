/* cache_folder.h - a folder of files that can be made again, and which of them go when there are too many.
 *
 * A file that is in use has a shared lock (flock) and stays. The time of modification of a file is that of its last
 * use. Any thread; several processes may collect at once. */
#ifndef ENGINE_BASE_CACHE_FOLDER_H
#define ENGINE_BASE_CACHE_FOLDER_H

#include <stdint.h>

/* Remove the least recently used files that are not in use, until all together have at most `budget` bytes. Returns the
 * bytes of those that stay; 0 without a folder. */
int64_t cache_folder_collect(const char *folder, int64_t budget);

#endif
