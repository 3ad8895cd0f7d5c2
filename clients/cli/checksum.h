/* checksum.h - SHA-256 of files. */
#ifndef CLI_CHECKSUM_H
#define CLI_CHECKSUM_H

#include <stdbool.h>

enum { CHECKSUM_BYTES = 65 }; /* 64 hex digits and a NUL */

/* Hash a whole file. False: see errno. */
bool checksum_file(const char *path, char out[CHECKSUM_BYTES]);

#endif
