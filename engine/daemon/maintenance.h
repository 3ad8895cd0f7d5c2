/* maintenance.h - `additived backup`, `restore` and `fsck`, which work on a data folder in a process of their own.
 *
 * Exit status: 0; 1 if something is damaged (the report names it); 2 if the command failed. Reports go to stdout,
 * errors to stderr. */
#ifndef ENGINE_DAEMON_MAINTENANCE_H
#define ENGINE_DAEMON_MAINTENANCE_H

#include <stdbool.h>

/* True if the first argument names one of these commands. */
bool maintenance_is_asked(int argc, char **argv);
/* Run the command argv[0] and return the exit status. */
int maintenance_run(int argc, char **argv);

#endif
