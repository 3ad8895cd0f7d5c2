/* transfer.h - answers into files. */
#ifndef CLI_TRANSFER_H
#define CLI_TRANSFER_H

#include "clients/cli/cli.h"

/* An answer into a file of that name ("-": stdout), which appears only when it is whole. body is stolen; accept: the
 * type, NULL: any. Returns the exit status. */
int transfer_answer(cli *c, const char *method, const char *path, json_t *body, const char *accept, const char *file);
/* Write the answer of a GET to a file in the same way. */
int transfer_download(cli *c, const char *path, const char *file);
/* Like transfer_download, with the SHA-256 that the file must have. */
int transfer_checked(cli *c, const char *path, const char *file, const char *sha256);
/* Bytes into a file of that name, which appears only when it is whole. False after a complaint. */
bool transfer_write(const char *file, const char *data, size_t bytes);

#endif
