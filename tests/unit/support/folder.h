/* folder.h - a new folder for one test, below $TMPDIR (/tmp when unset). `make unit` sets $TMPDIR to a folder in
 * memory, where a sync is free. */
#ifndef TESTS_UNIT_SUPPORT_FOLDER_H
#define TESTS_UNIT_SUPPORT_FOLDER_H

enum { FOLDER_BYTES = 64 };

/* Write the path to `out`; remove the folder with file_remove_tree. Aborts if it cannot be made. */
void folder_new(char out[FOLDER_BYTES]);

#endif
