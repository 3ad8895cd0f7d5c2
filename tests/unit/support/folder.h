/* folder.h - a new folder for one test, below $TMPDIR (/tmp when unset). `make unit` sets it to a folder in memory,
 * where a sync costs nothing. */
#ifndef TESTS_UNIT_SUPPORT_FOLDER_H
#define TESTS_UNIT_SUPPORT_FOLDER_H

enum { FOLDER_BYTES = 64 };

/* Writes the path to `out`; remove it with file_remove_tree. Aborts where there can be none. */
void folder_new(char out[FOLDER_BYTES]);

#endif
