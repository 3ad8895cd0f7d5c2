/* prefix_file.h - one state of prefix_disk.h as a file: its name, its contents, and the folder of all. Any thread. */
#ifndef ENGINE_SERVE_PREFIX_FILE_H
#define ENGINE_SERVE_PREFIX_FILE_H

#include <time.h>

#include "engine/serve/prefix_disk.h"
#include "engine/serve/prefix_index.h"

/* Read and check the file of a state, and measure the time. False: it has been found damaged. Without memory it is not
 * read (!t->done), either. */
bool prefix_file_read(const char *folder, const prefix_key *key, session_transfer *t, uint64_t *ns);
status prefix_file_write(const char *folder, const prefix_key *key, const session_transfer *t, error *err);
void prefix_file_remove(const char *folder, const prefix_key *key);

typedef struct found_file {
	prefix_entry *entry;
	struct timespec used;
} found_file;

/* List the files of the folder, least recently used first. The caller frees *out; the index takes its entries. What is
 * no state, or is past PREFIX_DISK_MOST, is removed. */
size_t prefix_file_list(const char *folder, found_file **out);

/* Return the bytes that a file system should keep free. */
int64_t prefix_file_least_free(const char *folder);
/* Return the bytes that are free; INT64_MAX: not known. */
int64_t prefix_file_free(const char *folder);

#endif
