/* transfer.h - answers into files. */
#ifndef CLI_TRANSFER_H
#define CLI_TRANSFER_H

#include "clients/cli/cli.h"

/* GET into a file of that name ("-": stdout), which appears only when it is whole. Returns the exit status. */
int transfer_download(cli *c, const char *path, const char *file);
/* Write bytes to a file; complains when that fails. */
bool transfer_write(const char *file, const char *bytes, size_t n);

#endif
